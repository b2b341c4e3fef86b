"""The producer of a software pipeline: the slice of a kernel that decides which tiles come, for the thread that issues copies."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tilekit.compiler.frontend.bound import BoundKernel, stored
from tilekit.lang import calculation, memory
from tilekit.lang.shape import permute, reshape, transpose

if TYPE_CHECKING:
    from tilekit.compiler.passes.pipelining import Pipeline

__all__ = ["Apart", "ProducerSlice", "Unfit", "check_stay", "reads", "resolved"]


class Unfit(Exception):
    """A kernel whose pipelines are no rings, and why."""


def resolved(bound: BoundKernel, node: ast.expr) -> Any:
    """What an expression such as `tk.mma` stands for; None if it is nothing that stands outside of the kernel."""
    if isinstance(node, ast.Name):
        return bound.outside.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(resolved(bound, node.value), node.attr, None)
    return None


def reads(node: ast.AST) -> set[str]:
    """The variables that a part of a kernel reads."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


class Apart(ast.NodeTransformer):
    """Takes `i, acc = 0, tk.zeros(...)` apart, so that the thread that loads can do with half of it."""

    def visit_Assign(self, node: ast.Assign) -> Any:
        target, value = node.targets[0], node.value
        if len(node.targets) > 1 or not (isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)):
            return node
        pairs = list(zip(target.elts, value.elts, strict=False))
        plain = all(isinstance(to, ast.Name) for to in target.elts) and len(target.elts) == len(value.elts)
        used = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
        if not plain or stored(ast.walk(target)) & used:
            return node
        return [ast.copy_location(ast.Assign([to], expression), node) for to, expression in pairs]


def check_stay(bound: BoundKernel, tree: ast.FunctionDef, loops: list[Pipeline]) -> None:
    """Check lifetimes: refuse tiles that may be used when their stage is released, behind their loop or in a later turn."""
    for loop in loops:
        taken = stored(ast.walk(loop.node.target))
        for name in sorted(taken | _further_names(bound, loop.node, taken)):
            around = [each.node for each in loops if each is loop or name in stored(ast.walk(each.node.target))]
            within = {id(node) for each in around for node in ast.walk(each)}
            read = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
            if any(id(node) not in within for node in read):
                raise Unfit(f"{name}, a tile of the pipeline, is used behind the loop")
            if name not in taken and not {id(node) for node in read} <= _behind(loop.node.body, name):
                raise Unfit(f"{name}, a tile of the pipeline, may be used in a later turn")


def _behind(block: list[ast.stmt], name: str) -> set[int]:
    """The nodes that are reached in a turn behind the first statement that gives a name to something, by their identities."""
    for at, statement in enumerate(block):
        if isinstance(statement, ast.Assign) and name in stored(ast.walk(statement)):
            return {id(node) for later in block[at + 1 :] for node in ast.walk(later)}
        for inner in (getattr(statement, field, []) for field in ("body", "orelse")):
            if behind := _behind(inner, name):
                return behind
    return set()


def _further_names(bound: BoundKernel, loop: ast.For, names: set[str]) -> set[str]:
    """What else a loop's body calls the tiles of these names, without loading them."""

    def same(value: ast.expr | None) -> bool:
        if isinstance(value, ast.Call):
            method = isinstance(value.func, ast.Attribute) and value.func.attr in ("permute", "reshape", "transpose")
            passed = isinstance(value.func, ast.Name) and value.func.id in bound.called
            if not (method or passed or resolved(bound, value.func) in (permute, reshape, transpose)):
                return False
        elif not isinstance(value, (ast.Name, ast.Tuple, ast.IfExp, ast.Subscript)):
            return False
        return any(isinstance(n, ast.Name) and n.id in aliases for n in ast.walk(value))

    aliases = set(names)
    nodes = [n for s in loop.body for n in ast.walk(s) if isinstance(n, (ast.Assign, ast.AnnAssign))]
    while True:
        more = {name for node in nodes if same(node.value) for name in stored(ast.walk(node))} - aliases
        if not more:
            return aliases - names
        aliases |= more


_HARMLESS = (
    memory.bid, memory.num_blocks, memory.num_tiles, calculation.cdiv, min, max, abs, int, range, divmod, len,
)  # fmt: skip


class ProducerSlice:
    """The producer's slice of a kernel, for the thread that loads: what decides which tiles come."""

    def __init__(self, bound: BoundKernel, tree: ast.FunctionDef, loops: list[Pipeline], written: frozenset[str]) -> None:
        self.bound, self.loops, self.written = bound, {id(loop.node): loop for loop in loops}, set(written)
        for node in ast.walk(tree):  # what else they are called
            match node:
                case ast.Assign(value=(ast.Name() | ast.IfExp() | ast.Call(func=ast.Attribute(attr="slice"))) as value):
                    self.written |= stored(ast.walk(node)) if reads(value) & self.written else set()
        self.needed: set[str] = set()
        while True:
            before = len(self.needed)
            self._look(tree.body)
            if len(self.needed) == before:
                break
        for loop in loops:
            if stored(ast.walk(loop.node.target)) & self.needed:
                raise Unfit(f"which tiles come depends on {ast.unparse(loop.node.target)}, which a pipeline loads")

    def _look(self, statements: list[ast.stmt]) -> bool:
        """Add the names that these need; whether any of them is kept."""
        kept = [self._look_at(statement) for statement in statements]  # all are looked at
        return any(kept)

    def _look_at(self, node: ast.stmt) -> bool:
        loop = self.loops.get(id(node))
        if loop is not None:
            for stream in loop.streams:
                self._need(stream)
            self._look(loop.node.body)
            return True
        match node:
            case ast.For() | ast.While():
                counts = isinstance(node, ast.For) and bool(stored(ast.walk(node.target)) & self.needed)
                if not (self._look(node.body) | self._look(node.orelse) | counts):
                    return False
                self._need(node.iter if isinstance(node, ast.For) else node.test)
                return True
            case ast.If():
                if not (self._look(node.body) | self._look(node.orelse)):
                    return False
                self._need(node.test)
                return True
            case ast.Break() | ast.Continue() | ast.Return():
                return True
            case ast.Assign() | ast.AugAssign() | ast.AnnAssign():
                if not stored(ast.walk(node)) & self.needed:
                    return False
                self._need(node)
                return True
        return False

    def _need(self, node: ast.AST) -> None:
        self.needed |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            self.needed.add(node.target.id)
        self._check(self.bound, node)

    def _check(self, bound: BoundKernel, node: ast.AST) -> None:
        """Refuse what one thread cannot find out alone, or too late: what others write it may see at another time than they."""
        for call in ast.walk(node):
            if not isinstance(call, ast.Call) or resolved(bound, call.func) in _HARMLESS:
                continue
            match call:
                case ast.Call(func=ast.Attribute(attr="tiles" | "num_tiles" | "slice" | "item")):
                    continue
                case ast.Call(func=ast.Name(id=name)) if name in bound.called and name not in bound.passed:
                    self._check(bound.called[name], bound.called[name].definition)
                case ast.Call(args=[_, _, ast.Tuple(elts=[])]) if resolved(bound, call.func) is memory.load:
                    pass
                case _:
                    raise Unfit(f"which tiles come depends on {ast.unparse(call)}")
            for name in sorted(reads(call) & self.written if bound is self.bound else ()):
                raise Unfit(f"which tiles come depends on {ast.unparse(call)}, and {name} is written")

    def statements(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """What is left of a block."""
        return [kept for statement in statements for kept in self._left(statement)]

    def _left(self, node: ast.stmt) -> Iterator[ast.stmt]:
        loop = self.loops.get(id(node))
        if loop is not None:
            yield from loop.producer_loop(self.statements(loop.node.body))
        elif self._look_at(node):
            copied = copy.copy(node)
            for field in ("body", "orelse"):
                if hasattr(copied, field):
                    inner = self.statements(getattr(copied, field))
                    setattr(copied, field, inner or ([ast.copy_location(ast.Pass(), node)] if field == "body" else []))
            yield copy.deepcopy(copied)
