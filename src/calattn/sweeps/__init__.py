"""Sweeps: many runs from one grid file, each in a folder and a process of its own, here or on a Ray cluster."""
