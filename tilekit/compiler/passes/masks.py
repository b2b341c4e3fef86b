"""Masks of loads to masks of tiles: an operand of products is loaded whole, as tiles that come ahead are, and masked then.

    t = tk.load(x, i, shape, mask=inside)            t = tk.where(inside, tk.load(x, i, shape), 0)

Legal where the elements that are left out are zeros, like those beyond the edge: what else is read of a tensor is not seen.
"""

from __future__ import annotations

from tilekit import dtypes
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import Constant, Operation, Region
from tilekit.compiler.ir.types import TileType, sampling
from tilekit.compiler.passes.factors import Factors
from tilekit.lang import elementwise

__all__ = ["mask_tiles"]

_ZEROS = {"padding_mode": (Constant("zero"),), "padding_value": (Constant(None), Constant(0), Constant(0.0))}
_MASK = "mask"


def mask_tiles(kernel: Region) -> None:
    """Mask operands of products behind their loads."""
    factors = Factors(kernel)
    with sampling():
        for region in kernel.regions():
            region.operations = [part for operation in region.operations for part in _apart(operation, factors)]


def _apart(operation: Operation, factors: Factors) -> list[Operation]:
    if _MASK not in operation.keywords or not factors.loads_one(operation, computed=True):
        return [operation]
    others = {name: value for name, value in operation.keywords.items() if name not in (_MASK, "eviction_policy")}
    if any(value not in _ZEROS.get(name, ()) for name, value in others.items()):
        return [operation]
    kept = {name: value for name, value in operation.keywords.items() if name == "eviction_policy"}
    (masked,) = operation.results
    assert isinstance(masked.type, TileType), "a load's"
    zero = Constant(0.0 if dtypes.is_float(masked.type.dtype) else 0)
    apart = Insertion(operation.location)
    tile = apart.emit("call", operation.operands, operation.what, **kept)
    apart.call(elementwise.where, operation.keywords[_MASK], tile, zero)
    apart.operations[-1].results = [masked]
    return apart.operations
