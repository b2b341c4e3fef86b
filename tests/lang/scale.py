"""Parity at scale: thousands of small cases, of which many share one compiled kernel.

A case is a kernel's body as text, inputs, and what NumPy says of them. Its output lies between guards in memory full of 0xA5, and
so do its inputs; the whole of the output's memory is compared. `selected(count)` picks cases evenly from all of them (`cases`
has the tables); `python scale.py TARGET PART PARTS COUNT SEED` compiles a part of their kernels into the disk cache, so that
several processes share the work.
"""

from __future__ import annotations

import functools
import linecache
import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilekit as tk
from tilekit import api, dtypes

GUARD = 64  # elements before and after, so that an aligned view stays aligned
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Near:
    """A result that rounding decides: `exact` in a wider type, and how far off it may be, in units in the last place or not."""

    exact: Array
    ulp: float = 0.0
    absolute: Any = 0.0


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        op: the operation that it is about.
        what: the rest of its name.
        body: the kernel's, with the parameters y, then a, b, c... for the inputs, then k, l... for the scalars.
        shape, dtype, tile: of the output.
        inputs: makes the inputs, of a random generator.
        expected: of the inputs and scalars: an array (compared bit by bit but for NaNs, which are equal) or a `Near`.
        scalars: passed after the inputs.
        edge: how output and inputs lie in memory: plain, unaligned, strided, fortran.
        start: what the output holds before; poison if it is None.
        role: how the kernel takes its output: Out, InOut, or scattered.
        grid: of the launch, where no partition gives it.
    """

    op: str
    what: str
    body: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    tile: tuple[int, ...]
    inputs: Callable[[np.random.Generator], Sequence[Array]]
    expected: Callable[..., Any]
    scalars: tuple[Any, ...] = ()
    edge: str = "plain"
    start: Any = None
    role: str = "Out"
    grid: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"{self.op}: {self.what}, {self.dtype.name} {self.shape} in tiles of {self.tile}, {self.edge}"


@functools.cache
def kernel_of(body: str, inputs: int, scalars: int, role: str, op: str) -> Any:
    """The kernel with this body. It stands in no file: what reads its source finds it in the line cache."""
    names = [f"y: tk.{'InOut' if role == 'scattered' else role}", *(f"{n}: tk.In" for n in "abcdef"[:inputs]), *"klmn"[:scalars]]
    text = f"@tk.kernel\ndef scale_{op}({', '.join(names)}):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"
    filename = f"<scale {op} {abs(hash((body, inputs, scalars, role)))}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    scope = {"tk": tk, "__name__": "scale"}
    exec(compile(text, filename, "exec"), scope)
    return scope[f"scale_{op}"]


# ------------------------------------------------------------------------------------------------------------ placed in memory


def room(shape: tuple[int, ...], edge: str) -> int:
    """How many elements the memory of such an array has, guards included."""
    return 2 * GUARD + math.prod(shape) * (2 if edge == "strided" else 1) + (1 if edge == "unaligned" else 0)


def view(memory: Any, shape: tuple[int, ...], edge: str) -> Any:
    """The array in its memory: NumPy's or a tensor."""
    n = math.prod(shape)
    if edge == "strided":
        wide = (*shape[:-1], 2 * shape[-1])
        return memory[GUARD : GUARD + 2 * n].reshape(wide)[(*[slice(None)] * (len(shape) - 1), slice(None, None, 2))]
    if edge == "fortran":
        return memory[GUARD : GUARD + n].reshape(tuple(reversed(shape))).T
    first = GUARD + (edge == "unaligned")
    return memory[first : first + n].reshape(shape)


def poisoned(shape: tuple[int, ...], dtype: np.dtype[Any], edge: str, contents: Any = None) -> Array:
    """Memory full of 0xA5, with `contents` in the place of the array."""
    size = room(shape, edge)
    memory = np.full(size * dtype.itemsize, 1 if dtype == tk.bool_ else 0xA5, np.uint8).view(dtype)
    if contents is not None:
        view(memory, shape, edge)[...] = contents
    return memory


def launch(case: Case, inputs: Sequence[Array]) -> tuple[Any, Any]:
    """The launch of a case, and the memory of its output."""
    memory = api.from_host(poisoned(case.shape, case.dtype, case.edge, case.start)).sync()
    y = view(memory, case.shape, case.edge)
    passed = []
    for array in inputs:
        edge = case.edge if array.ndim == len(case.shape) or case.edge == "unaligned" else "plain"
        whole = api.from_host(poisoned(array.shape, array.dtype, edge, array)).sync()
        passed.append(view(whole, array.shape, edge))
    made = kernel_of(case.body, len(inputs), len(case.scalars), case.role, case.op)
    target = y.scattered() if case.role == "scattered" else y.partition(case.tile)
    op = made(target, *passed, *case.scalars)
    return (op.grid(case.grid) if case.grid else op), memory


def seed_of(case: Case, seed: int) -> np.random.Generator:
    """A generator that depends on the case and the run's seed alone."""
    return np.random.default_rng([seed, *f"{case}{case.body}{case.scalars}".encode()])


def failure(case: Case, seed: int) -> str | None:
    """Run a case: what is wrong, or None."""
    with np.errstate(all="ignore"):
        return _failure(case, seed)


def _failure(case: Case, seed: int) -> str | None:
    inputs = case.inputs(seed_of(case, seed))
    before = poisoned(case.shape, case.dtype, case.edge, case.start)
    op, memory = launch(case, inputs)
    op.sync()
    after = memory.to_host().sync()
    found = np.array(view(after, case.shape, case.edge))
    view(after, case.shape, case.edge)[...] = view(before, case.shape, case.edge)
    if after.tobytes() != before.tobytes():
        places = np.flatnonzero(after.view(np.uint8) != before.view(np.uint8))[:4] // case.dtype.itemsize - GUARD
        return f"{case}: wrote outside the tensor, at elements {places.tolist()} from its start"
    return difference(case, found, case.expected(*inputs, *case.scalars))


def difference(case: Case, found: Array, expected: Any) -> str | None:
    """Where the result is not what was expected, or None."""
    if isinstance(expected, Near):
        exact = np.broadcast_to(expected.exact, case.shape)
        right = _near(found, exact, expected, case.dtype)
    else:
        exact = np.broadcast_to(np.asarray(expected), case.shape)
        if exact.dtype != case.dtype:
            return f"{case}: the reference gives {exact.dtype}, which is a mistake in the table"
        bits = np.dtype(f"u{case.dtype.itemsize}")
        right = np.ascontiguousarray(found).view(bits) == np.ascontiguousarray(exact).view(bits)
        if dtypes.is_float(case.dtype):
            right |= np.isnan(found.astype(np.float64)) & np.isnan(exact.astype(np.float64))
    if right.all():
        return None
    place = tuple(int(i) for i in np.argwhere(~right)[0])
    count = int((~right).sum())
    return f"{case}: {count} of {right.size} elements differ; at {place} it is {found[place]!r}, not {exact[place]!r}"


_FORMAT = {tk.float16: (10, -14), tk.bfloat16: (7, -126), tk.float32: (23, -126), tk.float64: (52, -1022)}


def _near(found: Array, exact: Array, limit: Near, dtype: np.dtype[Any]) -> Any:
    wide = np.longdouble if dtype == tk.float64 else np.float64
    f, e = found.astype(wide), exact.astype(wide)
    mantissa, lowest = _FORMAT[dtype]
    exponent = np.maximum(np.frexp(np.where(np.isfinite(e), e, 1))[1] - 1, lowest)
    step = np.ldexp(np.ones_like(e), exponent - mantissa)
    allowed = (limit.ulp + 0.01) * step + limit.absolute
    largest = np.ldexp(wide(2 - 2.0**-mantissa), 2 - lowest - 1)
    overflowed = np.isinf(f) & (np.sign(f) == np.sign(e)) & (np.abs(e) + np.maximum(allowed, step) > largest)
    return (np.isnan(f) & np.isnan(e)) | (f == e) | overflowed | (np.isfinite(f) & np.isfinite(e) & (np.abs(f - e) <= allowed))


# ------------------------------------------------------------------------------------------------------------------ the choice


@functools.cache
def everything() -> tuple[Case, ...]:
    """All cases."""
    from cases import ALL

    return tuple(case for family in ALL for case in family())


def selected(count: int) -> list[Case]:
    """At least `count` cases (or all there are), of every operation some, evenly from its list."""
    by_op: dict[str, list[Case]] = {}
    for case in everything():
        by_op.setdefault(case.op, []).append(case)
    share = min(1.0, count / len(everything()))
    chosen = []
    for of_op in by_op.values():
        wanted = max(2, math.ceil(share * len(of_op)))
        chosen += [of_op[i * len(of_op) // wanted] for i in range(min(wanted, len(of_op)))]
    return chosen


def compile_part(target: str, part: int, parts: int, count: int, seed: int) -> Iterator[str]:
    """Compile every `parts`-th specialisation into the disk cache; gives the failures."""
    seen: dict[int, Any] = {}
    for case in selected(count):
        with np.errstate(all="ignore"):
            op, _ = launch(case, case.inputs(seed_of(case, seed)))
        specialisation = op._plan("compile").specialisation
        if id(specialisation) not in seen:
            seen[id(specialisation)] = specialisation
            if len(seen) % parts == part:
                try:
                    op.compile(target=target)
                except tk.CompileError as error:
                    yield f"{case}: {error}"
        op._spent = True


if __name__ == "__main__":
    target, *numbers = sys.argv[1:]
    failures = list(compile_part(target, *map(int, numbers)))
    sys.stdout.write("".join(f"{line}\n" for line in failures))
    sys.exit(bool(failures))
