"""Software pipelining: what becomes of `for ... in tk.pipelined(...):` before the compiler sees it, with warp specialisation.

On its own, such a loop becomes one that loads a tile of each stream in each turn (`plain`). Where tiles can be brought ahead, by
the tensor memory accelerator or by copies, a ring of stages in shared memory stands between these and the loop, and the kernel
becomes two: that of the threads that load, which is the kernel without all that does not decide which tiles come, and the kernel
itself, which takes the tiles and gives the stages back.

    ring = _ring(stages, x.tiles(...), ...)                            in all threads
    role = _role()
    if role == PRODUCER:                                               if role == CONSUMER:
        turn = 0                                                           turn = 0
        for k in range(_steps(rows...)):                                   ...
            _put(ring, turn, k, rows...)                                   for k in range(_steps(rows...)):
            turn += 1                                                          t = _take(ring, turn, ...)
                                                                               ...
                                                                               _give(ring, turn, k, ...)
                                                                               turn += 1
                                                                           _last(ring, turn, ...)

A loop that has one turn at most is an `if` there.

What stands in such code is in `intrinsics`; `producer` has what is left for the threads that load, `consumer` what becomes of
the others.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilekit.compiler.frontend.bound import BoundKernel, stored
from tilekit.compiler.frontend.folding import MISSING, value_of
from tilekit.compiler.frontend.source import KernelSource
from tilekit.compiler.passes.consumer import ConsumerLoops, products_of
from tilekit.compiler.passes.intrinsics import CONSUMER, PRODUCER, STEPS, assignment, call_of, name_of, placed
from tilekit.compiler.passes.multicast import alike
from tilekit.compiler.passes.producer import Apart, ProducerSlice, Unfit, check_stay, resolved
from tilekit.errors import CompileError
from tilekit.lang import pipelines
from tilekit.lang.pipelines import check_rotate, check_stages, check_warp_specialize

__all__ = ["Pipeline", "Unfit", "check_call", "pipelined_loops", "plain", "rings_of", "specialised"]


_OPTIONS = {"stages": check_stages, "warp_specialize": check_warp_specialize, "rotate": check_rotate}


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
        for name, check in _OPTIONS.items():
            value = value_of(values.pop(name, ast.Constant(None)))
            if value is MISSING:
                raise CompileError(f"pipelined: {name} is a constant, known when the kernel is compiled")
            check(value, "pipelined")
        if values:
            *others, last = _OPTIONS
            raise CompileError(f"pipelined: there is no option {next(iter(values))}; there are {', '.join(others)} and {last}")
    except CompileError as error:
        raise source.error(error.reason, call.lineno, "pipelined") from None


def pipelined_loops(bound: BoundKernel, *, called: bool = False) -> list[ast.For]:
    """The loops over `tk.pipelined` of a kernel, and, if they are asked for, those of the functions that it calls."""
    inner = [loop for function in bound.called.values() for loop in pipelined_loops(function, called=True)] if called else []
    return _loops_of(bound, bound.definition) + inner


def plain(bound: BoundKernel) -> BoundKernel:
    """The kernel without software pipelining: loops that load as they go."""
    if not any(pipelined_loops(bound, called=True)):
        return bound
    rewritten = bound.changed(lambda path, tree: _Loads(bound, path).visit(tree), STEPS)
    return replace(rewritten, cells={**bound.cells, **STEPS})


def specialised(bound: BoundKernel, clusters: Mapping[str, tuple[int, ...]], written: frozenset[str]) -> BoundKernel:
    """The kernel with warp specialisation: rings of stages, a producer that issues copies, and consumers.

    Args:
        bound: the kernel.
        clusters: the clusters of its mapped partitions, by the names of the parameters.
        written: the tensors that are not only read.

    Raises:
        Unfit: it cannot have them.
    """
    if any(pipelined_loops(called, called=True) for called in bound.called.values()):
        raise Unfit("a function that the kernel calls has a pipeline")
    tree: ast.FunctionDef = Apart().visit(copy.deepcopy(bound.definition))
    loops = _pipelines(bound, tree)
    if not loops:
        return bound  # it has its rings: dead branches have been taken out of it
    check_stay(bound, tree, loops)
    producer_slice = ProducerSlice(bound, tree, loops, written)
    parameters = {a.arg for a in tree.args.args} - stored(ast.walk(tree))
    streams = [(loop.node, loop.streams) for loop in loops]
    rings = []
    for loop, shared in zip(loops, alike(tree, streams, clusters, lambda node: resolved(bound, node)), strict=True):
        loop.check(parameters)
        if loop.shares is None:
            rings.append((loop.stages is None, loop.ring(shared)))
    # Those of which nobody said how many stages they have come last, and share what the others leave.
    head = [ring for _, ring in sorted(rings, key=lambda each: each[0])]
    first = tree.body[0]
    head.append(assignment(_ROLE, call_of("tilekit__role", [], first), first))
    starts = [assignment(loop.turn, ast.Constant(0), loop.node) for loop in loops if loop.shares is None]
    producer = [*copy.deepcopy(starts), *producer_slice.statements(tree.body)]
    consumer = [*starts, *ConsumerLoops(bound, loops).block(tree.body)]
    products = ast.Constant(max(products_of(bound, loop.node) for loop in loops))
    registers = [ast.Expr(call_of("tilekit__registers", [ast.Constant(role), products], first)) for role in (CONSUMER, PRODUCER)]
    others = [registers[PRODUCER], ast.If(_is_role(PRODUCER), producer, [])]
    roles: ast.stmt = ast.If(_is_role(CONSUMER), [registers[CONSUMER], *consumer], others)
    end: ast.stmt = ast.Expr(call_of("tilekit__end", [], first))
    tree.body = [*head, ast.copy_location(roles, first), ast.copy_location(end, first)]
    for node in ast.walk(roles):
        if isinstance(node, (ast.expr, ast.stmt)) and not hasattr(node, "lineno"):
            ast.copy_location(node, first)
    rewritten = bound.changed(lambda path, old: tree if not path else old, STEPS)
    return replace(rewritten, cells={**bound.cells, **STEPS})


_ROLE = "tilekit__role_of_thread"


def _is_role(role: int) -> ast.expr:
    return ast.Compare(ast.Name(_ROLE, ast.Load()), [ast.Eq()], [ast.Constant(role)])


def _is_pipelined(bound: BoundKernel, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and resolved(bound, node.func) is pipelines.pipelined


def _loops_of(bound: BoundKernel, tree: ast.AST) -> list[ast.For]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.For) and _is_pipelined(bound, node.iter)]


def _pipelines(bound: BoundKernel, tree: ast.AST) -> list[Pipeline]:
    """The pipelines of a kernel. One over the same tiles as another, which does not stand in it, uses its ring."""
    pipelines: list[Pipeline] = []
    for node in _loops_of(bound, tree):
        loop = Pipeline(node, len(pipelines))
        within = {id(inner) for inner in ast.walk(node)}
        for other in pipelines:
            apart = id(other.node) not in within and id(node) not in {id(inner) for inner in ast.walk(other.node)}
            if other.shares is None and loop.key == other.key and apart:
                loop.share(other)
                break
        pipelines.append(loop)
    return pipelines


def rings_of(bound: BoundKernel) -> int:
    """How many rings the pipelines of a kernel have."""
    return sum(loop.shares is None for loop in _pipelines(bound, bound.definition))


def _ones(stream: ast.expr) -> int:
    """How many slices a stream is written with, if each is `i : i + 1`, of one tile at most; else 0."""
    if not isinstance(stream, ast.Subscript):
        return 0
    parts = stream.slice.elts if isinstance(stream.slice, ast.Tuple) else [stream.slice]
    slices = [part for part in parts if isinstance(part, ast.Slice)]
    return len(slices) if all(map(_spans_one, slices)) else 0


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
        ones: for each stream the number of its slices, if each is of one tile; else 0. With any there is one turn, or none.
    """

    def __init__(self, node: ast.For, number: int) -> None:
        assert isinstance(node.iter, ast.Call), "a loop over tk.pipelined"
        self.node, self.streams = node, node.iter.args
        options = {k.arg: value_of(k.value) for k in node.iter.keywords}  # constants: `check_call`
        self.stages, self.wanted = options.get("stages"), options.get("warp_specialize")
        self.number, self.name = number, f"tilekit__ring{number}"
        self.turn, self.count, self.index = f"{self.name}_turn", f"{self.name}_steps", f"{self.name}_k"
        self.rows = [f"{self.name}_row{position}" for position in range(len(self.streams))]
        self.key = (self.stages, *(ast.dump(self._grid(stream)) for stream in self.streams))
        self.shares: Pipeline | None = None
        self.ones = [_ones(stream) for stream in self.streams]

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
        mask = sum(1 << k for k, each in enumerate(shared) if each)
        grids = [self._grid(stream) for stream in self.streams]
        options: list[ast.expr] = [ast.Constant(number) for number in (self.number, self.stages or 0, mask)]
        return assignment(self.name, call_of("tilekit__ring", [*options, *grids], self.node), self.node)

    def around(self, inner: list[ast.stmt], after: list[ast.stmt]) -> list[ast.stmt]:
        """The loop with another body, and what is before and behind it."""
        node, rows = self.node, [name_of(row) for row in self.rows]
        before = [assignment(row, copy.deepcopy(stream), node) for row, stream in zip(self.rows, self.streams, strict=True)]
        before.append(assignment(self.count, call_of("tilekit__steps", rows, node), node))
        further: ast.stmt = placed(ast.AugAssign(ast.Name(self.turn, ast.Store()), ast.Add(), ast.Constant(1)), node)
        if any(self.ones):  # nothing is carried round, for which a thread would need registers
            checked = [[name_of(row), ast.Constant(n)] for row, n in zip(self.rows, self.ones, strict=True) if n]
            before += [placed(ast.Expr(call_of("tilekit__once", arguments, node)), node) for arguments in checked]
            loop: ast.stmt = ast.If(name_of(self.count), [*inner, further], [])
        else:
            turns = call_of("range", [name_of(self.count)], node)
            loop = ast.For(ast.Name(self.index, ast.Store()), turns, [*inner, further], [])
        return [*before, placed(loop, node), *after]

    def _step(self) -> ast.expr:
        """The number of the turn, in a turn."""
        return ast.Constant(0) if any(self.ones) else name_of(self.index)

    def producer_loop(self, kept: list[ast.stmt]) -> list[ast.stmt]:
        """The producer's loop, of the thread that loads; of its body, it has `kept`."""
        arguments = [name_of(self.name), name_of(self.turn), self._step(), *map(name_of, self.rows)]
        return self.around([placed(ast.Expr(call_of("tilekit__put", arguments, self.node)), self.node), *kept], [])

    def consumer_loop(self, body: list[ast.stmt], lines: list[int]) -> list[ast.stmt]:
        """The consumers' loop, of those that calculate; the statements on these lines run once in each turn."""
        where = ast.Tuple([ast.Constant(line) for line in lines], ast.Load())
        taken = call_of("tilekit__take", [name_of(self.name), name_of(self.turn), copy.deepcopy(where)], self.node)
        get: ast.stmt = placed(ast.Assign([copy.deepcopy(self.node.target)], taken), self.node)

        def ring_call(name: str, k: ast.expr) -> ast.stmt:
            arguments = [name_of(self.name), name_of(self.turn), k, where]
            return placed(ast.Expr(call_of(name, arguments, self.node)), self.node)  # type: ignore[no-any-return]

        return self.around(
            [get, *body, ring_call("tilekit__give", self._step())], [ring_call("tilekit__last", name_of(self.count))]
        )


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
        tiles: list[ast.expr] = [call_of("tilekit__nth", [name_of(row), name_of(loop.index)], node) for row in loop.rows]
        value = tiles[0] if len(tiles) == 1 else ast.Tuple(tiles, ast.Load())
        get = placed(ast.Assign([copy.deepcopy(node.target)], value), node)
        before = [assignment(row, stream, node) for row, stream in zip(loop.rows, loop.streams, strict=True)]
        turns = call_of("range", [call_of("tilekit__steps", [name_of(row) for row in loop.rows], node)], node)
        loads = ast.For(ast.Name(loop.index, ast.Store()), turns, [get, *node.body], node.orelse)
        return [*before, placed(loads, node)]
