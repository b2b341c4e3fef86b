"""Accumulation into products: `acc + tk.mma(a, b, zeros)` becomes `tk.mma(a, b, acc)`.

Legal by the text of `tilekit.lang.mma`, for the operators `+` and `+=`: the products are added up in another order.
The product is read nowhere else, and has the type of what it is added to, so that no rounding is left out. `tk.add` stays as
it is written.
"""

from __future__ import annotations

from collections import Counter

from tilekit.compiler.ir.nodes import Constant, Operand, Operation, Region, Value, definitions, values_of
from tilekit.lang import create, matmul

__all__ = ["accumulate_products"]


def accumulate_products(kernel: Region) -> None:
    """Let products of a kernel begin with what they are added to."""
    defined = definitions(kernel)
    reads = Counter(value for operation in kernel.walk() for value in operation.reads())
    reads.update(v for region in kernel.regions() for operand in region.operands for v in values_of(operand))
    for region in kernel.regions():
        for operation in region.operations:
            if (operation.kind, operation.what) != ("binary", "+"):
                continue
            first, second = operation.operands
            for total, product in ((first, second), (second, first)):
                definition = defined.get(product) if isinstance(product, Value) and reads[product] == 1 else None
                if (
                    definition is not None
                    and definition in region.operations
                    and _adds_to_zeros(definition, defined)
                    and _same_type(total, product)
                ):
                    a, b, _ = definition.operands
                    operation.kind, operation.what, operation.keywords = "call", definition.what, dict(definition.keywords)
                    operation.operands = [a, b, total]
                    region.operations = [other for other in region.operations if other is not definition]
                    break


def _adds_to_zeros(operation: Operation, defined: dict[Value, Operation]) -> bool:
    """Whether it is a product that begins with zeros."""
    if operation.kind != "call" or operation.what.value is not matmul.mma or len(operation.operands) != 3:
        return False
    start = operation.operands[2]
    definition = defined.get(start) if isinstance(start, Value) else None
    if definition is None or definition.kind != "call":
        return False
    full = (
        definition.what.value is create.full
        and len(definition.operands) > 1
        and definition.operands[1] in (Constant(0), Constant(0.0))
    )
    return definition.what.value is create.zeros or full


def _same_type(first: Operand, second: Operand) -> bool:
    return isinstance(first, Value) and isinstance(second, Value) and first.type == second.type
