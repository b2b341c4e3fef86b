"""Shared memory: room for what threads of a block tell each other, and accesses to it."""

from __future__ import annotations

from llvmlite import ir

from tilekit.compiler.diagnose import reject
from tilekit.compiler.lower.emit import asm
from tilekit.compiler.lower.words import braced, elements_of, packed, words_of
from tilekit.compiler.types import current, i8, i32, integer
from tilekit.dtypes import DType

__all__ = ["ROOM", "at", "barrier", "drain", "get", "get_matrices", "put", "room"]

ROOM = 160 * 1024
"""What one operation may use, in bytes: a block of sm_80 has 163 KB, one of sm_90 227 KB."""

_STATIC = 48 * 1024 - 16  # more than this, and the drain, must be dynamic, and asked for when the kernel is loaded
_OWN = 2048  # what is smaller has memory of its own: without a loop nobody reads it when it is written

_SHARED = 3  # the address space


def barrier(builder: ir.IRBuilder) -> None:
    """All threads that calculate wait for each other; what they wrote to shared memory before can be read after."""
    compilation = current()
    which = f"1, {compilation.config.num_threads}" if compilation.pipelines else "0"
    asm(builder, f"bar.sync {which};", "~{memory}", ir.VoidType(), [], convergent=True)


def room(builder: ir.IRBuilder, nbytes: int, what: str) -> ir.Value:
    """Shared memory that nobody reads any more: its address, an i32, a multiple of 16 bytes. All threads of the block call it.

    Args:
        builder: at the place of use.
        nbytes: how much.
        what: the operation, for the error.

    Raises:
        CompileError: more than a block has.
    """
    if nbytes > ROOM:
        reject(what, f"would need {nbytes} bytes of shared memory, more than a block has ({ROOM}); take smaller tiles")
    compilation = current()
    # Beside rings of stages there is little left.
    own = nbytes <= _OWN and compilation.static_bytes + nbytes <= _STATIC and compilation.pipelines is None
    if own:
        name = builder.module.get_unique_name("tilekit_room")
    else:
        nbytes = 1 << (nbytes - 1).bit_length()
        name = f"tilekit_room_of_{nbytes}"
    if own is False or compilation.loops:
        barrier(builder)
    buffer = builder.module.globals.get(name)
    if buffer is None:
        dynamic = compilation.static_bytes + nbytes > _STATIC
        buffer = ir.GlobalVariable(builder.module, ir.ArrayType(i8, 0 if dynamic else nbytes), name, addrspace=_SHARED)
        buffer.align = 16
        if dynamic:
            buffer.linkage = "external"
            compilation.dynamic_bytes = max(compilation.dynamic_bytes, nbytes)
        else:
            buffer.linkage, buffer.initializer = "internal", ir.Constant(buffer.value_type, ir.Undefined)
            compilation.static_bytes += nbytes
    return builder.ptrtoint(buffer, i32)


def drain(builder: ir.IRBuilder) -> ir.Value:
    """The address, an i32, of 4 bytes that anybody may write at any time, and nobody reads."""
    buffer = builder.module.globals.get("tilekit_drain")
    if buffer is None:
        buffer = ir.GlobalVariable(builder.module, i32, "tilekit_drain", addrspace=_SHARED)
        buffer.linkage, buffer.initializer = "internal", ir.Constant(i32, ir.Undefined)
        current().static_bytes += 4
    return builder.ptrtoint(buffer, i32)


def put(builder: ir.IRBuilder, address: ir.Value, offset: int, dtype: DType, elements: list[ir.Value]) -> None:
    """Write neighbouring elements, 16 bytes at most.

    Args:
        builder: at the place of the access.
        address: an i32.
        offset: added to it, in bytes; the sum is a multiple of what is written.
        dtype: of the elements.
        elements: a power of two of them.
    """
    words = words_of(dtype, len(elements))
    source = braced([f"${k + 1}" for k in range(words.count)])
    text = f"st.shared.{words.access} [$0+{offset}], {source};"
    letters = ["r"] + [words.letter] * words.count
    values = packed(builder, elements, dtype, words)
    asm(builder, text, ",".join([*letters, "~{memory}"]), ir.VoidType(), [address, *values], effect=True)


def get(builder: ir.IRBuilder, address: ir.Value, offset: int, dtype: DType, count: int) -> list[ir.Value]:
    """Read `count` neighbouring elements; see `put`."""
    words = words_of(dtype, count)
    n = words.count
    text = f"ld.shared.{words.access} {braced([f'${k}' for k in range(n)])}, [${n}+{offset}];"
    result = words.type if n == 1 else ir.LiteralStructType([words.type] * n)
    constraints = ",".join([f"={words.letter}"] * n + ["r", "~{memory}"])
    made = asm(builder, text, constraints, result, [address], effect=True)
    return elements_of(builder, [made] if n == 1 else [builder.extract_value(made, k) for k in range(n)], dtype, count)


def get_matrices(builder: ir.IRBuilder, address: ir.Value, offset: int, dtype: DType, *, transposed: bool) -> list[ir.Value]:
    """Eight 16-bit elements by `ldmatrix`, see `conversion.Matrices`; a lane's address is that of a row. All lanes take part."""
    text = f"ldmatrix.sync.aligned.m8n8.x4{'.trans' * transposed}.shared.b16 {{$0, $1, $2, $3}}, [$4+{offset}];"
    made = asm(builder, text, "=r,=r,=r,=r,r,~{memory}", ir.LiteralStructType([i32] * 4), [address], convergent=True)
    return elements_of(builder, [builder.extract_value(made, k) for k in range(4)], dtype, 8)


def at(builder: ir.IRBuilder, address: ir.Value, offset: ir.Value, itemsize: int) -> ir.Value:
    """`address`, `offset` elements further on."""
    return builder.add(address, builder.mul(offset, integer(32, itemsize)) if itemsize > 1 else offset)
