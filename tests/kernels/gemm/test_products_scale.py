"""`kernels.gemm` at scale: products of fresh random numbers against float64, element by element, of which many share a kernel.

Every dtype meets every class of shapes and every epilogue. Operands and result lie between guards, the result in memory full of
0xA5. A class has few facts (extents and strides are all odd, or all odd multiples of 16), so that its sizes share a kernel: 2000
cases have at most 240, which is counted. `TILEKIT_PARITY_CASES` says how many are run, `TILEKIT_PARITY_SEED` gives other numbers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilekit as tk
from tilekit import api, kernels
from tilekit.kernels import epilogues

COUNT = int(os.environ.get("TILEKIT_PARITY_CASES", "36"))
SEED = int(os.environ.get("TILEKIT_PARITY_SEED", "0"))
ALL, MOST_KERNELS = 2000, 240
GUARD = 64  # elements before and after, so that an aligned view stays aligned
E4, E5, BF = (np.dtype(t) for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16))
F16, F32, F64, I8, U8, I32 = (np.dtype(t) for t in (np.float16, np.float32, np.float64, np.int8, np.uint8, np.int32))
Array = np.ndarray[Any, Any]

# ------------------------------------------------------------------------------------------------------------------ the bounds
# As tilekit/lang/matmul.py states them, by kind: of `abs(a) @ abs(b)`, what each of K additions may cost, and what the
# tensor cores lose besides.

STEP = {"float64": 2.0**-52}
STEP_ELSE = 2.0**-22
LOST = {"tf32": lambda k: 2.01 * 2.0**-10, "float8": lambda k: 2.0**-12 * min(k, 128)}
# Of the result: half a unit in the last place, relative to it or to the smallest normal number.
ROUNDING = {F16: (2.0**-11, 2.0**-14), BF: (2.0**-8, 2.0**-126), F32: (2.0**-24, 2.0**-126), F64: (2.0**-53, 2.0**-1022)}


@dataclass(frozen=True)
class Value:
    """What float64 says (more than that for products of float64), and how far off a result may be before it is rounded.

    Attributes:
        exact: the value.
        off: for each element.
        unit: what an operation in the dtype of the accumulator costs, relative to its result.
    """

    exact: Array
    off: Any
    unit: float

    def plus(self, t: Array) -> Value:
        exact = self.exact + t
        return Value(exact, self.off + 2 * self.unit * (np.abs(self.exact) + np.abs(t)), self.unit)

    def times(self, t: Any) -> Value:
        exact = self.exact * t
        return Value(exact, self.off * np.abs(t) + 2 * self.unit * np.abs(exact), self.unit)

    def relu(self) -> Value:
        return Value(np.maximum(self.exact, 0), self.off, self.unit)

    def gelu(self) -> Value:
        # Its slope is 1.13 at most. Where erf is near -1, what is lost is relative to the accumulator.
        erf = np.frompyfunc(math.erf, 1, 1)(self.exact.astype(np.float64) / 2**0.5).astype(np.float64)
        return Value(self.exact * (1 + erf) / 2, 1.14 * self.off + 16 * self.unit * np.abs(self.exact), self.unit)


def product(kind: str, a: Array, b: Array) -> Value:
    """The product of these operands."""
    wide = np.longdouble if kind == "float64" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    size = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    k = a.shape[-1]
    off = ((k + 4) * STEP.get(kind, STEP_ELSE) + LOST.get(kind, lambda k: 0.0)(k)) * size
    return Value(x @ y, off, 2.0**-53 if kind == "float64" else 2.0**-24)


# --------------------------------------------------------------------------------------------------------------- the epilogues


@dataclass(frozen=True)
class Epilogue:
    """What is done with a product.

    Attributes:
        name: its own.
        expected: of the product, and what is passed.
        function: for `gemm`, if there is one.
        beside: the shape of what is passed, of M and N.
        factors: alpha and beta, where that is `c`.
        cast: the result's dtype is not that of the operands.
    """

    name: str
    expected: Callable[..., Value]
    function: Any = None
    beside: Callable[[int, int], tuple[int, ...]] | None = None
    factors: tuple[Any, Any] | None = None
    cast: bool = False


def columns(m: int, n: int) -> tuple[int, ...]:
    return (n,)


EPILOGUES = [
    Epilogue("nothing", lambda p: p),
    Epilogue("alpha, beta, c", lambda p, t: p.times(3).plus(-2 * t), beside=lambda m, n: (m, n), factors=(3, -2)),
    Epilogue("bias", Value.plus, epilogues.bias, columns),
    Epilogue("gelu", Value.gelu, epilogues.gelu),
    Epilogue("residual", Value.plus, epilogues.residual, lambda m, n: (m, n)),
    Epilogue("scale", Value.times, epilogues.scale, lambda m, n: (m, 1)),
    Epilogue("cast", lambda p: p, cast=True),
    Epilogue("relu", Value.relu, epilogues.relu),
    Epilogue("bias_relu", lambda p, t: p.plus(t).relu(), epilogues.bias_relu, columns),
]
OF_INTEGERS = [EPILOGUES[7] if one.name == "gelu" else one for one in EPILOGUES]

# ------------------------------------------------------------------------------------------------------------------- the kinds


@dataclass(frozen=True)
class Kind:
    """What is multiplied: pairs of dtypes, of which each class of shapes has one; what comes out, and out of a cast."""

    name: str
    pairs: tuple[tuple[Any, Any], ...]
    result: Any
    cast: Any


KINDS = [
    Kind("float16", ((F16, F16),), F16, F32),
    Kind("bfloat16", ((BF, BF),), BF, F32),
    Kind("tf32", ((F32, F32),), F32, BF),
    Kind(
        "float8",
        (
            (E4, E4),
            (E4, E5),
            (E5, E4),
            (E5, E5),
        ),
        F32,
        F16,
    ),
    Kind(
        "int8",
        (
            (I8, I8),
            (I8, U8),
            (U8, I8),
            (U8, U8),
        ),
        I32,
        F32,
    ),
    Kind("float32", ((F32, F32),), F32, F16),
    Kind("float64", ((F64, F64),), F64, F32),
]

# ----------------------------------------------------------------------------------------------------------------- the shapes


@dataclass(frozen=True)
class Shapes:
    """A class of shapes.

    Attributes:
        name: its own.
        of: M, N, K of the case with this number, all with the same facts.
        lie: how `a`, `b` and the result lie in memory, see `placed`.
        batch: how many matrices `a` and `b` are, 0 for one that has no such dimension.
        splits: of the sum; None leaves them to `gemm`.
    """

    name: str
    of: Callable[[int], tuple[int, int, int]]
    lie: tuple[str, str, str] = ("rows", "rows", "rows")
    batch: tuple[int, int] = (0, 0)
    splits: int | None = 1


# That an extent is equal to one of the result's is a fact as well: M, N and K are never equal, or always.


def even(n: int, low: int, count: int) -> int:
    """One of `count` odd multiples of 16."""
    return low + 32 * (n % count)


def middle(n: int) -> tuple[int, int, int]:
    return even(n, 80, 3), even(n // 3, 176, 2), even(n, 240, 5)


def odd(n: int) -> tuple[int, int, int]:
    return 67 + 4 * (n % 9), 69 + 4 * (n * 5 % 14), 127 + 2 * (n * 7 % 50)


CLASSES = [
    Shapes("few rows", lambda n: (3 + 2 * (n % 7), even(n, 144, 4), even(n, 272, 5))),
    Shapes("square", lambda n: (even(n, 80, 4),) * 3),
    Shapes("whole tiles", lambda n: (128 + 256 * (n % 2), 256, 192 + 128 * (n // 2 % 3))),
    Shapes("tall", lambda n: (even(n, 1040, 5), 48, even(n // 5, 80, 3)), splits=None),
    Shapes("wide", lambda n: (48, even(n, 1040, 5), even(n // 5, 80, 3)), splits=None),
    Shapes("a row", lambda n: (1, even(n, 144, 4), even(n, 272, 5))),
    Shapes("a column", lambda n: (even(n, 144, 4), 1, even(n, 272, 5))),
    Shapes("ragged", odd, ("rows", "rows", "padded")),
    Shapes("unaligned", odd, ("unaligned", "unaligned", "unaligned")),
    Shapes("short sums", lambda n: (*middle(n)[:2], 1 + 2 * (n % 4))),
    Shapes("long sums", lambda n: (48, 80, 1008 + 32 * (n % 30)), splits=3),
    Shapes("a turned", middle, ("columns", "rows", "padded")),
    Shapes("b turned", middle, ("rows", "columns", "rows")),
    Shapes("both turned", middle, ("columns", "columns", "columns")),
    Shapes("slices", middle, ("strided", "padded", "strided")),
    Shapes("batches", middle, ("padded", "rows", "rows"), (3, 3)),
    Shapes("a batch and a matrix", middle, ("rows", "columns", "padded"), (5, 0)),
    Shapes("a matrix and a batch", odd, ("rows", "rows", "rows"), (0, 3)),
]


def room(shape: tuple[int, ...], lie: str) -> int:
    """How many elements the memory has."""
    return 2 * GUARD + math.prod(shape[:-2]) * math.prod(_laid(shape[-2:], lie)) + 1


def _laid(shape: tuple[int, ...], lie: str) -> tuple[int, int]:
    """The rows and columns of the memory that a matrix lies in."""
    rows, columns = shape
    if lie == "strided":
        return 2 * rows, 2 * columns
    if lie == "columns":
        return columns, rows
    return rows, columns + (0 if lie == "rows" else 2 * (columns & -columns))  # which divides by the same powers of two


def placed(memory: Any, shape: tuple[int, ...], lie: str) -> Any:
    """The matrices in their memory: NumPy's or a tensor.

    They lie in rows, in columns, in rows with room behind each (padded), the same one element further on (unaligned), or are
    every second row and column (strided).
    """
    first, laid = GUARD + (lie == "unaligned"), _laid(shape[-2:], lie)
    whole = memory[first : first + math.prod(shape[:-2]) * math.prod(laid)].reshape((*shape[:-2], *laid))
    if lie == "strided":
        return whole[..., ::2, ::2]
    if lie == "columns":
        axes = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        return whole.transpose(axes) if isinstance(whole, np.ndarray) else whole.permute(*axes)
    return whole[..., : shape[-1]]


def poisoned(shape: tuple[int, ...], dtype: np.dtype[Any], lie: str) -> Array:
    """Memory full of 0xA5."""
    return np.full(room(shape, lie) * dtype.itemsize, 0xA5, np.uint8).view(dtype)


# ------------------------------------------------------------------------------------------------------------------ the cases


@dataclass(frozen=True)
class Case:
    """One product; `number` counts those of its kind and class."""

    kind: Kind
    shapes: Shapes
    epilogue: Epilogue
    pair: tuple[Any, Any]
    number: int

    def __str__(self) -> str:
        a, b, _ = self.extents
        return f"{self.kind.name}, {self.shapes.name}, {self.epilogue.name}: {self.pair[0]} {a} and {self.pair[1]} {b}"

    @property
    def extents(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The shapes of `a`, `b` and the result."""
        m, n, k = self.shapes.of(self.number)
        left, right = ((count,) if count else () for count in self.shapes.batch)
        return (*left, m, k), (*right, k, n), (*(left or right), m, n)

    @property
    def result(self) -> Any:
        """The dtype of the result."""
        return self.kind.cast if self.epilogue.cast else self.kind.result

    def op(self, a: Any, b: Any, beside: Any, out: Any) -> tk.DeviceOp[Any]:
        """The product of these tensors."""
        more: dict[str, Any] = {"epilogue": self.epilogue.function}
        if self.epilogue.factors:
            more = {"c": beside, "alpha": self.epilogue.factors[0], "beta": self.epilogue.factors[1]}
        elif beside is not None:
            more["operands"] = (beside,)
        precision = "tf32" if self.kind.name == "tf32" else "ieee"
        return kernels.gemm(a, b, dtype=self.result, out=out, splits=self.shapes.splits, precision=precision, **more)

    def kernels(self) -> list[Any]:
        """What is compiled for it, on a GPU of compute capability 9.0."""
        tensors = [
            placed(api.meta(room(shape, lie), dtype), shape, lie)
            for shape, dtype, lie in zip(self.extents, (*self.pair, self.result), self.shapes.lie, strict=True)
        ]
        beside = self.epilogue.beside
        given = None if beside is None else api.meta(beside(*self.extents[2][-2:]), self.beside)
        return specialisations(self.op(*tensors[:2], given, tensors[2]))

    @property
    def beside(self) -> Any:
        """The dtype of what the epilogue takes."""
        return I32 if self.kind.name == "int8" else F32 if self.kind.name == "float8" else self.pair[0]


def specialisations(op: tk.DeviceOp[Any]) -> list[Any]:
    """What the launches run that an op is made of, which is not run itself."""
    op.consumed()
    if isinstance(op, tk.KernelLaunch):
        return [op._plan("compile").specialisation]
    return [one for part in op.parts() for one in specialisations(part)]


def cases(count: int) -> dict[str, list[Case]]:
    """So many, or a few more, by kind and class."""
    each = -(-count // (len(KINDS) * len(CLASSES)))
    found = {}
    for i, kind in enumerate(KINDS):
        known = OF_INTEGERS if kind.name == "int8" else EPILOGUES
        for j, shapes in enumerate(CLASSES):
            given = kind, shapes, known[(i + j) % len(known)], kind.pairs[j % len(kind.pairs)]
            found[f"{kind.name}, {shapes.name}"] = [Case(*given, number) for number in range(each)]
    names = list(found)
    some = min(count, len(names))
    return {name: found[name] for name in (names[i * len(names) // some] for i in range(some))}


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Of the order of 1 for floats, larger and smaller where sums have room; all that there are for 8-bit integers."""
    if dtype.kind in "iu":
        low, high = (-100, 100) if dtype == I32 else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return rng.integers(low, high, shape, endpoint=True).astype(dtype)
    scale = 2.0 ** rng.integers(-4, 4) if dtype.itemsize > 2 or dtype == BF else 1.0
    return (rng.standard_normal(shape) * scale).astype(dtype)


def failure(case: Case, used: set[Any] | None = None) -> str | None:
    """Run a case: what is wrong, or None. Its kernels are added to `used`."""
    rng = np.random.default_rng([SEED, *f"{case.number} {case}".encode()])
    tensors, arrays = [], []
    for shape, dtype, lie in zip(case.extents, case.pair, case.shapes.lie, strict=False):
        memory, values = poisoned(shape, dtype, lie), numbers(rng, shape, dtype)
        placed(memory, shape, lie)[...] = values
        arrays.append(values)
        tensors.append(placed(api.from_host(memory).sync(), shape, lie))
    beside = case.epilogue.beside
    passed = [] if beside is None else [numbers(rng, beside(*case.extents[2][-2:]), case.beside)]
    shape, lie = case.extents[2], case.shapes.lie[2]
    before = poisoned(shape, case.result, lie)
    memory = api.from_host(before).sync()
    given = api.from_host(passed[0]).sync() if passed else None
    if used is not None:
        used.update(specialisations(case.op(*tensors, given, placed(memory, shape, lie))))
    case.op(*tensors, given, placed(memory, shape, lie)).sync()
    after = memory.to_host().sync()
    found = np.array(placed(after, shape, lie))
    placed(after, shape, lie)[...] = placed(before, shape, lie)
    if after.tobytes() != before.tobytes():
        return f"{case}: wrote outside the result"
    if case.kind.name == "int8":
        integers = product(case.kind.name, *arrays)  # exact: below 2**53
        expected = case.epilogue.expected(integers, *(t.astype(np.float64) for t in passed)).exact
        right = found == expected.astype(np.int64).astype(I32).astype(case.result)
    else:
        wide = [t.astype(np.longdouble if case.kind.name == "float64" else np.float64) for t in passed]
        value = case.epilogue.expected(product(case.kind.name, *arrays), *wide)
        rounding, normal = ROUNDING[case.result]
        expected = value.exact
        allowed = value.off + 1.01 * rounding * np.maximum(np.abs(expected) + value.off, normal)
        right = np.abs(found.astype(expected.dtype) - expected) <= allowed
    if right.all():
        return None
    at = tuple(int(i) for i in np.argwhere(~right)[0])
    return f"{case}: {int((~right).sum())} of {right.size} elements are wrong; at {at} it is {found[at]!r}, not {expected[at]!r}"


CHOSEN = cases(COUNT)


@pytest.mark.parametrize("name", CHOSEN)
def test_products_at_scale(device, name):
    some, used = CHOSEN[name], set[Any]()
    wrong = [problem for case in some if (problem := failure(case, used))]
    shown = "\n".join(wrong[:10])
    assert not wrong, f"{len(wrong)} of {len(some)} cases, seed {SEED}:\n{shown}"
    # On such a GPU the kernels are those that are counted below, since tiles follow from the number of multiprocessors.
    if device.compute_capability == (9, 0) and device.driver.multiprocessors == 132:
        assert used <= {kernel for case in some for kernel in case.kernels()}


def test_2000_cases_share_240_kernels():
    found = {case for some in cases(ALL).values() for case in some}
    assert len(found) >= ALL
    compiled = {kernel for case in found for kernel in case.kernels()}
    assert len(compiled) <= MOST_KERNELS, f"{len(found)} cases have {len(compiled)} kernels"


def test_every_kind_meets_every_epilogue():
    for kind in KINDS:
        met = {some[0].epilogue.name for some in cases(ALL).values() if some[0].kind is kind}
        assert met == {one.name for one in (OF_INTEGERS if kind.name == "int8" else EPILOGUES)}


def left_out(gemm, a, b, out, **options):
    """One of the K products of each sum is missing."""
    return gemm(a[:, :-1], b[:-1], out=out, **options)


def unwritten(gemm, a, b, out, **options):
    """The last row is as it was."""
    return gemm(a[:-1], b, out=out[:-1], **options)


def too_far(gemm, a, b, out, **options):
    """What is behind the result is written, too."""
    return gemm(a, b, out=out, **options).then(lambda y: api.memcpy(behind(y), api.zeros(1, y.dtype)))


def behind(y):
    return tk.Tensor(y.storage, (1,), y.dtype, offset=y.offset + y.size)


@pytest.mark.parametrize(
    ("wrong", "says"), [(left_out, "are wrong; at"), (unwritten, "wrong; at (66, "), (too_far, "outside the result")]
)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_mistakes_are_seen(device, kind, wrong, says, monkeypatch):
    shapes = Shapes("small", lambda n: (67, 71, 35))
    case = Case(kind, shapes, EPILOGUES[0], kind.pairs[0], 0)
    assert failure(case) is None
    gemm = kernels.gemm
    monkeypatch.setattr(kernels, "gemm", lambda a, b, **options: wrong(gemm, a, b, **options))
    assert says in failure(case)
