"""The tables of `scale`: families of cases, each a function that gives them."""

from cases import elementwise, folds, moves, placed, products

ALL = [*elementwise.FAMILIES, *moves.FAMILIES, *folds.FAMILIES, *placed.FAMILIES, *products.FAMILIES]
