"""Cluster multicast, a uniformity analysis: which tiles all blocks of a cluster load alike, so that one copy may come to all.

The blocks of a cluster visit neighbouring tiles of a mapped partition. A stream of tiles is the same for all of them if nothing
that it is made of differs between them: not the block's number, nor the tile's index along a dimension in which the cluster has
several tiles. And all must go the same ways, as often: nothing that differs may decide about a loop over streams, or how long
they are. What is not seen to be alike counts as different.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tilekit.compiler.frontend.bound import stored
from tilekit.lang import memory

__all__ = ["alike"]


def alike(
    tree: ast.FunctionDef,
    loops: Sequence[tuple[ast.For, Sequence[ast.expr]]],
    clusters: Mapping[str, tuple[int, ...]],
    resolve: Callable[[ast.expr], Any],
) -> list[list[bool]]:
    """For each stream of each loop, whether it is uniform: alike in all blocks of a cluster, so that it may be multicast.

    Args:
        tree: of the kernel.
        loops: over `tk.pipelined`, and their streams.
        clusters: the clusters of mapped partitions, by the names of the parameters.
        resolve: tells what an expression stands for outside of the kernel.
    """
    differing = _Differing(tree, clusters, resolve)
    around = [node for node, loop in _around(tree, [node for node, _ in loops])]
    if len(clusters) != 1 or any(differing.decides(node) for node in around) or differing.returns:
        return [[False] * len(streams) for _, streams in loops]
    if any(differing.differs(bound) for _, streams in loops for stream in streams for bound in _bounds(stream)):
        return [[False] * len(streams) for _, streams in loops]
    return [[not differing.differs(stream) for stream in streams] for _, streams in loops]


class _Differing:
    """Uniformity: the variables whose values may differ between the blocks of a cluster."""

    def __init__(
        self, tree: ast.FunctionDef, clusters: Mapping[str, tuple[int, ...]], resolve: Callable[[ast.expr], Any]
    ) -> None:
        self.resolve, self.clusters = resolve, clusters
        self.tiles: dict[str, tuple[int, ...]] = {}
        for node in ast.walk(tree):
            cluster = self._visited(node.iter) if isinstance(node, ast.For) else None
            if cluster is not None and isinstance(node, ast.For) and isinstance(node.target, ast.Name):
                self.tiles[node.target.id] = cluster
        targets = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        for name in [name for name in self.tiles if targets.count(name) > 1]:
            del self.tiles[name]  # it may be another tile
        self.returns = any(isinstance(node, (ast.Return, ast.Break, ast.Continue)) for node in ast.walk(tree))
        self.names = {name for name in targets if targets.count(name) > 1 and self._is_target(tree, name)}
        before = -1
        while before < len(self.names):
            before = len(self.names)
            self._look(tree.body, decided=False)

    def _visited(self, node: ast.expr) -> tuple[int, ...] | None:
        """The cluster of `y.tiles(...)`, of a mapped partition."""
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="tiles"), args=args):
                if name in self.clusters and all(isinstance(a, ast.Name) for a in args):
                    return self.clusters[name]
        return None

    def _look(self, statements: Sequence[ast.stmt], decided: bool) -> None:
        """Note what is assigned; `decided` if whether these are reached differs."""
        for node in statements:
            match node:
                case ast.If(test=test, body=body, orelse=other) | ast.While(test=test, body=body, orelse=other):
                    inner = decided or self.differs(test)
                    self._look(body, inner)
                    self._look(other, inner)
                case ast.For(target=target, body=body, orelse=other):
                    inner = decided or self.decides(node)
                    if inner:
                        self.names |= stored(ast.walk(target))
                    self._look(body, inner)
                    self._look(other, inner)
                case ast.Assign(targets=[ast.Tuple(elts=parts)], value=ast.Attribute(value=ast.Name(id=name), attr="index")) if (
                    name in self.tiles and len(parts) == len(self.tiles[name])
                ):
                    for part, count in zip(parts, self.tiles[name], strict=True):
                        if count > 1 or decided:
                            self.names |= stored(ast.walk(part))
                case _:
                    if decided or self.differs(node):
                        self.names |= stored(ast.walk(node))

    def _is_target(self, tree: ast.AST, name: str) -> bool:
        """Whether a variable is a tile of a mapped partition, at times."""
        loops = [node for node in ast.walk(tree) if isinstance(node, ast.For) and self._is_tiles(node.iter)]
        return any(name in stored(ast.walk(node.target)) for node in loops)

    @staticmethod
    def _is_tiles(node: ast.expr) -> bool:
        """Whether a loop goes over what `y.tiles(...)` gives."""
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "tiles"

    def decides(self, node: ast.stmt) -> bool:
        """Whether the body of a statement may run in one block and not in another, or more often."""
        match node:
            case ast.If(test=test) | ast.While(test=test):
                return self.differs(test)
            case ast.For(iter=over):
                # All blocks of a cluster visit equally many tiles of the partition that has clusters.
                return self._visited(over) is None and (self._is_tiles(over) or self.differs(over))
        return False

    def differs(self, node: ast.AST) -> bool:
        """Whether the value of an expression may differ."""
        match node:
            case ast.Name(id=name):
                return name in self.names or name in self.tiles
            case ast.Call(func=function) if self.resolve(function) is memory.bid:
                return True
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="index"), slice=ast.Constant(value=int(at))):
                if name in self.tiles and 0 <= at < len(self.tiles[name]):
                    return self.tiles[name][at] > 1
        return any(self.differs(child) for child in ast.iter_child_nodes(node))


def _around(tree: ast.AST, loops: Sequence[ast.For]) -> Iterator[tuple[ast.stmt, ast.For]]:
    """The statements that a loop stands in."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.For, ast.While)):
            within = {id(inner) for inner in ast.walk(node)} - {id(node)}
            yield from ((node, loop) for loop in loops if id(loop) in within)


def _bounds(stream: ast.expr) -> Iterator[ast.AST]:
    """What decides how many tiles a stream has."""
    for node in ast.walk(stream):
        if isinstance(node, ast.Slice):
            yield from (bound for bound in (node.lower, node.upper) if bound is not None)
