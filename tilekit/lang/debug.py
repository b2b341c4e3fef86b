"""Looking into a running kernel, and stopping one that is wrong."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError, DeviceError
from tilekit.lang import block
from tilekit.lang.registry import tile_op
from tilekit.lang.tile import Tile, common_shape, scalar_kind, what_is

__all__ = [
    "Directive",
    "assert_",
    "parse_format",
    "print_",
    "printf",
    "static_assert",
    "static_line",
    "static_print",
    "unprintable",
]

MOST_ARGUMENTS = 32
"""What a GPU's printf takes."""


def _text(value: Any) -> str:
    """A scalar as the GPU prints it: `%g` for floats, decimal for integers."""
    kind = scalar_kind(value)
    if kind is float:
        return f"{float(value):g}"
    return str(bool(value)) if kind is bool else str(int(value))


@tile_op("print", host="Python's print")
def print_(*values: Any) -> None:
    """Print a line from every block: the values, separated by spaces.

    A tile among the values makes it a line for each of its elements, which ends with the element's index and value. On a GPU
    the lines of different blocks and threads come in any order, and appear when the device synchronises.

    Args:
        values: strings known when the kernel is compiled, scalars, and at most one tile, in the last place.

    Raises:
        CompileError: another kind of value, or a tile that is not the last.

    Examples:
        >>> @tk.kernel
        ... def hello():
        ...     tk.print("hello from block", tk.bid(0))
        >>> _ = hello().grid((2, 1, 1)).sync()
        hello from block 0
        hello from block 1
    """
    words = []
    for number, value in enumerate(values):
        if isinstance(value, str):
            words.append(value)
        elif scalar_kind(value) is not None:
            words.append(_text(value))
        elif not isinstance(value, Tile):
            raise CompileError(f"print: values are strings, scalars and a tile, not {what_is(value)}")
        elif number != len(values) - 1:
            raise CompileError("print: a tile is the last of the values")
    if block.running_one().sampled:
        return
    if not values or not isinstance(values[-1], Tile):
        sys.stdout.write(" ".join(words) + "\n")
        return
    tile = values[-1]._array
    elements = tile.astype(np.float64) if dtypes.is_float(tile.dtype) else tile
    lines = [
        " ".join([*words, f"[{', '.join(map(str, index))}]", _text(elements[index])])
        for index in itertools.product(*map(range, tile.shape))
    ]
    sys.stdout.write("\n".join(lines) + "\n")


class Directive(NamedTuple):
    """One `%` of a format: flags, width and precision, as written; the letter (empty for `%%`); the text that follows it."""

    style: str
    letter: str
    after: str


_DIRECTIVE = re.compile(r"%(?P<style>[-+ 0]*\d*(?:\.\d+)?)(?P<length>hh|h|ll|l|j|z|t|L)?(?P<letter>[diuoxXeEfFgG%])")
_FLOAT = "eEfFgG"


def parse_format(text: str) -> tuple[str, list[Directive]]:
    """A format of `printf`: the text before the first `%`, and the directives.

    Raises:
        CompileError: there is something after a `%` that is no directive.
    """
    pieces: list[Directive] = []
    before, at = text.partition("%")[0], text.find("%")
    while at >= 0:
        match = _DIRECTIVE.match(text, at)
        if match is None or (match["letter"] == "%" and match[0] != "%%"):
            shown = text[at : at + 6]
            raise CompileError(
                f"printf: {shown!r} in the format is no directive: after a % come flags (- + 0 or a space), width, precision, "
                "and one of d i u o x X e E f F g G; %% is a percent sign"
            )
        end = text.find("%", match.end())
        after = text[match.end() : end if end >= 0 else None]
        pieces.append(Directive(match["style"], match["letter"].replace("%", ""), after))
        at = end
    return before, pieces


def unprintable(letters: str, values: list[dtypes.DType]) -> str | None:
    """Why values of these dtypes do not go with the directives of a format; None if they do."""
    if len(letters) != len(values):
        return f"the format takes {len(letters)} values, and {len(values)} are given"
    if len(values) > MOST_ARGUMENTS:
        return f"a GPU prints at most {MOST_ARGUMENTS} values at once, not {len(values)}"
    for letter, dtype in zip(letters, values, strict=True):
        if dtypes.is_float(dtype) != (letter in _FLOAT):
            fitting = "e, f or g" if dtypes.is_float(dtype) else "d, u, o or x"
            return f"%{letter} does not print a value of {dtype.name}; {fitting} does"
    return None


def _dtype(value: Any) -> dtypes.DType:
    """The dtype that a tile or scalar is printed in."""
    if isinstance(value, (Tile, np.generic)):
        return value.dtype
    return {bool: dtypes.bool_, int: dtypes.int64, float: dtypes.float64}[scalar_kind(value) or float]


def _written(directive: Directive, value: Any, dtype: dtypes.DType) -> str:
    """A value by a directive, as C prints it."""
    if directive.letter in _FLOAT:
        number: Any = float(value)
    else:
        number = int(value)
        if directive.letter in "uoxX":  # the bits
            number %= 1 << 8 * dtype.itemsize
    text: str = f"%{directive.style}{directive.letter}" % number
    return text


@tile_op("printf", host="Python's print")
def printf(format: str, *values: Any) -> None:
    """Print values by a format of C's printf; nothing ends the line but a newline in the format.

    Tiles among the values broadcast to one shape, and the text is printed once for each element of it, in the order of the
    elements on a CPU device, in any order on a GPU, where it appears when the device synchronises.

    Args:
        format: a string known when the kernel is compiled. A directive is `%`, flags (`-`, `+`, `0`, space), width, precision,
            and one of `d i u o x X` for integers and bools, `e E f F g G` for floats; sizes such as the `l` of `%ld` change
            nothing.
        values: scalars and tiles, one for each directive, 32 at most.

    Raises:
        CompileError: the format is no such string, or the values do not go with it; the shapes of tiles do not broadcast.

    Examples:
        >>> @tk.kernel
        ... def show(x: tk.In):
        ...     tk.printf("%4d: %6.2f\\n", tk.arange(2), tk.load(x, tk.bid(0), 2))
        >>> _ = show(api.arange(2, dtype=tk.float32)).grid((1, 1, 1)).sync()
           0:   0.00
           1:   1.00
    """
    if not isinstance(format, str):
        raise CompileError(f"printf: the format is a string known when the kernel is compiled, not {what_is(format)}")
    before, directives = parse_format(format)
    for value in values:
        if not isinstance(value, Tile) and scalar_kind(value) is None:
            raise CompileError(f"printf: values are scalars and tiles, not {what_is(value)}")
    kinds = [_dtype(value) for value in values]
    problem = unprintable("".join(d.letter for d in directives), kinds)
    if problem:
        raise CompileError(f"printf: {problem}")
    shapes = [value.shape for value in values if isinstance(value, Tile)]
    shape = common_shape("printf", shapes) if shapes else ()
    if block.running_one().sampled:
        return
    columns = [np.broadcast_to(v._array if isinstance(v, Tile) else np.asarray(v), shape) for v in values]
    for index in itertools.product(*map(range, shape)):
        row: Iterator[Any] = iter([(column[index], kind) for column, kind in zip(columns, kinds, strict=True)])
        words = [(_written(d, *next(row)) if d.letter else "%") + d.after for d in directives]
        sys.stdout.write(before + "".join(words))


def assertion_text(message: str, index: tuple[int, ...] | None = None) -> str:
    """What a failed assertion says; `index` is that of the element that does not hold."""
    where = f" at element {index}" if index else ""
    return f"assert_: {message or 'the condition does not hold'}{where}"


def message_problem(message: Any) -> str | None:
    """Why this is no message of an assertion."""
    if isinstance(message, str):
        return None
    return f"the message is a string known when the kernel is compiled, not {what_is(message)}"


@tile_op("assert_", host="Python's assert")
def assert_(condition: Any, message: str = "") -> None:
    """Stop the launch with a `DeviceError` where a condition does not hold.

    A CPU device always looks; a GPU only under `TILEKIT_CHECKS=1`, and costs nothing without it. After a failed assertion a
    process cannot use that GPU any more.

    Args:
        condition: a bool scalar, or a bool tile, all of whose elements must hold.
        message: what the error says; a string known when the kernel is compiled.

    Raises:
        CompileError: the condition is not of bool, or the message is no such string.
        DeviceError: the condition does not hold; it names the kernel, the line, the block and the element.

    Examples:
        >>> @tk.kernel
        ... def root(y: tk.InOut):
        ...     t = y.load()
        ...     tk.assert_(t >= 0, "roots of negative numbers do not exist")
        ...     y.store(tk.sqrt(t))
        >>> root(api.full(2, 9.0).partition(2)).out().sync().numpy()
        array([3., 3.], dtype=float32)
    """
    problem = message_problem(message)
    if problem:
        raise CompileError(f"assert_: {problem}")
    if isinstance(condition, Tile):
        if condition.dtype != dtypes.bool_:
            raise CompileError(f"assert_: {unconditional(f'a {condition.dtype.name} tile')}")
        if not np.all(condition._array):
            index = tuple(int(i[0]) for i in np.nonzero(~np.atleast_1d(condition._array)))
            raise DeviceError(assertion_text(message, index if condition.shape else None))
    elif scalar_kind(condition) is not bool:
        raise CompileError(f"assert_: {unconditional(what_is(condition))}")
    elif not condition:
        raise DeviceError(assertion_text(message))


def unconditional(actual: str) -> str:
    """Why something is no condition of an assertion."""
    return f"the condition is a bool scalar or a bool tile, such as the result of a comparison, not {actual}"


@tile_op("static_assert", host="Python's assert")
def static_assert(condition: bool, message: str = "") -> None:
    """Refuse to compile the kernel where a condition does not hold. It costs nothing when the kernel runs.

    Args:
        condition: a bool known when the kernel is compiled: of generics and `Const` parameters; of ranks, dtypes and the extents
            of tiles.
        message: what the error says; a string known then, too.

    Raises:
        CompileError: the condition does not hold, or is not known when the kernel is compiled; it points at the line.

    Examples:
        >>> BM = tk.generics("BM")
        >>> @tk.kernel
        ... def halves(y: tk.Out[BM]):
        ...     tk.static_assert(BM >= 2, "a tile of one element has no halves")
        ...     y.store(tk.cat((tk.zeros(BM // 2), tk.ones(BM // 2)), 0))
        >>> halves(api.zeros(4).partition(4)).out().sync().numpy()
        array([0., 0., 1., 1.], dtype=float32)
    """
    problem = message_problem(message)
    if problem:
        raise CompileError(f"static_assert: {problem}")
    if isinstance(condition, Tile) or scalar_kind(condition) is None:
        raise CompileError(f"static_assert: {unknown_condition()}")
    if not condition:
        raise CompileError(f"static_assert: {message or 'the condition does not hold'}")


def unknown_condition() -> str:
    """Why a condition cannot be looked at while a kernel is compiled."""
    return "the condition must be known when the kernel is compiled; tk.assert_ looks at values while the kernel runs"


def described(value: Any) -> str | None:
    """What `static_print` says about a constant; None for what is none."""
    if isinstance(value, (tuple, np.dtype)) or value is None or type(value) in (bool, int, float, str):
        return value.name if isinstance(value, np.dtype) else str(value)
    return None


def described_tile(dtype: dtypes.DType, shape: tuple[int, ...]) -> str:
    """What `static_print` says about a tile."""
    return f"{dtype.name} tile of shape {shape}"


@tile_op("static_print", host="Python's print")
def static_print(*values: Any) -> None:
    """Print a line when the kernel is compiled: constants by their values, tiles by their dtype and shape.

    A kernel from the cache is not compiled, and prints nothing.

    Args:
        values: strings, generics and other constants, dtypes, tiles.

    Raises:
        CompileError: a value that is known only when the kernel runs.

    Examples:
        >>> @tk.kernel
        ... def look(y: tk.InOut):
        ...     t = y.load()[:, None] > 0
        ...     tk.static_print("t is a", t)
        ...     y.store(0.0)
        >>> _ = look(api.zeros(4).partition(4)).sync()
        t is a bool tile of shape (4, 1)
    """
    static_line(values)


def static_line(values: Sequence[Any]) -> str:
    """What `static_print` prints."""
    words = []
    for value in values:
        word = described_tile(value.dtype, value.shape) if isinstance(value, Tile) else described(value)
        if word is None:
            raise CompileError(f"static_print: {unknown_value(what_is(value))}")
        words.append(word)
    return " ".join(words)


def unknown_value(actual: str) -> str:
    """Why something cannot be printed while a kernel is compiled."""
    return f"values are constants, dtypes and tiles, not {actual}; tk.print shows values while the kernel runs"
