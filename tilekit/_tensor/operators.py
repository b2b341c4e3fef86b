"""What tensors and partitions say to Python's operators: none of them calculates on the host, nor compares by identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from tilekit.elsewhere import PARTITIONS, TENSORS, UnknownAttribute

__all__ = ["NoOperators"]

_ARITHMETIC = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "lshift": "<<",
    "rshift": ">>", "and": "&", "or": "|", "xor": "^", "matmul": "@", "divmod": "divmod",
}  # fmt: skip
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNARY = {"neg": "-", "pos": "+", "abs": "abs", "invert": "~"}
_HOST = "numpy()"
# Attributes that arrays of other libraries have, and what stands for them.
_ELSEWHERE = {
    **dict.fromkeys(("cpu", "get", "detach", "to_numpy", "asnumpy"), _HOST),
    "item": f"{_HOST}.item()",
    "tolist": f"{_HOST}.tolist()",
    **{
        name: f"{_HOST}.{name}()"
        for name in ("sum", "mean", "min", "max", "argmax", "argmin", "all", "any", "prod", "std", "var")
    },
    "copy": "dup()",
    "clone": "dup()",
    "flatten": "reshape(-1)",
    "ravel": "reshape(-1)",
}


class _Elsewhere(AttributeError, TypeError):
    """An attribute that other arrays have: missing, for those who ask whether it is there; misuse, for those who use it."""


class NoOperators:
    """A base of `Tensor` and `Partition`: each operator raises a TypeError that shows the line to write instead.

    `hash` and `is` are those of any object.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # which then says itself that there is no such operator, or attribute
        __array_ufunc__ = None  # NumPy leaves its operators with such an operand to these
        in_a_kernel = "{} is a tensor of the host's: kernels get tensors as arguments; add a parameter {name}: tk.In, and pass it"

        def __eq__(self, other: object) -> NoReturn:
            raise self._incomparable("==", other)

        def __ne__(self, other: object) -> NoReturn:
            raise self._incomparable("!=", other)

        __hash__ = object.__hash__

        def __contains__(self, value: Any) -> NoReturn:
            raise TypeError(
                f"`value in x` does not look into {self!r}, which is on a device: write `value in {self._dense()}.{_HOST}`"
            )

        def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
            raise TypeError(
                f"{self!r} lives on a device; NumPy cannot read it. Write `{self._dense()}.{_HOST}`, which is a NumPy array"
            )

        def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
            name = getattr(function, "__name__", "function")
            if name in ("shape", "ndim", "size"):
                return getattr(self, name)
            raise TypeError(f"np.{name} does not read {self!r}, which is on a device: write `np.{name}({self._dense()}.{_HOST})`")

        def __getattr__(self, name: str) -> Any:
            line = _ELSEWHERE.get(name)
            if line is None:
                raise UnknownAttribute(self, name, TENSORS if self._dense() == "x" else PARTITIONS)
            raise _Elsewhere(
                f"{type(self).__name__!r} object has no attribute {name!r}, since the elements are on a device: write "
                f"`{self._dense()}.{line}`",
                name=name,
                obj=self,
            )

    def _dense(self) -> str:
        """The tensor, in a line of code where this object is `x`."""
        return "x"

    def _on_host(self, value: Any, name: str) -> str:
        """An operand, in a line of code for the host."""
        if isinstance(value, NoOperators):
            return f"{value._dense().replace('x', name, 1)}.{_HOST}"
        return repr(value) if isinstance(value, (bool, int, float, complex)) else name

    def _in_kernel(self, value: Any, name: str) -> str:
        if isinstance(value, NoOperators):
            return f"tk.load_tile_like({name}, z)"
        return repr(value) if isinstance(value, (bool, int, float, complex)) else name

    def _incomparable(self, symbol: str, other: Any) -> TypeError:
        negation, whole = ("not ", "x is not y") if symbol == "!=" else ("", "x is y")
        if not isinstance(other, NoOperators):
            y = "None" if other is None else "y"
            cure = (
                f"`{whole.replace('y', y)}`" if other is None else f"`{self._dense()}.{_HOST} {symbol} {self._on_host(other, y)}`"
            )
            return TypeError(
                f"x {symbol} {y if other is None else 'y'} does not compare {self!r} with {_short(other)}: write {cure}"
            )
        mine, theirs = self._on_host(self, "x"), self._on_host(other, "y")
        return TypeError(
            f"x {symbol} y does not compare {self!r} with {other!r}, whose elements are on a device: `{whole}` tells whether "
            f"both are one object, `{negation}np.array_equal({mine}, {theirs})` whether the elements are equal"
        )

    def _refused(self, symbol: str, left: Any, right: Any) -> TypeError:
        """That the host does not calculate `left symbol right`, one of which is this."""
        names = ("x", "y") if left is self else ("y", "x")
        host = [self._on_host(value, name) for value, name in zip((left, right), names, strict=True)]
        kernel = [self._in_kernel(value, name) for value, name in zip((left, right), names, strict=True)]
        pattern = "divmod({}, {})" if symbol == "divmod" else f"{{}} {symbol} {{}}"
        shown = pattern.format(
            *(name if isinstance(value, NoOperators) else _short(value) for value, name in zip((left, right), names))
        )
        if symbol == "@":
            cure = "on the device run `kernels.gemm(x, y).sync()` (from tilekit import kernels)"
        elif symbol == "divmod":
            cure = f"on the device store both in a kernel: `z.store({kernel[0]} // {kernel[1]})`, and `%`"
        else:
            cure = f"on the device store it in a kernel: `z.store({pattern.format(*kernel)})`"
        return TypeError(f"{shown} does not calculate with {self!r}: {cure}; on the host write `{pattern.format(*host)}`")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else f"a {type(value).__name__}"


def _binary(symbol: str, *, reflected: bool = False) -> Callable[[Any, Any], NoReturn]:
    def refuse(self: Any, other: Any, *modulus: Any) -> NoReturn:
        raise self._refused(symbol, *((other, self) if reflected else (self, other)))

    return refuse


def _unary(symbol: str) -> Callable[[Any], NoReturn]:
    def refuse(self: Any) -> NoReturn:
        form = "abs({})" if symbol == "abs" else symbol + "{}"
        raise TypeError(
            f"{form.format('x')} does not calculate with {self!r}: on the device store it in a kernel: "
            f"`z.store({form.format('tk.load_tile_like(x, z)')})`; on the host write `{form.format(f'{self._dense()}.{_HOST}')}`"
        )

    return refuse


def _number(kind: type) -> Callable[[Any], NoReturn]:
    def refuse(self: Any) -> NoReturn:
        name = kind.__name__
        raise TypeError(f"{name}(x) does not read {self!r}, which is on a device: write `{name}({self._dense()}.{_HOST}.item())`")

    return refuse


def _define() -> None:
    for name, symbol in _ARITHMETIC.items():
        setattr(NoOperators, f"__{name}__", _binary(symbol))
        setattr(NoOperators, f"__r{name}__", _binary(symbol, reflected=True))
    for name, symbol in _COMPARISONS.items():
        setattr(NoOperators, f"__{name}__", _binary(symbol))
    for name, symbol in _UNARY.items():
        setattr(NoOperators, f"__{name}__", _unary(symbol))
    for kind in (int, float, complex):
        setattr(NoOperators, f"__{kind.__name__}__", _number(kind))


_define()
