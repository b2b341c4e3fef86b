"""Analyses and rewrites of the kernel IR, before numba: one file a pass. `footprints` and `aliasing` look at the text."""
