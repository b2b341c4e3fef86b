"""Overwrites of what a product under way still uses, found in machine code and in PTX.

A warpgroup's product (wgmma; in machine code HGMMA, IGMMA, QGMMA) runs on after it was asked for. Until it has been waited for,
nothing may write its accumulators or the registers of its first operand, nothing may read its accumulators, and the shared memory
that it reads may neither be given back to those who load nor written. Both scans follow every path through the code, with the
products that are under way on it.
"""

import re
from collections import defaultdict
from typing import NamedTuple

# What opcodes write and read that do not have one register for each operand.
_NO_RESULT = (
    "ST", "RED", "BAR", "BRA", "BSSY", "BSYNC", "EXIT", "WARPSYNC", "FENCE", "MEMBAR", "LDGSTS", "LDGDEPBAR", "DEPBAR", "NOP",
    "ERRBAR", "CCTL", "UTMA", "USETMAXREG", "WARPGROUP", "NANOSLEEP", "BPT", "KILL", "RET", "CALL",
)  # fmt: skip
_DOUBLE = ("DADD", "DMUL", "DFMA", "I2F.F64", "F2F.F64", "IMAD.WIDE", "CS2R", "LEA.HI.X.64")
_MOST_STATES = 2_000_000


_checked = set()


def check(kernel):
    """Assert that a kernel, compiled, overwrites nothing that a product under way uses; each one is looked at once."""
    if kernel.ptx in _checked:
        return
    _checked.add(kernel.ptx)
    found = sorted(shared_memory_in_danger(kernel.ptx)) + sorted(registers_in_danger(kernel.sass))
    assert not found, f"{kernel.entry}: {found[:5]}"


class Products(NamedTuple):
    """Products of one group: the registers of their first operands, and those of their sums."""

    operands: frozenset
    sums: frozenset


class Instruction(NamedTuple):
    guard: str | None
    name: str
    operands: list
    text: str


def registers_in_danger(sass):
    """Each instruction of a kernel that touches registers which a product under way uses: (its place, its text, why)."""
    code, labels = parsed(sass)
    if not any(_is_product(step) for step in code):
        return set()
    found, seen, todo = set(), set(), [(0, (), Products(frozenset(), frozenset()))]
    while todo:
        at, groups, asked = todo.pop()
        while at < len(code) and (at, groups, asked) not in seen:
            seen.add((at, groups, asked))
            assert len(seen) < _MOST_STATES, "more paths than a scan can follow"
            step = code[at]
            # What has been waited for reads and writes registers no more.
            if _is_product(step):
                sums, operands = _of_product(step)
                for group in (*groups, asked):
                    if sums & group.operands or operands & group.sums:
                        found.add((at, step.text, "a product writes another's operand, or reads its sums"))
                    if sums & group.sums and not sums <= group.sums:
                        found.add((at, step.text, "sums of two products overlap"))
                asked = Products(asked.operands | operands, asked.sums | sums)
                if "gsb0" in step.operands:
                    groups, asked = (*groups, asked), Products(frozenset(), frozenset())
            elif step.name.startswith("WARPGROUP.DEPBAR"):
                left = int(step.operands[-1], 0)
                groups = groups[len(groups) - left :] if left else ()
            elif groups or asked.sums:
                writes, reads = _written(step), _read(step)
                for group in (*groups, asked):
                    if writes & group.operands:
                        found.add((at, step.text, "writes the first operand of a product under way"))
                    if writes & group.sums:
                        found.add((at, step.text, "writes the sums of a product under way"))
                    if reads & group.sums:
                        found.add((at, step.text, "reads the sums of a product under way"))
            target = next((labels[label] for label in re.findall(r"`\((\.L_[\w.]+)\)", step.text) if label in labels), None)
            if step.name.startswith("BRA") and target is not None:
                if step.guard is None and not any(o.startswith(("P", "!P", "UP", "!UP")) for o in step.operands):
                    at = target
                    continue
                todo.append((target, groups, asked))
            elif step.name in ("EXIT", "RET", "KILL") and step.guard is None:
                break
            at += 1
    return found


def parsed(sass):
    """The instructions of a disassembly, and by label the number of the one behind it."""
    code, labels = [], {}
    for line in sass.splitlines():
        label = re.match(r"(\.L_[\w.]+):", line.strip())
        if label:
            labels[label[1]] = len(code)
            continue
        found = re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@(!?U?P\w+)\s+)?([\w.]+)\s*(.*?)\s*;", line)
        if found:
            operands = [operand.strip() for operand in found[3].split(",")] if found[3] else []
            code.append(Instruction(found[1], found[2], operands, f"{found[2]} {found[3]}"))
    return code, labels


def loops(sass):
    """The names of the instructions of each loop, from where it jumps to on."""
    code, labels = parsed(sass)
    return [[step.name for step in code[first:end]] for first, end in _loops(code, labels)]


def multiplying(sass):
    """Those of the innermost loops with products of warpgroups.

    What waits stands behind the kernel, and jumps back into a loop: that is none.
    """
    code, labels = parsed(sass)
    found = [(first, end) for first, end in _loops(code, labels) if any(map(_is_product, code[first:end]))]

    def is_innermost(first, end):
        others = [(a, b) for a, b in found if (a, b) != (first, end)]
        return not any(first <= a < b <= end or a < first < b < end for a, b in others)

    return [[step.name for step in code[first:end]] for first, end in found if is_innermost(first, end)]


def _loops(code, labels):
    jumps = ((at, labels.get(step.operands[-1].strip("`()"), at)) for at, step in enumerate(code) if step.name.startswith("BRA"))
    return [(first, last + 1) for last, first in jumps if first < last]


def _is_product(step):
    return re.match(r"[HIQ]GMMA\.", step.name) is not None


def _of_product(step):
    """The registers of a product's sums, and of its first operand."""
    columns = int(re.search(r"\.64x(\d+)x", step.name)[1])
    first = _number(step.operands[0])
    count = columns // 4 if re.search(r"x\d+\.F16", step.name) else columns // 2
    held = _number(step.operands[1])
    operands = frozenset() if held is None else frozenset(range(held, held + 4))
    # ptxas puts a product of nothing, with sums in RZ, before some that are waited for.
    return frozenset() if first is None else frozenset(range(first, first + count)), operands


def _number(operand):
    found = re.match(r"[-|~!]*R(\d+)\b", operand)
    return int(found[1]) if found else None


def _width(name):
    if re.match(r"(LDSM|STSM)", name):
        return int(name[-1]) if name[-1] in "24" else 1
    if re.match(r"HMMA|IMMA|QMMA|DMMA", name):
        return 4
    if ".128" in name:
        return 4
    return 2 if ".64" in name or (name.startswith(_DOUBLE) and not name.startswith("CS2R.32")) else 1


def _written(step):
    """The registers that an instruction writes."""
    if step.name.startswith(_NO_RESULT) or not step.operands:
        return frozenset()
    for operand in step.operands[:2]:  # behind predicates that it may write, too
        number = _number(operand)
        if number is not None:
            return frozenset(range(number, number + _width(step.name)))
        if not re.match(r"!?U?P[\dT]", operand):
            break
    return frozenset()


def _read(step):
    """The registers that an instruction reads, or at least the first of each operand's."""
    numbers = [int(n) for operand in step.operands for n in re.findall(r"\bR(\d+)\b", operand)]
    results = 0 if step.name.startswith(_NO_RESULT) else len(_written(step)) > 0
    read = set(numbers[results:])
    if step.name.startswith("ST") and step.operands:
        value = _number(step.operands[-1])
        if value is not None:
            read |= set(range(value, value + _width(step.name)))
    return frozenset(read)


# --------------------------------------------------------------------------------------------------------------- shared memory


def shared_memory_in_danger(ptx):
    """Each place in PTX where shared memory that a product under way reads is given back or written: (its line, why).

    The compiler says in comments which stages and places its inline PTX is about: `take R0`, `give R0 now` or `before`,
    `park P0 fixed` or `turns`, and behind a product `reads R0 P0`.
    """
    lines, labels = _lines_of(ptx)
    if not any("wgmma.mma_async" in line for line in lines):
        return set()
    found, seen, todo = set(), set(), [(0, (), frozenset())]
    while todo:
        at, groups, done = todo.pop()
        while at < len(lines) and (at, groups, done) not in seen:
            seen.add((at, groups, done))
            assert len(seen) < _MOST_STATES, "more paths than a scan can follow"
            line = lines[at]
            for step in re.findall(r"wgmma\.wait_group\.sync\.aligned (\d+)|(wgmma\.commit_group)|\b(bar)\.sync\b", line):
                if step[0]:
                    kept = groups[len(groups) - int(step[0]) :] if int(step[0]) else ()
                    done, groups = _oldest((done, *groups[: len(groups) - len(kept)])), kept
                elif step[1]:
                    reads = re.search(r"// reads(.*)", line)
                    assert reads, f"a product that does not say what it reads: {line[:120]}"
                    groups = (*groups, frozenset((name, 0) for name in reads[1].split()))
                else:  # all threads have waited for what this one has
                    done = frozenset()
            for verb, name, how in re.findall(r"// (take|give|park) (\S+) ?(\w*)", line):
                if verb == "give":
                    for group in groups:
                        if any(n == name and (how == "now" or age > 0) for n, age in group):
                            found.add((at, f"gives back {name} ({how}), which a product under way reads"))
                    continue
                groups, done = tuple(_older(group, name) for group in groups), _older(done, name)
                if verb == "park":
                    least = 1 if how == "fixed" else 2
                    for group in (*groups, done):
                        if any(n == name and age >= least for n, age in group):
                            found.add((at, f"writes {name}, which a product under way may read"))
            jump = re.search(r"(@!?%p\d+ )?bra(?:\.uni)?\s+(\$L\w+);", line)
            if jump and "mbarrier" not in line:
                if jump[1] is None:
                    at = labels[jump[2]]
                    continue
                todo.append((labels[jump[2]], groups, done))
            elif re.match(r"\s*(ret|exit|trap);", line):
                break
            at += 1
    return found


def _older(group, name):
    return frozenset((n, min(age + (n == name), 3)) for n, age in group)


def _oldest(groups):
    """What some groups read together, each the longest ago: whoever is in danger is so for the oldest."""
    ages = {}
    for group in groups:
        for name, age in group:
            ages[name] = max(age, ages.get(name, 0))
    return frozenset(ages.items())


def _lines_of(ptx):
    lines, labels = [], defaultdict(int)
    for line in ptx.splitlines():
        label = re.match(r"\s*(\$L\w+):", line)
        if label:
            labels[label[1]] = len(lines)
        elif line.strip() and not re.match(r"\s*(//(?! park)|\.)", line):
            lines.append(line)
    return lines, labels
