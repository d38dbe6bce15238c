"""Files: written whole or not at all; predictions as tensors and a manifest."""
