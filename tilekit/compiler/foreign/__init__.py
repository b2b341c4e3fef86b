"""Kernels that were not written in the tile language: CUDA C++, modules that somebody compiled, numba's own."""
