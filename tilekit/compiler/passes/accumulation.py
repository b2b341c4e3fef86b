"""Accumulation into products: `acc + tk.mma(a, b, zeros)` and `acc + a @ b` become `tk.mma(a, b, acc)`; any other `a @ b` of
matrices becomes `tk.mma(a, b, zeros)`, rounded to the operands' dtype.

Products that are subtracted are added up, and the sum is subtracted behind the loop, if turns do nothing else with it:

    for ...:                                acc = -acc
        acc -= a @ b                        for ...:
                                                acc = tk.mma(a, b, acc)
                                            acc = 0 - acc

and so are those of an operand that is negated; else `acc - a @ b` of floats becomes `tk.mma(-a, b, acc)`. A sum's negative is the
sum of negatives, rounded alike; 0 stays the one without a sign.

Legal by the text of `tilekit.lang.mma` and `tilekit.lang.matmul`, for the operators `+` and `+=`: the products are added up in
another order, and `a @ b` is not rounded to 16 bits before it is added. The product is read nowhere else, and is added to what
those of its operands are added up in. `tk.add` stays as it is written. What is not added up is the same operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from tilekit import dtypes
from tilekit.compiler.ir.constants import dtype_constant, is_zeros
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import LOOPS, Constant, Group, Operand, Operation, Region, Value, definitions, values_of
from tilekit.compiler.ir.products import Product, accumulates, product_of
from tilekit.compiler.ir.types import TileType, sampling
from tilekit.errors import CompileError
from tilekit.lang import create, matmul

__all__ = ["accumulate_products", "sum_type"]

_MMA = Constant(matmul.mma, "tk.mma")


def accumulate_products(kernel: Region) -> None:
    """Let products of a kernel begin with what they are added to."""
    with sampling():
        _add_negatives(kernel)
        known = _Known(kernel)
        for region in list(kernel.regions()):
            if any(operation.kind in LOOPS for operation in region.operations):
                region.operations = [one for loop in region.operations for one in _added_up(loop, known)]
        for region in kernel.regions():
            for operation in list(region.operations):
                link = known.link(operation, region)
                if link is None or link.product is operation or (link.subtracts and not link.is_real):
                    continue
                if link.subtracts:
                    at, new = region.operations.index(operation), Insertion(operation.location)
                    link = link._replace(factors=link.factors._replace(a=new.emit("unary", [link.factors.a], "-")))
                    region.operations[at:at] = new.operations
                _add_up(link, region)
        _drop_negatives(kernel)
        for region in kernel.regions():
            region.operations = [one for operation in region.operations for one in _written_out(operation)]


def _add_negatives(kernel: Region) -> None:
    """Let a tile whose negative is added be subtracted, and the other way round."""
    defined = definitions(kernel)
    for operation in kernel.walk():
        while operation.kind == "binary" and operation.what in ("+", "-"):
            first, second = operation.operands
            if (tile := _negated(second, defined)) is not None:
                operation.operands, operation.what = [first, tile], "-" if operation.what == "+" else "+"
            elif operation.what == "+" and (tile := _negated(first, defined)) is not None:
                operation.operands, operation.what = [second, tile], "-"
            else:
                break
    _drop_negatives(kernel)


def _drop_negatives(kernel: Region) -> None:
    """Leave out negatives that nobody reads: what they are of may be read once then, or go."""
    reads = _reads(kernel)
    for region in list(kernel.regions())[::-1]:
        for operation in region.operations[::-1]:
            if (operation.kind, operation.what) == ("unary", "-") and not reads[operation.results[0]]:
                region.operations = [other for other in region.operations if other is not operation]
                reads.subtract(operation.reads())


def _reads(kernel: Region) -> Counter[Value]:
    """How often each value is read."""
    reads = Counter(value for operation in kernel.walk() for value in operation.reads())
    reads.update(v for region in kernel.regions() for operand in region.operands for v in values_of(operand))
    return reads


def _negated(operand: Operand, defined: Mapping[Value, Operation]) -> Operand | None:
    """The tile that one is the negative of; None if it is no such thing."""
    definition = defined.get(operand) if isinstance(operand, Value) and isinstance(operand.type, TileType) else None
    if definition is None or (definition.kind, definition.what) != ("unary", "-"):
        return None
    tile = definition.operands[0]
    return tile if isinstance(tile, Value) and tile.type == operand.type else None  # type: ignore[union-attr]


class _Link(NamedTuple):
    """A sum to which a product is added, or from which it is subtracted.

    Attributes:
        operation, product: what has the new sum, and what has the product, which may be that one.
        factors: of the product, which are no negatives.
        total: the sum so far.
        subtracts: whether the product is subtracted.
        is_real: whether it is of floats.
    """

    operation: Operation
    product: Operation
    factors: Product
    total: Value
    subtracts: bool
    is_real: bool


class _Known:
    """What makes each value of a kernel, and how often each is read."""

    def __init__(self, kernel: Region) -> None:
        self.defined, self.reads = definitions(kernel), _reads(kernel)

    def link(self, operation: Operation, region: Region) -> _Link | None:
        """What an operation of a region is, if it adds a product to a sum, or subtracts it."""
        if accumulates(operation):
            product = product_of(operation)
            assert product is not None, "it accumulates"
            return self._linked(operation, operation, product, product.total, subtracts=False)
        if operation.kind != "binary" or operation.what not in ("+", "-"):
            return None
        first, second = operation.operands
        for total, product_ in ((first, second), (second, first))[: 2 if operation.what == "+" else 1]:
            definition = self.defined.get(product_) if isinstance(product_, Value) and self.reads[product_] == 1 else None
            factors = None if definition is None else _factors(definition, self.defined)
            if definition is not None and definition in region.operations and factors is not None:
                link = self._linked(operation, definition, factors, total, subtracts=operation.what == "-")
                if link is not None:
                    return link
        return None

    def _linked(
        self, operation: Operation, product: Operation, factors: Product, total: Operand | None, *, subtracts: bool
    ) -> _Link | None:
        if total is None or not isinstance(total, Value) or not _adds_up_in(factors, total):
            return None
        real = isinstance(factors.a, Value) and isinstance(factors.a.type, TileType) and dtypes.is_float(factors.a.type.dtype)
        while real and (tile := _negated(factors.a, self.defined)) is not None:
            factors, subtracts = factors._replace(a=tile), not subtracts
        while real and (tile := _negated(factors.b, self.defined)) is not None:
            factors, subtracts = factors._replace(b=tile), not subtracts
        return _Link(operation, product, factors, total, subtracts, real)


def _add_up(link: _Link, region: Region) -> None:
    """Let a product begin with what it is added to."""
    link.operation.kind, link.operation.what, link.operation.keywords = "call", _MMA, dict(link.factors.options)
    link.operation.operands = [link.factors.a, link.factors.b, link.total]
    if link.product is not link.operation:
        region.operations = [other for other in region.operations if other is not link.product]


def _added_up(loop: Operation, known: _Known) -> list[Operation]:
    """A loop whose turns add up what they are to subtract, and what stands before it and behind it for that."""
    if loop.kind not in LOOPS or list(loop.ends()) != loop.regions:
        return [loop]
    (body,) = loop.regions
    before, behind = Insertion(loop.location), Insertion(loop.location)
    for at, total in enumerate(loop.carried):
        links = _chain(total, body.operands[at], body, known)
        begins = len(loop.operands) - len(loop.results) + at
        if not links or not all(link.subtracts for link in links) or not isinstance(loop.operands[begins], Value):
            continue
        for link in links:
            _add_up(link, body)
        if not is_zeros(loop.operands[begins], known.defined):
            loop.operands[begins] = before.emit("unary", [loop.operands[begins]], "-")
        result = loop.results[at]
        loop.results[at] = sum_ = Value(result.name, result.type)
        assert isinstance(result.type, TileType), "a sum of products"
        behind.emit("binary", [Constant(0.0 if dtypes.is_float(result.type.dtype) else 0), sum_], "-")
        behind.operations[-1].results = [result]
    return [*before.operations, loop, *behind.operations]


def _chain(total: Value, end: Operand, body: Region, known: _Known) -> list[_Link]:
    """The sums that a turn makes of one that it is given, each of the one before; none if it does anything else with them."""
    links: list[_Link] = []
    while known.reads[total] == 1:
        if end is total:
            return links
        reader = next((operation for operation in body.operations if total in operation.reads()), None)
        link = None if reader is None else known.link(reader, body)
        if link is None or link.total is not total:
            break
        links.append(link)
        (total,) = link.operation.results
    return []


def _written_out(operation: Operation) -> list[Operation]:
    """A product of matrices of one dtype, as what it is made of; any other operation as it is."""
    factors = None if accumulates(operation) else product_of(operation)
    total = None if factors is None else sum_type(factors)
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
    return isinstance(total, Value) and isinstance(total.type, TileType) and total.type == sum_type(factors)


def sum_type(factors: Product) -> TileType | None:
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
