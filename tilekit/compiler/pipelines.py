"""Software pipelines: what becomes of `for ... in tk.pipelined(...):` before the compiler sees it.

On its own, such a loop becomes one that loads a tile of each stream in each turn (`_plain`). Where tiles can be brought ahead, by
the tensor memory accelerator or by copies, a ring of stages in shared memory stands between these and the loop, and the kernel
becomes two: that of the threads that load, which is the kernel without all that does not decide which tiles come, and the kernel
itself, which takes the tiles and gives the stages back.

    ring = _ring(stages, x.tiles(...), ...)                            in all threads
    role = _role()
    if role == LOADS:                                                  if role == CALCULATES:
        turn = 0                                                           turn = 0
        for k in range(_steps(rows...)):                                   ...
            _put(ring, turn, k, rows...)                                   for k in range(_steps(rows...)):
            turn += 1                                                          t = _take(ring, turn, ...)
                                                                               ...
                                                                               _give(ring, turn, k, ...)
                                                                               turn += 1
                                                                           _last(ring, turn, ...)

A loop that has one turn at most is an `if` there.

The functions that stand in such code do nothing in Python; `compiler.lower.pipelines` and `rings` lower them.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilekit.compiler.bound import BoundKernel, stored
from tilekit.compiler.folding import MISSING, value_of
from tilekit.compiler.loading import Apart, Kept, Unfit, check_stay, reads, resolved
from tilekit.compiler.sharing import alike
from tilekit.compiler.source import KernelSource
from tilekit.errors import CompileError
from tilekit.lang import pipelines
from tilekit.lang.matmul import mma
from tilekit.lang.pipelines import check_stages, check_warp_specialize

__all__ = ["CALCULATES", "LOADS", "STEPS", "Unfit", "check_call", "pipelined_loops", "plain", "rings_of", "specialised"]

CALCULATES, LOADS = 0, 1


def _steps(*rows: Any) -> Any:
    """The number of turns."""


def _nth(row: Any, k: Any) -> Any:
    """Load the tile of a turn."""


def _ring(number: Any, stages: Any, shared: Any, *grids: Any) -> Any:
    """A ring: stages for tiles of such grids; those whose bits of `shared` are set come to all blocks of a cluster."""


def _role() -> Any:
    """What a thread does: CALCULATES, LOADS, or nothing."""


def _registers(role: Any, products: Any) -> Any:
    """From here on, a thread needs as many registers as its role does; a turn of some loop has so many `products`."""


def _put(ring: Any, turn: Any, k: Any, *rows: Any) -> Any:
    """Load the tiles of turn `k` of a loop, as soon as there is a stage; `turn` counts those of all loops."""


def _take(ring: Any, turn: Any, lines: Any) -> Any:
    """Wait for the tiles of a turn. The statements on the given lines run once in it."""


def _operand(tile: Any) -> Any:
    """A tile as products take it, so that it need not be converted in each turn."""


def _settled(product: Any, *later: Any) -> Any:
    """Wait for a product, and not for those that were asked for later."""


def _give(ring: Any, turn: Any, k: Any, lines: Any) -> Any:
    """Be done with a turn's tiles. If there are products that read them it is with those of the turn before, unless that belongs
    to another loop. The statements on the given lines run once in each turn."""


def _end() -> Any:
    """All is done. A block of a cluster waits for the others, which may still tell it something."""


def _last(ring: Any, turn: Any, k: Any, lines: Any) -> Any:
    """The loop is over, which had `k` turns; `turn` is the next."""


STEPS: dict[str, Callable[..., Any]] = {
    f"tilekit_{function.__name__}": function
    for function in (_steps, _nth, _ring, _role, _registers, _put, _take, _operand, _settled, _give, _last, _end)
}


def check_call(source: KernelSource, call: ast.Call, *, looped: bool) -> None:
    """Refuse a call of `tk.pipelined` whose place or options are wrong; `looped` if a `for` statement goes over it.

    Raises:
        CompileError: it points at the call.
    """
    values = {k.arg: k.value for k in call.keywords}
    try:
        if not looped:
            raise CompileError(f"pipelined: {pipelines.PLACE}")
        if None in values or any(isinstance(stream, ast.Starred) for stream in call.args):
            raise CompileError("pipelined: the streams and options are written out: *args and **kwargs do not exist in kernels")
        if not call.args:
            raise CompileError(f"pipelined: {pipelines.NO_STREAMS}")
        for name, check in (("stages", check_stages), ("warp_specialize", check_warp_specialize)):
            value = value_of(values.pop(name, ast.Constant(None)))
            if value is MISSING:
                raise CompileError(f"pipelined: {name} is a constant, known when the kernel is compiled")
            check(value, "pipelined")
        if values:
            raise CompileError(f"pipelined: there is no option {next(iter(values))}; there are stages and warp_specialize")
    except CompileError as error:
        raise source.error(error.reason, call.lineno, "pipelined") from None


def pipelined_loops(bound: BoundKernel) -> list[ast.For]:
    """The loops over `tk.pipelined` of a kernel, without those of the functions that it calls."""
    return [node for node in ast.walk(bound.definition) if isinstance(node, ast.For) and _is_pipelined(bound, node.iter)]


def plain(bound: BoundKernel) -> BoundKernel:
    """The kernel with loops that load as they go."""
    if not any(_all_pipelined(bound)):
        return bound
    made = bound.changed(lambda path, tree: _Loads(bound, path).visit(tree), STEPS)
    return replace(made, cells={**bound.cells, **STEPS})


def specialised(bound: BoundKernel, clusters: Mapping[str, tuple[int, ...]], written: frozenset[str]) -> BoundKernel:
    """The kernel with rings of stages, and a thread that loads.

    Args:
        bound: the kernel.
        clusters: the clusters of its mapped partitions, by the names of the parameters.
        written: the tensors that are not only read.

    Raises:
        Unfit: it cannot have them.
    """
    if any(_all_pipelined(called) for called in bound.called.values()):
        raise Unfit("a function that the kernel calls has a pipeline")
    tree: ast.FunctionDef = Apart().visit(copy.deepcopy(bound.definition))
    loops = _pipelines(bound, tree)
    if not loops:
        return bound  # it has its rings: dead branches have been taken out of it
    check_stay(bound, tree, loops)
    kept = Kept(bound, tree, loops, written)
    parameters = {a.arg for a in tree.args.args} - stored(ast.walk(tree))
    head: list[ast.stmt] = []
    streams = [(loop.node, loop.streams) for loop in loops]
    for loop, shared in zip(loops, alike(tree, streams, clusters, lambda node: resolved(bound, node)), strict=True):
        loop.check(parameters)
        if loop.shares is None:
            head.append(loop.ring(shared))
    first = tree.body[0]
    head.append(_assigned(_ROLE, _called("tilekit__role", [], first), first))
    starts = [_assigned(loop.turn, ast.Constant(0), loop.node) for loop in loops if loop.shares is None]
    loading = [*copy.deepcopy(starts), *kept.statements(tree.body)]
    calculating = [*starts, *_Takes(bound, loops).block(tree.body)]
    most = ast.Constant(max(_products(bound, loop.node) for loop in loops))
    registers = [ast.Expr(_called("tilekit__registers", [ast.Constant(role), most], first)) for role in (CALCULATES, LOADS)]
    others = [registers[LOADS], ast.If(_is_role(LOADS), loading, [])]
    roles: ast.stmt = ast.If(_is_role(CALCULATES), [registers[CALCULATES], *calculating], others)
    end: ast.stmt = ast.Expr(_called("tilekit__end", [], first))
    tree.body = [*head, ast.copy_location(roles, first), ast.copy_location(end, first)]
    for node in ast.walk(roles):
        if isinstance(node, (ast.expr, ast.stmt)) and not hasattr(node, "lineno"):
            ast.copy_location(node, first)
    made = bound.changed(lambda path, old: tree if not path else old, STEPS)
    return replace(made, cells={**bound.cells, **STEPS})


_ROLE = "tilekit__role_of_thread"


def _is_role(role: int) -> ast.expr:
    return ast.Compare(ast.Name(_ROLE, ast.Load()), [ast.Eq()], [ast.Constant(role)])


def _is_pipelined(bound: BoundKernel, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and resolved(bound, node.func) is pipelines.pipelined


def _loops_of(bound: BoundKernel, tree: ast.AST) -> list[ast.For]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.For) and _is_pipelined(bound, node.iter)]


def _pipelines(bound: BoundKernel, tree: ast.AST) -> list[Pipeline]:
    """The pipelines of a kernel. One over the same tiles as another, which does not stand in it, uses its ring."""
    made: list[Pipeline] = []
    for node in _loops_of(bound, tree):
        loop = Pipeline(node, len(made))
        within = {id(inner) for inner in ast.walk(node)}
        for other in made:
            apart = id(other.node) not in within and id(node) not in {id(inner) for inner in ast.walk(other.node)}
            if other.shares is None and loop.key == other.key and apart:
                loop.share(other)
                break
        made.append(loop)
    return made


def rings_of(bound: BoundKernel) -> int:
    """How many rings the pipelines of a kernel have."""
    return sum(loop.shares is None for loop in _pipelines(bound, bound.definition))


def _all_pipelined(bound: BoundKernel) -> list[ast.For]:
    return pipelined_loops(bound) + [loop for called in bound.called.values() for loop in _all_pipelined(called)]


def _products(bound: BoundKernel, loop: ast.For) -> int:
    """How many products the statements of a turn ask for, without those of loops and helpers in it."""
    nodes = [n for s in loop.body if not isinstance(s, (ast.For, ast.While)) for n in ast.walk(s)]
    return sum(isinstance(n, ast.Call) and resolved(bound, n.func) is mma for n in nodes)


def _called(name: str, arguments: list[ast.expr], at: ast.AST) -> ast.Call:
    made: ast.Call = _placed(ast.Call(ast.Name(name, ast.Load()), arguments, []), at)
    return made


def _assigned(name: str, value: ast.expr, at: ast.AST) -> ast.stmt:
    made: ast.stmt = _placed(ast.Assign([ast.Name(name, ast.Store())], value), at)
    return made


def _placed(made: Any, at: ast.AST) -> Any:
    for node in ast.walk(made):
        if isinstance(node, (ast.expr, ast.stmt)) and not hasattr(node, "lineno"):
            ast.copy_location(node, at)
    return made


def _name(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _is_one(stream: ast.expr) -> bool:
    """Whether a stream is `tiles[i : i + 1]`, of one tile at most."""
    if not isinstance(stream, ast.Subscript):
        return False
    parts = stream.slice.elts if isinstance(stream.slice, ast.Tuple) else [stream.slice]
    return all(_spans_one(part) for part in parts if isinstance(part, ast.Slice))


def _spans_one(part: ast.Slice) -> bool:
    match part:
        case ast.Slice(lower=ast.Name(id=low), upper=ast.BinOp(left=ast.Name(id=high), op=ast.Add(), right=ast.Constant(1))):
            return low == high
        case ast.Slice(lower=ast.Constant(int(low)), upper=ast.Constant(int(high))):
            return high - low == 1
    return False


class _Whole(ast.NodeTransformer):
    """Makes `x.slice(axis, start)` the tensor of which it is the rest."""

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute) or node.func.attr != "slice":
            return node
        stops = [*node.args[2:], *(k.value for k in node.keywords if k.arg == "stop")]
        ends = any(not isinstance(stop, ast.Constant) or stop.value is not None for stop in stops)
        return node if ends else node.func.value


class Pipeline:
    """One loop over `tk.pipelined`.

    Attributes:
        node: the loop.
        streams: the expressions of its streams.
        stages: how many the user wants, None for as many as fit.
        turn: the name of the variable that counts the turns of all times that loops with its ring run.
        key: what pipelines have in common that can use one ring.
        shares: whose ring it uses, None if it has its own.
        once: whether it has a single turn, or none.
    """

    def __init__(self, node: ast.For, number: int) -> None:
        assert isinstance(node.iter, ast.Call), "a loop over tk.pipelined"
        self.node, self.streams = node, node.iter.args
        options = {k.arg: value_of(k.value) for k in node.iter.keywords}  # constants: `check_call`
        self.stages, self.wanted = options.get("stages"), options.get("warp_specialize")
        self.number, self.name = number, f"tilekit__ring{number}"
        self.turn, self.count, self.index = f"{self.name}_turn", f"{self.name}_steps", f"{self.name}_k"
        self.rows = [f"{self.name}_row{place}" for place in range(len(self.streams))]
        self.key = (self.stages, *(ast.dump(self._grid(stream)) for stream in self.streams))
        self.shares: Pipeline | None = None
        self.once = any(_is_one(stream) for stream in self.streams)

    def share(self, other: Pipeline) -> None:
        """Use another's ring."""
        self.shares, self.number, self.name, self.turn = other, other.number, other.name, other.turn

    def check(self, parameters: set[str]) -> None:
        """Refuse what cannot be a ring."""
        if self.wanted is False:
            raise Unfit("warp_specialize=False")
        if self.node.orelse or any(
            isinstance(n, (ast.Break, ast.Continue, ast.Return)) for s in self.node.body for n in ast.walk(s)
        ):
            raise Unfit("the loop has a break, continue, return or else")
        for stream in self.streams:
            names = {n.id for n in ast.walk(self._grid(stream)) if isinstance(n, ast.Name)}
            if not names <= parameters:
                raise Unfit(f"{ast.unparse(self._grid(stream))} is no tiles of a parameter of the kernel")

    @staticmethod
    def _grid(stream: ast.expr) -> ast.expr:
        """The tiles that a stream is some of; of a slice to the end, those of the whole tensor."""
        return _Whole().visit(copy.deepcopy(stream.value if isinstance(stream, ast.Subscript) else stream))  # type: ignore[no-any-return]

    def ring(self, shared: Sequence[bool]) -> ast.stmt:
        """What makes the ring, some of whose streams are shared by the blocks of a cluster."""
        mask = sum(1 << place for place, each in enumerate(shared) if each)
        grids = [self._grid(stream) for stream in self.streams]
        options: list[ast.expr] = [ast.Constant(number) for number in (self.number, self.stages or 0, mask)]
        return _assigned(self.name, _called("tilekit__ring", [*options, *grids], self.node), self.node)

    def around(self, inner: list[ast.stmt], after: list[ast.stmt]) -> list[ast.stmt]:
        """The loop with another body, and what is before and behind it."""
        node, rows = self.node, [_name(row) for row in self.rows]
        before = [_assigned(row, copy.deepcopy(stream), node) for row, stream in zip(self.rows, self.streams, strict=True)]
        before.append(_assigned(self.count, _called("tilekit__steps", rows, node), node))
        further: ast.stmt = _placed(ast.AugAssign(ast.Name(self.turn, ast.Store()), ast.Add(), ast.Constant(1)), node)
        if self.once:  # nothing is carried round, for which a thread would need registers
            before.append(_assigned(self.index, ast.Constant(0), node))
            loop: ast.stmt = ast.If(_name(self.count), [*inner, further], [])
        else:
            turns = _called("range", [_name(self.count)], node)
            loop = ast.For(ast.Name(self.index, ast.Store()), turns, [*inner, further], [])
        return [*before, _placed(loop, node), *after]

    def loading(self, kept: list[ast.stmt]) -> list[ast.stmt]:
        """The loop of the thread that loads; of its body, it has `kept`."""
        given = [_name(n) for n in (self.name, self.turn, self.index, *self.rows)]
        return self.around([_placed(ast.Expr(_called("tilekit__put", given, self.node)), self.node), *kept], [])

    def calculating(self, body: list[ast.stmt], lines: list[int]) -> list[ast.stmt]:
        """The loop of those that calculate; the statements on these lines run once in each turn."""
        where = ast.Tuple([ast.Constant(line) for line in lines], ast.Load())
        taken = _called("tilekit__take", [_name(self.name), _name(self.turn), copy.deepcopy(where)], self.node)
        get: ast.stmt = _placed(ast.Assign([copy.deepcopy(self.node.target)], taken), self.node)

        def told(name: str, k: str) -> ast.stmt:
            given = [_name(self.name), _name(self.turn), _name(k), where]
            return _placed(ast.Expr(_called(name, given, self.node)), self.node)  # type: ignore[no-any-return]

        return self.around([get, *body, told("tilekit__give", self.index)], [told("tilekit__last", self.count)])


class _Loads(ast.NodeTransformer):
    """Makes pipelines loops that load as they go."""

    def __init__(self, bound: BoundKernel, path: str) -> None:
        for name in path.split("/")[1:]:
            bound = bound.called[name]
        self.bound, self.count = bound, 0

    def visit_For(self, node: ast.For) -> Any:
        self.generic_visit(node)
        if not _is_pipelined(self.bound, node.iter):
            return node
        loop = Pipeline(node, self.count)
        self.count += 1
        tiles: list[ast.expr] = [_called("tilekit__nth", [_name(row), _name(loop.index)], node) for row in loop.rows]
        value = tiles[0] if len(tiles) == 1 else ast.Tuple(tiles, ast.Load())
        get = _placed(ast.Assign([copy.deepcopy(node.target)], value), node)
        before = [_assigned(row, stream, node) for row, stream in zip(loop.rows, loop.streams, strict=True)]
        turns = _called("range", [_called("tilekit__steps", [_name(row) for row in loop.rows], node)], node)
        made = ast.For(ast.Name(loop.index, ast.Store()), turns, [get, *node.body], node.orelse)
        return [*before, _placed(made, node)]


@dataclass(frozen=True)
class _Product:
    """A statement `target = tk.mma(...)`."""

    target: str
    call: ast.Call

    @property
    def first(self) -> str | None:
        """The variable that is its first operand, if it is one."""
        operand = self.call.args[0] if self.call.args else None
        return operand.id if isinstance(operand, ast.Name) else None

    def only_adds_to(self, name: str) -> bool:
        """Whether it needs a variable as its accumulator alone."""
        *operands, acc = [*self.call.args, *(k.value for k in self.call.keywords)][:3]
        used = [n.id for operand in operands for n in ast.walk(operand) if isinstance(n, ast.Name)]
        return isinstance(acc, ast.Name) and acc.id == name and name not in used


_BRANCHES = (ast.IfExp, ast.BoolOp)  # expressions of which a part may not be computed


class _Takes(ast.NodeTransformer):
    """Makes pipelines loops that take tiles from a ring."""

    def __init__(self, bound: BoundKernel, loops: list[Pipeline]) -> None:
        self.bound, self.loops = bound, {id(loop.node): loop for loop in loops}

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in statements:
            result = self.visit(statement)
            made.extend(result if isinstance(result, list) else [result])
        return made

    def visit_For(self, node: ast.For) -> Any:
        loop = self.loops.get(id(node))
        if loop is None:
            return self.generic_visit(node)
        # Products are under way when the next statement begins. If one is asked for in each turn, those of the turn before are
        # done as soon as all but the last are.
        products = [product for product in map(self._product, node.body) if product is not None]
        # Those of the operands that are carried round the loop, or come into it, lie as products take them all the time.
        carried = {p.first for p in products if p.first and self._is_carried(p.first, node)}
        ready = {name: _called("tilekit__operand", [_name(name)], node) for name in sorted(carried)}
        body: list[ast.stmt] = []
        for statement in self._waiting(node.body):
            mine = stored(ast.walk(statement)) & carried
            body += [statement, *(_assigned(name, copy.deepcopy(ready[name]), statement) for name in sorted(mine))]
        before = [_assigned(name, value, node) for name, value in ready.items()]
        inner = any(isinstance(n, (ast.For, ast.While)) for s in node.body for n in ast.walk(s))
        simple = () if inner else (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)
        once = [isinstance(s, simple) and not any(isinstance(n, _BRANCHES) for n in ast.walk(s)) for s in node.body]
        others = {s.lineno for s, each_turn in zip(node.body, once, strict=True) if not each_turn}
        lines = [s.lineno for s in node.body if s.lineno not in others]
        return [*before, *loop.calculating(self.block(body), lines)]

    @staticmethod
    def _is_carried(name: str, loop: ast.For) -> bool:
        """Whether a variable has its value from before a turn, when it is first used in it."""
        if name in stored(ast.walk(loop.target)):
            return False
        for statement in loop.body:
            if name in reads(statement):
                return True
            if name in stored(ast.walk(statement)):
                return False
        return False

    def _waiting(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Statements of one turn, in which a product that is needed is waited for, and not those that were asked for after it."""
        products = [self._product(statement) for statement in statements]
        waits: dict[int, list[ast.stmt]] = {}
        for first, product in enumerate(products):
            if product is None:
                continue
            for needed in range(first + 1, len(statements)):
                if product.target in reads(statements[needed]):
                    later = [p.target for p in products[first + 1 : needed] if p is not None]
                    other = products[needed]
                    if later and not (other is not None and other.only_adds_to(product.target)):
                        given = [_name(name) for name in (product.target, *later)]
                        at = statements[needed]
                        waits.setdefault(needed, []).append(_assigned(product.target, _called("tilekit__settled", given, at), at))
                    break
                if product.target in stored(ast.walk(statements[needed])):
                    break
        return [made for place, statement in enumerate(statements) for made in (*waits.get(place, ()), statement)]

    def _product(self, statement: ast.stmt) -> _Product | None:
        """`x = tk.mma(...)`, if that is what a statement is."""
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call) if resolved(self.bound, call.func) is mma:
                return _Product(name, call)
        return None
