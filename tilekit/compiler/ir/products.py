"""Products of matrices in the kernel IR, in whatever way they are written: what a product is, for passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.ir.nodes import Constant, Operand, Operation
from tilekit.lang import matmul
from tilekit.lang.registry import OPS

__all__ = ["PRODUCTS", "Product", "accumulates", "is_product", "product_of"]

PRODUCTS = {row.function: row.signature for row in OPS.values() if row.family == matmul.__name__.rpartition(".")[2]}
"""The operations of the language that are products, with their signatures: the rows of the family `matmul`."""
_ALL = PRODUCTS | {intrinsics.mma_abreast: PRODUCTS[matmul.mma]}


class Product(NamedTuple):
    """What a product is of.

    Attributes:
        a, b: the operands.
        total: what it is added to, as in `tk.mma`; None of a product that is added to nothing.
        options: further arguments, by their names, such as `precision`.
    """

    a: Operand
    b: Operand
    total: Operand | None
    options: Mapping[str, Operand]


def product_of(operation: Operation) -> Product | None:
    """The product that an operation is: `tk.mma`, `tk.matmul` or `@`; None of any other operation. `b` is several, if it is one
    of `passes.abreast`."""
    if (operation.kind, operation.what) == ("binary", "@"):
        return Product(operation.operands[0], operation.operands[1], None, {})
    called = operation.what.value if operation.kind == "call" and isinstance(operation.what, Constant) else None
    signature = next((signature for function, signature in _ALL.items() if function is called), None)
    if signature is None:
        return None
    given = dict(signature.bind(*operation.operands, **operation.keywords).arguments)
    return Product(given.pop("a"), given.pop("b"), given.pop("acc", None), given)


def is_product(operation: Operation) -> bool:
    """Whether it is a product, in whatever way it is written."""
    return product_of(operation) is not None


def accumulates(operation: Operation) -> bool:
    """Whether it is a product that is added to a tile: behind `accumulate_products` almost every product is."""
    product = product_of(operation)
    return product is not None and product.total is not None
