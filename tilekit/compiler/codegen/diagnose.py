"""Diagnostics: what a tile operation rejects, and what numba cannot compile, said at the user's line in plain words.

numba wraps an error in the text of others on its way out (one for each candidate it tried). So `reject` fences its message, and
`compile_error` looks for the fence in whatever arrives; where there is none, the error is numba's own, and its kind decides the
words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from numba.cuda.core.errors import TypingError

from tilekit.compiler.codegen.types import Clash, describe
from tilekit.compiler.frontend.source import KernelSource
from tilekit.compiler.frontend.syntax import NOT_CALLED, NOT_UNPACKED, WRONG_LENGTH
from tilekit.compiler.ir.constants import KEEPS
from tilekit.errors import CompileError

__all__ = ["InFunction", "OverLimit", "Refused", "compile_error", "in_words", "refuse", "reject"]

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


class OverLimit(Exception):
    """An operation needs more than a block has; whoever lowers it, by `ops`, knows its name, and refuses it."""


class InFunction(Exception):
    """An error that arose while an operation compiled a function of the user's; as its cause. It leaves numba as it is."""


def in_words(what: str, check: Callable[..., Any], *args: Any) -> Any:
    """`check(*args, what)`, a rule of the language; what it refuses is refused at the call."""
    try:
        return check(*args, what)
    except CompileError as error:
        reject(what, error.reason.removeprefix(f"{what}: "))


def refuse(op: str, message: str) -> NoReturn:
    """As `reject`, for what is wrong because of the value of a constant."""
    raise Refused(_fence(op, message))


def _fence(op: str, message: str) -> str:
    return f"[tilekit:{op}|{op}: {message.removeprefix(f'{op}: ')}|tilekit]"


# numba's words -> ours, the first that is found. Named groups fill the braces; `name` places the caret too.
_KNOWN: tuple[tuple[str, str], ...] = (
    (r"NameError: name '(?P<name>\w+)' is not defined", "{name} is not defined"),
    (r"[Vv]ariable '(?P<name>\w+)' (?:(?:is )?referenced before assignment|is not defined)",
     "{name} may be used before it has a value: assign it on every path"),
    (r"Unknown attribute '(?P<name>\w+)' of type Tile\(",
     ("a tile has no attribute {name}; there are shape, dtype, ndim, and the methods astype, reshape, permute, transpose, "
      "broadcast_to and item")),
    (r"Unknown attribute '(?P<name>\w+)' of type Tensor\(",
     "a tensor in a kernel has no attribute {name}; there are shape, dtype, ndim, tile_shape, and the methods load and store"),
    (r"Unknown attribute '(?P<name>\w+)' of type Module\(<module '(?P<module>[\w.]+)'",
     "{module}.{name} does not exist, or not in kernels"),
    (r"module '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'", "{module}.{name} does not exist"),
    (r"Unknown attribute '(?P<name>\w+)'", "there is no attribute {name} here"),
    (r"printing unimplemented", "print takes numbers and strings: print tiles with tk.print"),
    (r"failed to unpack a?.*\bTile\(", "a tile cannot be iterated over: tile operations work on all its elements at once"),
    (r"wrong tuple length.*?expected (?P<wanted>\d+), got", WRONG_LENGTH),
    (r"failed to unpack", NOT_UNPACKED),
    (r"tuple index out of range", "index: the tuple has no such element"),
    (r"Keyword arguments are not supported", "this function takes no keywords in a kernel"),
    (r"Invalid use of dtype\(", "a dtype is not called: cast a tile with .astype(...), a scalar with tk.astile(..., dtype=...)"),
    (r"Invalid use of (?!type\(|Function\()\S.* with parameters", NOT_CALLED),
    (r"unicode_(?P<name>\w+)", "strings in a kernel are constants: nothing is computed with them"),
    (r"Implementation function returned by `@overload`",
     "this call cannot be compiled for a GPU: kernels take numbers, tuples, tile operations (tk.*) and functions of math"),
    (r"Untyped global name '(?P<name>\w+)'|Untyped (?:freevar|global)[^']*'(?P<name_>\w+)'",
     ("{name} cannot be used in a kernel, which takes numbers, tuples, tile operations (tk.*), functions of math, and "
      "functions decorated with @tk.function, or with @numba.cuda.jit(device=True)")),
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
_UNKNOWN = (
    "this cannot be compiled for a GPU: kernels take numbers, tuples, tile operations (tk.*), functions of math, and functions "
    "decorated with @tk.function"
)
_SPELLED = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@", "and_": "&",
    "or_": "|", "xor": "^", "invert": "~", "neg": "-", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
    "lshift": "<<", "rshift": ">>", "getitem": "index", "setitem": "assignment to an index",
}  # fmt: skip


def compile_error(error: BaseException, source: KernelSource, called: Mapping[str, KernelSource] | None = None) -> CompileError:
    """`error`, raised while numba compiled a kernel, for the user to read. What it does not know is the cause of what it says.

    Args:
        error: numba's, or that of an operation.
        source: the kernel's.
        called: the sources of the functions that it calls, by what numba takes for their files.
    """
    if isinstance(error, InFunction) and error.__cause__ is not None:
        error = error.__cause__
    text, sources = str(error), {source.filename: source, **(called or {})}
    clash = error if isinstance(error, Clash) else _clash_behind(error)
    if clash is not None:
        return _clash_error(clash, sources, source)
    source, lineno = _locate(error, text, sources, source)
    fenced = _FENCED.search(text)
    if fenced:
        return source.error(fenced["message"], lineno, fenced["op"])
    for pattern, words in _KNOWN:
        match = re.search(pattern, text, re.DOTALL)
        if match:
            groups = {key.rstrip("_"): value for key, value in match.groupdict().items() if value is not None}
            if "name" in groups:
                name = groups["name"].rpartition(".")[2]
                groups["name"] = _SPELLED.get(name.removeprefix("i"), _SPELLED.get(name, _variable(name, source)))
            return source.error(words.format(**groups), lineno, groups.get("name"))
    unknown = source.error(_UNKNOWN, lineno)
    unknown.__cause__ = error
    return unknown


def _variable(name: str, source: KernelSource) -> str:
    """A variable as the user wrote it: numba counts its assignments, and puts a function's name before its variables."""
    name = name.partition(".")[0]
    return re.sub(r"^.*_v\d+_(?=[A-Za-z_])", "", name) if source.calls else name


def _clash_behind(error: BaseException) -> Clash | None:
    """The clash that inference would have come to, had it not stopped at an operation that refuses the first of two types."""
    inference: Any = None
    traceback = error.__traceback__
    while traceback is not None:
        inference = traceback.tb_frame.f_locals.get("typeinfer", inference)
        traceback = traceback.tb_next
    for constraint in 2 * list(inference.constraints.constraints) if inference is not None else ():
        try:
            constraint(inference)
        except Clash as clash:
            return clash
        except Exception:  # one of these is what is being said
            continue
    return None


def _clash_error(error: Clash, sources: Mapping[str, KernelSource], kernel: KernelSource) -> CompileError:
    """A variable that is one thing on one path and another on another: what it is where, from what numba was about to do."""
    variable, step = "", None
    inference: Any = None
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame.f_locals
        owner = frame.get("self")
        if "typeinfer" in frame and hasattr(owner, "loc"):
            step, inference = owner, frame["typeinfer"]
        variable = getattr(owner, "var", variable) if hasattr(owner, "define_loc") else variable
        traceback = traceback.tb_next
    candidates: list[tuple[Any, Any]] = []  # a type, and where
    target = getattr(step, "dst", None)
    for constraint in inference.constraints.constraints if target else ():
        if getattr(constraint, "dst", None) == target and hasattr(constraint, "src"):
            typevar = inference.typevars[constraint.src]
            if typevar.type is not None:
                candidates.append((typevar.type, typevar.define_loc))
    loc = getattr(step, "loc", None)
    if len({str(ty) for ty, _ in candidates}) < 2:
        candidates = [(ty, loc) for ty in error.args]
    candidates.sort(key=lambda one: getattr(one[1], "line", 0))
    last = candidates[-1][1]
    source = sources.get(getattr(last, "filename", ""), kernel)
    name = _variable(str(variable), source) or "it"
    name = "the value" if name.startswith("$") else name  # of an expression, such as `a if b else c`
    what: dict[str, str] = {}
    for ty, where in candidates:
        what.setdefault(describe(ty), f" (line {where.line})" if where is not None and where != loc else "")
    listed = " and ".join(f"{words}{where}" for words, where in what.items())
    return source.error(f"{name} is {listed}: {KEEPS}", getattr(last, "line", source.tree.lineno), name)


def _locate(
    error: BaseException, text: str, sources: Mapping[str, KernelSource], kernel: KernelSource
) -> tuple[KernelSource, int]:
    """Where it happened: in the kernel or in which function, and the line.

    numba has it in the error (`loc`), or in the text, or only in the frames that the error passed: what numba-cuda's type
    inference raises through `numba.core` classes misses numba-cuda's own handlers, and with them the note of the place.
    """
    locations = [getattr(error, "loc", None)]
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame.f_locals
        locations += [getattr(frame.get(name), "loc", None) for name in ("self", "inst")]
        traceback = traceback.tb_next
    positions = [(str(getattr(location, "filename", "")), int(getattr(location, "line", 0))) for location in locations]
    positions = [(name, line) for name, line in positions if name in sources]
    if not positions:
        names = "|".join(map(re.escape, sorted(sources, key=len, reverse=True)))
        written = re.findall(rf'File "({names})", line (\d+)|({names}) \((\d+)\)', text)
        positions = [(one or other, int(line or number)) for one, line, other, number in written]
    name, line = positions[-1] if positions else (kernel.filename, kernel.tree.lineno)
    return sources[name], line
