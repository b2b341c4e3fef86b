"""What ptxas gets wrong: arithmetic on integers, rewritten in PTX, in wider ones, where it does not; and its own end.

Seen in what CUDA 13.0 and 13.5 make of these for sm_90a:

- `neg.s16` and `abs.s16` of -32768 are -32768. What comes next and looks at the sign (a comparison, a shift, a division, a cast)
  takes the 32768 that a register of 32 bits holds (13.0).
- A comparison for equality of a `max` or `min` of 16 bits with one of its operands becomes the predicate of an instruction for
  two numbers at once, of which the other, whatever it is, overwrites the first (both).
- Two `max.s32`, or two `min.s32`, of which one takes what the other gives, become one instruction; it takes a negated operand
  without the sign (13.0).

NVVM makes these instructions out of many a spelling, so that no lowering can avoid them. What comes of 8-bit integers stays as
it is: NVVM computes them in 16 bits, and either they are no -32768, or nobody looks at more of the result than at its low bits.

Where threads may not have the registers that one wgmma takes, nvJitLink (13.0, 13.5) refuses the program, and what it compiles
next in this process may be anything, or the end of the process: so it must not come to that (`registers_wanted`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["is_wrong", "mend", "mended", "registers_wanted", "wanted_by"]

# Of wgmma: columns, and what it adds up in. Its sums take a register each, or half of one; ptxas wants so many beside them.
_WGMMA = re.compile(r"\bwgmma\.mma_async\.sync\.aligned\.m64n(\d+)k\d+\.\w(\d\d)\b")
_BESIDE = 26

_UNARY = re.compile(r"^\t(neg|abs)\.s16[ \t]+(%\w+), (%\w+);$", re.MULTILINE)
_EXTREMUM = re.compile(r"^\t(max|min)\.([su])16[ \t]+(%\w+), ([%\w-]+), ([%\w-]+);$", re.MULTILINE)
_EQUALITY = re.compile(r"\bsetp\.(?:eq|ne)\.(?:\w+\.)?[bsu]16\b")
_NEGATIVE = re.compile(r"^\t(?:neg\.s32[ \t]+(%\w+), |sub\.s32[ \t]+(%\w+), 0, )(%\w+);$", re.MULTILINE)
_EXTREMUM_32 = re.compile(r"^\t(max|min)\.s32[ \t]+(%\w+), ")
# What gives 16 bits that are no -32768; and what looks at the low bits of 16 alone.
_POSITIVE = r"and\.b16[ \t]+%\w+, %\w+, \d{1,5}"
_SMALL = re.compile(rf"^\t(?:cvt\.[su]16\.[su]8|ld\.(?:\w+\.)*[bsu]8|shr\.[su]16[ \t]+%\w+, %\w+, [1-9]\d*;|{_POSITIVE};)")
_LOW = re.compile(rf"^\t(?:cvt\.[su]16\.[su]8|st\.(?:\w+\.)*[bsu]8|{_POSITIVE};)")
_COPY = re.compile(r"^\t(?:selp|mov)\.[bsu](?:16|32)[ \t]+(%rs?\d+),")  # of an integer: pairs of halves (%hh) are none
_REGISTER = re.compile(r"%rs?\d+\b")

_Lines = Mapping[str, Sequence[str]]


def registers_wanted(ptx: str) -> int:
    """How many registers a thread has to have for each wgmma of a program; 0 without one."""
    return max((wanted_by(int(columns), int(bits)) for columns, bits in _WGMMA.findall(ptx)), default=0)


def wanted_by(columns: int, bits: int = 32) -> int:
    """How many registers a thread has to have for a wgmma with sums of so many columns."""
    return columns * bits // 64 + _BESIDE


def mend(library: Any, capability: Any = None) -> bool:
    """Rewrite the PTX of a numba library that is yet to be assembled; whether anything had to be.

    Args:
        library: a `CUDACodeLibrary`.
        capability: what for, as numba has it; that of the current device if None.
    """
    texts = library.get_asm_strs(cc=capability)
    before = list(texts)
    texts[:] = map(mended, before)  # the list is the library's own: what it assembles
    return bool(texts != before)


def is_wrong(ptx: str) -> bool:
    """Whether ptxas may get some of it wrong."""
    return mended(ptx) != ptx


def mended(ptx: str) -> str:
    """The same program, without what ptxas gets wrong."""
    if _UNARY.search(ptx):
        lines = _lines_of(ptx)
        ptx = _UNARY.sub(lambda match: match[0] if _is_of_bytes(match, lines) else _unary(match), ptx)
    if "\tmax.s32" in ptx or "\tmin.s32" in ptx:
        ptx = _without_negatives(ptx)
    return _EXTREMUM.sub(_extremum, ptx) if _EQUALITY.search(ptx) else ptx


def _without_negatives(ptx: str) -> str:
    """The same, with negatives of 32 bits taken in 64 where they may become operands of two extrema at once."""
    if _NEGATIVE.search(ptx) is None:
        return ptx
    lines = _lines_of(ptx)
    return _NEGATIVE.sub(lambda match: _negative(match) if _goes_to_two(match[1] or match[2], lines) else match[0], ptx)


def _goes_to_two(register: str, lines: _Lines) -> bool:
    """Whether an extremum is of a register, and another of what that gives; or the one of another."""
    for line in _readers(register, lines):
        one = _EXTREMUM_32.match(line)
        if one is None:
            continue
        if any(line.startswith(f"\t{one[1]}.s32") for line in _readers(one[2], lines)):
            return True
        others = [other for other in _REGISTER.findall(line[one.end() :]) if other != register]
        if any(set_.startswith(f"\t{one[1]}.s32") for other in others for set_ in _setters(other, lines)):
            return True
    return False


def _lines_of(ptx: str) -> _Lines:
    """The lines in which each register of 16 and 32 bits stands."""
    lines: dict[str, list[str]] = {}
    for line in ptx.splitlines():
        for register in dict.fromkeys(_REGISTER.findall(line)):
            lines.setdefault(register, []).append(line)
    return lines


def _setters(register: str, lines: _Lines) -> Iterator[str]:
    """Those that set a register."""
    return (line for line in lines[register] if re.match(rf"\t\S+[ \t]+{register},", line))


def _readers(register: str, lines: _Lines) -> Iterator[str]:
    """Those that read a register or a copy of it, in a loop's next turn, too; without those that make copies."""
    seen, reached = {register}, [register]
    while reached:
        register = reached.pop()
        for line in lines[register]:
            if register not in _REGISTER.findall(line.partition(",")[2]):
                continue
            copy = _COPY.match(line)
            if copy is None:
                yield line
            elif copy[1] not in seen:
                seen.add(copy[1])
                reached.append(copy[1])


def _is_of_bytes(match: re.Match[str], lines: _Lines) -> bool:
    """Whether -32768 cannot come up, or its sign does not matter."""
    _, result, operand = match.groups()
    sets = list(_setters(operand, lines))
    return (bool(sets) and all(map(_SMALL.match, sets))) or all(map(_LOW.match, _readers(result, lines)))


def _unary(match: re.Match[str]) -> str:
    name, result, operand = match.groups()
    return f"\t{{ .reg .b32 x; cvt.s32.s16 x, {operand}; {name}.s32 x, x; cvt.u16.u32 {result}, x; }}"


def _negative(match: re.Match[str]) -> str:
    return f"\t{{ .reg .b64 x; cvt.s64.s32 x, {match[3]}; neg.s64 x, x; cvt.u32.u64 {match[1] or match[2]}, x; }}"


def _extremum(match: re.Match[str]) -> str:
    name, sign, result, *operands = match.groups()
    widened = "".join(f"{_widened(sign, *pair)} " for pair in zip("xy", operands, strict=True))
    return f"\t{{ .reg .b32 x, y; {widened}{name}.{sign}32 x, x, y; cvt.u16.u32 {result}, x; }}"


def _widened(sign: str, register: str, operand: str) -> str:
    if operand.startswith("%"):
        return f"cvt.{sign}32.{sign}16 {register}, {operand};"
    bits = int(operand, 0) & 0xFFFF
    return f"mov.b32 {register}, {bits - (bits >> 15 << 16) if sign == 's' else bits};"
