"""What a cubin says about its kernels: registers, shared and local memory. A small reader of the ELF file that a cubin is.

The register count is in the section `.nv.info`, a list of attributes: a format byte, an attribute byte, two bytes that are a size
where the format says so, and the payload. Shared memory is the size of the section `.nv.shared.<kernel>`, local memory the frame
(another attribute) and the section `.nv.local.<kernel>`. A kernel's section `.nv.info.<kernel>` has the size of each parameter.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Resources", "read_kernels", "read_resources", "target_of"]

_HEADER = struct.Struct("<16s HHI QQQ I HHHHHH")
_SECTION = struct.Struct("<II QQQQ II QQ")
_SYMBOL = struct.Struct("<I BBH QQ")
_ATTRIBUTE = struct.Struct("<BBH")
_OF_SYMBOL = struct.Struct("<II")

_SYMBOL_TABLE = 2  # sh_type
_SIZED = 4  # the attribute format whose third field is the size of a payload
_FRAME_SIZE, _REGISTER_COUNT = 0x11, 0x2F
_PARAMETER, _PARAMETER_V2 = 0x17, 0x45
_OF_PARAMETER = struct.Struct("<I HH I")  # index, ordinal, offset, and a word with the size above bit 18
_FLAGS_AT, _ABI_AT = 48, 8  # in the header
_FUNCTION, _ENTRY = 2, 0x10  # the low bits of st_info, a bit of st_other


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a kernel needs.

    Attributes:
        registers: of a thread.
        shared_bytes: static shared memory of a block.
        local_bytes: a thread's frame and local memory.
    """

    registers: int
    shared_bytes: int
    local_bytes: int


@dataclass(frozen=True)
class _Section:
    name: str
    type: int
    size: int
    link: int
    data: bytes


def read_resources(cubin: bytes, entry: str) -> Resources:
    """What the kernel `entry` of `cubin` needs.

    Raises:
        ValueError: `cubin` is no cubin, is cut short, or has no such kernel.
    """
    try:
        sections = list(_sections(cubin))
        by_name = {section.name: section for section in sections}
        symbols = _symbols(sections)
        values: dict[int, int] = {}
        for attribute, payload in _attributes(by_name[".nv.info"].data):
            if attribute in (_FRAME_SIZE, _REGISTER_COUNT):
                symbol, value = _OF_SYMBOL.unpack_from(payload)
                if symbols[symbol] == entry:
                    values[attribute] = value
        registers = values[_REGISTER_COUNT]
    except (struct.error, OverflowError, KeyError, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"not a cubin with a kernel {entry}: {error!r}") from None
    shared, local = by_name.get(f".nv.shared.{entry}"), by_name.get(f".nv.local.{entry}")
    return Resources(
        registers=registers,
        shared_bytes=shared.size if shared else 0,
        local_bytes=values.get(_FRAME_SIZE, 0) + (local.size if local else 0),
    )


def read_kernels(cubin: bytes) -> dict[str, tuple[int, ...] | None]:
    """The kernels in `cubin` by name, each with its parameters' sizes in bytes (None where they are written in another way).

    Raises:
        ValueError: `cubin` is no cubin, or is cut short.
    """
    try:
        sections = list(_sections(cubin))
        table = next(s for s in sections if s.type == _SYMBOL_TABLE)
        names = sections[table.link].data
        infos = {s.name.removeprefix(".nv.info."): s.data for s in sections if s.name.startswith(".nv.info.")}
        kernels = [
            _text(names, name)
            for name, info, other, _, _, _ in _SYMBOL.iter_unpack(table.data)
            if info & 0xF == _FUNCTION and other & _ENTRY
        ]
        return {name: _parameter_sizes(infos.get(name, b"")) for name in kernels}
    except (struct.error, OverflowError, KeyError, IndexError, UnicodeDecodeError, StopIteration) as error:
        raise ValueError(f"not a cubin, or a damaged one: {error!r}") from None


def _parameter_sizes(info: bytes) -> tuple[int, ...] | None:
    sizes: dict[int, int] = {}
    for attribute, payload in _attributes(info):
        if attribute == _PARAMETER_V2:
            return None
        if attribute == _PARAMETER:
            _, ordinal, _, word = _OF_PARAMETER.unpack_from(payload)
            sizes[ordinal] = word >> 18
    return tuple(size for _, size in sorted(sizes.items()))


def target_of(cubin: bytes) -> str:
    """The architecture that a cubin is for: `"sm_90"`. (Whether it is for `sm_90a` is not told apart.)"""
    (flags,) = struct.unpack_from("<I", cubin, _FLAGS_AT)
    return f"sm_{flags >> 8 & 0xFF if cubin[_ABI_AT] >= 8 else flags & 0xFF}"  # the eighth version moved it


def _sections(image: bytes) -> Iterator[_Section]:
    magic, *fields = _HEADER.unpack_from(image)
    if magic[:5] != b"\x7fELF\x02":
        raise KeyError("no 64-bit ELF file")
    start, count, names_at = fields[5], fields[11], fields[12]
    headers = [_SECTION.unpack_from(image, start + k * _SECTION.size) for k in range(count)]
    names = _contents(image, headers[names_at])
    for header in headers:
        yield _Section(_text(names, header[0]), header[1], header[5], header[6], _contents(image, header))


def _contents(image: bytes, header: tuple[int, ...]) -> bytes:
    return image[header[4] : header[4] + header[5]]


def _text(table: bytes, start: int) -> str:
    return table[start : table.index(b"\0", start)].decode() if start < len(table) else ""


def _symbols(sections: list[_Section]) -> list[str]:
    table = next((s for s in sections if s.type == _SYMBOL_TABLE), None)
    if table is None:
        raise KeyError("no symbols")
    names = sections[table.link].data
    return [_text(names, symbol[0]) for symbol in _SYMBOL.iter_unpack(table.data)]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        form, attribute, size = _ATTRIBUTE.unpack_from(data, at)
        at += _ATTRIBUTE.size
        payload = b""
        if form == _SIZED:
            payload = data[at : at + size]
            at += size
        yield attribute, payload
