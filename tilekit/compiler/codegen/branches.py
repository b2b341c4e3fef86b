"""Dead branches that types decide: `if t.ndim == 2:`, `0 if x.dtype == tk.int8 else 1`, `t.ndim == 1 and t.shape[0] == 4`.

A variable that is one thing on one path and another on another is an error only if both paths exist. Python takes the one that
there is; LLVM drops the other, but numba types both before. So a kernel that numba refuses is looked at once more: of its
conditions, those that have literal types in spite of whatever is wrong are put in, and the kernel is compiled without the paths
that nobody takes. A kernel that numba accepts pays nothing.
"""

from __future__ import annotations

import ast
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from numba.cuda import types
from numba.cuda.compiler import CUDACompiler
from numba.cuda.core import errors, ir
from numba.cuda.core.compiler import _EarlyPipelineCompletion
from numba.cuda.core.compiler_machinery import FunctionPass, PassManager, register_pass
from numba.cuda.core.typed_passes import NopythonTypeInference
from numba.cuda.core.typeinfer import TypeInferer
from numba.cuda.cudadecl import registry
from numba.cuda.descriptor import cuda_target
from numba.cuda.flags import CUDAFlags
from numba.cuda.typing.templates import AbstractTemplate, signature
from numba.cuda.utils import numba_target_override

from tilekit.compiler.codegen.definition import ABSENT, known
from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.frontend.inlining import inlined

__all__ = ["without_dead_branches"]

_CONDITION = "tilekit__condition"
_MOST_ROUNDS = 64  # of inference; what types itself does so in a few


def without_dead_branches(
    bound: BoundKernel, arguments: tuple[types.Type, ...], capability: tuple[Any, ...]
) -> BoundKernel | None:
    """A kernel without dead branches, which nobody takes; None if types decide none. It is called while a kernel is compiled.

    Args:
        bound: the kernel.
        arguments: the types of its parameters.
        capability: what it is compiled for.
    """
    if not any(True for _ in _all_conditions(bound)):
        return None
    try:
        decided = _decided(bound.changed(_marked, {_CONDITION: _condition}), arguments, capability)
    except errors.NumbaError:  # it is no Python that numba knows, and that is what the user should read
        return None
    return bound.changed(lambda path, tree: _Pruning(path, tree, decided).visit(tree)) if decided else None


def _all_conditions(bound: BoundKernel) -> Iterator[Any]:
    yield from _conditions("", bound.definition)
    for name, called in bound.called.items():
        if name not in bound.passed:
            yield from _all_conditions(called)


def _conditions(path: str, tree: ast.AST) -> Iterator[tuple[str, ast.AST, str, int]]:
    """The conditions of a function: a name for each, the node, and where in it the condition stands."""
    for number, node in enumerate(_own_nodes(tree)):
        if isinstance(node, (ast.If, ast.IfExp)):
            yield f"{path}:{number}", node, "test", 0
        if isinstance(node, ast.BoolOp):
            for index in range(len(node.values) - 1):  # the last decides nothing
                yield f"{path}:{number}:{index}", node, "values", index


def _own_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions inside it, in an order that copies of the tree share."""
    for child in ast.iter_child_nodes(tree):
        if not isinstance(child, (ast.FunctionDef, ast.Lambda)):
            yield child
            yield from _own_nodes(child)


def _marked(path: str, tree: ast.FunctionDef) -> ast.FunctionDef:
    """Each condition as the argument of a call that says which one it is."""
    for name, node, field, index in list(_conditions(path, tree)):
        operands = getattr(node, field)
        test = operands[index] if isinstance(operands, list) else operands
        call = ast.Call(ast.Name(_CONDITION, ast.Load()), [ast.Constant(name), test], [])
        ast.fix_missing_locations(ast.copy_location(call, test))
        if isinstance(operands, list):
            operands[index] = call
        else:
            setattr(node, field, call)
    return tree


class _Pruning(ast.NodeTransformer):
    """Puts conditions that are decided in."""

    def __init__(self, path: str, tree: ast.FunctionDef, decided: Mapping[str, bool]) -> None:
        self.decided: dict[tuple[int, int], bool] = {}
        for name, node, _, index in _conditions(path, tree):
            if name in decided:
                self.decided[id(node), index] = decided[name]

    def visit_If(self, node: ast.If) -> Any:
        chosen = self.decided.get((id(node), 0))
        self.generic_visit(node)
        if chosen is None:
            return node
        return (node.body if chosen else node.orelse) or ast.copy_location(ast.Pass(), node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        chosen = self.decided.get((id(node), 0))
        self.generic_visit(node)
        return node if chosen is None else node.body if chosen else node.orelse

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        chosen = [self.decided.get((id(node), index)) for index in range(len(node.values))]
        self.generic_visit(node)
        left = []
        for value, holds in zip(node.values, chosen, strict=True):
            if holds is None:
                left.append(value)
            elif holds is isinstance(node.op, ast.Or):
                left.append(value)  # what comes after it is not looked at
                break
        node.values = left
        return left[0] if len(left) == 1 else node


# -------------------------------------------------------------------------------------------------------------------- inference


def _condition(name: str, value: Any) -> Any:
    """What `_marked` calls."""
    raise AssertionError("it is typed, and never runs")


@registry.register
class _Condition(AbstractTemplate):
    key = _condition
    prefer_literal = True

    def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
        return signature(args[1], *args)


registry.register_global(_condition, types.Function(_Condition))


def _decided(bound: BoundKernel, arguments: tuple[types.Type, ...], capability: tuple[Any, ...]) -> dict[str, bool]:
    """The conditions of a marked kernel that types decide."""
    flags = CUDAFlags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.error_model, flags.compute_capability = "numpy", capability
    function, _ = inlined(bound)
    with numba_target_override():
        typing = _Typing(cuda_target.typing_context, cuda_target.target_context, None, arguments, None, flags, {})
        decided: dict[str, bool] = typing.compile_extra(function)
    return decided


class _Typing(CUDACompiler):
    """numba's compiler up to type inference."""

    def define_pipelines(self) -> list[Any]:
        (whole,) = super().define_pipelines()
        pipeline = PassManager("tilekit_branches")
        pipeline.passes.extend(itertools.takewhile(lambda step: step[0] is not NopythonTypeInference, whole.passes))
        pipeline.add_pass(_Deciding, "conditions that types decide")
        pipeline.finalize()
        return [pipeline]


@register_pass(mutates_CFG=False, analysis_only=True)
class _Deciding(FunctionPass):
    _name = "tilekit_deciding"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        raise _EarlyPipelineCompletion(_literal_conditions(state))


def _literal_conditions(state: Any) -> dict[str, bool]:
    infer, wrong = _typed(state)
    sources: dict[str, set[str]] = defaultdict(set)  # of each variable the variables that it is made of
    marks: list[tuple[str, str]] = []
    for block in state.func_ir.blocks.values():
        for assign in block.find_insts(ir.Assign):
            value = assign.value
            variables = [value] if isinstance(value, ir.Var) else value.list_vars() if isinstance(value, ir.Expr) else []
            sources[assign.target.name] |= {variable.name for variable in variables}
            if isinstance(value, ir.Expr) and value.op == "call":
                function = infer.typevars[value.func.name].type
                if isinstance(function, types.Function) and function.typing_key is _condition:
                    name, test = value.args
                    marks.append((known(infer.typevars[name.name].type), test.name))
    decided = {}
    for name, test in marks:
        ty = infer.typevars[test].type
        value = ABSENT if ty is None else known(ty)
        if value is not ABSENT and _sound(test, sources, infer, wrong):
            decided[name] = bool(value)
    return decided


def _typed(state: Any) -> tuple[Any, set[str]]:
    """Types of what has one, whatever is wrong elsewhere; and the variables of which something is wrong."""
    warnings = errors.WarningsFixer(errors.NumbaWarning)
    infer = TypeInferer(state.typingctx, state.func_ir, warnings)
    with state.typingctx.callstack.register(state.targetctx.target, infer, state.func_id, state.args), warnings:
        for number, (name, ty) in enumerate(zip(state.func_ir.arg_names, state.args, strict=True)):
            infer.seed_argument(name, number, ty)
        infer.build_constraint()
        before: Any = None
        for _ in range(_MOST_ROUNDS):
            wrong = set()
            for constraint in infer.constraints.constraints:
                try:
                    constraint(infer)
                except Exception:  # all of them are told when the kernel is compiled
                    wrong.add(str(getattr(constraint, "target", getattr(constraint, "dst", ""))))
            token = infer.get_state_token()
            if token == before:
                break
            before = token
    return infer, wrong


def _sound(name: str, sources: Mapping[str, set[str]], infer: Any, wrong: set[str]) -> bool:
    """Whether all that a variable is made of, round loops too, has a type: nothing that is missing can change it then."""
    seen, waiting = {name}, [name]
    while waiting:
        current = waiting.pop()
        if current in wrong or not infer.typevars[current].defined:
            return False
        waiting += sources[current] - seen
        seen |= sources[current]
    return True
