"""Experiments: the paper's tables and figures as data."""
