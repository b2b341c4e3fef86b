"""Random control flow over whole numbers: loops that are left in branches, and assign there what their turns assign elsewhere.

Every loop has a counter of its own, which nothing else assigns, and ends by it at last. Sums are kept small.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
from draws import Draw
from running import kernel_of

import tilekit as tk
from tilekit import api
from tilekit.compiler import optimize
from tilekit.compiler.ir.build import build
from tilekit.compiler.ir.python import to_python
from tilekit.compiler.ir.verify import verify

NUMBERS = (0, 1, 3, 6)
_NAMES, _DEPTH, _MOST = "abcd", 3, 997
_RESULT = "a + 3 * b + 7 * c + 11 * d"


@dataclass
class Flow:
    """The statements of a kernel that has one number, `n`."""

    lines: list[str]

    def source(self) -> str:
        """The text of the kernel."""
        body = textwrap.indent("\n".join([*self.lines, f"tk.store(y, 0, {_RESULT})"]), "    ")
        return f"import tilekit as tk\n\n\n@tk.kernel\ndef k(y: tk.InOut, n: int):\n{body}\n"

    def expected(self) -> Callable[[int], int]:
        """The same in Python."""
        scope: dict[str, Any] = {}
        exec("def f(n):\n" + textwrap.indent("\n".join([*self.lines, f"return {_RESULT}"]), "    "), scope)
        return scope["f"]  # type: ignore[no-any-return]


class _Writer:
    """Writes statements: as many loops as are `left` at most."""

    def __init__(self, draw: Draw) -> None:
        self._draw, self._counters, self.left = draw, 0, 6

    def block(self, depth: int, *, leaves: bool = False) -> list[str]:
        """Some statements; in the turns of a loop it `leaves`, some of them do so early."""
        lines: list[str] = []
        for _ in range(self._draw.between(1, 3)):
            with self._draw.span():
                kind = self._draw.pick(["assign", "assign", "branch", "branch", "while", "for"]) if depth else "assign"
                if kind == "branch":
                    lines += self._branch(depth, leaves)
                elif kind != "assign" and self.left:
                    lines += self._while(depth) if kind == "while" else self._for(depth)
                else:
                    lines.append(self._assignment())
        return lines

    def _assignment(self) -> str:
        to, one, other = (self._draw.pick(_NAMES) for _ in range(3))
        value = self._draw.pick(
            [f"{one} + {self._draw.between(1, 5)}", f"{one} - {other}", f"n + {one}", f"-{one}", f"2 * {one}"]
        )
        return f"{to} = ({value}) % {_MOST}"

    def _condition(self) -> str:
        return f"{self._draw.pick(_NAMES)} {self._draw.pick(['<', '>=', '=='])} {self._draw.between(0, 30)}"

    def _branch(self, depth: int, leaves: bool) -> list[str]:
        ways = []
        for word in (f"if {self._condition()}:", "else:"):
            body = self.block(depth - 1, leaves=leaves)
            if leaves and self._draw.chance(30):
                body.append(self._draw.pick(["break", "continue"]))
            ways += [word, *_indented(body)]
            if not self._draw.chance(60):
                break
        return ways

    def _counter(self) -> str:
        self._counters, self.left = self._counters + 1, self.left - 1
        return f"k{self._counters}"

    def _while(self, depth: int) -> list[str]:
        counter, most = self._counter(), self._draw.between(1, 6)
        form = self._draw.pick(["plain", "assigns", "break", "else"])
        if form == "plain":
            head, begin = f"while {counter} < {most}:", [f"{counter} += 1"]
        elif form == "assigns":
            head, begin = f"while ({counter} := {counter} + 1) < {most}:", []
        else:
            head, end = "while True:", [*self.block(0), "break"]
            begin = [f"{counter} += 1"]
            if form == "break":
                begin += [f"if {counter} >= {most}:", *_indented(end)]
            else:
                begin += [f"if {counter} < {most}:", *_indented(self.block(depth - 1)), "else:", *_indented(end)]
        return [f"{counter} = 0", head, *_indented([*begin, *self.block(depth - 1, leaves=True)])]

    def _for(self, depth: int) -> list[str]:
        counter, most = self._counter(), self._draw.pick(["n", "0", "1", "4"])
        return [f"for {counter} in range({most}):", *_indented(self.block(depth - 1, leaves=True))]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def flow(seed: Any, draw: Draw | None = None) -> Flow:
    """The statements of a seed."""
    writer = _Writer(draw or Draw(("flow", seed)))
    return Flow(["a = n", "b = 1", "c = 2", "d = 3", *writer.block(_DEPTH), *writer.block(_DEPTH)])


def problem(made: Flow, device: Any) -> str | None:
    """What is wrong with what the kernel stores, or None."""
    kernel, expected = kernel_of(made.source()), made.expected()
    with tk.use_device(device):
        for n in NUMBERS:
            y = api.zeros(1, tk.int64).sync()
            kernel(y.scattered(), n).grid(1).sync()
            if (found := int(y.to_host().sync()[0])) != expected(n):
                return f"with n = {n} it stores {found}, not {expected(n)}"
    return None


def problem_for_numba(made: Flow) -> str | None:
    """What is wrong with the function that numba compiles for a GPU, as numba compiles it for this machine; or None.

    Raises what passes do, and if the IR is not well formed behind one.
    """
    launch = kernel_of(made.source())(api.meta(1, tk.int64).scattered(), 3).grid(1)
    launch.consumed()
    chosen = launch._plan("a test").specialisation
    kernel = build(chosen.bound, chosen.facts)
    for rewrite in optimize.PASSES:
        rewrite(kernel)
        verify(kernel)
    definition = to_python(kernel, chosen.bound).definition
    definition.args.args = [ast.arg("n")]
    *body, store = definition.body
    assert isinstance(store, ast.Expr) and isinstance(store.value, ast.Call), "tk.store(y, 0, ...)"
    definition.body = [*body, ast.Return(store.value.args[2])]
    scope: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(ast.Module([definition], [])), "<what numba compiles>", "exec"), scope)
    (function,) = [value for value in scope.values() if callable(value)]
    compiled, expected = numba.njit(function), made.expected()
    return next((f"numba makes {compiled(n)} of n = {n}, not {expected(n)}" for n in NUMBERS if compiled(n) != expected(n)), None)
