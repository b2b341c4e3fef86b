"""Shared memory: allocation of room for what threads of a block tell each other, barriers, and loads and stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from tilekit.compiler.codegen.compilation import Compilation, Crowded, current
from tilekit.compiler.codegen.diagnose import OverLimit
from tilekit.compiler.codegen.emit import asm
from tilekit.compiler.codegen.types import i8, i32, integer
from tilekit.compiler.codegen.words import braced, elements_of, packed, words_of
from tilekit.compiler.passes.rings import Unfit
from tilekit.compiler.target import STATIC_SHARED_BYTES
from tilekit.dtypes import DType

__all__ = ["at", "at_once", "barrier", "block_bytes", "drain", "get", "get_matrices", "part_bytes", "put", "room", "where"]

_DRAIN = 16  # bytes, with those that align what follows
_STATIC = STATIC_SHARED_BYTES - _DRAIN  # more than this, and the drain, must be dynamic, and asked for when the kernel is loaded
_BESIDE_RINGS = 32 * 1024  # for a part of what does not fit, where rings of stages want the rest
_OWN = 2048  # what is smaller has memory of its own: without a loop nobody reads it when it is written

_SHARED = 3  # the address space


def barrier(builder: ir.IRBuilder) -> None:
    """Barrier (bar.sync) of all threads that calculate; what they wrote to shared memory before can be read after."""
    compilation = current()
    which = f"1, {compilation.config.num_threads}" if compilation.pipelines else "0"
    asm(builder, f"bar.sync {which};", "~{memory}", ir.VoidType(), [], convergent=True)


def block_bytes() -> int:
    """How much shared memory a block may have on the GPU that is compiled for, in bytes."""
    return current().target.block_shared_bytes


def part_bytes() -> int:
    """How much of what is too large for shared memory goes through it at once: what is left, down to a power of two."""
    compilation = current()
    if compilation.pipelines is not None:
        return _BESIDE_RINGS
    return 1 << (block_bytes() - compilation.static_bytes).bit_length() - 1


def at_once(count: int, nbytes: int) -> int:
    """Of `count` things of `nbytes` each, how many go through shared memory at once: all, if it has room for them."""
    return count if count * nbytes <= block_bytes() else max(1, part_bytes() // nbytes)


def room(builder: ir.IRBuilder, nbytes: int, what: str) -> ir.Value:
    """Allocate shared memory that nobody reads any more: an address, an i32, a multiple of 16 bytes. All threads call it.

    Args:
        builder: at the place of use.
        nbytes: how much.
        what: it is for, for the error.

    Raises:
        OverLimit: more than a block has.
        Crowded: more than a block has beside what others asked for.
        Unfit: either of them, where there are rings of stages.
    """
    compilation = current()
    # Beside rings of stages there is little left.
    roomy = compilation.pipelines is None and not compilation.crowded
    own = roomy and nbytes <= _OWN and compilation.static_bytes + nbytes <= _STATIC
    if own:
        name, size = builder.module.get_unique_name("tilekit_room"), nbytes
    else:
        size = 1 << (nbytes - 1).bit_length()
        name = f"tilekit_room_of_{size}"
    if own is False or compilation.loops:
        barrier(builder)
    buffer = builder.module.globals.get(name)
    if buffer is None:
        dynamic = compilation.crowded or compilation.static_bytes + size > _STATIC
        if dynamic and compilation.static_bytes + size > block_bytes():
            size = -(-nbytes // 16) * 16  # the others take powers of two, so that there are few
        _take(compilation, nbytes, size, what, dynamic=dynamic)
        buffer = ir.GlobalVariable(builder.module, ir.ArrayType(i8, 0 if dynamic else size), name, addrspace=_SHARED)
        buffer.align = 16
        if dynamic:
            buffer.linkage = "external"
        else:
            buffer.linkage, buffer.initializer = "internal", ir.Constant(buffer.value_type, ir.Undefined)
    return builder.ptrtoint(buffer, i32)


def _take(compilation: Compilation, nbytes: int, size: int, what: str, *, dynamic: bool) -> None:
    """Count memory for a room of `nbytes`, which takes `size`."""
    if dynamic:
        compilation.dynamic_bytes = max(compilation.dynamic_bytes, size)
    else:
        compilation.static_bytes += size
    if compilation.static_bytes + compilation.dynamic_bytes <= block_bytes():
        return
    limit, gpu = block_bytes(), compilation.target.label
    if compilation.pipelines is not None:  # beside which others do not share a room
        raise Unfit(f"{what} need {nbytes:,} bytes of shared memory beside others, and a block of {gpu} has {limit:,}")
    if nbytes <= limit:
        raise Crowded
    raise OverLimit(f"{what} need {nbytes:,} bytes of shared memory, and a block of {gpu} has {limit:,}; take smaller tiles")


def drain(builder: ir.IRBuilder) -> ir.Value:
    """The address, an i32, of 4 bytes that anybody may write at any time, and nobody reads."""
    buffer = builder.module.globals.get("tilekit_drain")
    if buffer is None:
        buffer = ir.GlobalVariable(builder.module, i32, "tilekit_drain", addrspace=_SHARED)
        buffer.linkage, buffer.initializer = "internal", ir.Constant(i32, ir.Undefined)
        current().static_bytes += _DRAIN
    return builder.ptrtoint(buffer, i32)


def where(
    builder: ir.IRBuilder,
    condition: ir.Value | None,
    access: Callable[[], Sequence[ir.Value] | None],
    otherwise: Sequence[ir.Value | None] = (),
) -> list[ir.Value]:
    """Predicated access: threads access memory where a condition holds (None: all); others branch around it.

    Args:
        builder: at the place of the accesses.
        condition: an i1.
        access: emits them, and gives what was read.
        otherwise: what other threads have instead; None for anything.
    """
    if condition is None:
        return list(access() or ())
    before, inside = builder.block, builder.append_basic_block("access")
    after = builder.append_basic_block("accessed")
    builder.cbranch(condition, inside, after)
    builder.position_at_end(inside)
    values = list(access() or ())
    end = builder.block
    builder.branch(after)
    builder.position_at_end(after)
    merged = []
    for value, other in zip(values, otherwise, strict=True):
        phi = builder.phi(value.type)
        phi.add_incoming(value, end)
        phi.add_incoming(ir.Constant(value.type, ir.Undefined) if other is None else other, before)
        merged.append(phi)
    return merged


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
    loaded = asm(builder, text, constraints, result, [address], effect=True)
    return elements_of(builder, [loaded] if n == 1 else [builder.extract_value(loaded, k) for k in range(n)], dtype, count)


def get_matrices(builder: ir.IRBuilder, address: ir.Value, offset: int, dtype: DType, *, transposed: bool) -> list[ir.Value]:
    """Eight 16-bit elements by `ldmatrix`, see `conversion.Matrices`; a lane's address is that of a row. All lanes take part."""
    text = f"ldmatrix.sync.aligned.m8n8.x4{'.trans' * transposed}.shared.b16 {{$0, $1, $2, $3}}, [$4+{offset}];"
    loaded = asm(builder, text, "=r,=r,=r,=r,r,~{memory}", ir.LiteralStructType([i32] * 4), [address], convergent=True)
    return elements_of(builder, [builder.extract_value(loaded, k) for k in range(4)], dtype, 8)


def at(builder: ir.IRBuilder, address: ir.Value, offset: ir.Value, itemsize: int) -> ir.Value:
    """`address`, `offset` elements further on."""
    return builder.add(address, builder.mul(offset, integer(32, itemsize)) if itemsize > 1 else offset)
