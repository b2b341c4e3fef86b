"""Analyses and rewrites of a bound kernel's syntax tree, before numba: pipelining, aliasing, multicast. One file a pass."""
