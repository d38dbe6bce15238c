"""Augmentation: random distortions of batches of uint8 images, the same bits on every device."""
