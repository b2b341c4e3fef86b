"""What single operations of the IR give: a lowering of the language's for each, Python's own for numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu import elementwise, scalars
from tilekit.compiler.cpu.calls import called
from tilekit.compiler.cpu.code import Code, Number, i1
from tilekit.compiler.cpu.convert import converted
from tilekit.compiler.cpu.registry import LOWERINGS
from tilekit.compiler.cpu.tiles import Tile, Window, one
from tilekit.compiler.cpu.values import Grid, Row, Scalar, Tensor, Unsupported, Views, Visited, kind_of
from tilekit.compiler.ir.nodes import Constant, Group, Operand, Operation, Region, Section, Value
from tilekit.compiler.ir.types import ScalarType
from tilekit.lang.registry import OPS

__all__ = ["Evaluation"]

_WITH_NAMES = ("maximum", "minimum", "floor", "ceil", "trunc", "round", "max", "min", "sum", "prod", "any", "all")


class Evaluation:
    """Operations, as far as they are no control flow.

    Attributes:
        k: what is written so far.
        integer, boolean: the dtypes of indices and masks.
    """

    integer, boolean = dtypes.int64, dtypes.bool_
    k: Code
    _values: dict[Value, Any]
    _uses: Counter[Value]
    _current: Counter[Value]
    _result: Value | None

    def inlined(self, region: Region, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """The results of a function of the user's, as if it stood in the operation that is lowered."""
        raise NotImplementedError

    def check(self, wrong: ir.Value, site: Sequence[Any], values: Sequence[Number]) -> None:
        """Where `wrong` holds, the block ends with the error that `site` and the values make; see `kernel.Site`."""
        self.k.check(wrong, self.site(site), lambda: values)

    def say(self, name: str, values: Sequence[Any]) -> None:
        """Have an operation print values, see `printing`; where that fails, the block ends."""
        site = self.site(("print", name, *values))
        self.k.check(self.k.say(site), site, list)

    def site(self, site: Sequence[Any]) -> int:
        """The number of something that may go wrong in the operation that is being lowered."""
        return self.k.site(*site)

    @staticmethod
    def anywhere(tensor: Tensor) -> Window:
        """Elements of a tensor, wherever they are."""
        return Window(tensor.name)

    def needed(self) -> bool:
        """Whether anybody reads the result of the operation that is being lowered."""
        return self._result is not None and self._uses[self._result] > 0

    def value(self, operand: Operand) -> Any:
        """What an operand is."""
        match operand:
            case Value():
                return self._values[operand]
            case Constant(value=value):
                return value
            case Group(parts):
                return tuple(map(self.value, parts))
            case Section(start, stop, step):
                return slice(self.value(start), self.value(stop), self.value(step))
        raise Unsupported("a variable without a value")

    def lowered(self, operation: Operation) -> Any:
        """What it gives."""
        self._current = Counter(operation.reads())
        self._result = operation.results[0] if operation.results else None
        operands = [self.value(operand) for operand in operation.operands]
        keywords = {name: self.value(operand) for name, operand in operation.keywords.items()}
        match operation.kind:
            case "call":
                return self._called(operation, operands, keywords)
            case "method":
                return self._method(operation.what, operands, keywords)
            case "attribute":
                return _attribute(self, operands[0], operation.what)
            case "item":
                return self._item(*operands)
            case "binary":
                return self._binary(operation.what, *operands)
            case "compare":
                return self._compare(operation.what, *operands)
            case "unary":
                return self._unary(operation.what, operands[0])
        raise Unsupported(operation.kind)

    def _called(self, operation: Operation, operands: list[Any], keywords: dict[str, Any]) -> Any:
        function = operation.what.value
        name = getattr(function, "__name__", "")
        if name in OPS and OPS[name].function is function:
            return self._op(name, operands, keywords)
        return called(self, function, operands, keywords, self._result_kind())

    def operation(self, name: str, operands: Sequence[Any]) -> Any:
        """What an operation of the language gives."""
        return self._op(name, list(operands), {})

    def _op(self, name: str, operands: list[Any], keywords: dict[str, Any]) -> Any:
        if name not in LOWERINGS:
            raise Unsupported(f"tk.{name}")
        self.k.what = name
        bound = OPS[name].signature.bind(*operands, **keywords)
        bound.apply_defaults()
        by_name = {"name": name} if name in _WITH_NAMES else {}
        return LOWERINGS[name](self, *bound.args, **bound.kwargs, **by_name)

    def _method(self, name: str, operands: list[Any], keywords: dict[str, Any]) -> Any:
        owner = operands[0]
        if isinstance(owner, Tile):
            if name == "item":
                return Scalar(*_item_of(self, owner))
            return self._op(name, operands, keywords)
        if name == "bit_length" and kind_of(owner) in (int, bool):
            return scalars.bit_length(self.k, owner)
        if f".{name}" not in LOWERINGS:
            raise Unsupported(f".{name}")
        return LOWERINGS[f".{name}"](self, *operands, **keywords)

    def _item(self, owner: Any, index: Any) -> Any:
        if isinstance(owner, tuple):
            return owner[index] if isinstance(index, (int, slice)) else scalars.element(self.k, owner, index)
        parts = index if isinstance(index, tuple) else (index,)
        if isinstance(owner, Grid):
            if any(isinstance(part, slice) for part in parts):
                return Row(owner.views, parts)
            return LOWERINGS[".load"](self, owner.views, index)
        if isinstance(owner, Tile):
            rest = iter(owner.shape)
            shape = tuple(1 if part is None else next(rest) for part in parts)
            return LOWERINGS["reshape"](self, owner, shape)
        raise Unsupported(f"an index of a {type(owner).__name__}")

    def _binary(self, symbol: str, x: Any, y: Any) -> Any:
        if isinstance(x, Tile) or isinstance(y, Tile):
            self.k.what = symbol
            if symbol == "@":
                return LOWERINGS["matmul"](self, x, y, precision="ieee")
            return elementwise.operate(self.k, symbol, x, y)
        return scalars.binary(self.k, symbol, x, y, self._result_kind())

    def _result_kind(self) -> type | dtypes.DType | None:
        """Of the number that is computed; None if it is none."""
        return self._result.type.kind if self._result is not None and isinstance(self._result.type, ScalarType) else None

    def _compare(self, symbol: str, x: Any, y: Any) -> Any:
        if symbol in ("is", "is not"):
            return (x is y) == (symbol == "is")
        if isinstance(x, Tile) or isinstance(y, Tile):
            self.k.what = symbol
            return elementwise.compare(self.k, symbol, x, y)
        return scalars.compare(self.k, symbol, x, y)

    def _unary(self, symbol: str, x: Any) -> Any:
        if symbol == "not":
            return Scalar(self.k.b.not_(self.truth(x)), bool)
        if isinstance(x, Tile):
            return x if symbol == "+" else (elementwise.negated if symbol == "-" else elementwise.inverted)(self.k, x)
        return scalars.unary(self.k, symbol, x)

    def truth(self, value: Any) -> ir.Value:
        """A condition, an i1."""
        if isinstance(value, Tile):
            if value.shape:
                raise Unsupported("a tile as a condition")
            return one(self.k, elementwise.cast(self.k, value, dtypes.bool_))
        if isinstance(value, Scalar):
            return converted(self.k, value.value, value.dtype, dtypes.bool_)
        return i1(int(bool(value)))


def _item_of(p: Evaluation, tile: Tile) -> tuple[ir.Value, Any]:
    dtype = dtypes.float32 if tile.dtype in (dtypes.float16, dtypes.bfloat16) else tile.dtype
    return one(p.k, elementwise.cast(p.k, tile, dtype)), dtype


def _attribute(p: Evaluation, owner: Any, name: str) -> Any:
    if isinstance(owner, Visited) and name == "index":
        return tuple(Scalar(p.k.number(at), int) for at in owner.index)
    if isinstance(owner, Tensor) and name == "shape":
        return tuple(Scalar(p.k.number(extent), int) for extent in owner.extents)
    if isinstance(owner, (Tensor, Tile)) and name == "dtype":
        return owner.dtype
    if isinstance(owner, Grid) and name == "shape":
        tensor, steps = owner.views.tensor, owner.views.steps
        return tuple(Scalar(p.k.number(p.k.ceiling(e, n)), int) for e, n in zip(tensor.extents, steps, strict=True))
    if isinstance(owner, Tensor) and name in ("tile_shape", "ndim"):
        return owner.tile if name == "tile_shape" else owner.rank
    if isinstance(owner, Views) and name in ("tile_shape", "traversal_steps", "dtype"):
        return {"tile_shape": owner.shape, "traversal_steps": owner.steps, "dtype": owner.tensor.dtype}[name]
    raise Unsupported(f".{name} of a {type(owner).__name__}")
