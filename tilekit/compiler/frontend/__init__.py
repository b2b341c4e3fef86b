"""From the text of a kernel to a function without generics: its source, its names, what it may not contain. No numba here."""
