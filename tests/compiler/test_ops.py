"""The table of operations: every one has a lowering, with the same parameters, and the compiler leaves nothing behind."""

import re
import threading

import pytest
from numba import cuda
from numba.cuda import dispatcher
from numba.cuda.descriptor import cuda_target

import tilekit as tk
from tilekit import api
from tilekit.compiler import lower
from tilekit.compiler.codegen import definition as ops
from tilekit.compiler.numba_patches import patched
from tilekit.lang.registry import OPS

assert lower.__all__


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_operation_has_a_lowering(name):
    assert cuda_target.typing_context.resolve_value_type(OPS[name].function) is not None


def test_a_lowering_has_the_parameters_of_the_language():
    def swapped(index, array):
        raise AssertionError

    def language(array, index):
        raise AssertionError

    with pytest.raises(TypeError, match=r"the lowering of language has the parameters \['index', 'array'\], the language says"):
        ops.lowers(language)(swapped)


def test_the_stand_in_device_is_seen_by_its_thread_alone_and_goes():
    original = dispatcher.get_current_device
    seen = []
    with patched((9, 0, "a")):
        assert dispatcher.get_current_device().compute_capability == (9, 0)
        found = dispatcher.get_current_device

        def look():
            try:
                seen.append(found().compute_capability)
            except Exception as error:  # no driver on this machine
                seen.append(error)

        other = threading.Thread(target=look)
        other.start()
        other.join()
    assert dispatcher.get_current_device is original
    assert isinstance(seen[0], (Exception, tuple))
    with pytest.raises(ZeroDivisionError), patched((8, 0)):
        raise ZeroDivisionError
    assert dispatcher.get_current_device is original


def many(y, x):
    t = tk.load_tile_like(x, y)
    mask = (t > 0) & (t <= 1) | ~(t == t) ^ (t != 0)
    u = tk.where(mask, tk.exp(t), 0.0) + tk.sqrt(abs(-t)) / tk.maximum(t, 2) - tk.minimum(1, t)
    u += tk.zeros(y.tile_shape) + tk.ones(1024) * tk.full((1024,), 3) + tk.full(t.shape, 2.5, dtype=y.dtype)
    u -= tk.arange(1024, dtype=tk.float32, start=tk.bid(0) * 4, step=2)
    tk.print("block", tk.bid(0), y.shape[0], True, 2.5, "100%")
    y.store(u.astype("float32").astype(x.dtype) + t.ndim)


def bits_and_functions(y, x):
    t = tk.load_tile_like(x, y)
    u = tk.bitcast(t, tk.uint32)
    u = (u << 3) ^ (u >> (u & 31)) | tk.mulhi(u, 0xD2511F53) & ~(1 << u)
    u <<= 1
    u >>= 2
    wide = tk.mulhi(u.astype(tk.int64), -5) + tk.mulhi(u.astype(tk.uint64), 7).astype(tk.int64)
    narrow = tk.mulhi(u.astype(tk.int8), 100) << 1
    y.store(tk.bitcast(u, tk.float32) + tk.log(abs(t)) + tk.mul(t, 2.5) + wide + narrow)


def waves(y, x):
    t = tk.load_tile_like(x, y)
    y.store(tk.sin(t) + tk.sin(t.astype(tk.float64)).astype(tk.float32) * tk.cos(t.astype(tk.bfloat16)))


def chained_casts(y, x):
    t = tk.load_tile_like(x, y).astype(tk.int8).astype(tk.uint8).astype(tk.int16).astype(tk.uint16).astype(tk.int32)
    t = tk.astype(t.astype(tk.uint32).astype(tk.int64).astype(tk.uint64).astype(tk.float16), tk.bfloat16)
    y.store(t.astype(tk.float64).astype(tk.bool_).astype(tk.bfloat16).astype(tk.int32).astype(tk.float32))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_120"])
@pytest.mark.parametrize("kernel", [many, bits_and_functions, chained_casts])
def test_the_whole_language_compiles_for_every_dialect(compiled, tensor, kernel, target):
    made = compiled(kernel, tensor.out(4096, 1024), tensor(4096), target=target)
    assert made.bits == {128}


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_120"])
def test_sines_and_cosines_compile_for_every_dialect(compiled, tensor, target):
    """They look into tables of CUDA's, so there are accesses of other widths."""
    assert 128 in compiled(waves, tensor.out(4096, 1024), tensor(4096), target=target).bits


def fused(z, x, y):
    z.store(tk.load_tile_like(x, z) * tk.load_tile_like(y, z) + 1.0)


def rounded_twice(z, x, y):
    z.store(tk.mul(tk.load_tile_like(x, z), tk.load_tile_like(y, z)) + 1.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_product_of_mul_is_never_fused(compiled, tensor, dtype):
    facts = tensor.out(4096, 1024, dtype), tensor(4096, dtype), tensor(4096, dtype)
    assert "fma.rn" in compiled(fused, *facts).kernel.ptx, "what is to be avoided"
    kernel = compiled(rounded_twice, *facts).kernel
    assert "fma.rn" not in kernel.ptx
    assert not re.search(r"\b[FD]FMA\b", kernel.sass)


def nothing():
    pass


def test_a_kernel_without_arguments(compiled):
    kernel = compiled(nothing).kernel
    assert (kernel.param_format, kernel.block) == ("<", (32, 1, 1))


@cuda.jit(device=True)
def scaled(tile, factor):
    return tile * factor + tk.ones(tile.shape)


def calls_a_device_function(y, a):
    y.store(scaled(y.load(), a) + cuda.threadIdx.x)


def test_numba_device_functions_take_tiles(compiled, tensor):
    made = compiled(calls_a_device_function, tensor.inout(4096, 1024), float)
    assert made.bits == {128}
    assert not made.uses_local_memory


@pytest.mark.parametrize(("dtype", "order", "loads"), [
    (tk.int32, "acquire", True), (tk.int64, "relaxed", True), (tk.int32, "acq_rel", False), (tk.float32, "relaxed", False),
])  # fmt: skip
def test_an_integer_that_nothing_is_added_to_is_loaded(dtype, order, loads):
    """Who waits for a word does not keep others from writing it. Of floats, -0.0 becomes 0.0."""

    @tk.kernel
    def kernel(y: tk.Out, x: tk.InOut):
        y.store(tk.atomic_add(x, tk.arange(16), 0, memory_order=order, memory_scope="system"))

    op = kernel(api.meta(16, dtype).partition(16), api.meta(16, dtype).scattered())
    op.consumed()
    ptx = op.compile("sm_90a").ptx
    assert (f"ld.{order}.sys.global" in ptx, f"atom.{order}.sys.global" in ptx) == (loads, not loads)
