"""From a kernel's text to a function without generics: parsing, checks, constant folding, inlining. No numba here."""
