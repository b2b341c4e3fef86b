"""The consumer of a software pipeline: the kernel for the warps that calculate, which wait for stages and release them."""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilekit.compiler.frontend.bound import BoundKernel, stored
from tilekit.compiler.passes.intrinsics import assignment, call_of, name_of
from tilekit.compiler.passes.producer import reads, resolved
from tilekit.lang.matmul import mma

if TYPE_CHECKING:
    from tilekit.compiler.passes.pipelining import Pipeline

__all__ = ["ConsumerLoops", "products_of"]


def products_of(bound: BoundKernel, loop: ast.For) -> int:
    """How many products the statements of a turn ask for, without those of loops and helpers in it."""
    nodes = [n for s in loop.body if not isinstance(s, (ast.For, ast.While)) for n in ast.walk(s)]
    return sum(isinstance(n, ast.Call) and resolved(bound, n.func) is mma for n in nodes)


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


class ConsumerLoops(ast.NodeTransformer):
    """Makes pipelines loops of consumers, which wait for stages of a ring and release them."""

    def __init__(self, bound: BoundKernel, loops: list[Pipeline]) -> None:
        self.bound, self.loops = bound, {id(loop.node): loop for loop in loops}

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        rewritten: list[ast.stmt] = []
        for statement in statements:
            result = self.visit(statement)
            rewritten.extend(result if isinstance(result, list) else [result])
        return rewritten

    def visit_For(self, node: ast.For) -> Any:
        loop = self.loops.get(id(node))
        if loop is None:
            return self.generic_visit(node)
        # Products are under way when the next statement begins. If one is asked for in each turn, those of the turn before are
        # done as soon as all but the last are.
        products = [product for product in map(self._product, node.body) if product is not None]
        # Those of the operands that are carried round the loop, or come into it, lie as products take them all the time.
        carried = {p.first for p in products if p.first and self._is_carried(p.first, node)}
        renewed = stored(n for s in node.body for n in ast.walk(s))
        ready = {
            name: call_of("tilekit__operand", [name_of(name), ast.Constant(name in renewed)], node) for name in sorted(carried)
        }
        body: list[ast.stmt] = []
        for statement in self._waiting(node.body):
            mine = stored(ast.walk(statement)) & carried
            body += [statement, *(assignment(name, copy.deepcopy(ready[name]), statement) for name in sorted(mine))]
        before = [assignment(name, value, node) for name, value in ready.items()]
        inner = any(isinstance(n, (ast.For, ast.While)) for s in node.body for n in ast.walk(s))
        simple = () if inner else (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)
        once = [isinstance(s, simple) and not any(isinstance(n, _BRANCHES) for n in ast.walk(s)) for s in node.body]
        others = {s.lineno for s, each_turn in zip(node.body, once, strict=True) if not each_turn}
        lines = [s.lineno for s in node.body if s.lineno not in others]
        return [*before, *loop.consumer_loop(self.block(body), lines)]

    @staticmethod
    def _is_carried(name: str, loop: ast.For) -> bool:
        """Whether a variable is loop-carried: it has its value from before a turn, when it is first used in it."""
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
                        arguments = [name_of(name) for name in (product.target, *later)]
                        at = statements[needed]
                        waits.setdefault(needed, []).append(
                            assignment(product.target, call_of("tilekit__wait_product", arguments, at), at)
                        )
                    break
                if product.target in stored(ast.walk(statements[needed])):
                    break
        return [each for index, statement in enumerate(statements) for each in (*waits.get(index, ()), statement)]

    def _product(self, statement: ast.stmt) -> _Product | None:
        """`x = tk.mma(...)`, if that is what a statement is."""
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call) if resolved(self.bound, call.func) is mma:
                return _Product(name, call)
        return None
