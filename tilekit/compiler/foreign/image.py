"""Where kernels that tilekit did not write come from: a source of CUDA C++, or a module that somebody compiled."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, Protocol

from tilekit.compiler.cubin import read_kernels, target_of
from tilekit.compiler.foreign.nvrtc import CompiledCode, assemble, check_target, code_of, compile_source

__all__ = ["Image", "ModuleImage", "Origin", "SourceText"]

_CUDA_MACHINE = 190  # e_machine of a cubin
_PTX = re.compile(rb"\s*\.version\s+\d+\.\d+")
_ENTRY = re.compile(r"\.entry\s+([\w$%.]+)")
_COMMENT = re.compile(rb"//[^\n]*|/\*.*?\*/", re.S)
_FATBIN = b"\x50\xed\x55\xba"
_FOREIGN = {
    b"\xed\x43\x4e\x7f": "NVVM's intermediate code for linking (LTO-IR)",
    b"BC\xc0\xde": "LLVM bitcode",
    b"!<arch>": "a static library",
    b"PK\x03\x04": "a ZIP archive",
    b"\x1f\x8b": "a gzip file",
    b"MZ": "a Windows program",
}
_TAKEN = "tk.load_module takes PTX, a cubin or a fatbin"


class Image(NamedTuple):
    """What the driver is given: the bytes, the kernel's name there, its parameters' sizes in bytes (None if not known)."""

    data: bytes
    entry: str
    parameters: tuple[int, ...] | None


class Origin(Protocol):
    """Something that has kernels."""

    def compiled(self, name: str, target: str) -> CompiledCode:
        """The kernel `name` as machine code for `target`."""
        ...

    def image(self, name: str, target: str) -> Image:
        """The kernel `name` as a GPU of that architecture can load it."""
        ...


class SourceText:
    """CUDA C++, compiled when needed."""

    def __init__(self, code: str, options: tuple[str, ...]) -> None:
        self._code, self._options = code, options

    def compiled(self, name: str, target: str) -> CompiledCode:
        """The kernel, compiled by NVRTC. Raises as `compile_source`."""
        return compile_source(self._code, name, self._options, check_target(target))

    def image(self, name: str, target: str) -> Image:
        """The same."""
        compiled = self.compiled(name, target)
        return Image(compiled.cubin, compiled.entry, compiled.parameters)


class ModuleImage:
    """The contents of a module file.

    Args:
        data: the bytes.
        where: what messages call it.

    Attributes:
        kind: what it is.
        names: its kernels; None for a fatbin, which only the driver reads.

    Raises:
        ValueError: it is something else, or damaged.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.where = data, where
        self.kind: Literal["PTX", "cubin", "fatbin"] = _identify(data, where)
        self.names: tuple[str, ...] | None = None
        if self.kind == "cubin":
            try:
                self.names = tuple(read_kernels(data))
            except ValueError as error:
                raise ValueError(f"{where} begins as a cubin, but is damaged ({error})") from None
        elif self.kind == "PTX":
            self.names = tuple(_ENTRY.findall(_COMMENT.sub(b"", data).decode(errors="replace")))

    def check_name(self, name: str) -> None:
        """ValueError if the module is known not to have a kernel `name`; the text names those that it has."""
        if self.names is not None and name not in self.names:
            mangled = next((n for n in self.names if re.match(rf"_Z\w*?{len(name)}{re.escape(name)}(?!\d)", n)), None)
            hint = f'. C++ calls it {mangled} there: give that name, or declare the kernel extern "C"' if mangled else ""
            raise ValueError(f"{self.where} has no kernel {name!r}; it has {', '.join(self.names) or 'no kernels at all'}{hint}")

    def compiled(self, name: str, target: str) -> CompiledCode:
        """The kernel as machine code: PTX is assembled, a cubin is what it is.

        Raises:
            CompileError: the PTX cannot be assembled for `target`.
            ValueError: the cubin is for another architecture, or it is a fatbin; or nvJitLink is not installed.
        """
        check_target(target)
        if self.kind == "cubin":
            own = target_of(self.data)
            if target.rstrip("af") != own:
                raise ValueError(f"{self.where} is a cubin for {own}: it cannot be compiled for {target}")
            return code_of(self.data, name, target)
        cubin = assemble(self.data.rstrip(b"\0"), self.where, target) if self.kind == "PTX" else None
        if cubin is None:
            why = (
                "is a fatbin, from which the driver chooses"
                if self.kind == "fatbin"
                else "is PTX, and nvJitLink is not installed"
            )
            raise ValueError(f"{self.where} {why}: there is no cubin of it to look at")
        return code_of(cubin, name, target, ptx=self.data.decode(errors="replace").rstrip("\0"))

    def image(self, name: str, target: str) -> Image:
        """A cubin as it is; PTX as a cubin if nvJitLink is installed, for the driver may be older than the PTX, else as it is."""
        if self.kind == "cubin":
            return Image(self.data, name, read_kernels(self.data)[name])
        cubin = assemble(self.data.rstrip(b"\0"), self.where, target) if self.kind == "PTX" else None
        if cubin is not None:
            return Image(cubin, name, read_kernels(cubin)[name])
        return Image(self.data.rstrip(b"\0") + b"\0" if self.kind == "PTX" else self.data, name, None)


def _identify(data: bytes, where: str) -> Literal["PTX", "cubin", "fatbin"]:
    if not data:
        raise ValueError(f"{where} is empty; {_TAKEN}")
    if data.startswith(b"\x7fELF"):
        machine = int.from_bytes(data[18:20], "little")
        if machine == _CUDA_MACHINE:
            return "cubin"
        raise ValueError(f"{where} is an ELF file for machine {machine}, a host's program, library or object file; {_TAKEN}")
    if data.startswith(_FATBIN):
        return "fatbin"
    if _PTX.match(_COMMENT.sub(b"", data[:65536])):
        return "PTX"
    for prefix, meaning in _FOREIGN.items():
        if data.startswith(prefix):
            raise ValueError(f"{where} is {meaning}; {_TAKEN}")
    try:
        line = data[:4096].decode().strip().partition("\n")[0]
    except UnicodeDecodeError:
        raise ValueError(f"{where} is no module: it begins with the bytes {data[:8].hex(' ')}; {_TAKEN}") from None
    hint = ". CUDA C++ is compiled by tk.cuda_source" if b"__global__" in data else ""
    raise ValueError(f"{where} is no module: it is text that begins with {line[:60]!r}, without PTX's .version; {_TAKEN}{hint}")
