"""Scripts that show what the package does; the tests run them."""
