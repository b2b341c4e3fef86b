"""Kernels on the CPU device."""
