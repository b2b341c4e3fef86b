"""What an op says to those who take it for its result, which is not there before it has run. Each error has the line to write."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from tilekit.elsewhere import DEVICE_OPS, UnknownAttribute

__all__ = ["NotRun", "as_coroutine"]

_NUMBERS = (int, float, complex)
_ARITHMETIC = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "lshift": "<<",
    "rshift": ">>", "and": "&", "or": "|", "xor": "^", "matmul": "@",
}  # fmt: skip
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNARY = {"neg": "-", "pos": "+", "abs": "abs", "invert": "~"}
# asyncio takes coroutines alone in these, before Python 3.14, and shows what it got instead.
_ASYNCIO = {"run": "asyncio.run(op.run())", "create_task": "create_task(op.run())"}


def as_coroutine(frame: FrameType | None) -> str:
    """What the text of an op ends with where asyncio shows one that it was given for a coroutine; empty for all others."""
    if frame is None or not str(frame.f_globals.get("__name__")).startswith("asyncio."):
        return ""
    line = _ASYNCIO.get(frame.f_code.co_name)
    return "" if line is None else f", an op, which is awaited: write {line}, or await it in a coroutine"


class NotRun:
    """A base of `DeviceOp`: refuses what only its result can do."""

    if not TYPE_CHECKING:  # which then says itself that there is no such operator, or attribute
        __slots__ = ()
        _elsewhere = DEVICE_OPS
        in_a_kernel = "{} is an op, which the host runs: run it before, and pass what it gives as an argument"

        def __getattr__(self, name: str) -> Any:
            if any(name in vars(kind) for kind in type(self).__mro__):
                return object.__getattribute__(self, name)  # a property that raised; it raises again
            raise UnknownAttribute(self, name, type(self)._elsewhere, "{!r}, an op,")

        def __getitem__(self, index: Any) -> NoReturn:
            raise _refused(self, "it has no elements", "op.sync() gives the tensor, op.to_host().sync()[...] its elements")

        def __setitem__(self, index: Any, value: Any) -> NoReturn:
            raise _refused(self, "it has no elements", "write op.sync(), and a kernel, or .fill(value).sync() of a view")

        def __len__(self) -> NoReturn:
            raise _refused(self, "it has no length", "write op.shape[0], or len(op.sync())")

        def __contains__(self, value: Any) -> NoReturn:
            raise _refused(self, "it has no elements", "write value in op.to_host().sync()")

        def __enter__(self) -> NoReturn:
            raise _refused(self, "it is no context", "write op.sync(), or await op")

        def __exit__(self, *error: object) -> None: ...

    def __bool__(self) -> NoReturn:
        raise TypeError(f"{self!r} is an op that has not run: it has no truth value. Run it with .sync() or await")

    def __iter__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} is an op that has not run: it cannot be iterated over. Run it with .sync() or await, or use .apply(f)"
        )

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"{self!r} is an op that has not run: it is no array. Use .to_host().sync()")


def _refused(op: object, why: str, cure: str) -> TypeError:
    return TypeError(f"{op!r} is an op that has not run: {why}; {cure}")


def _operator(symbol: str, *, reflected: bool = False) -> Callable[[Any, Any], NoReturn]:
    def refuse(self: Any, other: Any) -> NoReturn:
        shown = repr(other) if isinstance(other, (bool, int, float, complex)) else "other"
        line = f"{shown} {symbol} {{}}" if reflected else f"{{}} {symbol} {shown}"
        calculated = f"{line.format('op.to_host().sync()')} on the host"
        instead = "op.then(kernel) runs a kernel with its result" if symbol != "@" else "op.then(lambda a: kernels.gemm(a, b))"
        raise _refused(self, f"{line.format('op')} does not calculate", f"{instead}, {calculated}")

    return refuse


def _unary(symbol: str) -> Callable[[Any], NoReturn]:
    def refuse(self: Any) -> NoReturn:
        form = "abs({})" if symbol == "abs" else symbol + "{}"
        cure = f"write {form.format('op.to_host().sync()')} on the host"
        raise _refused(self, f"{form.format('op')} does not calculate", cure)

    return refuse


def _number(kind: type) -> Callable[[Any], NoReturn]:
    def refuse(self: Any) -> NoReturn:
        raise _refused(self, "it is no number", f"write {kind.__name__}(op.to_host().sync().item())")

    return refuse


def _define() -> None:
    for name, symbol in _ARITHMETIC.items():
        setattr(NotRun, f"__{name}__", _operator(symbol))
        setattr(NotRun, f"__r{name}__", _operator(symbol, reflected=True))
    for name, symbol in _COMPARISONS.items():
        setattr(NotRun, f"__{name}__", _operator(symbol))
    for name, symbol in _UNARY.items():
        setattr(NotRun, f"__{name}__", _unary(symbol))
    for kind in _NUMBERS:
        setattr(NotRun, f"__{kind.__name__}__", _number(kind))


_define()
