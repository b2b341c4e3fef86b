"""Functions, kernels and errors on their way to another process and back: what cloudpickle alone does not carry.

A kernel is compiled from its source, so a function that travels by value (of `__main__`, of a notebook) takes the lines of its
file along; on the other side `linecache` has them, as it has the cells of IPython, which is also what tracebacks show.
"""

from __future__ import annotations

import importlib
import io
import linecache
import operator
import os
import traceback
import types
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from ray import cloudpickle

from tilekit.lang.annotations import Generic
from tilekit.lang.files import file_of
from tilekit.lang.functions import Function
from tilekit.launch import kernel as make_kernel
from tilekit.launch.decorator import Kernel

__all__ = ["Files", "packed", "packed_error", "packed_function", "unpacked", "unpacked_error"]

_MAIN = "__main__"
_PACKAGE = str(Path(__file__).parents[2]) + os.sep


class _Pickler(cloudpickle.Pickler):
    """cloudpickle's, that knows kernels, and notes in `files` where the functions stand that go by value."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.files: Files = {}

    def reducer_override(self, obj: Any) -> Any:
        """How `obj` is pickled."""
        if isinstance(obj, Kernel):
            name = _importable(obj)
            if name is not None:
                return _imported, name
            self.files.setdefault(obj._function.__code__.co_filename, obj._file)
            # By itself: the other side knows the kernel again by these bytes, and need not compile it again.
            data, files = packed((obj._function, obj.signature, obj.num_warps, obj.occupancy))
            self.files.update(files)
            return _kernel_of, (data,)
        if type(obj) is Function:
            name = _importable(obj)
            if name is not None:
                return _imported, name
            self.files.setdefault(obj.function.__code__.co_filename, obj.file)
            return Function, (obj.function,)
        reduced = super().reducer_override(obj)
        if type(obj) is types.FunctionType and reduced is not NotImplemented:
            code = obj.__code__
            if code not in _lines:
                _lines[code] = file_of(obj)
            self.files.setdefault(code.co_filename, _lines[code])
        return reduced


Files = dict[str, Sequence[str]]
_lines: weakref.WeakKeyDictionary[types.CodeType, Sequence[str]] = weakref.WeakKeyDictionary()
_packed: weakref.WeakKeyDictionary[Any, tuple[list[Any], bytes, Files]] = weakref.WeakKeyDictionary()


def packed(value: Any) -> tuple[bytes, Files]:
    """`value` as bytes, and the files, by name, that its functions stand in which are not imported there.

    Raises:
        TypeError, PicklingError: there is something in it that cannot travel.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    return file.getvalue(), pickler.files


def packed_function(function: Any) -> tuple[bytes, Files, bool]:
    """As `packed`, quick for what was packed before and uses nothing that may have changed since; and whether that is so."""
    used: list[Any] = []
    if type(function) is not types.FunctionType or not _uses(function, used, set()):
        return *packed(function), False
    known = _packed.get(function)
    if known is not None and len(known[0]) == len(used) and all(map(operator.is_, known[0], used)):
        return known[1], known[2], True
    data, files = packed(function)
    _packed[function] = (used, data, files)
    return data, files, True


_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, np.dtype, np.generic, types.ModuleType, Generic)


def _uses(function: Any, used: list[Any], seen: set[Any]) -> bool:
    """Note what a function uses from outside. False if any of that may change while it stays the same object."""
    code, scope = function.__code__, function.__globals__
    seen.add(function)
    if vars(function):
        return False
    codes = [code]
    for one in codes:  # which grows
        codes += [constant for constant in one.co_consts if isinstance(constant, types.CodeType)]
    values = [code, function.__defaults__, *(function.__kwdefaults__ or {}).values()]
    values += [scope[name] for one in codes for name in one.co_names if name in scope]
    try:
        values += [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # one that is not filled yet
        return False
    used += values
    return all(_is_constant(value, used, seen) for value in values[1:])


def _is_constant(value: Any, used: list[Any], seen: set[Any]) -> bool:
    if isinstance(value, _CONSTANTS):
        return True
    if type(value) is tuple:
        return all(_is_constant(part, used, seen) for part in value)
    if isinstance(value, type):
        return not _goes_by_value(value.__module__) and "<locals>" not in value.__qualname__
    inner = value._function if isinstance(value, Kernel) else value.function if type(value) is Function else value
    if type(inner) is not types.FunctionType:
        return False
    return inner in seen or _importable(value) is not None or _uses(inner, used, seen)


def unpacked(data: bytes, files: Files) -> Any:
    """The value again."""
    for name, lines in files.items():
        if lines and list(lines) != linecache.getlines(name):
            # Without a time it is not compared with a file of that name: that may be another one here, or have been edited.
            linecache.cache[name] = (sum(map(len, lines)), None, list(lines), name)
    return cloudpickle.loads(data)


def _importable(obj: Any) -> tuple[str, str] | None:
    """The module and the name that `obj` can be imported by; None if there is none that gives this very object."""
    module, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or _goes_by_value(module):
        return None
    try:
        return (module, name) if _imported(module, name) is obj else None
    except (ImportError, AttributeError):  # a local one, or its module was never a file
        return None


def _goes_by_value(module: str) -> bool:
    """Whether what a module has is not imported on the other side: of `__main__`, and where cloudpickle was told so."""
    chosen = cloudpickle.list_registry_pickle_by_value()
    return module == _MAIN or any(module == name or module.startswith(f"{name}.") for name in chosen)


def _imported(module: str, name: str) -> Any:
    """What a module has under a name, which may have dots."""
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


@lru_cache(maxsize=256)
def _kernel_of(data: bytes) -> Kernel[...]:
    """A kernel that came by value. What its annotations name need not exist here: they have been read."""
    function, signature, num_warps, occupancy = cloudpickle.loads(data)
    function.__annotations__ = {}
    kernel: Kernel[...] = make_kernel(num_warps=num_warps, occupancy=occupancy)(function)
    kernel.signature = signature
    return kernel


def packed_error(error: BaseException) -> tuple[bytes, str]:
    """An error as bytes, and its traceback as text. It arrives in its own class, even if pickle cannot build that again."""
    text = _shown(error)
    for form in (_whole, _by_parts):
        try:
            data = cloudpickle.dumps(form(error))
            if type(unpacked_error(data)) is type(error):
                return data, text
        except Exception:  # whatever the class does: the next form asks less of it
            continue
    message = f"{type(error).__module__}.{type(error).__qualname__}, which cannot be pickled: {error}"
    return cloudpickle.dumps((RuntimeError, (message,), {})), text


def _shown(error: BaseException) -> str:
    """Its traceback, without the frames that are tilekit's own, and the notes, which the error has."""
    shown = traceback.TracebackException.from_exception(error)
    theirs = [frame for frame in shown.stack if not frame.filename.startswith(_PACKAGE)]
    shown.stack = traceback.StackSummary.from_list(theirs or shown.stack)
    shown.__notes__ = []
    return "".join(shown.format()).rstrip()


def unpacked_error(data: bytes) -> BaseException:
    """The error again."""
    sent = cloudpickle.loads(data)
    if isinstance(sent, BaseException):
        return sent
    kind, args, attributes = sent
    error: BaseException = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(attributes)
    return error


def _whole(error: BaseException) -> Any:
    return error


def _by_parts(error: BaseException) -> tuple[Callable[..., BaseException], tuple[Any, ...], dict[str, Any]]:
    """Without its `__init__`, which may ask for more than `args`."""
    return type(error), error.args, dict(vars(error))
