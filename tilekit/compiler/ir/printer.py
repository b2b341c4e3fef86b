"""The kernel IR as text: one line for each operation, with the types of what it defines and the line of the source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.ir.nodes import Constant, Group, Operand, Operation, Region, Section, Value

__all__ = ["printed"]


def printed(kernel: Region, name: str = "kernel") -> str:
    """The text of a kernel.

    Args:
        kernel: its region.
        name: what it is called.
    """
    return "\n".join(_Printer().kernel(kernel, name))


class _Printer:
    def __init__(self) -> None:
        self.names: dict[Value, str] = {}
        self.counts: dict[str, int] = {}

    def kernel(self, region: Region, name: str) -> Iterator[str]:
        parameters = ", ".join(f"{self.name(value)}: {value.type}" for value in region.parameters)
        yield f"kernel {name}({parameters}):"
        yield from self.region(region, "    ")

    def name(self, value: Value) -> str:
        """`acc`, `acc.1`, `acc.2`: in the order of the text."""
        if value not in self.names:
            count = self.counts.get(value.name, 0)
            self.counts[value.name] = count + 1
            self.names[value] = f"{value.name}.{count}" if count else value.name
        return self.names[value]

    def region(self, region: Region, indent: str) -> Iterator[str]:
        for operation in region.operations:
            yield from self.operation(operation, indent)
        if region.exit != "yield" or region.operands:
            yield f"{indent}{region.exit} {self.list(region.operands)}".rstrip()

    def operation(self, operation: Operation, indent: str) -> Iterator[str]:
        head = self.head(operation)  # what it reads has its names first
        bodies = [list(self.region(region, indent + "    ")) for region in operation.regions]
        results = ", ".join(f"{self.name(value)}: {value.type}" for value in operation.results)
        text = f"{indent}{results} = {head}" if results else indent + head
        yield f"{text:<100}  # {operation.location}"
        if operation.kind == "gathered":
            yield from self.region(operation.what, indent + "    ")
        for at, body in enumerate(bodies):
            if at:
                yield f"{indent}else:"
            yield from body or [f"{indent}    yield"]

    def head(self, operation: Operation) -> str:
        operands = operation.operands
        keywords = [f"{name}={self.operand(operand)}" for name, operand in operation.keywords.items()]
        match operation.kind:
            case "call":
                return f"{self.operand(operation.what)}({self.list(operands, keywords)})"
            case "method":
                return f"{self.operand(operands[0])}.{operation.what}({self.list(operands[1:], keywords)})"
            case "attribute":
                return f"{self.operand(operands[0])}.{operation.what}"
            case "item":
                return f"{self.operand(operands[0])}[{self.operand(operands[1])}]"
            case "unary":
                return f"{operation.what} {self.operand(operands[0])}"
            case "binary" | "compare":
                return f"{self.operand(operands[0])} {operation.what} {self.operand(operands[1])}"
            case "if":
                return f"if {self.operand(operands[0])}:"
            case "gathered":
                tensor, extents, start, stop, *captured = map(self.operand, operands)
                parameters = zip(map(self.name, operation.what.parameters), (f"{start}:{stop}", *captured), strict=True)
                return f"{tensor}.tiles({extents}) gathered by {', '.join(f'{name} = {value}' for name, value in parameters)}:"
        return self.loop(operation)

    def loop(self, operation: Operation) -> str:
        parameters = operation.regions[0].parameters
        count = len(parameters) - len(operation.results)  # of what comes anew in each turn
        first = len(operation.operands) - len(operation.results)
        over, initial = operation.operands[:first], operation.operands[first:]
        options = [f"{name}={self.operand(operand)}" for name, operand in operation.keywords.items()]
        head = operation.what if operation.kind == "stream" and operation.what else operation.kind
        if operation.kind != "while":
            items = f"{', '.join(map(self.name, parameters[:count]))} " if count else ""
            head += f" {items}in ({self.list(over, options)})"
        pairs = zip(parameters[count:], initial, strict=True)
        carried = ", ".join(f"{self.name(value)} = {self.operand(start)}" for value, start in pairs)
        return f"{head} with {carried}:" if carried else f"{head}:"

    def list(self, operands: Iterable[Operand], further: Iterable[str] = ()) -> str:
        return ", ".join([*map(self.operand, operands), *further])

    def operand(self, operand: Operand) -> str:
        match operand:
            case Value():
                return self.name(operand)
            case Constant(value=BoundKernel(source=source)):
                return source.name
            case Constant(value=value, spelling=spelling):
                return spelling or repr(value)
            case Group(parts):
                return f"({self.list(parts)}{',' if len(parts) == 1 else ''})"
            case Section(start, stop, step):
                bounds = [self.operand(bound).removeprefix("None") for bound in (start, stop, step)]
                return ":".join(bounds if bounds[2] else bounds[:2])
        return repr(operand)
