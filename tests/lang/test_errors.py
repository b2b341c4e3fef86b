"""What a kernel's author is told: one reason, the line, a caret; the same on the CPU device and on a GPU."""

import numpy as np
import pytest

import tilekit as tk
from tilekit import api


def refuse(kernel, *arguments):
    """The CompileError of a launch."""
    with pytest.raises(tk.CompileError) as caught:
        kernel(*arguments).sync()
    return caught.value


def y(dtype=tk.float32, n=4):
    return api.zeros(n, dtype).partition(n)


def test_a_tile_operation_outside_a_kernel():
    with pytest.raises(
        TypeError, match=r"tk\.zeros is a tile operation: it works inside a function decorated with @tk\.kernel\. On the host use"
    ):
        tk.zeros(4)
    with pytest.raises(TypeError, match=r"tk\.bid is a tile operation"):
        tk.bid(0)


def test_storing_float64_into_float32(device):
    @tk.kernel
    def narrow(y: tk.Out):
        y.store(tk.zeros(y.tile_shape, tk.float64))

    error = refuse(narrow, y())
    assert error.reason == (
        "store: a float64 tile does not fit y, a float32 tensor, without loss; write .astype(y.dtype) if that is meant"
    )
    assert error.line.strip() == "y.store(tk.zeros(y.tile_shape, tk.float64))"
    assert error.filename == __file__


def test_shapes_that_do_not_match(device):
    @tk.kernel
    def add(y: tk.Out):
        y.store(tk.zeros(4) + tk.zeros(8))

    error = refuse(add, y())
    assert error.reason == "+: tiles of shapes (4,) and (8,) do not match; an extent of 1 would broadcast"
    assert error.line[error.column : error.column + error.width] == "tk.zeros(4) + tk.zeros(8)"


def test_a_tile_of_another_shape_is_not_stored(device):
    @tk.kernel
    def short(y: tk.Out):
        y.store(tk.zeros(2))

    assert refuse(short, y()).reason == "store: a tile of shape (2,) into y, whose tiles are (4,)"


def test_reading_what_is_declared_out(device):
    @tk.kernel
    def read(y: tk.Out):
        y.store(y.load())

    assert refuse(read, y()).reason == "load: y is declared Out, which is written only; annotate it InOut to read it"


def test_signed_with_unsigned(device):
    @tk.kernel
    def mixed(y: tk.Out):
        y.store(tk.zeros(4, tk.int32) + tk.zeros(4, tk.uint32))

    assert refuse(mixed, y(tk.int32)).reason == "+: no common dtype of int32 and uint32; cast one of them with .astype(...)"


def test_a_condition_that_is_a_tile(device):
    @tk.kernel
    def branch(y: tk.InOut):
        t = y.load()
        if t > 0:
            y.store(t)

    error = refuse(branch, y())
    assert "tk.where(condition, x, y)" in error.reason
    assert error.line.strip() == "if t > 0:"


def test_padding_for_integers(device):
    @tk.kernel
    def padded(y: tk.Out, x: tk.In):
        y.store(tk.load(x, 0, 4, padding_mode=tk.PaddingMode.NAN))

    assert refuse(padded, y(tk.int32), api.zeros(3, tk.int32)).reason == (
        "load: padding_mode 'nan' needs a floating-point tensor; x is int32"
    )


def test_an_axis_that_does_not_exist(device):
    @tk.kernel
    def far(y: tk.Out):
        y.store(tk.full(y.tile_shape, tk.bid(3)))

    assert refuse(far, y(tk.int32)).reason == "bid: the axis is 0, 1 or 2, known when the kernel is compiled, not 3"


def test_ranks_in_load_tile_like(device):
    @tk.kernel
    def like(y: tk.Out, x: tk.In):
        y.store(tk.load_tile_like(x, y))

    assert refuse(like, y(), api.zeros((2, 2))).reason == (
        "load_tile_like: x has 2 dimensions, y has 1; use tk.load with an index of its own"
    )


def test_a_tile_index_out_of_range_is_an_error_on_the_cpu_device(device):
    if device.kind != "cpu":
        pytest.skip("a GPU masks the access: tests/gpu/test_launches.py, test_an_out_of_range_tile_index_is_masked")

    @tk.kernel
    def far(y: tk.Out, x: tk.In):
        y.store(tk.load(x, tk.bid(0) + 1, 4))

    with pytest.raises(tk.DeviceError, match=r"kernel far, block \(0, 0, 0\): load: tile index \(1,\) is outside x") as caught:
        far(y(), api.zeros(4)).sync()
    assert "tk.load(x, tk.bid(0) + 1, 4)" in str(caught.value)


def test_python_that_no_gpu_runs():
    """Found when it is compiled; the CPU device runs Python as it is."""

    @tk.kernel
    def files(y: tk.Out):
        with open("x") as f:
            y.store(len(f.read()))

    with pytest.raises(tk.CompileError) as caught:
        files(api.meta(4).partition(4)).compile(target="sm_90a")
    assert caught.value.line.strip() == 'with open("x") as f:'


def test_a_name_that_does_not_exist(device):
    @tk.kernel
    def typo(y: tk.Out):
        y.store(tk.zeroes(4))

    error = refuse(typo, y())
    assert error.reason == "tk.zeroes does not exist; did you mean zeros?"
    assert error.line[error.column : error.column + error.width] == "tk.zeroes(4)"

    @tk.kernel
    def other(y: tk.Out):
        why.store(tk.zeros(4))  # noqa: F821

    assert refuse(other, y()).reason.startswith("why is not defined")


def test_a_host_function_in_a_kernel():
    @tk.kernel
    def host(y: tk.Out):
        y.store(np.zeros(4))

    with pytest.raises(tk.CompileError) as caught:
        host(api.meta(4).partition(4)).compile(target="sm_90a")
    assert caught.value.line.strip() == "y.store(np.zeros(4))"
    for internal in ("nopython", "TypingError", "numba.core", "No implementation", "signature"):
        assert internal not in str(caught.value)


def test_a_shape_that_is_not_known_when_compiling():
    @tk.kernel
    def dynamic(y: tk.Out, n):
        y.store(tk.zeros(n))

    with pytest.raises(tk.CompileError, match="zeros: .*known when the kernel is compiled") as caught:
        dynamic(api.meta(4).partition(4), 4).compile(target="sm_90a")
    assert caught.value.line.strip() == "y.store(tk.zeros(n))"


def test_scalars_that_do_not_fit_the_tile(device):
    @tk.kernel
    def compare(y: tk.Out, x: tk.In):
        y.store(tk.load_tile_like(x, y) < 256)

    assert refuse(compare, y(tk.bool_), api.zeros(4, tk.uint8)).reason == (
        "<: the scalar 256 does not fit uint8; cast the tile with .astype(...), or take another scalar"
    )


def test_scalars_that_do_not_fit_the_tensor(device):
    @tk.kernel
    def fraction(y: tk.Out):
        y.store(1.5)

    assert refuse(fraction, y(tk.int32)).reason == (
        "store: a float does not fit y, which holds int32, without loss; convert it first if that is meant"
    )

    @tk.kernel
    def large(y: tk.Out):
        y.store(300)

    assert refuse(large, y(tk.int8)).reason == "store: the scalar 300 does not fit y, which holds int8"


def test_what_tiles_cannot_do_is_a_compile_error(device):
    @tk.kernel
    def matrices(y: tk.InOut):
        y.store(y.load() @ tk.zeros(8))

    @tk.kernel
    def misspelt(y: tk.InOut):
        y.stroe(y.load())

    @tk.kernel
    def numpys(y: tk.InOut):
        y.store(np.sin(y.load()))

    for kernel, line in ((matrices, "y.load() @ tk.zeros(8)"), (misspelt, "y.stroe"), (numpys, "np.sin")):
        error = refuse(kernel, y())
        assert line in error.line
        assert "Tile'" not in error.reason


def test_a_caret_behind_other_letters(device):
    @tk.kernel
    def letters(y: tk.Out):
        tk.print("éüß", tk.zeros(3))

    error = refuse(letters, y())
    assert error.line[error.column : error.column + error.width] == "tk.zeros(3)"


def test_shifting_what_has_no_bits(device):
    @tk.kernel
    def shifted(y: tk.Out, x: tk.In):
        y.store(tk.load_tile_like(x, y) >> 1)

    @tk.kernel
    def doubled(y: tk.Out, x: tk.In):
        t = tk.load_tile_like(x, y)
        y.store(t << t)

    error = refuse(shifted, y(), api.zeros(4))
    assert error.reason == ">>: needs integer tiles, not float32"
    assert error.line[error.column : error.column + error.width] == "tk.load_tile_like(x, y) >> 1"
    assert refuse(doubled, y(tk.bool_), api.zeros(4, tk.bool_)).reason == "<<: needs integer tiles, not bool"


def test_a_mulhi_of_floats_and_a_product_of_bools(device):
    @tk.kernel
    def upper(y: tk.Out, x: tk.In):
        y.store(tk.mulhi(tk.load_tile_like(x, y), 2))

    @tk.kernel
    def product(y: tk.Out, x: tk.In):
        t = tk.load_tile_like(x, y)
        y.store(tk.mul(t, t))

    assert refuse(upper, y(), api.zeros(4)).reason == "mulhi: needs integer tiles, not float32"
    assert refuse(product, y(tk.bool_), api.zeros(4, tk.bool_)).reason == (
        "mul: bool tiles have no arithmetic; cast with .astype(tk.int32), or use & | ~"
    )


def test_a_logarithm_of_integers_or_of_a_scalar(device):
    @tk.kernel
    def whole(y: tk.Out, x: tk.In):
        y.store(tk.log(tk.load_tile_like(x, y)))

    @tk.kernel
    def scalar(y: tk.Out):
        y.store(tk.sin(1.0))

    assert refuse(whole, y(), api.zeros(4, tk.int32)).reason == (
        "log: needs a floating-point tile, not int32; cast with .astype(tk.float32)"
    )
    assert refuse(scalar, y()).reason.startswith("sin: needs a tile, not ")


def test_bits_that_do_not_fit(device):
    @tk.kernel
    def narrow(y: tk.Out, x: tk.In):
        y.store(tk.bitcast(tk.load_tile_like(x, y), tk.int16))

    @tk.kernel
    def truth(y: tk.Out, x: tk.In):
        y.store(tk.bitcast(tk.load_tile_like(x, y), tk.uint8))

    assert refuse(narrow, y(tk.int16), api.zeros(4)).reason == "bitcast: an element of float32 has 32 bits, one of int16 16"
    assert refuse(truth, y(tk.uint8), api.zeros(4, tk.bool_)).reason == (
        "bitcast: bool has no bits of its own in registers; cast with .astype(tk.uint8)"
    )


@tk.kernel
def _unknown_mode(y: tk.Out, x: tk.In):
    y.store(tk.add(tk.load_tile_like(x, y), 1, rounding_mode="up"))


@tk.kernel
def _directed_exponential(y: tk.Out, x: tk.In):
    y.store(tk.exp(tk.load_tile_like(x, y), rounding_mode=tk.RoundingMode.RZ))


@tk.kernel
def _rounded_sum(y: tk.Out, x: tk.In):
    y.store(tk.add(tk.load_tile_like(x, y), 1, rounding_mode=tk.RoundingMode.RZ))


@tk.kernel
def _fast_quotient(y: tk.Out, x: tk.In):
    y.store(tk.truediv(tk.load_tile_like(x, y), 3, rounding_mode=tk.RoundingMode.APPROX))


@tk.kernel
def _flushed(y: tk.Out, x: tk.In):
    y.store(tk.mul(tk.load_tile_like(x, y), 3, flush_to_zero=True))


@tk.kernel
def _flushed_somehow(y: tk.Out, x: tk.In):
    y.store(tk.mul(tk.load_tile_like(x, y), 3, flush_to_zero=2))


@tk.kernel
def _rounded_up(y: tk.Out, x: tk.In):
    y.store(tk.cdiv(tk.load_tile_like(x, y), 3))


@tk.kernel
def _counted(y: tk.Out, x: tk.In):
    y.store(tk.popcount(tk.load_tile_like(x, y)))


@tk.kernel
def _no_number(y: tk.Out, x: tk.In):
    y.store(tk.isnan(tk.load_tile_like(x, y)))


@tk.kernel
def _angle(y: tk.Out, x: tk.In):
    t = tk.load_tile_like(x, y)
    y.store(tk.atan2(t, t))


@tk.kernel
def _sign(y: tk.Out, x: tk.In):
    y.store(tk.sign(tk.load_tile_like(x, y)))


@tk.kernel
def _plus(y: tk.Out, x: tk.In):
    y.store(+tk.load_tile_like(x, y))


@tk.kernel
def _remainder(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y) % tk.load_tile_like(x, y))


@tk.kernel
def _uneven(y: tk.Out, x: tk.In):
    y.store(tk.astile((1, 2, 3)))


@tk.kernel
def _mixed_table(y: tk.Out, x: tk.In):
    y.store(tk.astile(((1, 2), 3)))


@tk.kernel
def _policy(y: tk.Out, x: tk.In):
    y.store(tk.minimum(tk.load_tile_like(x, y), 0, propagate_nan=1))


@tk.kernel
def _whole(y: tk.Out, x: tk.In):
    y.store(tk.floor(tk.load_tile_like(x, y)))


@tk.kernel
def _rounded_integer(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y).astype(tk.float32, rounding_mode="zero"))


_MODES = "'nearest_even', 'zero', 'negative_inf', 'positive_inf', 'full', 'approx'"
_UNEVEN = "the tuples of one level are of one length, a power of two; here they are not,"
_BOOLS = "bool tiles have no arithmetic; cast with .astype(tk.int32), or use & | ~"


@pytest.mark.parametrize(
    ("kernel", "dtype", "reason"),
    [
        (_unknown_mode, tk.float32, f"add: rounding_mode is one of {_MODES}, not 'up'"),
        (_directed_exponential, tk.float32, "exp: it has no rounding mode 'zero'; there are 'full', 'approx'"),
        (_rounded_sum, tk.int32, "add: int32 is not rounded: rounding_mode is for floating-point tiles"),
        (_rounded_integer, tk.int32, "astype: rounding_mode is for floats of 16 bits and more, not from int32 to float32"),
        (_fast_quotient, tk.float64, "truediv: rounding mode 'approx' is for float32 only, not float64"),
        (_flushed, tk.float16, "mul: flush_to_zero is for float32 only, not float16"),
        (_flushed_somehow, tk.float32, "mul: flush_to_zero is True or False, known when the kernel is compiled"),
        (_rounded_up, tk.float32, "cdiv: needs integer tiles, not float32"),
        (_counted, tk.float32, "popcount: needs an integer tile, not float32"),
        (_no_number, tk.int32, "isnan: needs a floating-point tile, not int32; cast with .astype(tk.float32)"),
        (_angle, tk.int32, "atan2: needs a floating-point tile, not int32; cast with .astype(tk.float32)"),
        (_whole, tk.int32, "floor: needs a floating-point tile, not int32; cast with .astype(tk.float32)"),
        (_sign, tk.bool_, f"sign: {_BOOLS}"),
        (_plus, tk.bool_, f"+: {_BOOLS}"),
        (_remainder, tk.bool_, f"%: {_BOOLS}"),
        (_uneven, tk.int32, f"astile: {_UNEVEN} below (3,)"),
        (_mixed_table, tk.int32, f"astile: {_UNEVEN} below (2,)"),
        (_policy, tk.float32, "minimum: propagate_nan is True or False, known when the kernel is compiled"),
    ],
    ids=lambda v: v.label.strip("_") if isinstance(v, tk.Kernel) else "",
)  # fmt: skip
def test_what_elementwise_operations_refuse(device, kernel, dtype, reason):
    """With the same words when a GPU's code is compiled."""
    assert refuse(kernel, y(dtype), api.zeros(4, dtype)).reason == reason
    with pytest.raises(tk.CompileError) as caught:
        kernel(api.meta(4, dtype).partition(4), api.meta(4, dtype)).compile(target="sm_90a")
    assert caught.value.reason == reason
