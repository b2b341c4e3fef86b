"""Lowering of `tilekit.lang.atomic`: an atomic instruction an element, or a compare-and-swap loop where there is none.

One of the threads that hold copies acts; the others get what the element was from it. Where nobody uses that, it is a reduction,
or instead of an exchange a store, which fetch nothing; sums of neighbours are then one instruction, too, on GPUs that have such.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen import arithmetic
from tilekit.compiler.codegen import shared_memory as shared
from tilekit.compiler.codegen.access import Access, Slot, open_access, open_window
from tilekit.compiler.codegen.compilation import current
from tilekit.compiler.codegen.definition import known, lowers
from tilekit.compiler.codegen.diagnose import reject
from tilekit.compiler.codegen.emit import asm, pack, special_register
from tilekit.compiler.codegen.operands import elements as operand_elements
from tilekit.compiler.codegen.types import TensorType, TileType, describe, i16, i32, i64, integer, register_type
from tilekit.compiler.codegen.windows import (
    check_index,
    constant_of,
    cut_of,
    in_rule,
    index_values,
    order_access,
    proven,
    the_tensor,
    to_store,
    writable,
)
from tilekit.compiler.codegen.words import braced, packed, predicated, words_of
from tilekit.compiler.layouts.linear import Layout
from tilekit.compiler.lower.indexed import check_points, index_parts
from tilekit.dtypes import DType
from tilekit.lang import atomic as lang
from tilekit.lang.windows import check_window, written_only

__all__ = ["SCOPES", "look"]

SCOPES = {"block": "cta", "device": "gpu", "system": "sys"}
_LETTERS = {2: "h", 4: "r", 8: "l"}
_BITS = {2: i16, 4: i32, 8: i64}

_HALVES = {dtypes.float16: "f16", dtypes.bfloat16: "bf16"}
_MINUS_ZERO = 0x8000  # of 16 bits: what adds nothing

Update = Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value]


def _instruction(name: str, dtype: DType) -> str | None:
    """The atomic instruction, or None where there is none."""
    bits = 8 * dtype.itemsize
    if name == "add":
        if dtype in _HALVES:
            return None if dtype == dtypes.bfloat16 and not current().target.red_bfloat16 else f"add.noftz.{_HALVES[dtype]}x2"
        return f"add.{'f' if dtypes.is_float(dtype) else 'u'}{bits}"  # a sum of two's complement numbers is that of their bits
    if name in ("max", "min"):
        return None if dtypes.is_float(dtype) else f"{name}.{'s' if dtype.kind == 'i' else 'u'}{bits}"
    return f"{'exch' if name == 'xchg' else name}.b{bits}"


def _most_together(name: str, dtype: DType) -> int:
    """How many neighbours one instruction adds to, where nobody wants to know what they were."""
    if name != "add" or not dtypes.is_float(dtype) or dtype.itemsize > 4:
        return 1
    if dtype == dtypes.bfloat16 and not current().target.red_bfloat16:
        return 1
    return current().target.red_bytes // dtype.itemsize


def _result_used() -> bool:
    """Whether the kernel uses the result of the call that is being lowered: numba's lowering knows, further down the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        statement, lowering = frame.f_locals.get("inst"), frame.f_locals.get("self")
        if type(statement).__name__ == "Assign" and hasattr(lowering, "blocks"):
            name = statement.target.name
            others = (s for block in lowering.blocks.values() for s in block.body if s is not statement)
            return any(v.name == name for s in others if type(s).__name__ != "Del" for v in s.list_vars())
        frame = frame.f_back
    return True


def _update(name: str, dtype: DType) -> Update:
    """The same in registers."""
    if name == "add":
        return arithmetic.binary("+", dtype)
    return arithmetic.extremum("maximum" if name == "max" else "minimum", dtype)


def _define(
    what: str,
    array: types.Type,
    indices: types.Type,
    values: list[types.Type],
    mask: types.Type,
    memory_order: types.Type,
    memory_scope: types.Type,
) -> Any:
    name = what.removeprefix("atomic_")
    order = in_rule(what, _one_of(lang.ORDERS, "memory_order"), constant_of(memory_order, what, "memory_order"))
    scope = in_rule(what, _one_of(lang.SCOPES, "memory_scope"), constant_of(memory_scope, what, "memory_scope"))
    points = check_points(what, array, indices, mask, values, writing=True)
    tensor = points.tensor
    _check_tensor(what, name, tensor)
    # An integer that nothing is added to: a load, which does not keep others from the element.
    looks = name == "add" and known(values[0]) == 0 and not dtypes.is_float(tensor.dtype) and order in ("relaxed", "acquire")

    def emit(builder: ir.IRBuilder, array: ir.Value, at: ir.Value, operands: list[ir.Value], mask_: ir.Value) -> Any:
        columns = [operand_elements(builder, ty, v, points.tile) for ty, v in zip(values, operands, strict=True)]
        used = _result_used() or name == "cas"
        reduces = not used and order in ("relaxed", "release") and _instruction(name, tensor.dtype) is not None
        limit = _most_together(name, tensor.dtype) if reduces else 1
        order_access(builder, tensor, writes=True, atomic=True)
        access = points.open(builder, array, index_parts(builder, indices, at), mask_, writing=True, limit=limit)
        if order in ("release", "acq_rel"):
            shared.barrier(builder)  # what other threads of the block wrote comes before, too
        kind = f"{order}.{SCOPES[scope]}"
        if looks and used:
            before = [look(builder, tensor.dtype, kind, slot) for slot in access.full]
        elif access.inside is not None:
            _add(builder, tensor.dtype, kind, access, columns[0])
        else:
            rows = zip(access.full, zip(*columns, strict=True), strict=True)
            before = [_act(builder, name, tensor.dtype, kind, slot, list(row), used=not reduces) for slot, row in rows]
        if _instruction(name, tensor.dtype) is None:
            _rejoin(builder)
        if order in ("acquire", "acq_rel"):
            shared.barrier(builder)  # what other threads of the block do comes after, too
        if not used:
            return ir.Constant(ir.ArrayType(register_type(tensor.dtype), points.tile.layout.num_registers), ir.Undefined)
        return pack(builder, _from_owners(builder, before, tensor.dtype, points.tile.layout, tensor.config.num_threads))

    return points.tile, emit


def _check_tensor(what: str, name: str, tensor: TensorType) -> None:
    if tensor.facts.role == "out":
        reject(what, written_only(tensor.parameter))
    if problem := lang.unsupported(name, tensor.dtype, tensor.parameter):
        reject(what, problem)


def _one_of(names: tuple[str, ...], which: str) -> Callable[[Any, str], str]:
    return lambda value, what: lang.one_of(value, names, what, which)


def _act(
    builder: ir.IRBuilder, name: str, dtype: DType, kind: str, slot: Slot, values: list[ir.Value], *, used: bool
) -> ir.Value:
    """One element: what it was before, if that is `used`; 0 where the predicate does not hold."""
    instruction = _instruction(name, dtype)
    address = builder.add(slot.address, integer(64, slot.offset)) if slot.offset else slot.address
    if instruction is None:
        return _loop(builder, dtype, kind, address, slot.predicate, values[0], _update(name, dtype))
    itemsize = max(4, dtype.itemsize)
    bits, letter = _BITS[itemsize], _LETTERS[itemsize]
    operands = [builder.bitcast(value, _BITS[dtype.itemsize]) for value in values]
    if dtype in _HALVES:  # the sum with the word around it, whose other half does not change
        own, address = address, builder.and_(address, integer(64, -4))
        upper = builder.icmp_unsigned("!=", address, own)
        low = builder.zext(operands[0], i32)
        as_upper = builder.or_(builder.shl(low, integer(32, 16)), integer(32, _MINUS_ZERO))
        operands = [builder.select(upper, as_upper, builder.or_(low, integer(32, _MINUS_ZERO << 16)))]
    if not used:
        put = f"st.{kind}.global.b{8 * itemsize}" if name == "xchg" else f"red.{kind}.global.{instruction}"
        return _red(builder, f"{put} [$0], $1;", letter, [address, *operands], slot.predicate)
    flag = builder.zext(slot.predicate, i32)
    placeholders = ", ".join(f"${2 + k}" for k in range(len(operands)))
    text = f"mov.b{8 * itemsize} $0, 0; @p atom.{kind}.global.{instruction} $0, [$1], {placeholders};"
    constraints = ",".join([f"=&{letter}", "l", *[letter] * len(operands), "r", "~{memory}"])
    before = asm(builder, predicated(text, 2 + len(operands)), constraints, bits, [address, *operands, flag], effect=True)
    if dtype in _HALVES:
        before = builder.trunc(builder.select(upper, builder.lshr(before, integer(32, 16)), before), i16)
    return builder.bitcast(before, register_type(dtype))


def look(builder: ir.IRBuilder, dtype: DType, kind: str, slot: Slot) -> ir.Value:
    """What an element is, in an order and a scope as PTX has them; 0 where the predicate does not hold."""
    bits, letter, width = _BITS[dtype.itemsize], _LETTERS[dtype.itemsize], 8 * dtype.itemsize
    text = predicated(f"mov.b{width} $0, 0; @p ld.{kind}.global.b{width} $0, [$1+{slot.offset}];", 2)
    there = builder.zext(slot.predicate, i32)
    element = asm(builder, text, f"=&{letter},l,r,~{{memory}}", bits, [slot.address, there], effect=True)
    return builder.bitcast(element, register_type(dtype))


def _add(builder: ir.IRBuilder, dtype: DType, kind: str, access: Access, column: list[ir.Value]) -> None:
    """Add to the elements of a tile, whose values nobody wants to know."""
    if access.inside is None:
        _add_all(builder, dtype, kind, access.full, column)
        return
    with builder.if_else(access.inside) as (inside, edge):
        with inside:
            _add_all(builder, dtype, kind, access.full, column)
        with edge:
            _add_all(builder, dtype, kind, access.edge, column)


def _add_all(builder: ir.IRBuilder, dtype: DType, kind: str, slots: list[Slot], column: list[ir.Value]) -> None:
    """Accesses with one predicate get one branch: machine code has a branch round each `red` with a predicate."""
    alike: dict[int, list[Slot]] = {}
    for slot in slots:
        alike.setdefault(id(slot.predicate), []).append(slot)
    for same in alike.values():
        predicate = same[0].predicate
        if predicate is None or len(same) == 1:
            for slot in same:
                _add_one(builder, dtype, kind, slot, column)
        else:
            with builder.if_then(predicate):
                for slot in same:
                    _add_one(builder, dtype, kind, replace(slot, predicate=None), column)


def _add_one(builder: ir.IRBuilder, dtype: DType, kind: str, slot: Slot, column: list[ir.Value]) -> None:
    if len(slot.registers) > 1:
        _add_together(builder, dtype, kind, slot, column)
    else:
        _act(builder, "add", dtype, kind, slot, [column[slot.registers[0]]], used=False)


def _add_together(builder: ir.IRBuilder, dtype: DType, kind: str, slot: Slot, column: list[ir.Value]) -> None:
    """Add to neighbours."""
    words = words_of(dtype, len(slot.registers))
    values = packed(builder, [column[r] for r in slot.registers], dtype, words)
    vector = f".v{words.count}" if words.count > 1 else ""
    name = f"add.noftz{vector}.{_HALVES[dtype]}x2" if dtype in _HALVES else f"add{vector}.f32"
    letter = words.letter
    if dtype == dtypes.float32:
        letter, values = "f", [column[r] for r in slot.registers]
    text = f"red.{kind}.global.{name} [$0+{slot.offset}], {braced([f'${1 + k}' for k in range(words.count)])};"
    _red(builder, text, letter, [slot.address, *values], slot.predicate)


def _red(builder: ir.IRBuilder, text: str, letter: str, args: list[ir.Value], predicate: ir.Value | None) -> ir.Value:
    """An instruction on an address and values, which gives nothing."""
    letters = ["l"] + [letter] * (len(args) - 1)
    if predicate is not None:
        text, letters = predicated(f"@p {text}", len(args)), [*letters, "r"]
        args = [*args, builder.zext(predicate, i32)]
    return asm(builder, text, ",".join([*letters, "~{memory}"]), ir.VoidType(), args, effect=True)


def _loop(
    builder: ir.IRBuilder, dtype: DType, kind: str, address: ir.Value, holds: ir.Value | None, value: ir.Value, update: Update
) -> ir.Value:
    """Swap in the new value if the old one is still there, again and again."""
    bits, letter, width = _BITS[dtype.itemsize], _LETTERS[dtype.itemsize], 8 * dtype.itemsize
    before = builder.block
    with builder.if_then(ir.Constant(ir.IntType(1), 1) if holds is None else holds):
        text = f"ld.relaxed.{kind.partition('.')[2]}.global.b{width} $0, [$1];"
        first = asm(builder, text, f"={letter},l,~{{memory}}", bits, [address], effect=True)
        entered, again = builder.block, builder.append_basic_block("again")
        after = builder.append_basic_block("swapped")
        builder.branch(again)
        builder.position_at_end(again)
        seen = builder.phi(bits)
        seen.add_incoming(first, entered)
        wanted = builder.bitcast(update(builder, builder.bitcast(seen, register_type(dtype)), value), bits)
        text = f"atom.{kind}.global.cas.b{width} $0, [$1], $2, $3;"
        constraints = f"={letter},l,{letter},{letter},~{{memory}}"
        old = asm(builder, text, constraints, bits, [address, seen, wanted], effect=True)
        swapped = builder.icmp_unsigned("==", old, seen)
        seen.add_incoming(old, builder.block)
        builder.cbranch(swapped, after, again)
        builder.position_at_end(after)
        last = builder.block
    result = builder.phi(bits)
    result.add_incoming(ir.Constant(bits, 0), before)
    result.add_incoming(old, last)
    return builder.bitcast(result, register_type(dtype))


def _rejoin(builder: ir.IRBuilder) -> None:
    """Bring the threads of a warp together behind loops with atomics.

    ptxas puts a YIELD into such loops, so that threads that wait for others do not keep them from going on; who yields is not
    waited for at the loop's end, yet the code behind it takes the warp to be whole: shuffles and `mma.sync` gave garbage (seen on
    an H200, CUDA 13.0). Of a barrier of all lanes it thinks that it can be left out, so this one's mask is none that it can know.
    """
    text = (
        "{ .reg .b32 all, rest; mov.u32 all, %lanemask_ge; mov.u32 rest, %lanemask_lt; or.b32 all, all, rest; "
        "bar.warp.sync all; }"
    )
    asm(builder, text, "~{memory}", ir.VoidType(), [], convergent=True)


def _from_owners(
    builder: ir.IRBuilder, elements: list[ir.Value], dtype: DType, layout: Layout, num_threads: int
) -> list[ir.Value]:
    """What the threads that own elements have, in those that hold copies of them as well."""
    copies = layout.copies
    if not copies:
        return elements
    thread = special_register(builder, "tid.x")
    owner = builder.and_(thread, integer(32, ~copies & (num_threads - 1)))
    if copies >> len(layout.lane):  # from another warp
        itemsize, results = dtype.itemsize, []
        at_once = shared.at_once(len(elements), num_threads * itemsize)
        for start in range(0, len(elements), at_once):
            part = elements[start : start + at_once]
            base = shared.room(builder, num_threads * len(part) * itemsize, "the results")
            mine, theirs = shared.at(builder, base, thread, itemsize), shared.at(builder, base, owner, itemsize)
            for r, element in enumerate(part):
                shared.put(builder, mine, r * num_threads * itemsize, dtype, [element])
            shared.barrier(builder)
            results += [shared.get(builder, theirs, r * num_threads * itemsize, dtype, 1)[0] for r in range(len(part))]
        return results
    return [_shuffled(builder, element, owner) for element in elements]


def _shuffled(builder: ir.IRBuilder, value: ir.Value, lane: ir.Value) -> ir.Value:
    """The value of a lane. It has no effect: where nobody uses it, it goes away."""
    width = {"half": 16, "float": 32, "double": 64}.get(str(value.type)) or value.type.width
    bits = builder.bitcast(value, ir.IntType(width))
    halves = [builder.trunc(bits, i32), builder.trunc(builder.lshr(bits, integer(64, 32)), i32)] if width == 64 else [bits]
    halves = [builder.zext(half, i32) if width < 32 else half for half in halves]
    moved = []
    for half in halves:
        function = ir.FunctionType(i32, [i32, i32])
        call = builder.call(ir.InlineAsm(function, "shfl.sync.idx.b32 $0, $1, $2, 31, -1;", "=r,r,r"), [half, lane])
        call.attributes.add("convergent")
        moved.append(call)
    if width == 64:
        low, high = (builder.zext(half, i64) for half in moved)
        return builder.bitcast(builder.or_(low, builder.shl(high, integer(64, 32))), value.type)
    return builder.bitcast(builder.trunc(moved[0], bits.type) if width < 32 else moved[0], value.type)


def _one_value(function: Callable[..., Any]) -> None:
    what = function.__name__

    @lowers(function)
    def define(
        array: types.Type,
        indices: types.Type,
        value: types.Type,
        mask: types.Type,
        memory_order: types.Type,
        memory_scope: types.Type,
    ) -> Any:
        tile, emit = _define(what, array, indices, [value], mask, memory_order, memory_scope)
        return tile, lambda builder, array, at, value, mask, *_: emit(builder, array, at, [value], mask)


for _function in (
    lang.atomic_add, lang.atomic_max, lang.atomic_min, lang.atomic_and, lang.atomic_or, lang.atomic_xor, lang.atomic_xchg,
):  # fmt: skip
    _one_value(_function)


@lowers(lang.atomic_cas)
def atomic_cas(
    array: types.Type,
    indices: types.Type,
    expected: types.Type,
    desired: types.Type,
    mask: types.Type,
    memory_order: types.Type,
    memory_scope: types.Type,
) -> Any:
    tile, emit = _define("atomic_cas", array, indices, [expected, desired], mask, memory_order, memory_scope)
    return tile, lambda builder, array, at, old, new, mask, *_: emit(builder, array, at, [old, new], mask)


@lowers(lang.atomic_add_tile)
def atomic_add_tile(array: types.Type, index: types.Type, tile: types.Type) -> Any:
    what = "atomic_add_tile"
    tensor = the_tensor(array, what)
    writable(tensor, what)
    _check_tensor(what, "add", tensor)
    if not isinstance(tile, TileType):
        reject(what, f"adds a tile, not {describe(tile)}")
    check_index(index, tensor, what)
    cut = cut_of(*in_rule(what, check_window, tile.shape, tensor.facts.rank, tensor.parameter))
    lies, _, bring = to_store(what, tensor, cut, tile, added=True)
    inside = proven(index, tensor, cut)

    def emit(builder: ir.IRBuilder, array: ir.Value, at: ir.Value, added: ir.Value) -> None:
        column, where = bring(builder, added), index_values(builder, index, at)
        order_access(builder, tensor, writes=True, atomic=True)
        width = _most_together("add", tensor.dtype)
        window = open_window(builder, tensor, array, where, lies, proven=inside, writing=True, what=what, added=width)
        _add(builder, tensor.dtype, "relaxed.gpu", open_access(window), column)

    return types.none, emit
