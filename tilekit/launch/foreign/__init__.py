"""Launches of kernels that were not written in the tile language."""
