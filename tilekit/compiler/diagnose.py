"""Errors in kernels: what a tile operation rejects, and what numba cannot compile, said at the user's line in plain words.

numba wraps an error in the text of others on its way out (one for each candidate it tried). So `reject` fences its message, and
`explain` looks for the fence in whatever arrives; where there is none, the error is numba's own, and its kind decides the words.
"""

from __future__ import annotations

import re
from typing import NoReturn

from numba.cuda.core.errors import TypingError

from tilekit.compiler.source import KernelSource
from tilekit.errors import CompileError

__all__ = ["Refused", "explain", "refuse", "reject"]

_FENCED = re.compile(r"\[tilekit:(?P<op>[^|]*)\|(?P<message>.*?)\|tilekit\]", re.DOTALL)


def reject(op: str, message: str) -> NoReturn:
    """Refuse an operation of the tile language, while it is typed or lowered.

    Args:
        op: its name as the user spells it: `load`, `+`.
        message: what was found and what to do.
    """
    raise TypingError(_fence(op, message))


class Refused(Exception):
    """What `refuse` raises: no error of numba's, which would try again without the constants and may then be content."""


def refuse(op: str, message: str) -> NoReturn:
    """As `reject`, for what is wrong because of the value of a constant."""
    raise Refused(_fence(op, message))


def _fence(op: str, message: str) -> str:
    return f"[tilekit:{op}|{op}: {message.removeprefix(f'{op}: ')}|tilekit]"


# numba's words -> ours, the first that is found. Named groups fill the braces; `name` places the caret too.
_KNOWN: tuple[tuple[str, str], ...] = (
    (r"NameError: name '(?P<name>\w+)' is not defined", "{name} is not defined"),
    (r"[Vv]ariable '(?P<name>\w+)' (?:is )?referenced before assignment",
     "{name} may be used before it has a value: assign it on every path"),
    (r"Unknown attribute '(?P<name>\w+)' of type Tile\(",
     "a tile has no attribute {name}; there are shape, dtype, ndim, and the method astype"),
    (r"Unknown attribute '(?P<name>\w+)' of type Tensor\(",
     "a tensor in a kernel has no attribute {name}; there are shape, dtype, ndim, tile_shape, and the methods load and store"),
    (r"Unknown attribute '(?P<name>\w+)' of type Module\(<module '(?P<module>[\w.]+)'",
     "{module}.{name} does not exist, or not in kernels"),
    (r"module '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'", "{module}.{name} does not exist"),
    (r"Unknown attribute '(?P<name>\w+)'", "there is no attribute {name} here"),
    (r"printing unimplemented", "print takes numbers and strings: print tiles with tk.print"),
    (r"Untyped global name '(?P<name>\w+)'|Untyped (?:freevar|global)[^']*'(?P<name_>\w+)'",
     ("{name} cannot be used in a kernel, which takes numbers, tuples, tile operations (tk.*), functions of math, and "
      "functions decorated with @numba.cuda.jit(device=True)")),
    (r"Cannot unify .*? for '(?P<name>[A-Za-z_]\w*)(?:\.\d+)*', defined",
     ("{name} has one type on one path through the kernel, or before a loop, and another on another: a tile keeps its shape and "
      "dtype (cast with .astype(...); start from tk.zeros of the right shape and dtype)")),
    (r"Function\(<(?:ufunc|class|function|built-in function|intrinsic) '?(?P<name>[\w.]+)[^>]*>\).*?\(s?.*?\bTile\(",
     "{name} does not take tiles: the operations on tiles are tk.*, the operators and abs"),
    (r"Function\(<(?:ufunc|class|function|built-in function|intrinsic) '?(?P<name>[\w.]+)[^>]*>\).*?\bTensor\(",
     "a tensor in a kernel has no {name}: load a tile of it (tk.load, tk.load_tile_like, .load()) and store one (.store(...))"),
    (r"Function\(<(?:ufunc|class|function|built-in function|intrinsic) '?(?P<name>[\w.]+)[^>]*>\)",
     "{name} does not take these values in a kernel"),
    (r"getiter", "only ranges and tuples can be iterated over in a kernel"),
)  # fmt: skip
_SPELLED = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@", "and_": "&",
    "or_": "|", "xor": "^", "invert": "~", "neg": "-", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
    "lshift": "<<", "rshift": ">>", "getitem": "index", "setitem": "assignment to an index",
}  # fmt: skip


def explain(error: BaseException, source: KernelSource) -> CompileError:
    """`error`, raised while numba compiled the kernel of `source`, for the user to read. What it does not know it quotes."""
    text = str(error)
    lineno = _line(error, text, source)
    fenced = _FENCED.search(text)
    if fenced:
        return source.error(fenced["message"], lineno, fenced["op"])
    for pattern, words in _KNOWN:
        found = re.search(pattern, text, re.DOTALL)
        if found:
            groups = {key.rstrip("_"): value for key, value in found.groupdict().items() if value is not None}
            if "name" in groups:
                name = groups["name"].rpartition(".")[2]
                groups["name"] = _SPELLED.get(name.removeprefix("i"), _SPELLED.get(name, name))
            return source.error(words.format(**groups), lineno, groups.get("name"))
    made = source.error(f"numba cannot compile this for a GPU: {_summary(text) or type(error).__name__}", lineno)
    made.__cause__ = error
    return made


def _summary(text: str) -> str:
    """The first line of numba's text that says something, without the types' own names."""
    text = re.sub(r"Tile\((\w+), .*?Config\([^)]*\)\)", r"a \1 tile", text)
    text = re.sub(r"Tensor\((\w+), TensorFacts.*?Config\([^)]*\)\)", r"the tensor \1", text)
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in lines if line and not line.startswith("Failed in")), "")


def _line(error: BaseException, text: str, source: KernelSource) -> int:
    """The line of the kernel where it happened.

    numba has it in the error (`loc`), or in the text, or only in the frames that the error passed: what numba-cuda's type
    inference raises through `numba.core` classes misses numba-cuda's own handlers, and with them the note of the place.
    """
    places = [getattr(error, "loc", None)]
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame.f_locals
        places += [getattr(frame.get(name), "loc", None) for name in ("self", "inst")]
        traceback = traceback.tb_next
    lines = [int(getattr(place, "line", 0)) for place in places if getattr(place, "filename", None) == source.filename]
    if lines:
        return lines[-1]
    name = re.escape(source.filename)
    written = re.findall(rf'File "{name}", line (\d+)|{name} \((\d+)\)', text)
    return int(written[-1][0] or written[-1][1]) if written else source.tree.lineno
