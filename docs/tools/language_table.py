"""Draw up `docs/reference/language.md` and the pages in `docs/reference/language/`, one for each family of operations.

    python docs/tools/language_table.py

The rows are `tilekit.lang.registry.OPS`: names and descriptions are the operations' own, and lead to what Sphinx makes of their
docstrings. `language_peers.py` has the names in other languages. `tests/docs/test_language_table.py` checks that no cell is empty,
that no table is wider than a page, and that the pages are up to date.
"""

# ruff: noqa: E501 - a paragraph of the page is one line

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import tilekit as tk
from tilekit.lang import tile, views
from tilekit.lang.registry import OPS, TileOp

HERE = Path(__file__).resolve().parent
REFERENCE = HERE.parent / "reference"


def _peers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("language_peers", HERE / "language_peers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["language_peers"] = module
    spec.loader.exec_module(module)
    return module


PEERS = _peers()

# The title of each family's page, in their order.
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
    "Tile": (tile.Tile, "A tile"),
    "TensorView": (views.TensorView, "A tensor parameter"),
    "TiledView": (views.TiledView, "A view, made by `x.tiled_view(...)`"),
}

_INTRODUCTION = """\
# The tile language

What the body of a kernel is written in. Each operation works on tiles, inside a function decorated with `@tk.kernel`, and does the same on a GPU and on a CPU device; called anywhere else it raises a `TypeError`. A kernel may also use `if`, `for`, `while`, `break`, tuples, arithmetic on scalars and functions of `math`. [Dtypes and promotion](../concepts/dtypes-and-promotion.md) says how dtypes mix, [errors in kernels](../guides/kernel-errors.md) what Python a kernel cannot have.

Each page has the operations of one family: first in a table, then what other tile languages call them, then in full. The tables are made from the operations' own descriptions by `python docs/tools/language_table.py`.
"""

_PEERS = """\
## In other languages

A dash means that a language lacks it, parentheses how it is done there otherwise.
"""

_MAPPED = """\
A mapped partition has no tile of the block's own: `for tile in y.tiles():` visits the block's tiles, `y.load(tile)` and `y.store(value, tile)` read and write one, and `tile.index` is its index, a tuple of int32 scalars. `y.tiles(z)` gives tiles that `z` takes too, a mapped partition of the same shape, tiles and group. See [partitions](../../guides/partitions.md).
"""

_DECLARING = """\
# Declaring a kernel

Generics, parameters without annotation, and `Const` parameters are values or names of the host's. Any parameter but a `Const` also takes a tuple, of tensors, partitions, numbers and further tuples, or None where a tensor is optional (`if bias is not None:` decides at no cost); the result of the launch has everything in its place, nested as it was. How type checkers read the annotations, and the form of shapes that they accept, `Annotated[tk.In, -1, 64]`, are in [Types](../../guides/types.md).

```{eval-rst}
.. autofunction:: tilekit.kernel
.. autofunction:: tilekit.function
.. autofunction:: tilekit.generics
.. autofunction:: tilekit.static_range
.. autoclass:: tilekit.In
.. autoclass:: tilekit.Out
.. autoclass:: tilekit.InOut
.. autoclass:: tilekit.Const
```
"""

_DTYPES = """\
# Element types

| name | NumPy's |
|---|---|
| `tilekit.bool_` | `bool` |
| `tilekit.int8`, `tilekit.int16`, `tilekit.int32`, `tilekit.int64` | signed integers |
| `tilekit.uint8`, `tilekit.uint16`, `tilekit.uint32`, `tilekit.uint64` | unsigned integers |
| `tilekit.float16`, `tilekit.float32`, `tilekit.float64` | IEEE floats |
| `tilekit.bfloat16` | that of `ml_dtypes` |
| `tilekit.float8_e4m3fn`, `tilekit.float8_e5m2` | those of `ml_dtypes`; to load, store and cast, see [dtypes](../../concepts/dtypes-and-promotion.md) |

Wherever a dtype is asked for, its name as a string or NumPy's scalar type does as well: `"float32"`, `numpy.float32`.
"""

_OWN = ["| | what it does |", "|---|---|"]
_OTHERS = ["| | cuTile Python | cuTile Rust | Triton |", "|---|---|---|---|"]


def first_sentence(text: str | None) -> str:
    """The first paragraph's first sentence, for a cell of a table."""
    words = " ".join((text or "").strip().partition("\n\n")[0].split())
    end = words.find(". ")
    return (words if end < 0 else words[: end + 1]).replace("|", "\\|")


def cells(peers: tuple[str | None, str | None, str | None]) -> str:
    """The columns of the peers."""
    return " | ".join("-" if name is None else name if name.startswith(("(", "the same")) else f"`{name}`" for name in peers)


def operations_of(family: str) -> list[TileOp]:
    """In the order in which they are registered."""
    return [op for op in OPS.values() if op.family == family]


def rows_of(family: str) -> Iterator[tuple[str, str]]:
    """For each operation its line of the first table, and of the one of other languages."""
    for op in operations_of(family):
        about = first_sentence(inspect.getdoc(op.function))
        yield f"| {link(op)} | {about} |", f"| `tk.{op.name}` | {cells(PEERS.OPERATIONS[op.name])} |"


def link(op: TileOp) -> str:
    """Its name, leading to its description."""
    return f"{{py:func}}`tk.{op.name} <tilekit.{op.name}>`"


def members_of(owner: str) -> Iterator[tuple[str, str, str]]:
    """For each public attribute and method of a class its name, and its lines of both tables."""
    cls, _ = MEMBERS[owner]
    documented = {name: inspect.getdoc(member) for name, member in vars(cls).items() if not name.startswith("_")}
    attributes = (inspect.getdoc(cls) or "").partition("Attributes:")[2]
    for name in PEERS.MEMBERS:
        kind, _, member = name.partition(".")
        if kind != owner or member not in documented:
            continue
        found = inspect.getattr_static(cls, member)
        described = inspect.isfunction(found) or isinstance(found, property)
        role = "py:meth" if inspect.isfunction(found) else "py:attr"
        shown = f"{{{role}}}`.{member} <{cls.__module__}.{cls.__name__}.{member}>`" if described else f"`.{member}`"
        text = documented[member] if described else _described(attributes, member)
        yield name, f"| {shown} | {first_sentence(text)} |", f"| `.{member}` | {cells(PEERS.MEMBERS[name])} |"


def _described(attributes: str, member: str) -> str:
    """What a class's docstring says of an attribute."""
    for line in attributes.splitlines():
        names, _, text = line.strip().partition(": ")
        if member in names.replace(" ", "").split(","):
            return text[:1].upper() + text[1:]
    return ""


def table(kind: str, lines: Iterable[str]) -> list[str]:
    """A table in a frame that the style sheet knows by the name `kind`."""
    return [f":::{{div}} {kind}", *lines, ":::", ""]


def family_page(family: str, title: str) -> str:
    """The page of one family."""
    own, others = zip(*rows_of(family))
    lines = [f"# {title}\n", *table("names", (*_OWN, *own)), _PEERS, *table("peers", (*_OTHERS, *others))]
    lines += ["## In full\n", "```{eval-rst}"]
    lines += [f".. autofunction:: tilekit.{op.name}" for op in operations_of(family)]
    if _ENUMS.get(family) in tk.__all__:
        lines += [f".. autoclass:: tilekit.{_ENUMS[family]}", "   :members:", "   :undoc-members:"]
    return "\n".join([*lines, "```", ""])


def operators_page() -> str:
    """The page of `+` and the like."""
    shown = {symbols: f"`{symbols.replace('|', chr(92) + '|')}`" for symbols in PEERS.OPERATORS}
    own = [f"| {shown[symbols]} | {text} |" for symbols, (text, _) in PEERS.OPERATORS.items()]
    others = [f"| {shown[symbols]} | {cells(peers)} |" for symbols, (_, peers) in PEERS.OPERATORS.items()]
    lines = ["# Operators\n", "Operands are tiles, or a tile and a scalar.\n"]
    return "\n".join([*lines, *table("names", (*_OWN, *own)), _PEERS, *table("peers", (*_OTHERS, *others))])


def members_page() -> str:
    """The page of what tiles, tensor parameters and views have."""
    lines = ["# Tiles, tensors and views in a kernel\n"]
    for owner, (cls, title) in MEMBERS.items():
        _, own, others = zip(*members_of(owner))
        lines += [f"## {title}\n", _MAPPED * (owner == "TensorView"), *table("names", (*_OWN, *own))]
        lines += [*table("peers", (*_OTHERS, *others)), "```{eval-rst}"]
        shown = [name.partition(".")[2] for name, _, _ in members_of(owner)]
        listed = [name for name in shown if inspect.isfunction(vars(cls)[name]) or isinstance(vars(cls)[name], property)]
        lines += [f".. autoclass:: {cls.__module__}.{cls.__name__}", f"   :members: {', '.join(listed)}", "```", ""]
    return "\n".join(lines)


def index_page(titles: dict[str, str]) -> str:
    """The page that leads to the others: their titles by their names."""
    rows = []
    for name, title in titles.items():
        names = " ".join(link(op) for op in operations_of(name))
        rows.append(f"| [{title}](language/{name}.md) | {names or _CONTENTS[name]} |")
    lines = [_INTRODUCTION, *table("names", ("| page | what is on it |", "|---|---|", *rows))]
    lines += ["```{toctree}", ":hidden:", "", *(f"language/{name}" for name in titles), "```", ""]
    return "\n".join(lines)


# What is on the pages that have no operations.
_CONTENTS = {
    "operators": "`+`, `@`, `==`, `t[:, None]` and the like",
    "members": "`t.shape`, `t.astype(...)`; `x.load()`, `x.store(...)`, `x.tiles(...)`, `x.slice(...)`",
    "declaring": "{py:func}`tk.kernel <tilekit.kernel>` {py:func}`tk.function <tilekit.function>` {py:func}`tk.generics <tilekit.generics>` {py:func}`tk.static_range <tilekit.static_range>`, `In`, `Out`, `InOut`, `Const`",
    "dtypes": "`float32`, `bfloat16`, `int64` and the others",
}


def pages() -> dict[Path, str]:
    """The text of every page, by its path."""
    missing = {op.family for op in OPS.values()} - set(TITLES)
    assert not missing, f"no title for the families {missing}"
    texts = {family: family_page(family, title) for family, title in TITLES.items()}
    texts |= {"operators": operators_page(), "members": members_page(), "declaring": _DECLARING, "dtypes": _DTYPES}
    titles = {name: text.partition("\n")[0].removeprefix("# ") for name, text in texts.items()}
    order = ["declaring", "members", "operators", *TITLES, "dtypes"]
    index = index_page({name: titles[name] for name in order})
    return {REFERENCE / "language.md": index} | {REFERENCE / "language" / f"{name}.md": text for name, text in texts.items()}


def main() -> None:
    (REFERENCE / "language").mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
