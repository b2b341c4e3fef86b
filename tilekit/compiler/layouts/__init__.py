"""Layouts, linear maps over bits: which thread has which element of a tile; conversions, swizzles, fragments of products."""
