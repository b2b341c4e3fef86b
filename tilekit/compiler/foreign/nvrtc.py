"""CUDA C++ and PTX as cubins, by NVRTC and nvJitLink. Neither needs a GPU.

They are asked through cuda.bindings, which is there wherever numba-cuda is, and says more of what went wrong than cuda.core.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilekit.compiler.cubin import read_kernels, read_resources
from tilekit.compiler.kernel import disassemble
from tilekit.errors import CompileError, TilekitError

__all__ = ["CompiledCode", "assemble", "check_options", "check_target", "check_text", "code_of", "compile_source"]

_KEPT = 256  # compiled sources

_INSTALL = 'pip install "numba-cuda[cu13]" (or cu12, for a driver of CUDA 12)'
# What may stand between __global__ and the name, such as __launch_bounds__(256), and comments.
_SKIPPED = re.compile(r"__\w+__\s*\([^()]*\)|//[^\n]*|/\*.*?\*/", re.S)
_DEFINITION = re.compile(r"__global__[^;{}()]*?\b(\w+)\s*\(")
_NAMES_ONLY = "__nv_name_map("  # where NVRTC says that errors are which concern the name alone


@dataclass(frozen=True, kw_only=True)
class CompiledCode:
    """A kernel that tilekit did not write, as machine code.

    Attributes:
        entry: the name of the function in the cubin.
        cubin: the binary, as the driver loads it.
        target: what it is for.
        parameters: the size of each parameter in bytes; None if the cubin does not tell.
        registers: a thread's.
        shared_bytes: static shared memory of a block.
        local_bytes: a thread's memory for what did not fit into registers.
        ptx: the assembly text it was made from; empty where there is none.
        log: what the compiler had to say; mostly nothing.
    """

    entry: str
    cubin: bytes
    target: str
    parameters: tuple[int, ...] | None
    registers: int
    shared_bytes: int
    local_bytes: int
    ptx: str = ""
    log: str = ""

    @functools.cached_property
    def sass(self) -> str:
        """The machine instructions, as text. TilekitError if nvdisasm, which writes it, is not installed."""
        return disassemble(self.cubin)


def code_of(cubin: bytes, entry: str, target: str, *, ptx: str = "", log: str = "") -> CompiledCode:
    """The kernel `entry` of `cubin`. ValueError if that is damaged, or has no such kernel."""
    kernels, resources = read_kernels(cubin), read_resources(cubin, entry)
    return CompiledCode(
        entry=entry,
        cubin=cubin,
        target=target,
        parameters=kernels[entry],
        registers=resources.registers,
        shared_bytes=resources.shared_bytes,
        local_bytes=resources.local_bytes,
        ptx=ptx,
        log=log,
    )


def check_target(target: str) -> str:
    """`target`, if it is the name of an architecture; ValueError if not."""
    if not isinstance(target, str) or not re.fullmatch(r"sm_\d{2,3}[af]?", target):
        raise ValueError(f"target {target!r} is no architecture, such as 'sm_80' or 'sm_90a'")
    return target


def check_text(what: str, text: Any) -> str:
    """A text that a compiler or a driver is given; `what` says which, for the message.

    Raises:
        TypeError: it is no str. ValueError: it is none that UTF-8 has.
    """
    if not isinstance(text, str):
        raise TypeError(f"{what} is a str, not {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} is no text that UTF-8 has: {error}") from None
    return text


def check_options(options: Sequence[str]) -> tuple[str, ...]:
    """Options for NVRTC, if they leave the architecture to tilekit; ValueError, TypeError if not."""
    sequence = isinstance(options, Sequence) and not isinstance(options, (str, bytes, bytearray))
    if not sequence or not all(isinstance(option, str) for option in options):
        raise TypeError(f"options is a sequence of strings such as ('-DN=4', '--use_fast_math'), not {options!r}")
    for option in options:
        check_text("an option", option)
        if option.startswith(("-arch", "--gpu-architecture", "-dlto", "--dlink-time-opt")):
            raise ValueError(f"option {option!r}: tilekit compiles for the architecture of the device, to a cubin")
    return tuple(options)


@functools.lru_cache(maxsize=_KEPT)
def compile_source(code: str, name: str, options: tuple[str, ...], target: str) -> CompiledCode:
    """Compile a kernel of CUDA C++; the last few hundred are remembered.

    Args:
        code: the text.
        name: the kernel's, as C++ code would write it: `"add"`, `"ns::scale<float>"`.
        options: for NVRTC, from `check_options`.
        target: from `check_target`.

    Raises:
        CompileError: it cannot be compiled; the text is NVRTC's.
        ValueError: there is no kernel of that name in it. The text names those that are.
        TilekitError: NVRTC is not installed.
    """
    nvrtc = _nvrtc()
    arguments = [f"--gpu-architecture={target}", *(f"--include-path={folder}" for folder in _include_folders()), *options]
    file = f"{re.sub(r'[^A-Za-z0-9_]+', '_', name).strip('_')}.cu"
    program = _call(nvrtc, nvrtc.nvrtcCreateProgram(code.encode(), file.encode(), 0, [], []))
    try:
        _call(nvrtc, nvrtc.nvrtcAddNameExpression(program, name.encode()))  # else a template would not be instantiated
        (result,) = nvrtc.nvrtcCompileProgram(program, len(arguments), [argument.encode() for argument in arguments])
        log = (
            _text(nvrtc, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode(errors="replace").strip("\0 \n")
        )
        if int(result):
            problems = [line for line in log.splitlines() if " error: " in line or "catastrophic" in line]
            if problems and all(line.startswith(_NAMES_ONLY) for line in problems):
                raise _no_kernel(name, code)
            raise CompileError(f"CUDA kernel {name} does not compile for {target}:\n{log or _result_name(nvrtc, result)}")
        entry = _call(nvrtc, nvrtc.nvrtcGetLoweredName(program, name.encode())).decode()
        cubin = _text(nvrtc, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        ptx = _text(nvrtc, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).decode(errors="replace").rstrip("\0")
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    if entry not in read_kernels(cubin):  # a function, but none of __global__
        raise _no_kernel(name, code)
    return code_of(cubin, entry, target, ptx=ptx, log=log)


def _no_kernel(name: str, code: str) -> ValueError:
    names = ", ".join(dict.fromkeys(_DEFINITION.findall(_SKIPPED.sub("", code))))
    return ValueError(
        f"the source has no kernel {name}; it has {names or 'none at all, no __global__ function'}. A template is named with its "
        "arguments, as in 'scale<float>'"
    )


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:  # RuntimeError: the bindings are there, what they bind is not
        raise TilekitError(
            f"CUDA C++ is compiled by NVRTC, which is not installed here: {_INSTALL}. {str(error).partition(chr(10))[0]}"
        ) from error
    return nvrtc


def _call(nvrtc: Any, result: tuple[Any, ...]) -> Any:
    if int(result[0]):
        raise TilekitError(f"NVRTC failed: {_result_name(nvrtc, result[0])}")
    return result[1] if len(result) == 2 else None


def _result_name(nvrtc: Any, result: Any) -> str:
    name = nvrtc.nvrtcGetErrorString(result)[1]
    return name.decode() if isinstance(name, bytes) else str(result)


def _text(nvrtc: Any, size_of: Any, get: Any, program: Any) -> bytes:
    size = int(_call(nvrtc, size_of(program)))
    buffer = bytearray(size)  # not bytes: NVRTC writes into it, and Python shares bytes objects of length 1
    _call(nvrtc, get(program, buffer))
    return bytes(buffer)


@functools.cache
def _include_folders() -> tuple[str, ...]:
    """Where the toolkit's headers are (cuda_fp16.h, cuda/std), as far as they are installed."""
    try:
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError:
        return ()
    folders = (find_nvidia_header_directory(library) for library in ("cudart", "cccl"))
    return tuple(dict.fromkeys(str(folder) for folder in folders if folder))


def assemble(ptx: bytes, what: str, target: str) -> bytes | None:
    """PTX as a cubin for `target`, by nvJitLink; None if that is not installed.

    Raises:
        CompileError: it cannot be assembled: it is wrong, for another architecture, or newer than nvJitLink.
    """
    try:
        from cuda.bindings import nvjitlink

        newest = ".".join(map(str, nvjitlink.version()))
    except (ImportError, RuntimeError):
        return None
    try:
        linker = nvjitlink.create(1, [f"-arch={target}"])
    except nvjitlink.nvJitLinkError as error:
        raise CompileError(f"{what} cannot be assembled: nvJitLink {newest} knows no {target} ({error})") from None
    try:
        nvjitlink.add_data(linker, nvjitlink.InputType.PTX, ptx, len(ptx), "module.ptx")
        nvjitlink.complete(linker)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(linker))
        nvjitlink.get_linked_cubin(linker, cubin)
        return bytes(cubin)
    except nvjitlink.nvJitLinkError as error:
        log = bytearray(nvjitlink.get_error_log_size(linker))
        nvjitlink.get_error_log(linker, log)
        text = log.decode(errors="replace").strip("\0 \n") or str(error)
        hint = ""
        if "Unsupported .version" in text:
            hint = f"\nIt was made by a newer toolkit than the nvJitLink here ({newest}): install a newer one, or ship a cubin"
        raise CompileError(f"{what} cannot be assembled for {target}:\n{text}{hint}") from None
    finally:
        nvjitlink.destroy(linker)
