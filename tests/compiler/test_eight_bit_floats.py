"""8-bit floats: how they are converted is compared with ml_dtypes, value by value; nothing is calculated with them."""

import ctypes

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, dtypes

EIGHT = list(dtypes.EIGHT_BIT_FLOATS)


@pytest.fixture
def converted():
    """`converted(array, dtype)`: what the compiler's conversion gives, run by LLVM on the host: it is plain integer work."""
    binding, ir = (pytest.importorskip(f"llvmlite.{part}", reason="runs LLVM code on the CPU") for part in ("binding", "ir"))
    pytest.importorskip("numba.cuda", reason="the conversions are part of the compiler")
    from tilekit.compiler.codegen.convert import convert
    from tilekit.compiler.codegen.types import register_type

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()

    def make(array, dtype):
        source, target = register_type(array.dtype), register_type(dtype)
        module = ir.Module()
        i64 = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [source.as_pointer(), target.as_pointer(), i64])
        function = ir.Function(module, kind, "convert_all")
        start = function.append_basic_block()
        loop = function.append_basic_block()
        end = function.append_basic_block()
        ir.IRBuilder(start).branch(loop)
        builder = ir.IRBuilder(loop)
        at = builder.phi(i64)
        at.add_incoming(ir.Constant(i64, 0), start)
        read, written, count = function.args
        element = builder.load(builder.gep(read, [at]))
        builder.store(convert(builder, element, array.dtype, dtype), builder.gep(written, [at]))
        following = builder.add(at, ir.Constant(i64, 1))
        at.add_incoming(following, builder.block)
        builder.cbranch(builder.icmp_unsigned("<", following, count), loop, end)
        ir.IRBuilder(end).ret_void()
        machine = binding.Target.from_default_triple().create_target_machine()  # the engine takes it over
        with binding.create_mcjit_compiler(binding.parse_assembly(str(module)), machine) as engine:
            engine.finalize_object()
            call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
                engine.get_function_address("convert_all")
            )
            result = np.empty(array.shape, dtype)
            call(array.ctypes.data, result.ctypes.data, array.size)
        return result

    return make


def same(actual, expected):
    """Equal, NaN where NaN, and of the same sign."""
    assert actual.dtype == expected.dtype
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(np.signbit(a), np.signbit(b))


def every(dtype):
    """All 256 values."""
    return np.arange(256, dtype=np.uint8).view(dtype)


@pytest.mark.parametrize("source", EIGHT, ids=str)
@pytest.mark.parametrize("target", [tk.float32, tk.float64, *EIGHT], ids=str)
def test_every_value_is_widened_exactly(converted, source, target):
    given = every(source)
    with np.errstate(all="ignore"):
        same(converted(given, target), given.astype(target))


@pytest.mark.parametrize("source", [tk.float32, tk.float64], ids=str)
@pytest.mark.parametrize("target", EIGHT, ids=str)
def test_floats_are_rounded_as_ml_dtypes_does(converted, source, target):
    exact = np.unique(every(target).astype(source))
    exact = np.unique(np.append(exact[np.isfinite(exact)], [480, 65536, -480, -65536]).astype(source))
    between = (exact[1:] + exact[:-1]) / 2  # the ties
    around = [np.nextafter(v, np.array(way, source)) for v in (exact, between) for way in (-np.inf, np.inf)]
    tiny = np.finfo(source).smallest_subnormal
    ends = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, tiny, np.finfo(source).tiny, np.finfo(source).max], source)
    random = np.random.default_rng(0).integers(0, 2 ** (8 * source.itemsize) - 1, 100_000, dtype=f"u{source.itemsize}")
    spread = np.random.default_rng(1).normal(0, 1, 100_000) * 10.0 ** np.random.default_rng(2).uniform(-8, 6, 100_000)
    given = np.concatenate([exact, between, *around, ends, random.view(source), spread.astype(source)])
    with np.errstate(all="ignore"):
        same(converted(given, target), given.astype(target))


@pytest.mark.parametrize("target", EIGHT, ids=str)
@pytest.mark.parametrize("source", [tk.bool_, tk.int8, tk.int16, tk.uint16, tk.int64], ids=str)
def test_integers_become_8_bit_floats_and_come_back(converted, source, target):
    given = np.array([0, 1, 1, 0], bool) if source == tk.bool_ else np.arange(-130, 1300).astype(source)
    with np.errstate(all="ignore"):
        made = given.astype(target)
    same(converted(given, target), made)
    finite = np.array([v for v in every(target) if np.isfinite(v) and abs(float(v)) < 100 and (source.kind == "i" or v >= 0)])
    np.testing.assert_array_equal(converted(finite, source), finite.astype(source))


@tk.kernel
def through(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y).astype(y.dtype))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_casts_compile_for_every_target_in_wide_accesses(target):
    pytest.importorskip("numba.cuda", reason="compiles a kernel")
    for name in ("float8_e4m3fn", "float8_e5m2"):
        made = through(api.meta(4096, name).partition(1024), api.meta(4096, tk.bfloat16)).compile(target=target)
        assert "ld.global.v4.b32" in made.ptx
        assert made.local_bytes == 0


@tk.kernel
def mixed(y: tk.Out, x: tk.In, f: tk.In):
    y.store(tk.load_tile_like(x, y) * tk.load_tile_like(f, y) + tk.full(y.tile_shape, 1.5, tk.float8_e5m2).astype(tk.float32))


@tk.kernel
def stored(y: tk.Out, dtype: tk.Const):
    y.store(tk.full(y.tile_shape, 1.25, tk.float8_e4m3fn).astype(dtype))


def test_they_meet_wider_floats_in_these(device):
    x = np.array([0.5, -1.75, 448.0, 2.0**-9], tk.float8_e4m3fn)
    f = np.array([1, 2, 3, 4], np.float32)
    actual = mixed(api.zeros(4).partition(4), api.from_host(x), api.from_host(f)).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(actual, x.astype(np.float32) * f + 1.5)


def test_a_kernel_can_name_them(device):
    for dtype in EIGHT:
        made = stored(api.zeros(4, dtype).partition(4), dtype).first().unpartition().to_host().sync()
        same(made, np.full(4, 1.25, dtype))


@tk.kernel
def plus(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y) + tk.load_tile_like(x, y))


@tk.kernel
def twice(y: tk.Out, x: tk.In):
    y.store(2 * tk.load_tile_like(x, y))


@tk.kernel
def less(y: tk.Out, x: tk.In):
    y.store(tk.where(tk.load_tile_like(x, y) < 1.0, 0.0, 1.0))


@tk.kernel
def minus(y: tk.Out, x: tk.In):
    y.store(-tk.load_tile_like(x, y))


@tk.kernel
def magnitude(y: tk.Out, x: tk.In):
    y.store(abs(tk.load_tile_like(x, y)))


@tk.kernel
def root(y: tk.Out, x: tk.In):
    y.store(tk.sqrt(tk.load_tile_like(x, y)))


@tk.kernel
def larger(y: tk.Out, x: tk.In):
    y.store(tk.maximum(tk.load_tile_like(x, y), 0.0))


@tk.kernel
def count(y: tk.Out, x: tk.In):
    y.store(tk.arange(4, dtype=y.dtype))


ARITHMETIC = {"+": plus, "*": twice, "<": less, "-": minus, "abs": magnitude, "sqrt": root, "maximum": larger, "arange": count}


@pytest.mark.parametrize("symbol", ARITHMETIC)
@pytest.mark.parametrize("dtype", EIGHT, ids=str)
def test_there_is_no_arithmetic_in_them(device, symbol, dtype):
    words = f"there is no arithmetic in {dtype.name}: such tiles are loaded, stored and cast"
    with pytest.raises(tk.CompileError, match=words) as caught:
        ARITHMETIC[symbol](api.zeros(4, dtype).partition(4), api.zeros(4, dtype)).sync()
    assert f"{symbol}: there is no" in str(caught.value)
    pytest.importorskip("numba.cuda", reason="compiles a kernel")
    with pytest.raises(tk.CompileError, match=words):
        ARITHMETIC[symbol](api.meta(4, dtype).partition(4), api.meta(4, dtype)).compile(target="sm_90a")


def test_two_of_them_have_no_common_dtype(device):
    x = api.zeros(4, tk.float8_e4m3fn)
    with pytest.raises(tk.CompileError, match=r"no common dtype of float8_e4m3fn and float8_e5m2; cast one of them"):
        both(api.zeros(4).partition(4), x, api.zeros(4, tk.float8_e5m2)).sync()


@tk.kernel
def both(y: tk.Out, a: tk.In, b: tk.In):
    y.store(tk.load_tile_like(a, y) + tk.load_tile_like(b, y))
