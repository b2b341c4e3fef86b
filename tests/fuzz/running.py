"""A random program on a device: its kernel from its text, its tensors in their places, and what is wrong with what it leaves."""

from __future__ import annotations

import itertools
import linecache
import os
import tempfile
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from programs import Program, Tensor
from rows_control import Unknown
from values import FORMATS, Array, Value, is_float, wide

import tilekit as tk
from tilekit import api

_FOLDER = tempfile.TemporaryDirectory(prefix="tilekit-fuzz-")
_numbers = itertools.count()


def kernel_of(source: str) -> Any:
    """The kernel `k` of a module's text, which stands in a file, so that whoever looks for it finds it."""
    path = Path(_FOLDER.name) / f"kernel_{os.getpid()}_{next(_numbers)}.py"
    path.write_text(source)
    scope: dict[str, Any] = {"__name__": path.stem}
    exec(compile(source, str(path), "exec"), scope)
    # Neither the file nor its lines are needed once the kernel knows its text.
    linecache.getlines(str(path))
    path.unlink()
    return scope["k"]


def surroundings(tensor: Tensor) -> tuple[Array, Any]:
    """The memory of a tensor, full of another value round it, and how to get the tensor's view of that memory."""
    a = tensor.array
    if tensor.layout == "offset":
        memory = np.zeros(tuple(n + 2 for n in a.shape), a.dtype)
        inside = tuple(slice(1, n + 1) for n in a.shape)
    elif tensor.layout == "strided":
        memory = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)
        inside = (*(slice(None) for _ in a.shape[1:]), slice(None, None, 2))
    elif tensor.layout == "reversed":
        memory = np.zeros(a.shape, a.dtype)
        inside = (slice(None, None, -1),)
    elif tensor.layout == "permuted":
        memory = np.array(a.T, order="C")  # a copy, also of one dimension
        axes = tuple(reversed(range(a.ndim)))
        return memory, lambda whole: whole.permute(*axes) if hasattr(whole, "permute") else whole.transpose(axes)
    elif tensor.layout == "repeated" and a.shape[0] > 1:
        shape = a.shape

        def repeated(whole: Any) -> Any:
            if isinstance(whole, np.ndarray):
                return np.broadcast_to(whole, shape)
            return whole._at(shape, (0, *whole.strides[1:]), 0)

        return np.array(a[:1], order="C"), repeated
    else:
        return np.array(a), lambda whole: whole
    memory[inside] = a
    return memory, lambda whole: whole[inside]


def launch(program: Program, meta: bool = False) -> tuple[Any, dict[str, Any]]:
    """The launch as an op, and the memory of its tensors on the device, if they are not to be `meta`."""
    kernel, memory, arguments = kernel_of(program.source()), {}, []
    for tensor in program.tensors:
        host, view = surroundings(tensor)
        memory[tensor.name] = api.meta(host.shape, host.dtype) if meta else api.from_host(host).sync()
        argument = view(memory[tensor.name])
        if tensor.tile == ():
            argument = argument.scattered()
        elif tensor.tile is not None:
            argument = argument.partition(tensor.tile)
            if program.mapped is not None:
                argument = argument.map(num_blocks=program.mapped, **({"group": program.group} if program.group else {}))
        arguments.append(argument)
    op = kernel(*arguments, *program.scalars.values(), *program.constants.values())
    return (op if program.num_warps is None else op.num_warps(program.num_warps)), memory


def outputs(program: Program) -> dict[str, tuple[Array, Array]]:
    """What the outputs hold after a launch on the default device; and all of their memory."""
    op, memory = launch(program)
    op.sync()
    made = {}
    for tensor in program.tensors:
        if tensor.role != "In":
            whole = memory[tensor.name].to_host().sync()
            _, view = surroundings(tensor)
            made[tensor.name] = (np.array(view(whole)), whole)
    return made


def wrong(found: Array, expected: Value) -> Any:
    """Where elements differ by more than they may."""
    exact = expected.array
    if found.dtype != exact.dtype or found.shape != exact.shape:
        raise TypeError(f"a result of {found.dtype.name} {found.shape}, not {exact.dtype.name} {exact.shape}")
    bits = np.dtype(f"u{exact.dtype.itemsize}")
    same = np.ascontiguousarray(found).view(bits) == np.ascontiguousarray(exact).view(bits)
    same = same.reshape(exact.shape) | np.isposinf(expected.off)
    if not is_float(exact.dtype):
        return ~same
    f, e, off = wide(found), wide(exact), expected.off
    largest = FORMATS[exact.dtype].largest
    with np.errstate(all="ignore"):
        close = (off > 0) & ((np.abs(f - e) <= off) | (f == e))
        over = (off > 0) & np.isinf(f) & (np.sign(f) == np.sign(e)) & (np.abs(e) + off >= largest)
    return ~(same | (np.isnan(f) & np.isnan(e)) | close | over)


def difference(program: Program, found: dict[str, tuple[Array, Array]], expected: dict[str, Value], whose: str) -> str | None:
    """What is wrong with the outputs, or None."""
    for tensor in program.tensors:
        if tensor.role == "In":
            continue
        array, whole = found[tensor.name]
        bad = wrong(array, expected[tensor.name])
        if bad.any():
            place = tuple(int(i) for i in np.argwhere(bad)[0])
            value = expected[tensor.name]
            off = f" +- {value.off[place]:.3g}" if value.off[place] else ""
            return (
                f"{whose}: {tensor.name} differs at {int(bad.sum())} of {bad.size} elements; at {place} it is {array[place]!r}, "
                f"not {value.array[place]!r}{off}"
            )
        before, view = surroundings(tensor)
        if tensor.layout == "repeated":
            continue
        view(before)[...] = array
        if before.tobytes() != whole.tobytes() and not np.array_equal(before.view(np.uint8), whole.view(np.uint8)):
            return f"{whose}: {tensor.name}: memory outside the tensor was written"
    return None


class Checked:
    """What came of checking programs.

    Attributes:
        sure, off, unknown: how many elements were compared exactly, within bounds, and not at all.
        unsaid: programs that branch on what nobody knows.
    """

    def __init__(self) -> None:
        self.sure = self.off = self.unknown = self.unsaid = self.programs = 0

    def count(self, expected: dict[str, Value]) -> None:
        """One more program."""
        self.programs += 1
        for value in expected.values():
            unknown = int(np.isinf(value.off).sum())
            off = int((value.off > 0).sum()) - unknown
            self.unknown, self.off = self.unknown + unknown, self.off + off
            self.sure += value.array.size - unknown - off


def told(error: BaseException, whose: str) -> str:
    """An exception as a problem."""
    lines = "".join(traceback.format_exception(error)[-12:])
    return f"{whose}: {type(error).__name__}: {error}\n{lines}"


def problem(program: Program, devices: list[Any], statistics: Checked | None = None) -> str | None:
    """What is wrong with a program on these devices, or None."""
    try:
        expected = program.evaluate()
    except Unknown:
        if statistics is not None:
            statistics.unsaid += 1
        return None
    if statistics is not None:
        statistics.count(expected)
    for device in devices:
        try:
            with tk.use_device(device):
                found = outputs(program)
        except Exception as error:
            return told(error, device.kind)
        if said := difference(program, found, expected, device.kind):
            return said
    return None


def compile_problem(program: Program, target: str) -> str | None:
    """What is wrong with compiling a program for a GPU that is not there, or None."""
    try:
        launch(program, meta=True)[0].compile(target=target)
    except Exception as error:
        return told(error, target)
    return None
