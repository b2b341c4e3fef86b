"""Which thread has which element of a tile: linear maps over bits, conversions between them, the fragments of products."""
