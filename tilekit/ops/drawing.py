"""Pictures of ops, as text for Mermaid and Graphviz."""

from __future__ import annotations

from typing import Any

from tilekit.ops.base import DeviceOp

__all__ = ["graphviz", "mermaid"]


def _walk(op: DeviceOp[Any]) -> tuple[dict[int, tuple[str, DeviceOp[Any]]], list[tuple[str, str]]]:
    """Every op that `op` is made of, itself included, by identity, with a name; and who is part of whom."""
    nodes: dict[int, tuple[str, DeviceOp[Any]]] = {}
    edges: list[tuple[str, str]] = []

    def visit(node: DeviceOp[Any]) -> str:
        if id(node) in nodes:
            return nodes[id(node)][0]
        name = f"n{len(nodes)}"
        nodes[id(node)] = (name, node)
        edges.extend([(visit(part), name) for part in node.parts()])
        return name

    visit(op)
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
