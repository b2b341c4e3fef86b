"""The reasons that the compiler has for leaving something undone, as its source has them: for tests that each of them is true."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import tilekit.compiler

__all__ = ["HOLE", "kept", "matches", "texts"]

HOLE = "{}"
"""Stands for what is known only when a reason is given."""

_COMPILER = Path(tilekit.compiler.__file__).parent
_NOT_ON_GPUS = ("cpu", "foreign")
_NO_FORM = f"the compiler has no form for it: {HOLE}"
_ERRORS = {"Unfit": HOLE, "Unsupported": f"{_NO_FORM}, in {HOLE}"}  # and as what they are shown
_VARIABLES = ("otherwise", "reason")
# What was done; and what errors of the IR are shown as.
_OTHERS = {"the first product of a turn is asked for before the second one of the turn before", _NO_FORM}


def texts() -> dict[str, str]:
    """Each reason, with holes, and where it stands."""
    found: dict[str, str] = {}
    for path in sorted(_COMPILER.rglob("*.py")):
        folder, *_ = path.relative_to(_COMPILER).parts
        if folder not in _NOT_ON_GPUS:
            for text, line in _Module(ast.parse(path.read_text()), folder).reasons():
                if text.replace(HOLE, "").strip() and text not in _OTHERS:
                    found[text] = f"{path.relative_to(_COMPILER)}:{line}"
    return found


def kept() -> set[str]:
    """Each reason for which a tile is kept on CPUs."""
    found: set[str] = set()
    for path in sorted((_COMPILER / "cpu").rglob("*.py")):
        module = _Module(ast.parse(path.read_text()), "cpu")
        for node in ast.walk(module.tree):
            match node:
                case ast.Call(func=ast.Name(id="kept"), args=[_, _, reason]):
                    found.update(module.strings(reason, module.within.get(node)))
                case ast.FunctionDef(name="kept", args=ast.arguments(defaults=[default])):
                    found.update(module.strings(default, None))
    return found


def matches(text: str, reason: str) -> bool:
    """Whether a reason, as it was given, is one of a text with holes."""
    return re.fullmatch(".+".join(map(re.escape, text.split(HOLE))), reason, re.DOTALL) is not None


class _Module:
    def __init__(self, tree: ast.Module, folder: str) -> None:
        self.tree, self.folder = tree, folder
        functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
        self.functions = {function.name: function for function in functions}
        self.within = {node: function for function in self.functions.values() for node in ast.walk(function)}  # the innermost

    def reasons(self) -> Iterator[tuple[str, int]]:
        for node in ast.walk(self.tree):
            for value, shown in self.values(node):
                for text in self.strings(value, self.within.get(node)):
                    yield shown.replace(HOLE, text, 1), node.lineno  # type: ignore[attr-defined]

    def values(self, node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
        """What in a part of the source is a reason, and as what that is shown."""
        deciding = self.folder in ("build.py", "explain.py", "nvidia", "optimize.py", "passes")
        match node:
            case ast.Call(func=ast.Name(id=name), args=[value, *_]) if name in _ERRORS:
                yield value, _ERRORS[name]
            case ast.Call(func=ast.Name(id="remark"), args=[_, _, value], keywords=[ast.keyword(arg="done", value=done)]):
                if ast.unparse(done) != "None":  # of what a pass saw there is no reason
                    yield value, HOLE
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(attr="notes"), attr="append"), args=[ast.Tuple(elts=[_, _, value])]
            ):
                yield value, HOLE
            case ast.Assign(targets=[target], value=value) | ast.NamedExpr(target=target, value=value) if deciding:
                if isinstance(target, (ast.Name, ast.Attribute)) and ast.unparse(target).rpartition(".")[2] in _VARIABLES:
                    yield value, HOLE
            case ast.FunctionDef(returns=ast.BinOp(right=ast.Name(id="str"))) if deciding:  # something else, or a reason
                yield from ((value, HOLE) for value in _returned(node))

    def strings(self, value: ast.expr, function: ast.FunctionDef | None) -> list[str]:
        """The texts that an expression may be."""
        match value:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=parts):
                ways = [self.strings(part, function) or [HOLE] for part in parts]
                return ["".join(way) for way in itertools.product(*ways)]
            case ast.FormattedValue(value=inner):
                return self.strings(inner, function)
            case ast.IfExp(body=one, orelse=other):
                return self.strings(one, function) + self.strings(other, function)
            case ast.BoolOp(values=values):
                return [text for each in values for text in self.strings(each, function)]
            case ast.Name(id=name) if function is not None:
                own = [node for node in (*ast.walk(function), *self.tree.body) if isinstance(node, ast.Assign)]
                values = [node.value for node in own if [ast.unparse(target) for target in node.targets] == [name]]
                values = [each for each in values if name not in {n.id for n in ast.walk(each) if isinstance(n, ast.Name)}]
                return [text for each in values for text in self.strings(each, function)]
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in self.functions:
                called = self.functions[name]
                return [text for each in _returned(called) for text in self.strings(each, called)]
        return []


def _returned(function: ast.FunctionDef) -> list[ast.expr]:
    return [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
