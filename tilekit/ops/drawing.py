"""Pictures of ops: a line of text, and text for Mermaid and Graphviz."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilekit.ops.op import DeviceOp

__all__ = ["graphviz", "mermaid", "tree"]

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


def _walk(op: DeviceOp[Any]) -> tuple[dict[int, tuple[str, DeviceOp[Any]]], list[tuple[str, str]]]:
    """Every op that `op` is made of, itself included, by identity, with a name; and who is part of whom."""
    nodes: dict[int, tuple[str, DeviceOp[Any]]] = {}
    edges: list[tuple[str, str]] = []

    def enter(node: DeviceOp[Any]) -> str:
        name = f"n{len(nodes)}"
        nodes[id(node)] = (name, node)
        within.append((name, iter(node.parts()), []))
        return name

    within: list[
        tuple[str, Iterator[DeviceOp[Any]], list[str]]
    ] = []  # the ops in the middle of which this is; their parts so far
    enter(op)
    while within:
        whole, parts, names = within[-1]
        for part in parts:
            known = nodes.get(id(part))
            names.append(known[0] if known is not None else enter(part))
            if known is None:
                break
        else:
            within.pop()
            edges.extend((name, whole) for name in names)
    return nodes, edges


def _caption(op: DeviceOp[Any]) -> str:
    spec = op.spec
    known = f" {spec.dtype}{list(spec.shape)}" if spec is not None else ""
    return (op.label + known).replace('"', "'")


def mermaid(op: DeviceOp[Any]) -> str:
    """A Mermaid flowchart of the op, what runs first on top."""
    nodes, edges = _walk(op)
    lines = ["flowchart TD", *(f'    {name}["{_caption(node)}"]' for name, node in nodes.values())]
    return "\n".join(lines + [f"    {part} --> {whole}" for part, whole in edges]) + "\n"


def graphviz(op: DeviceOp[Any]) -> str:
    """The op in Graphviz's language, what runs first on top: `dot -Tsvg`."""
    nodes, edges = _walk(op)
    lines = [
        "digraph op {",
        "    node [shape=box];",
        *(f'    {name} [label="{_caption(node)}"];' for name, node in nodes.values()),
    ]
    return "\n".join([*lines, *(f"    {part} -> {whole};" for part, whole in edges), "}"]) + "\n"
