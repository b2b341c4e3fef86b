"""Draw up `docs/reference/language.md`: every operation of the tile language, and what others call it.

    python docs/tools/language_table.py

The rows are `tilekit.lang.registry.OPS`: signature and description are the operation's own. `language_peers.py` has the names in
other languages. `tests/docs/test_language_table.py` checks that no cell is empty and that the page is up to date.
"""

# ruff: noqa: E501 - a paragraph of the page is one line

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import tilekit as tk
from tilekit.lang import tile, views
from tilekit.lang.registry import OPS, TileOp

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "reference" / "language.md"


def _peers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("language_peers", HERE / "language_peers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["language_peers"] = module
    spec.loader.exec_module(module)
    return module


PEERS = _peers()

# The title of each family's section, in the page's order.
TITLES = {
    "memory": "Where a block is, loads and stores",
    "indexed": "Gather and scatter",
    "atomic": "Atomics",
    "create": "Making tiles",
    "calculation": "Arithmetic",
    "elementwise": "Choices, rounding, conversions",
    "exponential": "Exponentials, logarithms, roots",
    "trigonometry": "Trigonometry",
    "comparison": "Comparisons and logic",
    "bits": "Bits",
    "shape": "Shapes",
    "matmul": "Products of matrices",
    "pipelines": "Software pipelines",
    "reduction": "Reductions",
    "scanning": "Scans",
    "sorting": "Sorts",
    "counting": "Counts",
    "randomness": "Random numbers",
    "debug": "Looking inside",
}
# Names that belong to a family beside its operations.
_ENUMS = {"memory": "PaddingMode", "calculation": "RoundingMode"}
MEMBERS = {
    "Tile": (tile.Tile, "a tile"),
    "TensorView": (views.TensorView, "a tensor parameter"),
    "TiledView": (views.TiledView, "a view"),
}

_INTRODUCTION = """\
# The tile language

What the body of a kernel is written in. Each operation works on tiles, inside a function decorated with `@tk.kernel`, and does the same on a GPU and on a CPU device; called anywhere else it raises a `TypeError`. A kernel may also use `if`, `for`, `while`, `break`, tuples, arithmetic on scalars and functions of `math`. [Dtypes and promotion](../concepts/dtypes-and-promotion.md) says how dtypes mix, [errors in kernels](../guides/kernel-errors.md) what Python a kernel cannot have.

Each section begins with a table: the operation, what it does, and what other tile languages call it. A dash means that a language lacks it, parentheses how it is done there otherwise. The table is made from the operations' own signatures and descriptions by `python docs/tools/language_table.py`.
"""

_MAPPED = """\
A mapped partition has no tile of the block's own: `for tile in y.tiles():` visits the block's tiles, `y.load(tile)` and `y.store(value, tile)` read and write one, and `tile.index` is its index, a tuple of int32 scalars. `y.tiles(z)` gives tiles that `z` takes too, a mapped partition of the same shape, tiles and group. See [partitions](../guides/partitions.md).
"""

_ENDING = """\
## Declaring a kernel

Generics, parameters without annotation, and `Const` parameters are values or names of the host's.

```{eval-rst}
.. autofunction:: tilekit.kernel
%s.. autofunction:: tilekit.generics
.. autoclass:: tilekit.In
.. autoclass:: tilekit.Out
.. autoclass:: tilekit.InOut
.. autoclass:: tilekit.Const
```

## Element types

| name | NumPy's |
|---|---|
| `tilekit.bool_` | `bool` |
| `tilekit.int8`, `tilekit.int16`, `tilekit.int32`, `tilekit.int64` | signed integers |
| `tilekit.uint8`, `tilekit.uint16`, `tilekit.uint32`, `tilekit.uint64` | unsigned integers |
| `tilekit.float16`, `tilekit.float32`, `tilekit.float64` | IEEE floats |
| `tilekit.bfloat16` | that of `ml_dtypes` |
| `tilekit.float8_e4m3fn`, `tilekit.float8_e5m2` | those of `ml_dtypes`; to load, store and cast, see [dtypes](../concepts/dtypes-and-promotion.md) |

Wherever a dtype is asked for, its name as a string or NumPy's scalar type does as well: `"float32"`, `numpy.float32`.
"""

_HEAD = ["| | what it does | cuTile Python | cuTile Rust | Triton |", "|---|---|---|---|---|"]


def first_sentence(text: str | None) -> str:
    """The first paragraph's first sentence, for a cell of a table."""
    words = " ".join((text or "").strip().partition("\n\n")[0].split())
    end = words.find(". ")
    return (words if end < 0 else words[: end + 1]).replace("|", "\\|")


def call_of(op: TileOp) -> str:
    """How it is called: names and defaults, without types."""
    parameters = [p.replace(annotation=p.empty, default=_plain(p.default)) for p in op.signature.parameters.values()]
    shown = op.signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    return f"tk.{op.name}{shown}"


class _Shown:
    """A default value in the words of a kernel."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _plain(default: Any) -> Any:
    if default is inspect.Parameter.empty:
        return default
    name = getattr(default, "name", None)
    return _Shown(f"tk.{name}") if name in tk.__all__ else default


def cells(peers: tuple[str | None, str | None, str | None]) -> str:
    """The columns of the peers."""
    return " | ".join("-" if name is None else name if name.startswith(("(", "the same")) else f"`{name}`" for name in peers)


def rows_of(family: str) -> Iterator[tuple[TileOp, str]]:
    """The operations of a family, each with its line of the table."""
    for op in OPS.values():
        if op.family == family:
            call = call_of(op).replace("|", "\\|")
            yield op, f"| `{call}` | {first_sentence(inspect.getdoc(op.function))} | {cells(PEERS.OPERATIONS[op.name])} |"


def members_of(owner: str) -> Iterator[tuple[str, str]]:
    """The public attributes and methods of a class, each with its line of the table."""
    cls, _ = MEMBERS[owner]
    documented = {name: inspect.getdoc(member) for name, member in vars(cls).items() if not name.startswith("_")}
    attributes = (inspect.getdoc(cls) or "").partition("Attributes:")[2]
    for name in PEERS.MEMBERS:
        kind, _, member = name.partition(".")
        if kind != owner or member not in documented:
            continue
        found = inspect.getattr_static(cls, member)
        shown = member
        if inspect.isfunction(found):
            signature = inspect.signature(found)
            parameters = [p.replace(annotation=p.empty) for p in list(signature.parameters.values())[1:]]
            shown += str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
        text = documented[member] if inspect.isfunction(found) or isinstance(found, property) else _described(attributes, member)
        yield name, f"| `.{shown}` | {first_sentence(text)} | {cells(PEERS.MEMBERS[name])} |"


def _described(attributes: str, member: str) -> str:
    """What a class's docstring says of an attribute."""
    for line in attributes.splitlines():
        names, _, text = line.strip().partition(": ")
        if member in names.replace(" ", "").split(","):
            return text[:1].upper() + text[1:]
    return ""


def markdown() -> str:
    """The page."""
    lines = [_INTRODUCTION]
    missing = {op.family for op in OPS.values()} - set(TITLES)
    assert not missing, f"no title for the families {missing}"
    for family, title in TITLES.items():
        rows = list(rows_of(family))
        if not rows:
            continue
        lines += [f"## {title}\n", *_HEAD, *(line for _, line in rows), "", "```{eval-rst}"]
        lines += [f".. autofunction:: tilekit.{op.name}" for op, _ in rows]
        if _ENUMS.get(family) in tk.__all__:
            lines += [f".. autoclass:: tilekit.{_ENUMS[family]}", "   :members:", "   :undoc-members:"]
        lines += ["```", ""]
    lines += ["## Operators\n", "Operands are tiles, or a tile and a scalar.\n", *_HEAD]
    for symbols, (text, peers) in PEERS.OPERATORS.items():
        lines.append(f"| `{symbols.replace('|', chr(92) + '|')}` | {text} | {cells(peers)} |")
    lines.append("")
    for owner, (_, text) in MEMBERS.items():
        lines += [
            f"## What {text} has\n",
            *_HEAD,
            *(line for _, line in members_of(owner)),
            "",
            _MAPPED * (owner == "TensorView"),
        ]
    lines.append(_ENDING % (".. autofunction:: tilekit.function\n" if "function" in tk.__all__ else ""))
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
