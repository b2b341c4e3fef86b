"""Pictures of ops: a line of text; and diagrams, as text for Mermaid and Graphviz, and as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilekit.ops.composition import Composition
from tilekit.ops.svg import DRAWN, svg

if TYPE_CHECKING:
    from tilekit.ops.op import DeviceOp

__all__ = ["Diagram", "diagram", "tree"]

_DEPTH = 12
_OPS = 200  # where ops are shared, the tree may be as wide as two to the power of its depth


def tree(op: DeviceOp[Any]) -> str:
    """The op with its parts in brackets; `...` for those that are too many, or too deep, for a line of text."""
    text: list[str] = []
    named = 0
    waiting: list[tuple[DeviceOp[Any] | None, int, str]] = [(op, _DEPTH, "")]  # an op, how deep to go on, what is before it
    while waiting:
        node, depth, before = waiting.pop()
        if node is None:
            text.append(before)
        elif named < _OPS:
            named += 1
            text.append(before + node.label)
            parts = node.parts()
            if parts and depth:
                waiting.append((None, 0, ")"))
                waiting.extend((part, depth - 1, ", " if at else "(") for at, part in reversed(list(enumerate(parts))))
            elif parts:
                text.append("(...)")
        elif not text[-1].endswith("..."):
            text.append(before + "...")
    return "".join(text)


def _walk(op: DeviceOp[Any]) -> tuple[list[DeviceOp[Any]], list[tuple[int, int]]]:
    """Every op that `op` is made of, itself first; and who is part of whom, by their numbers."""
    nodes: list[DeviceOp[Any]] = []
    numbers: dict[int, int] = {}
    edges: list[tuple[int, int]] = []
    within: list[
        tuple[int, Iterator[DeviceOp[Any]], list[int]]
    ] = []  # the ops in the middle of which this is; their parts so far

    def enter(node: DeviceOp[Any]) -> int:
        number = numbers[id(node)] = len(nodes)
        nodes.append(node)
        within.append((number, iter(node.parts()), []))
        return number

    enter(op)
    while within:
        whole, parts, before = within[-1]
        for part in parts:
            known = numbers.get(id(part))
            before.append(known if known is not None else enter(part))
            if known is None:
                break
        else:
            within.pop()
            edges.extend((number, whole) for number in before)
    return nodes, edges


@dataclass(frozen=True, kw_only=True)
class Diagram:
    """What pictures show: boxes, and arrows between them.

    Attributes:
        title: what it shows.
        nodes: for each box its lines of text. The first is what text formats show.
        edges: for each arrow the numbers of the nodes where it begins, and ends.
        name: of the graph, in Graphviz's language.
    """

    title: str
    nodes: Sequence[Sequence[str]]
    edges: Sequence[tuple[int, int]]
    name: str = "op"

    def mermaid(self) -> str:
        """A Mermaid flowchart, what runs first on top."""
        lines = ["flowchart TD", *(f'    n{at}["{_quoted(node)}"]' for at, node in enumerate(self.nodes))]
        return "\n".join(lines + [f"    n{start} --> n{end}" for start, end in self.edges]) + "\n"

    def graphviz(self) -> str:
        """The same in Graphviz's language, what runs first on top: `dot -Tsvg`."""
        lines = [
            f"digraph {self.name} {{",
            "    node [shape=box];",
            *(f'    n{at} [label="{_quoted(node)}"];' for at, node in enumerate(self.nodes)),
        ]
        return "\n".join([*lines, *(f"    n{start} -> n{end};" for start, end in self.edges), "}"]) + "\n"

    def svg(self, note: str = "") -> str:
        """The same as an SVG picture with `note` below it; of the first `svg.DRAWN` nodes, and the number of the others."""
        return svg(self, note)


def _quoted(node: Sequence[str]) -> str:
    return node[0].replace('"', "'")


def diagram(op: DeviceOp[Any]) -> Diagram:
    """The op, and all that it is made of. Nothing is run, and the op can still be."""
    nodes, edges = _walk(op)
    return Diagram(title=op.label, nodes=[_caption(node, at < DRAWN) for at, node in enumerate(nodes)], edges=edges)


def _caption(op: DeviceOp[Any], in_full: bool) -> list[str]:
    spec = op.spec
    lines = [op.label + (f" {spec.dtype}{list(spec.shape)}" if spec is not None else "")]
    if in_full:
        lines += op._details()
        device = None if type(op).device is Composition.device else op.device  # else its parts tell
        lines += [] if device is None or op._placed else [f"on {device.label}"]
    return lines
