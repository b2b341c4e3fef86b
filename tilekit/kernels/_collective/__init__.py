"""Kernels that communicate through symmetric memory: `all_reduce`; `gathered` and `scattered` products, which overlap with it.

`together` launches on all devices of a group at once, `signals` has the words that kernels leave for each other.
"""
