"""Products of matrices in the kernel IR, in whatever way they are written: what a product is, for passes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.ir.elementwise import is_elementwise
from tilekit.compiler.ir.nodes import LOOPS, Constant, Operand, Operation, Region, Value
from tilekit.compiler.ir.types import TileType
from tilekit.dtypes import DType
from tilekit.lang import matmul
from tilekit.lang.registry import OPS

__all__ = ["PRODUCTS", "Product", "accumulates", "extents", "is_product", "of_products", "product_of"]

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


def of_products(kernel: Region) -> Mapping[Value, DType]:
    """The results of a kernel's products, and what is made of them element by element, in loops and branches too: tiles whose
    elements lie as those of a product's result do. With the dtype of the operands of the product."""
    dtypes: dict[Value, DType] = {}
    before = -1
    while before < len(dtypes):
        before = len(dtypes)
        for operation in kernel.walk():
            _follow(operation, dtypes)
    return dtypes


def _follow(operation: Operation, dtypes: dict[Value, DType]) -> None:
    """Note what an operation makes of products."""

    def note(operands: Iterable[Operand], results: Iterable[Value]) -> None:
        dtype = next((dtypes[x] for x in operands if isinstance(x, Value) and x in dtypes), None)
        if dtype is not None:
            dtypes.update(dict.fromkeys(results, dtype))

    product = product_of(operation) if accumulates(operation) else None
    if product is not None:
        if isinstance(product.b, Value) and isinstance(product.b.type, TileType):
            dtypes[operation.results[0]] = product.b.type.dtype
    elif operation.kind in LOOPS:
        for before, first, result in zip(operation.carried, operation.initial, operation.results, strict=True):
            ends = [end.operands[operation.carried.index(before)] for end in operation.ends()]
            note([first, *ends], [before, result])
    elif operation.kind == "if":
        for at, result in enumerate(operation.results):
            note([region.operands[at] for region in operation.regions if region.exit == "yield"], [result])
    elif operation.kind == "call" and operation.what.value is intrinsics.sum_of_blocks:
        note(operation.operands, operation.results)
    elif is_elementwise(operation):
        note([v for v in operation.reads() if extents(v) == extents(operation.results[0])], operation.results)


def extents(value: Value) -> tuple[int, ...]:
    """A tile's extents, but for those of 1."""
    return tuple(n for n in value.type.shape if n > 1) if isinstance(value.type, TileType) else ()
