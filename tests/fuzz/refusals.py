"""Kernels that are wrong on purpose: each must be refused by both devices, in words, and at the user's line.

A case is a small kernel that would work, of a random dtype and shape, with one statement in it that cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from draws import Draw
from grammar import contents
from programs import dtype_text
from running import kernel_of
from values import BF16, BOOL, DTYPES, EIGHTS, F16, F32, F64, FLOATS, INT32, INTEGERS, SIGNED, UNSIGNED, DType, is_float

import tilekit as tk
from tilekit import api

NUMBERS = [F32, INT32, F16, BF16, F64, *INTEGERS[1:]]
EVERYTHING = [*NUMBERS, BOOL]
# What only somebody who knows numba would understand.
RAW = [
    "nopython", "numba.core", "TypingError", "No implementation", "LoweringError", "Invalid use of", "NotImplementedError",
    "Untyped global", "Traceback", "reportable", "Cannot unify", "llvmlite", "UniTuple", "Literal[", "type inference",
]  # fmt: skip


class Wrong(NamedTuple):
    """A statement that cannot be: for tiles `t` and `u` of some dtype and shape, of the dtypes for which it is wrong."""

    text: str
    dtypes: list[DType]
    least: int = 1  # dimensions
    at: int = 0  # the line of the text that the error is at


def _both(*texts: str, of: list[DType] | None = None, least: int = 1, at: int = 0) -> list[Wrong]:
    return [Wrong(text, of or EVERYTHING, least, at) for text in texts]


STATEMENTS: list[Wrong] = [
    *_both("v = t + t.astype({signed})", of=UNSIGNED),
    *_both("v = t * t.astype(tk.bfloat16)", "v = tk.maximum(t, t.astype(tk.bfloat16))", of=[F16]),
    *_both("v = t + t", "v = -t", "v = tk.mul(t, t)", "v = tk.sign(t)", "v = tk.max(t)", "v = tk.argmin(t, 0)", of=[BOOL]),
    *_both("v = t << 1", "v = ~t", "v = t & t", "v = tk.popcount(t)", "v = tk.mulhi(t, t)", "v = tk.cdiv(t, 3)", of=FLOATS),
    *_both(
        "v = tk.exp(t)",
        "v = tk.floor(t)",
        "v = tk.isnan(t)",
        "v = tk.sin(t)",
        "v = tk.atan2(t, t)",
        "v = tk.sqrt(t)",
        of=INTEGERS,
    ),
    *_both("v = tk.add(t, t, rounding_mode='zero')", "v = tk.mul(t, 2, flush_to_zero=True)", of=INTEGERS),
    *_both(
        "v = t < 100000", "v = t + 70000", "v = tk.where(t > 0, t, 99999)", of=[DTYPES["int8"], DTYPES["uint8"], DTYPES["int16"]]
    ),
    *_both("v = tk.add(t, 1, rounding_mode='up')", "v = tk.sqrt(t, rounding_mode='full')", of=[F32]),
    *_both("v = tk.sum(t.astype(tk.float8_e5m2))", "v = t.astype(tk.float8_e4m3fn) + 1.0", of=FLOATS),
    *_both("v = tk.bitcast(t, tk.int64)", of=[F32, F16, BF16, INT32]),
    *_both("v = tk.where(t, t, t)", of=NUMBERS),
    *_both("v = tk.reshape(t, {double})", "v = t.reshape(3)", "v = tk.zeros(3)", "v = tk.arange(6)", "v = tk.full((4, 5), 1)"),
    *_both("v = tk.sum(t, {rank})", "v = tk.expand_dims(t, {rank} + 2)", "v = tk.sort(t, {rank})", of=NUMBERS),
    *_both("v = tk.cumsum(t, 0.5)", "v = tk.sum(t, (0, 0))", of=NUMBERS),
    *_both("v = tk.permute(t, (0, 0))", "v = tk.permute(t, (0,))", "v = tk.transpose(t, 0, 5)", least=2),
    *_both("v = tk.cat((t, t, t), 0)", "v = tk.cat((t, tk.sum(t, keepdims=True)), 0)", "v = tk.extract(t, 0, 1024)", of=NUMBERS),
    *_both("v = tk.extract(t, {index}, {shape})", "v = tk.insert(t, 0, t.astype(tk.bool_))", of=NUMBERS),
    *_both("v = tk.topk(t, 3)", "v = tk.topk(t, 4096)", of=NUMBERS),
    *_both("v = tk.histogram(t, 8)", of=FLOATS),
    *_both("v = tk.histogram(t, 12)", "v = tk.histogram(t, 2**20)", of=INTEGERS),
    *_both("v = tk.mma(t, t, t)", "v = t @ t", of=[INT32, DTYPES["int64"], DTYPES["uint16"]], least=2),
    *_both("v = tk.matmul(t, tk.zeros((1024, 2), {dtype}))", of=FLOATS, least=2),
    *_both("v = tk.load(x, 0.5, {shape})", "v = tk.load(x, {index}, {shape}, order='X')"),
    *_both("v = tk.load(x, {index}, {shape}, padding_mode='nan')", of=INTEGERS),
    *_both("v = t // 0", "v = t % 0", "v = divmod(t, 0)", "t //= 0", of=NUMBERS),
    *_both(
        "v = tk.load(x, {index}, {shape}, padding_value=300)",
        "v = tk.load(x, {index}, {shape}, padding_value=-129)",
        of=[DTYPES["int8"]],
    ),
    *_both("v = tk.load(x, {index}, {shape}, padding_value=-1)", of=UNSIGNED),
    *_both("v = tk.load(x, {index}, {shape}, padding_mode='some')", "v = tk.load(x, {index}, {shape}, mask=1)"),
    *_both("v = tk.load(x, {index}, {shape}, eviction_policy='never')", "v = tk.load(x, {index} + (0,), {shape})"),
    *_both("v = tk.gather(x, 0.5)", "v = tk.gather(x, (0, 0, 0, 0, 0))", "v = tk.gather(t, 0)"),
    *_both(
        "tk.store(x, {index}, t)",
        "x.store(t)",
        "v = y.load()",
        "v = tk.load(y, {index}, {shape})",
        "tk.atomic_add(x, {index}, 1)",
    ),
    *_both("y.store(tk.zeros(2048))", "y.stor(t)", "v = y.shap", "v = t.asType(tk.float32)", "v = t.foo"),
    *_both("v = tk.zeroes(4)", "v = tk.dot(t, t)", "v = undefined_name + 1", "v = tk.bid(3)", "v = tk.num_blocks(-1)"),
    *_both("v = t[0]", "v = t[0:1]", "v = len(t)", "v = t and t", "v = not t", "v = t in (1, 2)", of=NUMBERS),
    *_both("v = {{t, t}}", "v = {{1: 2}}", "v = f'{{n}}'", "import math", "v = [i for i in range(n)]", "global z", "del t"),
    *_both("v = tk.astile((1, 2, 3))", "v = tk.astile(((1, 2), 3))", "v = tk.astype(t, 'nothing')", "v = t.astype(None)"),
    *_both("v = tk.reduce(t, 0, lambda a: a)", "v = tk.scan(t, 0, lambda a, b, c: a)", "v = tk.reduce(t, 0, 5)", of=NUMBERS),
    *_both("v = tk.reduce(t, 0, lambda a, b: (a, b))", "v = tk.reduce(t, 0, lambda a, b: a > b)", of=NUMBERS),
    *_both(
        "v = tk.rand(0.5, tk.arange(4))",
        "v = tk.rand(1, t)",
        "v = tk.philox(1, t)",
        "v = tk.randint(1, tk.arange(4), 5, 5)",
        of=FLOATS,
    ),
    *_both(
        "v = tk.randn(1, tk.arange(4), tk.int32)",
        "v = tk.clip(t)",
        "v = tk.sum()",
        "v = tk.exp(t, t, t)",
        "v = tk.full(4)",
        "v = 7 % 0",
        "v = n // 0",
        "v = n % (2 - 2)",
        "v = divmod(n, 0)",
        "for i in range(2.5):\n        v = i",
        "for i in range(0, 5, 0):\n        v = i",
        "for i in range(n, 0, 0):\n        v = i",
        "v = 2**70",
        "v, u, *w = (1,)",
        "t.foo = 1",
        "x.shape = (1,)",
        "v, w = (1, 2, 3)",
        "v = n(1)",
        "v = sorted((2, 1))",
        "v = tk.zeros(2**21)",
    ),
    *_both("v = tk.minimum(t, t, propagate_nan=1)", "v = tk.static_assert(1 > 2)", "v = tk.maximum(t, 'a')", of=NUMBERS),
    *_both("v = tk.load_tile_like(x, x)", "v = tk.load_tile_like(y, y)", "v = x.tiles()", "v = x.tiles(3)", "v = x.slice(9, 0)"),
    *_both("for w in t:\n        v = w", "if t > 0:\n        v = 1", "while t > 0:\n        v = 1", of=NUMBERS),
    *_both(
        "for w in tk.pipelined(x):\n        v = w",
        "for w in tk.pipelined():\n        v = w",
        "v = tk.pipelined(x.tiles({shape}))",
    ),
    *_both("if n > 5:\n        w = 1\n    v = w", "for w in range(n):\n        pass\n    v = w", at=-1),
    *_both("for w in tk.pipelined(x.tiles({shape}), stages=99):\n        v = w"),
]


class Case(NamedTuple):
    """A wrong kernel: its text, the line that is wrong, and what it is launched with."""

    source: str
    line: str
    dtype: DType
    shape: tuple[int, ...]
    array: Any

    def op(self, meta: bool) -> Any:
        """The launch."""
        empty: Callable[..., Any] = api.meta if meta else lambda s, d: api.from_host(np.zeros(s, d)).sync()
        x = api.meta(self.shape, self.dtype) if meta else api.from_host(self.array).sync()
        return kernel_of(self.source)(empty(self.shape, self.dtype).partition(self.shape), x, 3)


def case(seed: Any, draw: Draw | None = None) -> Case:
    """The case of a seed."""
    draw = draw or Draw(("refusals", seed))
    wrong = draw.pick(STATEMENTS)
    dtype = draw.pick(wrong.dtypes)
    shape = draw.pick([s for s in [(8,), (16,), (4, 8), (8, 4), (2, 4, 4)] if len(s) >= wrong.least])
    signed = next((s for s in SIGNED if s.itemsize == dtype.itemsize), INT32)
    text = wrong.text.format(
        dtype=dtype_text(dtype), signed=dtype_text(signed), shape=shape, double=tuple(2 * n for n in shape), rank=len(shape),
        index=(0,) * len(shape) if "extract" not in wrong.text else (1,) * len(shape),
    )  # fmt: skip
    before = ["t = tk.load_tile_like(x, y)", "u = tk.where(t == t, t, t)", "m = n * 2 + tk.bid(0)"]
    if is_float(dtype) and dtype not in EIGHTS:
        before.append("u = u * 2.0")
    kept = [before[0], *(line for line in before[1:] if not draw.chance(50) or line.startswith("u = tk"))]
    after = ["y.store(t)"] if draw.chance(50) else ["if n > 0:", "    y.store(t)"]
    lines = [
        "import tilekit as tk",
        "",
        "",
        "@tk.kernel",
        "def k(y: tk.Out, x: tk.In, n):",
        *(f"    {line}" for line in [*kept, text, *after]),
    ]
    rng = np.random.default_rng([*repr(("refusals", seed)).encode()])
    return Case("\n".join(lines) + "\n", text.splitlines()[wrong.at].strip(), dtype, shape, contents(rng, shape, dtype, "exact"))


def said(made: Case, target: str | None) -> str:
    """What a device says of a case, without the name of its file."""
    error = _refusal(made, target)
    return "it is not refused" if error is None else str(error).replace(str(getattr(error, "filename", "")), "k.py")


def problem(made: Case, target: str | None) -> str | None:
    """What is wrong with how a device (the default one, or a GPU that is not there) refuses a case; None if nothing is."""
    where = target or "the device"
    try:
        error = _refusal(made, target)
    except Exception as other:
        return f"{where}: {type(other).__name__}: {other}"
    return _worded(made, error, where) if error else f"{where}: is not refused: {made.line}"


def _refusal(made: Case, target: str | None) -> Exception | None:
    try:
        if target is None:
            made.op(meta=False).sync()
        else:
            made.op(meta=True).compile(target=target)
    except (tk.CompileError, ValueError, TypeError) as error:
        return error
    return None


def _worded(made: Case, error: Exception, where: str) -> str | None:
    raw = [word for word in RAW if word in str(error)]
    if raw:
        return f"{where}: {made.line}: the message has {raw}: {error}"
    if isinstance(error, tk.CompileError) and (error.line or "").strip() != made.line:
        return f"{where}: {made.line}: the error is at {error.line!r}: {error}"
    if not isinstance(error, tk.CompileError) and "k" not in str(error):
        return f"{where}: {made.line}: {type(error).__name__} says not where: {error}"
    return None
