"""Accumulation into products: `acc + tk.mma(a, b, zeros)` and `acc + a @ b` become `tk.mma(a, b, acc)`; any other `a @ b` of
matrices becomes `tk.mma(a, b, zeros)`, rounded to the operands' dtype.

Legal by the text of `tilekit.lang.mma` and `tilekit.lang.matmul`, for the operators `+` and `+=`: the products are added up in
another order, and `a @ b` is not rounded to 16 bits before it is added. The product is read nowhere else, and is added to what
those of its operands are added up in. `tk.add` stays as it is written. What is not added up is the same operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tilekit.compiler.ir.constants import dtype_constant, is_zeros
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import Constant, Group, Operand, Operation, Region, Value, definitions, values_of
from tilekit.compiler.ir.products import Product, accumulates, product_of
from tilekit.compiler.ir.types import TileType, sampling
from tilekit.errors import CompileError
from tilekit.lang import create, matmul

__all__ = ["accumulate_products"]

_MMA = Constant(matmul.mma, "tk.mma")


def accumulate_products(kernel: Region) -> None:
    """Let products of a kernel begin with what they are added to."""
    defined = definitions(kernel)
    reads = Counter(value for operation in kernel.walk() for value in operation.reads())
    reads.update(v for region in kernel.regions() for operand in region.operands for v in values_of(operand))
    for region in kernel.regions():
        for operation in region.operations:
            if (operation.kind, operation.what) != ("binary", "+"):
                continue
            for total, product in (operation.operands, operation.operands[::-1]):
                definition = defined.get(product) if isinstance(product, Value) and reads[product] == 1 else None
                factors = None if definition is None else _factors(definition, defined)
                if definition in region.operations and factors is not None and _adds_up_in(factors, total):
                    operation.kind, operation.what, operation.keywords = "call", _MMA, dict(factors.options)
                    operation.operands = [factors.a, factors.b, total]
                    region.operations = [other for other in region.operations if other is not definition]
                    break
    with sampling():
        for region in kernel.regions():
            region.operations = [one for operation in region.operations for one in _written_out(operation)]


def _written_out(operation: Operation) -> list[Operation]:
    """A product of matrices of one dtype, as what it is made of; any other operation as it is."""
    factors = None if accumulates(operation) else product_of(operation)
    total = None if factors is None else _total(factors)
    if factors is None or total is None:
        return [operation]
    new, result = Insertion(operation.location), operation.results[0].type
    assert isinstance(result, TileType), "a product of tiles"
    zeros = new.call(create.zeros, Group(tuple(map(Constant, total.shape))), dtype_constant(total.dtype))
    product = new.call(matmul.mma, factors.a, factors.b, zeros, **factors.options)
    if total.dtype != result.dtype:
        new.emit("method", [product, dtype_constant(result.dtype)], "astype")
    new.operations[-1].results = operation.results
    return new.operations


def _factors(operation: Operation, defined: Mapping[Value, Operation]) -> Product | None:
    """A product that is added to nothing, or to zeros."""
    product = product_of(operation)
    return product if product is not None and (product.total is None or is_zeros(product.total, defined)) else None


def _adds_up_in(factors: Product, total: Operand) -> bool:
    """Whether a product is added up in a tile like this."""
    return isinstance(total, Value) and isinstance(total.type, TileType) and total.type == _total(factors)


def _total(factors: Product) -> TileType | None:
    """What a product of two matrices of one dtype is added up in."""
    types = [operand.type if isinstance(operand, Value) else None for operand in (factors.a, factors.b)]
    a, b = (ty if isinstance(ty, TileType) else None for ty in types)
    if a is None or b is None or a.dtype != b.dtype or len(a.shape) != 2 or len(b.shape) != 2:
        return None
    try:
        dtype = matmul.accumulator_dtype(a.dtype, b.dtype, "mma")
    except CompileError:
        return None
    return TileType(dtype, (a.shape[0], b.shape[1]))
