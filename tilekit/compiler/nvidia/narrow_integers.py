"""Arithmetic on 16-bit integers that ptxas gets wrong, rewritten in PTX: in 32 bits, where it does not.

Seen in what CUDA 13.0 and 13.5 make of these for sm_90a:

- `neg.s16` and `abs.s16` of -32768 are -32768. What comes next and looks at the sign (a comparison, a shift, a division, a cast)
  takes the 32768 that a register of 32 bits holds (13.0).
- A comparison for equality of a `max` or `min` with one of its operands becomes the predicate of an instruction for two numbers
  at once, of which the other, whatever it is, overwrites the first (both).

NVVM makes these instructions out of many a spelling, so that no lowering can avoid them. What comes of 8-bit integers stays as
it is: NVVM computes them in 16 bits, and either they are no -32768, or nobody looks at more of the result than at its low bits.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["in_32_bits", "is_wrong", "mend"]

_UNARY = re.compile(r"^\t(neg|abs)\.s16[ \t]+(%\w+), (%\w+);$", re.MULTILINE)
_EXTREMUM = re.compile(r"^\t(max|min)\.([su])16[ \t]+(%\w+), ([%\w-]+), ([%\w-]+);$", re.MULTILINE)
_EQUALITY = re.compile(r"\bsetp\.(?:eq|ne)\.(?:\w+\.)?[bsu]16\b")
# What gives 16 bits that are no -32768; and what looks at the low bits of 16 alone, or hands them on.
_POSITIVE = r"and\.b16[ \t]+%\w+, %\w+, \d{1,5}"
_SMALL = re.compile(rf"^\t(?:cvt\.[su]16\.[su]8|ld\.(?:\w+\.)*[bsu]8|shr\.[su]16[ \t]+%\w+, %\w+, [1-9]\d*;|{_POSITIVE};)")
_LOW = re.compile(rf"^\t(?:cvt\.[su]16\.[su]8|st\.(?:\w+\.)*[bsu]8|{_POSITIVE};)")
_HANDS_ON = re.compile(r"^\t(?:selp\.b16|mov\.[bsu]16)[ \t]+(%\w+),")
_REGISTER = re.compile(r"%rs\d+\b")


def mend(library: Any, capability: Any = None) -> bool:
    """Rewrite the PTX of a numba library that is yet to be assembled; whether anything had to be.

    Args:
        library: a `CUDACodeLibrary`.
        capability: what for, as numba has it; that of the current device if None.
    """
    texts = library.get_asm_strs(cc=capability)
    wrong = any(map(is_wrong, texts))
    texts[:] = map(in_32_bits, texts)  # the list is the library's own: what it assembles
    return wrong


def is_wrong(ptx: str) -> bool:
    """Whether ptxas may get some of it wrong."""
    return in_32_bits(ptx) != ptx


def in_32_bits(ptx: str) -> str:
    """The same program, without what ptxas gets wrong."""
    if _UNARY.search(ptx):
        lines = _lines_of(ptx)
        ptx = _UNARY.sub(lambda match: match[0] if _is_of_bytes(match, lines) else _unary(match), ptx)
    return _EXTREMUM.sub(_extremum, ptx) if _EQUALITY.search(ptx) else ptx


def _lines_of(ptx: str) -> dict[str, list[str]]:
    """The lines in which each register of 16 bits stands."""
    lines: dict[str, list[str]] = {}
    for line in ptx.splitlines():
        for register in dict.fromkeys(_REGISTER.findall(line)):
            lines.setdefault(register, []).append(line)
    return lines


def _is_of_bytes(match: re.Match[str], lines: dict[str, list[str]]) -> bool:
    """Whether -32768 cannot come up, or its sign does not matter."""
    _, result, operand = match.groups()
    sets = [line for line in lines[operand] if re.match(rf"\t\S+[ \t]+{operand},", line)]
    if sets and all(map(_SMALL.match, sets)):
        return True
    seen, reached = {result}, [result]
    while reached:
        register = reached.pop()
        for line in lines[register]:
            if line.startswith(match[0]) or _LOW.match(line):
                continue
            onwards = _HANDS_ON.match(line)
            if onwards is None:
                return False
            if onwards[1] not in seen:
                seen.add(onwards[1])
                reached.append(onwards[1])
    return True


def _unary(match: re.Match[str]) -> str:
    name, result, operand = match.groups()
    return f"\t{{ .reg .b32 x; cvt.s32.s16 x, {operand}; {name}.s32 x, x; cvt.u16.u32 {result}, x; }}"


def _extremum(match: re.Match[str]) -> str:
    name, sign, result, *operands = match.groups()
    widened = "".join(f"{_widened(sign, *pair)} " for pair in zip("xy", operands, strict=True))
    return f"\t{{ .reg .b32 x, y; {widened}{name}.{sign}32 x, x, y; cvt.u16.u32 {result}, x; }}"


def _widened(sign: str, register: str, operand: str) -> str:
    if operand.startswith("%"):
        return f"cvt.{sign}32.{sign}16 {register}, {operand};"
    bits = int(operand, 0) & 0xFFFF
    return f"mov.b32 {register}, {bits - (bits >> 15 << 16) if sign == 's' else bits};"
