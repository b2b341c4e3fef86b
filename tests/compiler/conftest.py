"""Facts made by hand, and kernels compiled from them: without a launcher, and without a GPU."""

import inspect
import re
from collections import Counter
from dataclasses import dataclass

import pytest

from tilekit.compiler.facts import ScalarFacts, TensorFacts, divisor, extent_divisor
from tilekit.compiler.frontend.source import KernelSource
from tilekit.compiler.kernel import CompiledKernel
from tilekit.compiler.specialise import bind

SCALARS = {float: ScalarFacts("float64"), int: ScalarFacts("int64"), bool: ScalarFacts("bool")}


@dataclass(frozen=True)
class Tensors:
    """Makes facts as the launcher derives them."""

    def __call__(self, shape, dtype="float32", *, role="in", tile=None, strides=None, align=16, covered=True):
        shape = shape if isinstance(shape, tuple) else (shape,)
        if strides is None:
            strides = [1] * len(shape)
            for dim in reversed(range(len(shape) - 1)):
                strides[dim] = strides[dim + 1] * shape[dim + 1]
        unit = max((dim for dim, stride in enumerate(strides) if stride == 1), default=None)
        return TensorFacts(
            dtype=dtype,
            role=role,
            tile=tile,
            rank=len(shape),
            unit=unit,
            align=align,
            extents=tuple(extent_divisor(n) for n in shape),
            strides=tuple(0 if dim == unit else divisor(stride) for dim, stride in enumerate(strides)),
            wide=max(shape) >= 1 << 31,
            covered=covered,
        )

    def out(self, shape, tile, dtype="float32", *, role="out", **kwargs):
        return self(shape, dtype, role=role, tile=tile if isinstance(tile, tuple) else (tile,), **kwargs)

    def inout(self, shape, tile, dtype="float32", **kwargs):
        return self.out(shape, tile, dtype, role="inout", **kwargs)


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel, and the accesses to memory in its machine code, counted by instruction."""

    kernel: CompiledKernel
    accesses: Counter[str]

    @property
    def bits(self) -> set[int]:
        """The widths of its accesses to global memory, in bits."""
        return {_bits(name) for name in self.accesses if name.startswith(("LDG", "STG"))}

    @property
    def uses_local_memory(self) -> bool:
        return bool(self.kernel.local_bytes or ".local" in self.kernel.ptx or any("DL" in n or "TL" in n for n in self.accesses))


def _bits(instruction):
    found = re.search(r"\.(?:[SU])?(8|16|64|128)\b", instruction)
    return int(found[1]) if found else 32


@pytest.fixture
def tensor():
    return Tensors()


@pytest.fixture
def compiled():
    """Compile a plain function: `compiled(function, *facts, target="sm_90a")`; `float`, `int`, `bool` stand for scalars."""

    def make(function, *facts, target="sm_90a", num_warps=None):
        from tilekit.compiler.build import build

        assert len(facts) == len(inspect.signature(function).parameters)
        bound = bind(function, KernelSource(function), {}, {})
        kernel = build(bound, tuple(SCALARS.get(fact, fact) for fact in facts), num_warps, target)
        return Compiled(kernel, Counter(re.findall(r"\b((?:LDG|STG|LDL|STL)\b[.\w]*)", kernel.sass)))

    return make
