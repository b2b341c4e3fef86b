"""Tile values as the references work on them: a NumPy array of compile-time shape that nobody changes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError
from tilekit.lang import rounding
from tilekit.lang.integral import floor_quotient, power, product, remainder
from tilekit.lang.size import check_size

if TYPE_CHECKING:  # importing it takes 20 ms
    from numpy.typing import NDArray

__all__ = [
    "NO_ARITHMETIC",
    "NO_INDEX",
    "NO_ITERATION",
    "NO_TRUTH",
    "Scalar",
    "Tile",
    "absolute",
    "arithmetic",
    "bitwise",
    "check_shape",
    "common_shape",
    "comparison",
    "computable",
    "inverted",
    "is_index",
    "negative",
    "one_element",
    "operands",
    "quotient",
    "scalar_kind",
    "shift",
    "what_is",
    "whole_index",
]

Scalar = bool | int | float | np.generic

NO_TRUTH = (
    "a tile has no single truth value: use tk.where(condition, x, y) to choose by element, or tk.any, tk.all; "
    "for a < x < b write (a < x) & (x < b), for not x ~x"
)
NO_ITERATION = "a tile cannot be iterated over: tile operations work on all its elements at once"
NO_INDEX = (
    "of a tile's elements none can be picked: [:, None], [None] and [..., None] insert dimensions; parts are got with tk.extract"
)


NO_ARITHMETIC = "bool tiles have no arithmetic; cast with .astype(tk.int32), or use & | ~"


def one_element(shape: tuple[int, ...]) -> str:
    """Why a tile of this shape is not one scalar."""
    return f"a tile of shape {shape} has more than one element; reduce it first (tk.sum, tk.max...)"


def check_shape(shape: Any, what: str) -> tuple[int, ...]:
    """`shape` (an int or a tuple of ints) as a tile shape.

    Raises:
        CompileError: it is something else, an extent is no power of two, or they are more than a block holds.
    """
    extents = shape if isinstance(shape, tuple) else (shape,)
    if not extents or not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in extents):
        raise CompileError(f"{what}: a tile shape is an int or a tuple of ints, not {what_is(shape)}")
    for n in extents:
        if n < 1 or n & (n - 1):
            raise CompileError(f"{what}: every extent of a tile is a power of two; {n} in {shape!r} is not{_next(n)}")
    return check_size(tuple(int(n) for n in extents), what)


def _next(extent: int) -> str:
    """The power of two that holds so many."""
    return f": use {1 << (extent - 1).bit_length()}" if extent > 0 else ""


def scalar_kind(value: Any) -> type | None:
    """The Python type (bool, int, float) that a scalar counts as, or None if `value` is no scalar."""
    if isinstance(value, (bool, np.bool_)):
        return bool
    if isinstance(value, (int, np.integer)):
        return int
    if isinstance(value, (float, np.floating)) or (isinstance(value, np.generic) and dtypes.is_float(value.dtype)):
        return float
    return None


def what_is(value: Any) -> str:
    """What a value is, for an error that refuses it: as it is known when the kernel is compiled, so no number."""
    kind = scalar_kind(value)
    if kind is not None:
        return f"a scalar ({kind.__name__})"
    match value:
        case None:
            return "None"
        case str():
            return f"the string {value!r}"
        case tuple() | list():
            return f"a {type(value).__name__}"
        case np.ndarray():
            return "a NumPy array (pass it to the kernel as a tensor, with api.from_host)"
        case np.dtype():
            return "a dtype"
    return value._in_words() if hasattr(value, "_in_words") else f"a {type(value).__name__}"


def is_index(value: Any) -> bool:
    """Whether a value can be (part of) an index: an int, or an integer tile of shape ()."""
    if isinstance(value, Tile):
        return value.shape == () and not dtypes.is_float(value.dtype) and value.dtype != dtypes.bool_
    return scalar_kind(value) is int


def common_shape(what: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that tiles of `shapes` broadcast to, by NumPy's rules.

    Raises:
        CompileError: they do not broadcast, or to more than a block holds.
    """
    common: list[int] = []
    for position in range(1, 1 + max(map(len, shapes))):
        extents = {shape[-position] for shape in shapes if position <= len(shape)}
        if len(extents - {1}) > 1:
            listed = " and ".join(map(str, shapes))
            raise CompileError(f"{what}: tiles of shapes {listed} do not match; an extent of 1 would broadcast")
        common.append(max(extents))
    return check_size(tuple(reversed(common)), what)


def operands(what: str, *values: Any) -> tuple[list[Any], dtypes.DType]:
    """Bring tiles and scalars to one dtype and check that the shapes of the tiles broadcast.

    Returns:
        The arrays (a scalar as an array of rank 0), and the common dtype.
    """
    tiles = [v for v in values if isinstance(v, Tile)]
    for value in values:
        if not isinstance(value, Tile) and scalar_kind(value) is None:
            raise CompileError(f"{what}: operands are tiles and scalars, not {what_is(value)}")
    if not tiles:
        raise CompileError(f"{what}: one operand at least must be a tile")
    common_shape(what, [tile.shape for tile in tiles])
    try:
        dtype = tiles[0].dtype
        for tile in tiles[1:]:
            dtype = dtypes.common_dtype(dtype, tile.dtype, what)
    except TypeError as error:
        raise CompileError(str(error)) from None
    for value in values:
        kind = scalar_kind(value)
        if kind is not None:
            dtype = dtypes.scalar_dtype(dtype, kind)
    for value in values:
        problem = dtypes.misfit(dtype, value) if scalar_kind(value) is int else None
        if problem:
            raise CompileError(f"{what}: {problem}")
    computable(what, dtype)
    return [convert(v._array if isinstance(v, Tile) else v, dtype) for v in values], dtype


def computable(what: str, dtype: dtypes.DType) -> None:
    """Raise a CompileError if there is no arithmetic in `dtype`."""
    problem = dtypes.no_arithmetic(dtype)
    if problem:
        raise CompileError(f"{what}: {problem}")


def convert(value: Any, dtype: dtypes.DType) -> Any:
    """`value` in `dtype`, by C's rules: fractions are cut off, integers wrap."""
    array = np.asarray(value)
    return array if array.dtype == dtype else array.astype(dtype)


# What methods of tiles do: functions of families that import this module, and enter themselves here.
families: dict[str, Callable[..., Tile]] = {}


def whole_index(parts: Sequence[Any], rank: int) -> list[slice | None] | None:
    """An index that inserts dimensions, with a `:` for each of a tile's own; None for one that does anything else."""
    kinds: list[Any] = ["..." if part is ... else part for part in parts]
    if not all(part is None or isinstance(part, str) or (isinstance(part, slice) and part == slice(None)) for part in kinds):
        return None
    missing = rank - sum(isinstance(part, slice) for part in kinds)
    if missing < 0 or kinds.count("...") > 1:
        return None
    at = kinds.index("...") if "..." in kinds else len(kinds)
    return [*kinds[:at], *[slice(None)] * missing, *kinds[at + 1 :]]


class Tile:
    """An immutable array inside a kernel; its shape is known when the kernel is compiled, every extent a power of two.

    Operands of different shapes broadcast by NumPy's rules. A tile of shape `()`, such as the sum of all elements of another,
    also serves as an index and as a condition.
    """

    __slots__ = ("_array",)
    # NumPy's functions do not take tiles: they must not make arrays of objects of them.
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents, known when the kernel is compiled."""
        return self._array.shape

    @property
    def dtype(self) -> dtypes.DType:
        """The element type."""
        return self._array.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._array.ndim

    def _in_words(self) -> str:
        """What it is, see `what_is`."""
        return f"a {self.dtype.name} tile of shape {self.shape}"

    def astype(self, dtype: Any, *, rounding_mode: rounding.RoundingMode | str | None = None) -> Tile:
        """The tile with its elements converted to `dtype`; see `tk.astype`."""
        try:
            chosen = dtypes.as_dtype(dtype)
        except TypeError as error:
            raise CompileError(f"astype: {error}") from None
        mode = rounding.known_mode("astype", rounding_mode)
        problem = rounding.conversion_problem(self.dtype, chosen, mode) if mode is not None else None
        if problem:
            raise CompileError(f"astype: {problem}")
        if mode in (None, rounding.RoundingMode.RN):
            return Tile(convert(self._array, chosen))
        return Tile(np.asarray(rounding.converted(self._array, chosen, mode)))

    def reshape(self, shape: int | tuple[int, ...]) -> Tile:
        """The elements in another shape; see `tk.reshape`."""
        return families["reshape"](self, shape)

    def permute(self, axes: tuple[int, ...]) -> Tile:
        """The dimensions in another order; see `tk.permute`."""
        return families["permute"](self, axes)

    def transpose(self, axis0: int = -2, axis1: int = -1) -> Tile:
        """Two dimensions exchanged; see `tk.transpose`."""
        return families["transpose"](self, axis0, axis1)

    def broadcast_to(self, shape: int | tuple[int, ...]) -> Tile:
        """Repeated along dimensions of extent 1; see `tk.broadcast_to`."""
        return families["broadcast_to"](self, shape)

    def item(self) -> Any:
        """The only element, as a scalar; a 16-bit float as a float32.

        Raises:
            CompileError: there are several.
        """
        if self._array.size != 1:
            raise CompileError(f"item: {one_element(self.shape)}")
        computable("item", self.dtype)
        value = self._array.reshape(())[()]
        return np.float32(value) if self.dtype in (dtypes.float16, dtypes.bfloat16) else value

    def __matmul__(self, other: Any) -> Tile:
        return families["product_of"]("@", self, other, "ieee")

    def __rmatmul__(self, other: Any) -> Tile:
        return families["product_of"]("@", other, self, "ieee")

    def __getitem__(self, index: Any) -> Tile:
        whole = whole_index(index if isinstance(index, tuple) else (index,), self.ndim)
        if whole is None:
            raise CompileError(f"[]: {NO_INDEX}")
        return Tile(self._array[tuple(whole)])

    def __repr__(self) -> str:
        return f"Tile({self._array!r})"

    def __bool__(self) -> bool:
        if self.shape:
            raise CompileError(f"if: {NO_TRUTH}")
        return bool(self._array)

    def __index__(self) -> int:
        if self.shape or dtypes.is_float(self.dtype) or self.dtype == dtypes.bool_:
            raise CompileError(
                f"a {self.dtype.name} tile of shape {self.shape} is no index; an integer one of shape () is, and .item()"
            )
        return int(self._array)

    def __iter__(self) -> NoReturn:
        raise CompileError(NO_ITERATION)

    if TYPE_CHECKING:  # `_install` defines them

        def __add__(self, other: Any) -> Tile: ...
        def __radd__(self, other: Any) -> Tile: ...
        def __sub__(self, other: Any) -> Tile: ...
        def __rsub__(self, other: Any) -> Tile: ...
        def __mul__(self, other: Any) -> Tile: ...
        def __rmul__(self, other: Any) -> Tile: ...
        def __truediv__(self, other: Any) -> Tile: ...
        def __rtruediv__(self, other: Any) -> Tile: ...
        def __and__(self, other: Any) -> Tile: ...
        def __rand__(self, other: Any) -> Tile: ...
        def __or__(self, other: Any) -> Tile: ...
        def __ror__(self, other: Any) -> Tile: ...
        def __xor__(self, other: Any) -> Tile: ...
        def __rxor__(self, other: Any) -> Tile: ...
        def __lshift__(self, other: Any) -> Tile: ...
        def __rlshift__(self, other: Any) -> Tile: ...
        def __rshift__(self, other: Any) -> Tile: ...
        def __rrshift__(self, other: Any) -> Tile: ...
        def __floordiv__(self, other: Any) -> Tile: ...
        def __rfloordiv__(self, other: Any) -> Tile: ...
        def __mod__(self, other: Any) -> Tile: ...
        def __rmod__(self, other: Any) -> Tile: ...
        def __pow__(self, other: Any) -> Tile: ...
        def __rpow__(self, other: Any) -> Tile: ...
        def __lt__(self, other: Any) -> Tile: ...
        def __le__(self, other: Any) -> Tile: ...
        def __gt__(self, other: Any) -> Tile: ...
        def __ge__(self, other: Any) -> Tile: ...
        def __eq__(self, other: object) -> Tile: ...  # type: ignore[override]
        def __ne__(self, other: object) -> Tile: ...  # type: ignore[override]

    def __divmod__(self, other: Any) -> tuple[Tile, Tile]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Tile, Tile]:
        return other // self, other % self

    def __neg__(self) -> Tile:
        return negative("-", self)

    def __pos__(self) -> Tile:
        if self.dtype == dtypes.bool_:
            raise CompileError(f"+: {NO_ARITHMETIC}")
        computable("+", self.dtype)
        return self

    def __abs__(self) -> Tile:
        return absolute("abs", self)

    def __invert__(self) -> Tile:
        return inverted("~", self)


def negative(what: str, x: Tile) -> Tile:
    """The negative; `what` names the operation in errors, here and below."""
    if x.dtype == dtypes.bool_:
        raise CompileError(f"{what}: a bool tile has no negative; use ~tile")
    computable(what, x.dtype)
    return Tile(-x._array)


def absolute(what: str, x: Tile) -> Tile:
    """The absolute value."""
    computable(what, x.dtype)
    return Tile(np.abs(x._array))


def inverted(what: str, x: Tile) -> Tile:
    """All bits the other way round."""
    if dtypes.is_float(x.dtype):
        raise CompileError(f"{what}: needs a bool or integer tile, not {x.dtype.name}")
    return Tile(~x._array)


def arithmetic(what: str, function: Callable[[Any, Any], Any], a: Any, b: Any) -> Tile:
    """`function` of two arrays of numbers, in their common dtype."""
    (x, y), dtype = operands(what, a, b)
    if dtype == dtypes.bool_:
        raise CompileError(f"{what}: {NO_ARITHMETIC}")
    return Tile(np.asarray(function(x, y)).astype(dtype, copy=False))


def quotient(what: str, function: Callable[[Any, Any], Any], a: Any, b: Any) -> Tile:
    """`function` of two arrays of floats: integers become float32."""
    (x, y), dtype = operands(what, a, b)
    dtype = dtypes.quotient_dtype(dtype)
    return Tile(np.asarray(function(convert(x, dtype), convert(y, dtype))))


def comparison(what: str, function: Callable[[Any, Any], Any], a: Any, b: Any) -> Tile:
    """A bool for each pair of elements."""
    (x, y), _ = operands(what, a, b)
    return Tile(np.asarray(function(x, y)))


def bitwise(what: str, function: Callable[[Any, Any], Any], a: Any, b: Any) -> Tile:
    """`function` of the bits of bools or integers."""
    (x, y), dtype = operands(what, a, b)
    if dtypes.is_float(dtype):
        raise CompileError(f"{what}: needs bool or integer tiles, not {dtype.name}")
    return Tile(np.asarray(function(x, y)))


def shift(what: str, function: Callable[[Any, Any], Any], a: Any, b: Any) -> Tile:
    """`function` of integers and distances."""
    (x, y), dtype = operands(what, a, b)
    if dtypes.is_float(dtype) or dtype == dtypes.bool_:
        raise CompileError(f"{what}: needs integer tiles, not {dtype.name}")
    return Tile(np.asarray(function(x, y)))


def _install() -> None:
    """Give `Tile` its operators, each with its reflected twin."""
    rows: dict[str, tuple[str, Callable[..., Tile], Callable[[Any, Any], Any]]] = {
        "add": ("+", arithmetic, operator.add),
        "sub": ("-", arithmetic, operator.sub),
        "mul": ("*", arithmetic, product),
        "truediv": ("/", quotient, operator.truediv),
        "floordiv": ("//", arithmetic, floor_quotient),
        "mod": ("%", arithmetic, remainder),
        "pow": ("**", arithmetic, power),
        "and": ("&", bitwise, operator.and_),
        "or": ("|", bitwise, operator.or_),
        "xor": ("^", bitwise, operator.xor),
        "lshift": ("<<", shift, operator.lshift),
        "rshift": (">>", shift, operator.rshift),
    }
    for name, (symbol, kind, function) in rows.items():
        setattr(Tile, f"__{name}__", lambda a, b, s=symbol, k=kind, f=function: k(s, f, a, b))
        setattr(Tile, f"__r{name}__", lambda a, b, s=symbol, k=kind, f=function: k(s, f, b, a))
    for name, symbol in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items():
        function = getattr(operator, name)
        setattr(Tile, f"__{name}__", lambda a, b, s=symbol, f=function: comparison(s, f, a, b))


_install()
