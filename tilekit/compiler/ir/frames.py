"""Functions and loops that are being walked while the IR of a kernel is built."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.frontend.exits import structured
from tilekit.compiler.frontend.liveness import Liveness
from tilekit.compiler.ir.nodes import Location, Operand, Region

__all__ = ["Closure", "Environment", "Frame", "Loop"]

Environment = dict[str, Operand]


@dataclass
class Loop:
    """A loop that is being built: the variables that it carries, and where it goes on or ends."""

    carried: list[str]
    exits: list[tuple[Region, Environment]] = field(default_factory=list)


@dataclass(eq=False)
class Frame:
    """A function that is being walked.

    Attributes:
        bound, definition, liveness: the function.
        inlined: whether it is called.
        caller, calling: by whom, and the variables there; `call`: where.
        closure, around: of a function that is written in another one, it, and the variables of that one.
    """

    bound: BoundKernel
    definition: ast.FunctionDef
    liveness: Liveness
    inlined: bool
    caller: Frame | None = None
    calling: Environment = field(default_factory=dict)
    around: Environment | None = None
    closure: Closure | None = None
    call: Location | None = None

    @classmethod
    def of(
        cls,
        bound: BoundKernel,
        *,
        inlined: bool,
        caller: Frame | None = None,
        calling: Environment | None = None,
        call: Location | None = None,
    ) -> Frame:
        definition = structured(bound.definition, returns=inlined)
        return cls(bound, definition, Liveness(definition), inlined, caller, calling or {}, call=call)


@dataclass(eq=False)
class Closure:
    """A function, or a lambda, that is written in one that is being walked."""

    node: ast.FunctionDef | ast.Lambda
    frame: Frame

    @property
    def name(self) -> str:
        return self.node.name if isinstance(self.node, ast.FunctionDef) else "the lambda"

    def called_from(self, caller: Frame, calling: Environment, around: Environment, call: Location) -> Frame:
        """The frame of a call."""
        definition = self.node
        if isinstance(definition, ast.Lambda):
            body = ast.copy_location(ast.Return(definition.body), definition)
            definition = ast.FunctionDef(name=self.name, args=definition.args, body=[body], decorator_list=[])
        definition = structured(definition, returns=True)
        return Frame(self.frame.bound, definition, Liveness(definition), True, caller, calling, around, self, call)

    def _in_words(self) -> str:
        return "a function that is written in the kernel"
