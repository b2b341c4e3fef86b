"""Specialised syntax trees (bound kernels): what specialising makes of a kernel, and the steps from a tree to a function."""

from __future__ import annotations

import ast
import copy
import dis
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from tilekit.compiler.frontend.source import KernelSource
from tilekit.errors import CompileError

__all__ = [
    "BoundKernel", "Origin", "arguments_of", "arguments_of_lambdas", "compile_tree", "current", "free_names", "local_names",
    "resolved", "stored", "without_type_parameters",
]  # fmt: skip


Change = Callable[[str, ast.FunctionDef], ast.FunctionDef]
Origin = tuple[dict[str, Any] | type, str, Any]


def current(owner: dict[str, Any] | type, name: str) -> Any:
    """What a name stands for now, in globals or in a class; None if it is gone."""
    return (owner if isinstance(owner, dict) else vars(owner)).get(name)


@dataclass(frozen=True, eq=False)
class BoundKernel:
    """A kernel whose generics and `Const` parameters have values; or a function that it calls, at one of its calls.

    Attributes:
        function: the plain function; its parameters are the kernel's without the `Const` ones.
        source: where it comes from, for errors.
        names: the names of its parameters.
        text: its syntax tree as text, and those of the functions that it calls. Together with `outside` it decides what the
            function does.
        outside: the names that its body takes from outside, and their values.
        definition: the tree that `function` is made of, and `cells` the enclosing variables that it uses but `called`.
        called: the functions that it calls or passes on, by the names that stand for them in `function`.
        passed: which of them it passes on, to `tk.reduce` for instance.
        demanded: its parameters that are `Const`, and whose values types tell at this call.
        origins: what the names that it takes from outside stood for, but for modules, and what tilekit or a library defines: the
            globals or the class, the name, and what was there; those of the called functions, too.
        lines: of a tree with lines of its own, the user's file and line for each of them.
    """

    function: types.FunctionType
    source: KernelSource
    names: tuple[str, ...]
    text: str
    outside: Mapping[str, Any]
    definition: ast.FunctionDef
    cells: Mapping[str, Any]
    called: Mapping[str, BoundKernel] = field(default_factory=dict)
    passed: frozenset[str] = frozenset()
    demanded: frozenset[str] = frozenset()
    origins: tuple[Origin, ...] = ()
    lines: Mapping[int, tuple[str, int]] = field(default_factory=dict)

    @property
    def loops(self) -> bool:
        """Whether code may run more than once in a block: it jumps backwards, or what it passes a function to may repeat it."""
        jumps = any("JUMP_BACKWARD" in step.opname for step in dis.get_instructions(self.function))
        return jumps or bool(self.passed) or any(bound.loops for bound in self.called.values())

    @property
    def outdated(self) -> bool:
        """Whether a name stands for something else now than when it was bound: somebody ran its definition again."""
        return any(current(owner, name) is not value for owner, name, value in self.origins)

    def changed(self, change: Change, cells: Mapping[str, Any] | None = None, path: str = "") -> BoundKernel:
        """The same, where `change` made other trees of its own and those of the functions that it calls.

        Args:
            change: gets the place of a function among the calls and a copy of its tree, and gives a tree. It gets none that is
                passed on: an operation of the language decides what such a function is called with.
            cells: enclosing variables that the other trees use, by name.
            path: where this function is among the calls.
        """
        called = {
            name: bound if name in self.passed else bound.changed(change, cells, f"{path}/{name}")
            for name, bound in self.called.items()
        }
        definition = change(path, copy.deepcopy(self.definition))
        enclosing = {**self.cells, **(cells or {}), **{name: bound.function for name, bound in called.items()}}
        function = compile_tree(definition, self.function, self.source, enclosing)
        return replace(self, function=function, definition=definition, called=called)

    def places(self) -> Iterator[str]:
        """What changes when a line of the kernel, or of a function that it calls, moves."""
        yield self.source.filename + ast.dump(self.source.tree, include_attributes=True)
        for bound in self.called.values():
            yield from bound.places()

    def error_from(self, reason: str, traceback: TracebackType | None) -> CompileError:
        """An error at the place, in the kernel or in a function that it calls, that `traceback` passed last."""
        sources, last = dict(self._sources()), None
        while traceback is not None:
            if id(traceback.tb_frame.f_code) in sources:
                last = traceback
            traceback = traceback.tb_next
        if last is None:
            return CompileError(f"{self.source.title}: {reason}")
        return sources[id(last.tb_frame.f_code)].error_at(reason, last)

    def raised(self, traceback: TracebackType | None) -> bool:
        """Whether a line of the kernel, or of a function that it calls, raised an error itself, and nothing that it calls."""
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        return traceback is not None and id(traceback.tb_frame.f_code) in dict(self._sources())

    def _sources(self) -> Iterator[tuple[int, KernelSource]]:
        """What each code object comes from, by its identity: two calls of one function may have equal ones."""
        codes = [self.function.__code__]
        while codes:
            code = codes.pop()
            yield id(code), self.source
            codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        for bound in self.called.values():
            yield from bound._sources()


def compile_tree(
    definition: ast.FunctionDef, original: types.FunctionType, source: KernelSource, cells: Mapping[str, Any]
) -> types.FunctionType:
    """Compile `definition` inside a factory whose parameters are the enclosing variables it uses."""
    factory = ast.FunctionDef(
        name="enclosing",
        args=ast.arguments(
            posonlyargs=[], args=[ast.arg(arg=name) for name in cells], kwonlyargs=[], kw_defaults=[], defaults=[]
        ),
        body=[definition, ast.Return(ast.Name(definition.name, ast.Load()))],
        decorator_list=[],
    )
    without_type_parameters(factory)
    for node in (factory, *factory.body[1:], *factory.args.args):
        ast.copy_location(node, definition)
    module = ast.fix_missing_locations(ast.Module(body=[factory], type_ignores=[]))
    code = compile(module, source.filename, "exec")
    inner = next(constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    function: types.FunctionType = types.FunctionType(inner, original.__globals__)(*cells.values())
    function.__qualname__, function.__module__ = original.__qualname__, original.__module__
    return function


def without_type_parameters(definition: ast.FunctionDef) -> None:
    """Python 3.12 and later compile no function without the field; earlier ones do not know it."""
    if "type_params" in definition._fields:
        setattr(definition, "type_params", [])  # noqa: B010  (mypy checks against Python 3.11)


def free_names(definition: ast.FunctionDef) -> set[str]:
    """The names that a function takes from outside."""
    used = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return used - local_names(definition)


def local_names(*trees: ast.AST) -> set[str]:
    """The names that mean something of their own in these trees."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {a.arg for a in nodes if isinstance(a, ast.arg)}
    names |= {f.name for f in nodes if isinstance(f, ast.FunctionDef)}
    return names | stored(nodes)


def resolved(bound: BoundKernel, node: ast.expr) -> Any:
    """What an expression such as `tk.mma` stands for; None if it is nothing that stands outside of the kernel."""
    if isinstance(node, ast.Name):
        return bound.outside.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(resolved(bound, node.value), node.attr, None)
    return None


def stored(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that are assigned to."""
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def arguments_of(arguments: ast.AST) -> list[ast.arg]:
    """The parameters of a function or lambda."""
    return [node for node in ast.walk(arguments) if isinstance(node, ast.arg)]


def arguments_of_lambdas(tree: ast.FunctionDef) -> set[str]:
    """Names that only lambdas have for their arguments."""
    within = {a.arg for n in ast.walk(tree) if isinstance(n, ast.Lambda) for a in arguments_of(n.args)}
    return within - stored(ast.walk(tree)) - {a.arg for a in arguments_of(tree.args)}
