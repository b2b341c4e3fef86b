"""What a block cannot have is told at the line that asks for it, with the bytes and the limit of the GPU; what it can is had."""

import pytest
from numba import cuda, float32

import tilekit as tk
from tilekit import api
from tilekit.compiler.target import named

KB = 1 << 10


def meta(dtype, *shape):
    return api.meta(shape, dtype)


def shared_of(compiled):
    """All shared memory of a block, without what CUDA has for itself."""
    return compiled.shared_bytes + compiled.dynamic_shared_bytes - named(compiled.target).ptxas_shared_bytes


def multiplied(m, k, n, dtype=tk.float64):
    M, K, N = m, k, n

    @tk.kernel
    def product(c: tk.InOut, a: tk.In, b: tk.In):
        x, y = tk.load(a, (0, 0), (M, K)), tk.load(b, (0, 0), (K, N))
        c.store(tk.mma(x, y, c.load()))

    return product(meta(dtype, m, n).partition((m, n)), meta(dtype, m, k), meta(dtype, k, n))


@pytest.mark.parametrize(
    ("target", "kilobytes"), [("sm_80", 163), ("sm_86", 99), ("sm_89", 99), ("sm_90a", 227), ("sm_100a", 227), ("sm_120", 99)]
)
def test_operands_beyond_shared_memory_are_refused_at_their_line_with_the_limit_of_the_gpu(target, kilobytes):
    op = multiplied(128, 128, 128)
    with pytest.raises(tk.CompileError) as caught:
        op.compile(target)
    error, gpu = caught.value, target.removesuffix("a")
    assert error.reason == (
        f"mma: the operands need 262,144 bytes of shared memory, and a block of {gpu} has {kilobytes * KB:,}; take smaller tiles"
    )
    assert error.line[error.column : error.column + error.width] == "tk.mma(x, y, c.load())"
    assert error.filename == __file__


def test_operands_that_fit_exactly_take_no_more_than_they_need():
    """160 KB: as a power of two it would be 256, more than any block has."""
    for target in ("sm_80", "sm_90a"):
        compiled = multiplied(64, 64, 256).compile(target)
        assert 160 * KB <= shared_of(compiled) <= named(target).block_shared_bytes
    with pytest.raises(tk.CompileError, match=r"mma: the operands need 163,840 bytes .* sm_86 has 101,376"):
        multiplied(64, 64, 256).compile("sm_86")


def test_rooms_that_do_not_fit_beside_each_other_share_one():
    """Static rooms of 32 and 8 KB, and one of 64 KB: 104 KB, and a block of sm_86 has 99."""

    @tk.kernel
    def turned(y: tk.Out, x: tk.In, z: tk.Out, a: tk.In, w: tk.Out, b: tk.In):
        y.store(tk.load(x, (0, 0), (128, 64)).transpose())
        z.store(tk.load(a, (0, 0), (64, 32)).transpose())
        w.store(tk.load(b, (0, 0), (128, 128)).transpose())

    parts = [(meta(tk.float32, n, m).partition((n, m)), meta(tk.float32, m, n)) for m, n in ((128, 64), (64, 32), (128, 128))]
    op = turned(*(argument for pair in parts for argument in pair))
    assert shared_of(op.compile("sm_80")) == 104 * KB
    assert shared_of(op.compile("sm_86")) == 64 * KB


def with_own_array(n):
    @tk.kernel
    def own(y: tk.Out, x: tk.In):
        kept = cuda.shared.array(n, float32)
        kept[cuda.threadIdx.x] = 1.0
        cuda.syncthreads()
        y.store(tk.load(x, (0, 0), (64, 64)).transpose() + kept[5])

    return own(meta(tk.float32, 64, 64).partition((64, 64)), meta(tk.float32, 64, 64))


def test_arrays_of_the_kernels_own_count():
    beside = with_own_array(9 * KB).compile("sm_90a")
    assert (shared_of(beside), beside.dynamic_shared_bytes) == (52 * KB, 16 * KB), "static memory ends at 48 KB"
    with pytest.raises(tk.CompileError, match=r"arrays of 65,536 bytes of shared memory, .* sm_90 has 49,152 for them") as caught:
        with_own_array(16 * KB).compile("sm_90a")
    error = caught.value
    assert error.line[error.column : error.column + error.width] == "cuda.shared.array(n, float32)"


@tk.kernel
def transposed(y: tk.Out, x: tk.In, m: tk.Const, n: tk.Const):
    y.store(tk.load(x, (0, 0), (m, n)).transpose() + 1)


@pytest.mark.parametrize(("target", "parts"), [("sm_80", 2), ("sm_86", 4), ("sm_90a", 2)])
def test_a_tile_larger_than_shared_memory_goes_in_parts(target, parts):
    """256 KB, in parts of 128 or 64, each of which is put there between barriers."""
    op = transposed(meta(tk.float32, 256, 256).partition((256, 256)), meta(tk.float32, 256, 256), 256, 256)
    compiled = op.compile(target)
    assert shared_of(compiled) == 256 * KB // parts <= named(target).block_shared_bytes
    assert compiled.ptx.count("bar.sync") == 2 * parts
