"""The reproduction: the paper's tables, figures and claims, and our numbers beside them."""
