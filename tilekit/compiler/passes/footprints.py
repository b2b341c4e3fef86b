"""Memory footprints, a data-flow analysis: which tiles of its tensors a kernel reads and writes, as far as its text shows.

A launch asks for two things: whose extents have to agree (`tk.load_tile_like(x, y)`), and whether blocks keep to tiles of their
own, so that one view may be read and written. The text is followed through variables that are assigned once and through the
functions that a kernel calls. A tensor that is used in any other way counts as read and written anywhere.
"""

from __future__ import annotations

import ast
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tilekit.compiler.frontend.bound import BoundKernel, arguments_of, resolved
from tilekit.compiler.frontend.folding import BINARY, MISSING, value_of
from tilekit.lang import calculation, memory
from tilekit.lang.pipelines import pipelined

__all__ = ["Access", "Accesses", "Alike", "Along", "Extent", "Own", "Visited", "accesses_of"]


class Extent(NamedTuple):
    """The extent of a partition's tiles along a dimension."""

    partition: str
    dim: int


class Along(NamedTuple):
    """An index along one dimension that is the block's along an axis of the grid, in tiles of this extent."""

    axis: int
    extent: int | Extent


class Own(NamedTuple):
    """The tile that the block owns of a partition."""

    partition: str


class Visited(NamedTuple):
    """The tile of a mapped partition that the turn of a loop visits; or one at that index, in tiles of these extents."""

    partition: str
    loop: int
    extents: tuple[Any, ...] | None = None


Region = Own | Visited | tuple[Along | None, ...] | None


class Access(NamedTuple):
    """What is read or written of a tensor: a tile, by what is known of its index along each dimension; None: anything.

    Attributes:
        written: or else read.
        region: where.
        after: the partitions that the text has stored to before.
    """

    written: bool
    region: Region
    after: frozenset[str] = frozenset()


class Alike(NamedTuple):
    """A call `tk.load_tile_like(array, like)` without `padding_mode`, that is sure to run: the names of the two parameters."""

    array: str
    like: str
    lineno: int
    text: str


@dataclass
class Accesses:
    """What a kernel reads and writes.

    Attributes:
        alike: whose extents have to agree.
        of: the accesses of each parameter.
    """

    alike: list[Alike] = field(default_factory=list)
    of: dict[str, list[Access]] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)

    def add(self, name: str, written: bool, region: Region) -> None:
        self.of.setdefault(name, []).append(Access(written, region, frozenset(self.stored)))
        if written:
            self.stored.add(name)


_accesses: weakref.WeakKeyDictionary[BoundKernel, Accesses] = weakref.WeakKeyDictionary()


def accesses_of(bound: BoundKernel) -> Accesses:
    """The memory footprint of a kernel: what `bound` reads and writes; looked at once."""
    accesses = _accesses.get(bound)
    if accesses is None:
        accesses = Accesses()
        _Walk(bound, accesses, {name: _Parameter(name) for name in bound.names}, set(bound.names), certain=True).run()
        _accesses[bound] = accesses
    return accesses


# -------------------------------------------------------------------------------------------- what is known of an expression


class _Parameter(NamedTuple):
    """A parameter of the kernel."""

    name: str


class _Block(NamedTuple):
    """`tk.bid(axis)`."""

    axis: int


class _Turn(NamedTuple):
    """What `for tile in y.tiles():` gives."""

    partition: str
    loop: int


class _Place(NamedTuple):
    """`tile.index`, or a part of it."""

    turn: _Turn
    dim: int | None = None


class _Shape(NamedTuple):
    """`y.tile_shape`."""

    partition: str


class _Several(NamedTuple):
    """A tuple."""

    values: tuple[Any, ...]


class _Known(NamedTuple):
    """A constant."""

    value: Any


class _Grid(NamedTuple):
    """`x.tiles(shape)`."""

    tensor: str
    shape: Any


_DESCRIBING = ("shape", "dtype", "ndim", "tile_shape")
_LOOKING = (memory.num_tiles, calculation.cdiv)


class _Walk:
    """Goes through one function, in the order of its text."""

    def __init__(
        self, bound: BoundKernel, accesses: Accesses, known: Mapping[str, Any], decided: set[str], *, certain: bool
    ) -> None:
        self.bound, self.accesses, self.known, self.certain = bound, accesses, dict(known), certain
        tree = bound.definition
        targets = Counter(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        self.once = {name for name, count in targets.items() if count == 1 and name not in self.known}
        for name in targets.keys() & self.known.keys():  # it may be another thing at times
            self._escape(self.known.pop(name))
        self.decided = _derived_from(tree, decided)

    def run(self) -> None:
        self._block(self.bound.definition.body)

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        for node in statements:
            self._statement(node)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value)
            case ast.If(test=test, body=body, orelse=other):
                self._visit(test)
                self._branch((body, other), depends=self._depends(test))
            case ast.While(test=test, body=body, orelse=other):
                self._visit(test)
                self._branch((body, other), depends=self._depends(test))
            case ast.For():
                self._loop(node)
            case ast.FunctionDef():
                self._escape_all(node)
            case _:
                for child in ast.iter_child_nodes(node):
                    self._visit(child)

    def _branch(self, blocks: Iterable[Sequence[ast.stmt]], depends: bool) -> None:
        """Blocks of which not all run; `depends` if the launch decides which."""
        before, leaving = self.certain, False
        for block in blocks:
            self.certain = before and not depends
            self._block(block)
            inner = [n for s in block for n in ast.walk(s)]
            returns, turns = (any(isinstance(n, kinds) for n in inner) for kinds in (ast.Return, (ast.Break, ast.Continue)))
            leaving = leaving or ((returns or (turns and depends)) and not self.certain)
        self.certain = before and not leaving

    def _loop(self, node: ast.For) -> None:
        turn = self._turn_of(node)
        if turn is not None and isinstance(node.target, ast.Name) and node.target.id in self.once:
            self.known[node.target.id] = turn
        else:
            self._visit(node.iter)
        # Of a range that a scalar decides there may be no turn.
        scalars = self._depends(node.iter) and turn is None and not _tiled(node.iter)
        self._branch((node.body, node.orelse), depends=scalars)

    def _turn_of(self, node: ast.For) -> _Turn | None:
        """What a loop over the tiles of a mapped partition gives."""
        match node.iter:
            case ast.Call(func=ast.Attribute(value=owner, attr="tiles"), args=args, keywords=[]):
                views = [self._value(a) for a in (owner, *args)]
                if isinstance(views[0], _Parameter) and all(isinstance(view, _Parameter) for view in views):
                    return _Turn(views[0].name, id(node))
        return None

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name) and target.id in self.once:
            self.known[target.id] = self._value(value)
            return
        if isinstance(target, ast.Tuple) and all(isinstance(t, ast.Name) for t in target.elts):
            names, parts = [t.id for t in target.elts if isinstance(t, ast.Name)], self._value(value)
            values: list[Any] = [None] * len(names)
            if isinstance(parts, _Several) and len(parts.values) == len(names):
                values = list(parts.values)
            elif isinstance(parts, _Place) and parts.dim is None:
                values = [_Place(parts.turn, dim) for dim in range(len(names))]
            else:
                self._escape(parts)
            for name, part in zip(names, values, strict=True):
                if name in self.once:
                    self.known[name] = part
                else:
                    self._escape(part)
            return
        self._visit(value)

    def _depends(self, node: ast.AST) -> bool:
        """Whether what the launch is given decides about an expression."""
        return any(isinstance(n, ast.Name) and n.id in self.decided for n in ast.walk(node))

    # expressions

    def _visit(self, node: ast.AST) -> None:
        """An expression of which nothing is needed: a tensor in it is used as nobody knows."""
        if isinstance(node, ast.expr):
            self._escape(self._value(node))
        else:
            for child in ast.iter_child_nodes(node):
                self._visit(child)

    def _escape(self, value: Any) -> None:
        if isinstance(value, _Parameter):
            self.accesses.add(value.name, True, None)
        elif isinstance(value, _Several):
            for one in value.values:
                self._escape(one)
        elif isinstance(value, _Grid):
            self.accesses.add(value.tensor, False, None)

    def _escape_all(self, node: ast.AST) -> None:
        for name in [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]:
            self._escape(self.known.get(name))

    def _value(self, node: ast.expr) -> Any:
        constant = value_of(node)
        if constant is not MISSING:
            return _Known(constant)
        match node:
            case ast.Name(id=name):
                return self.known.get(name)
            case ast.Tuple(elts=parts):
                return _Several(tuple(self._value(part) for part in parts))
            case ast.Attribute(value=owner, attr=attribute):
                return self._attribute(self._value(owner), attribute)
            case ast.Subscript(value=owner, slice=index):
                return self._item(self._value(owner), index)
            case ast.Call():
                return self._call(node)
            case ast.BinOp(left=left, op=op, right=right):
                return self._calculated(self._value(left), op, self._value(right))
            case ast.IfExp(test=test, body=body, orelse=other):
                self._visit(test)
                first, second = self._value(body), self._value(other)
                if type(first) is type(second) and first == second:
                    return first
                self._escape(first)
                self._escape(second)
                return None
            case ast.Lambda():
                self._escape_all(node)
                return None
        for child in ast.iter_child_nodes(node):
            self._visit(child)
        return None

    def _calculated(self, left: Any, op: ast.operator, right: Any) -> Any:
        """What constants give, and what they leave as it is."""
        if isinstance(left, _Known) and isinstance(right, _Known):
            with suppress(ArithmeticError, TypeError, ValueError):
                return _Known(BINARY[type(op)](left.value, right.value))
        neutral = {ast.Mult: 1, ast.Add: 0, ast.Sub: 0, ast.FloorDiv: 1}.get(type(op), MISSING)
        for one, other, turned in ((left, right, False), (right, left, True)):
            if isinstance(other, _Known) and other.value == neutral and (not turned or isinstance(op, (ast.Mult, ast.Add))):
                return one
        self._escape(left)
        self._escape(right)
        return None

    def _attribute(self, owner: Any, attribute: str) -> Any:
        if isinstance(owner, _Parameter) and attribute in _DESCRIBING:
            return _Shape(owner.name) if attribute == "tile_shape" else None
        if isinstance(owner, _Turn) and attribute == "index":
            return _Place(owner)
        self._escape(owner)
        return None

    def _item(self, owner: Any, index: ast.expr) -> Any:
        if isinstance(owner, _Grid):
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            for part in parts:
                self._visit(part)
            at = [None if isinstance(part, ast.Slice) else self._value(part) for part in parts]
            self.accesses.add(owner.tensor, False, _region(_Several(tuple(at)), owner.shape))
            return None
        at = value_of(index)
        match owner:
            case _Several(values) if isinstance(at, int) and -len(values) <= at < len(values):
                return values[at]
            case _Known(tuple(values)) if isinstance(at, int) and -len(values) <= at < len(values):
                return _Known(values[at])
            case _Shape(partition) if isinstance(at, int) and at >= 0:
                return Extent(partition, at)
            case _Place(turn, None) if isinstance(at, int) and at >= 0:
                return _Place(turn, at)
        self._escape(owner)
        self._visit(index)
        return None

    def _call(self, node: ast.Call) -> Any:
        function = resolved(self.bound, node.func)
        keywords = {str(k.arg): k.value for k in node.keywords}
        if any(isinstance(argument, ast.Starred) for argument in node.args) or "None" in keywords:
            return self._starred(node)
        match node.func:
            case ast.Name(id=name) if name in self.bound.called and name not in self.bound.passed:
                return self._helper(self.bound.called[name], node)
            case ast.Attribute(value=owner, attr=method) if function is None:
                owner_value = self._value(owner)
                if isinstance(owner_value, _Parameter):
                    return self._method(owner_value, method, node, keywords)
                self._escape(owner_value)
        if function is memory.bid:
            axis = value_of(node.args[0]) if node.args else MISSING
            return _Block(axis) if axis in (0, 1, 2) else None
        if function is memory.load_tile_like:
            return self._load_tile_like(_arguments(node, "array", "like"), keywords, node)
        if function is memory.load:
            return self._load(_arguments(node, "array", "index", "shape"), keywords)
        if function is memory.store:
            return self._store(_arguments(node, "array", "index", "tile"), keywords)
        if function in _LOOKING or function is pipelined:
            for value in (*node.args, *keywords.values()):
                looked_at = self._value(value)
                if not isinstance(looked_at, _Parameter) or function is pipelined:
                    self._escape(looked_at)
            return None
        for value in (*node.args, *keywords.values()):
            self._visit(value)
        return None

    def _starred(self, node: ast.Call) -> None:
        """A call whose arguments are as many as a tuple has parts: of what it is given, anything may be accessed."""
        if isinstance(node.func, ast.Attribute):
            self._escape(self._value(node.func.value))
        for value in (*node.args, *(keyword.value for keyword in node.keywords)):
            self._visit(value)

    def _method(self, owner: _Parameter, method: str, node: ast.Call, keywords: Mapping[str, ast.expr]) -> Any:
        match method:
            case "load":
                (tile,) = _arguments(node, "tile")
                self._rest(keywords, "tile")
                self.accesses.add(owner.name, False, self._own(owner, tile))
            case "store":
                value, tile = _arguments(node, "value", "tile")
                if value is not None:
                    self._visit(value)
                self._rest(keywords, "value", "tile")
                self.accesses.add(owner.name, True, self._own(owner, tile))
            case "tiles" if len(node.args) == 1 and not node.keywords:
                shape = self._value(node.args[0])
                if not isinstance(shape, _Parameter):
                    return _Grid(owner.name, shape)
                self._escape(owner)
                self._escape(shape)
            case _:
                self._escape(owner)
                for value in (*node.args, *keywords.values()):
                    self._visit(value)
        return None

    def _own(self, owner: _Parameter, tile: ast.expr | None) -> Region:
        if tile is None or value_of(tile) is None:
            return Own(owner.name)
        turn = self._value(tile)
        return Visited(turn.partition, turn.loop) if isinstance(turn, _Turn) else None

    def _rest(self, keywords: Mapping[str, ast.expr], *names: str) -> None:
        for name, value in keywords.items():
            if name not in names:
                self._visit(value)

    def _load_tile_like(self, arguments: list[ast.expr | None], keywords: Mapping[str, ast.expr], node: ast.Call) -> None:
        array, like = (None if a is None else self._value(a) for a in arguments)
        self._rest(keywords, "array", "like")
        if not isinstance(array, _Parameter):
            self._escape(array)
            return
        region: Region = None
        if isinstance(like, _Parameter):
            region, partition = Own(like.name), like.name
        elif isinstance(like, _Turn):
            region, partition = Visited(like.partition, like.loop), like.partition
        else:
            self._escape(like)
        self.accesses.add(array.name, False, region)
        if region is not None and self.certain and "padding_mode" not in keywords:
            self.accesses.alike.append(Alike(array.name, partition, node.lineno, ast.unparse(node)))

    def _load(self, arguments: list[ast.expr | None], keywords: Mapping[str, ast.expr]) -> None:
        array, index, shape = (None if a is None else self._value(a) for a in arguments)
        self._rest(keywords, "array", "index", "shape")
        if isinstance(array, _Parameter):
            self.accesses.add(array.name, False, None if "order" in keywords else _region(index, shape))
        else:
            self._escape(array)

    def _store(self, arguments: list[ast.expr | None], keywords: Mapping[str, ast.expr]) -> None:
        array, index = (None if a is None else self._value(a) for a in arguments[:2])
        if arguments[2] is not None:
            self._visit(arguments[2])
        self._rest(keywords, "array", "index", "tile")
        if isinstance(array, _Parameter):
            self.accesses.add(array.name, True, None if "order" in keywords else _region(index, _Shape(array.name)))
        else:
            self._escape(array)

    def _helper(self, bound: BoundKernel, node: ast.Call) -> None:
        """A call of a function: what it is given is known in it."""
        known, decided = {}, set()
        for name, argument in zip(bound.names, node.args, strict=True):
            known[name] = self._value(argument)
            if self._depends(argument):
                decided.add(name)
        _Walk(bound, self.accesses, known, decided, certain=self.certain).run()


def _derived_from(tree: ast.FunctionDef, names: set[str]) -> set[str]:
    """The variables whose values these decide, and these."""
    derived = set(names) | {a.arg for n in ast.walk(tree) if isinstance(n, ast.Lambda) for a in arguments_of(n.args)}
    while True:
        before = len(derived)
        for node in ast.walk(tree):
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For)):
                source = node.iter if isinstance(node, ast.For) else node.value
                if source is not None and any(isinstance(n, ast.Name) and n.id in derived for n in ast.walk(source)):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    derived |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        if len(derived) == before:
            return derived


def _tiled(node: ast.expr) -> bool:
    """Whether a loop goes over tiles, or as many turns as there are tiles: of these there are some."""
    return any(isinstance(n, ast.Attribute) and n.attr in ("tiles", "num_tiles", "shape") for n in ast.walk(node))


def _arguments(node: ast.Call, *names: str) -> list[ast.expr | None]:
    """The arguments of a call by the names of the first parameters; None for one that is not there."""
    keywords = {str(k.arg): k.value for k in node.keywords}
    return [node.args[at] if at < len(node.args) else keywords.get(name) for at, name in enumerate(names)]


def _region(index: Any, shape: Any) -> Region:
    """Where a tile of this shape lies that an index names."""
    if isinstance(index, _Place) and index.dim is None and isinstance(shape, _Shape) and shape[0] == index.turn.partition:
        return Visited(*index.turn)
    indices = index.values if isinstance(index, _Several) else (index,)
    if isinstance(shape, _Known):
        extents: Any = shape.value if isinstance(shape.value, tuple) else (shape.value,)
        extents = extents or (1,) * len(indices)
    elif isinstance(shape, _Shape):
        extents = tuple(Extent(shape.partition, dim) for dim in range(len(indices)))
    elif isinstance(shape, _Several):
        extents = tuple(one.value if isinstance(one, _Known) else one for one in shape.values)
    else:
        extents = (shape,)
    if len(extents) != len(indices):
        return None
    turn = indices[0].turn if indices and isinstance(indices[0], _Place) else None
    if turn is not None and all(at == _Place(turn, dim) for dim, at in enumerate(indices)):
        return Visited(*turn, extents)
    dims: list[Along | None] = []
    for at, extent in zip(indices, extents, strict=True):
        known = isinstance(at, _Block) and isinstance(extent, (int, Extent))
        dims.append(Along(at.axis, extent) if known else None)
    return tuple(dims)
