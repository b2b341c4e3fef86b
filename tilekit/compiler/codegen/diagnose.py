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

from tilekit.compiler.frontend.source import KernelSource
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


# numba's words -> ours, the first that is found: of functions of its own, which the language does not know. The rest is said by
# the verdict on the kernel. Named groups fill the braces; `name` places the caret too.
_KNOWN: tuple[tuple[str, str], ...] = (
    (r"Unknown attribute '(?P<name>\w+)' of type Module\(<module '(?P<module>[\w.]+)'",
     "{module}.{name} does not exist, or not in kernels"),
    (r"module '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'", "{module}.{name} does not exist"),
    (r"Keyword arguments are not supported", "this function takes no keywords in a kernel"),
    (r"Untyped global name '(?P<name>\w+)'|Untyped (?:freevar|global)[^']*'(?P<name_>\w+)'",
     ("{name} cannot be used in a kernel, which takes numbers, tuples, tile operations (tk.*), functions of math, functions of "
      "yours, and functions decorated with @numba.cuda.jit(device=True)")),
    (r"Function\(<(?:ufunc|class|function|built-in function|intrinsic) '?(?P<name>[\w.]+)[^>]*>\)",
     "{name} does not take these values in a kernel"),
)  # fmt: skip
_UNKNOWN = (
    "this cannot be compiled for a GPU: kernels take numbers, tuples, tile operations (tk.*), functions of math, and functions "
    "of yours"
)


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
    source, lineno = _locate(error, text, sources, source)
    fenced = _FENCED.search(text)
    if fenced:
        return source.error(fenced["message"], lineno, fenced["op"])
    for pattern, words in _KNOWN:
        match = re.search(pattern, text, re.DOTALL)
        if match:
            groups = {key.rstrip("_"): value for key, value in match.groupdict().items() if value is not None}
            if "name" in groups:
                groups["name"] = groups["name"].rpartition(".")[2]
            return source.error(words.format(**groups), lineno, groups.get("name"))
    unknown = source.error(_UNKNOWN, lineno)
    unknown.__cause__ = error
    return unknown


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
