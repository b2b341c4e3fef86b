"""Random numbers inside kernels: the numbers of `tilekit.api`, and those that Philox's authors give."""

# ruff: noqa: E501 - a row of a table is one line

import numpy as np
import pytest
from parity import FLOATS, INTEGERS, run

import tilekit as tk
from tilekit import api

SEEDS = [0, 12345, -1, np.uint64(2**40 + 17), np.uint64(2**64 - 1)]
OFFSETS = [tk.int16, tk.int32, tk.int64, tk.uint32, tk.uint64]
N = 3000


@tk.kernel
def draw(y: tk.Out, seed, kind: tk.Const, offsets: tk.Const):
    at = tk.arange(1024, dtype=offsets, start=1024 * tk.bid(0))
    if kind == "rand":
        y.store(tk.rand(seed, at, y.dtype))
    if kind == "randn":
        y.store(tk.randn(seed, at, y.dtype))
    if kind == "randint":
        y.store(tk.randint(seed, at, 3, 77, y.dtype))


def bits(array):
    return array.view(f"u{array.itemsize}")


@pytest.mark.parametrize("seed", SEEDS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_numbers_are_those_of_the_api(device, dtype, seed):
    for kind in ("rand", "randn"):
        found = run(draw, dtype, seed, kind, tk.int32, n=N, tile=1024)
        number = int(seed) % 2**64
        tensor = api.rand(N, number, dtype) if kind == "rand" else api.randn(0, 1, N, number, dtype)
        np.testing.assert_array_equal(bits(found), bits(tensor.to_host().sync()))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_are_those_of_the_api(device, dtype):
    found = run(draw, dtype, 7, "randint", tk.uint32, n=N, tile=1024)
    np.testing.assert_array_equal(found, api.randint(3, 77, N, dtype, seed=7).to_host().sync())


@pytest.mark.parametrize("offsets", OFFSETS, ids=str)
def test_the_type_of_the_offsets_changes_nothing(device, offsets):
    for kind, tensor in (("rand", api.rand(N, 5)), ("randn", api.randn(0, 1, N, 5))):
        np.testing.assert_array_equal(run(draw, tk.float32, 5, kind, offsets, n=N, tile=1024), tensor.to_host().sync())


def test_any_offsets_in_any_shape(device):
    @tk.kernel
    def pick(y: tk.Out, places: tk.In, seed):
        y.store(tk.rand(seed, tk.transpose(tk.load(places, (tk.bid(1), tk.bid(0)), (16, 8)))))

    rng = np.random.default_rng(1)
    places = rng.integers(0, N, (40, 20)).astype(np.int32)
    found = run(pick, tk.float32, places, 9, n=(20, 40), tile=(8, 16))
    np.testing.assert_array_equal(found, api.rand(N, 9).to_host().sync()[places.T])


def test_offsets_beyond_32_bits(device):
    @tk.kernel
    def far(y: tk.Out, first):
        y.store(tk.rand(3, tk.arange(64, dtype=tk.int64, start=first)))

    first = 2**33 + 6
    found = run(far, tk.float32, first, n=64, tile=64)
    j = np.arange(first, first + 64, dtype=np.uint64) >> np.uint64(2)

    @tk.kernel
    def words(y: tk.Out, low: tk.In, high: tk.In, word: tk.Const):
        y.store(tk.philox(3, tk.load_tile_like(low, y), tk.load_tile_like(high, y))[word])

    low, high = (j & np.uint64(0xFFFFFFFF)).astype(np.uint32), (j >> np.uint64(32)).astype(np.uint32)
    drawn = np.stack([run(words, tk.uint32, low, high, word, n=64, tile=64) for word in range(4)])
    expected = drawn[(first + np.arange(64)) % 4, np.arange(64)] >> np.uint32(8)
    np.testing.assert_array_equal(found, expected.astype(np.float32) * np.float32(2.0**-24))


@pytest.mark.parametrize(
    ("counter", "seed", "expected"),
    [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, -1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0_A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_philox_gives_the_vectors_of_its_authors(device, counter, seed, expected):
    @tk.kernel
    def words(y: tk.Out, c: tk.In, seed, which: tk.Const):
        c0, c1 = tk.load(c, 0, 1), tk.load(c, 1, 1)
        y.store(tk.philox(seed, c0, c1, tk.load(c, 2, 1), tk.load(c, 3, 1))[which])

    given = np.array(counter, np.uint32)
    assert tuple(int(run(words, tk.uint32, given, seed, word, n=1, tile=1)[0]) for word in range(4)) == expected


def test_words_of_scalars_and_tiles_broadcast(device):
    @tk.kernel
    def words(y: tk.Out, x: tk.In, k):
        t = tk.load(x, 0, 8)
        y.store(tk.philox(1, t[:, None], t[None, :], k, -1)[3])

    x = np.arange(8, dtype=np.uint32)
    found = run(words, tk.uint32, x, 5, n=(8, 8), tile=(8, 8))

    @tk.kernel
    def plainly(y: tk.Out, a: tk.In, b: tk.In):
        y.store(tk.philox(1, tk.load_tile_like(a, y), tk.load_tile_like(b, y), 5, 0xFFFFFFFF)[3])

    a, b = (np.ascontiguousarray(np.broadcast_to(v, (8, 8))) for v in (x[:, None], x[None, :]))
    np.testing.assert_array_equal(found, run(plainly, tk.uint32, a, b, n=(8, 8), tile=(8, 8)))


def test_words_of_a_tile_without_dimensions_have_none(device):
    @tk.kernel
    def words(y: tk.Out, x: tk.In):
        y.store(tk.philox(7, tk.max(tk.load(x, 0, 4)))[1] + tk.zeros(4, tk.uint32))

    @tk.kernel
    def plainly(y: tk.Out, x: tk.In):
        y.store(tk.philox(7, tk.load_tile_like(x, y))[1])

    found = run(words, tk.uint32, np.array([1, 5, 2, 5], np.uint32), n=4, tile=4)
    np.testing.assert_array_equal(found, run(plainly, tk.uint32, np.full(4, 5, np.uint32), n=4, tile=4))

    @tk.kernel
    def stored(y: tk.Out, x: tk.In):
        y.store(tk.philox(7, tk.max(tk.load(x, 0, 4)))[1])

    np.testing.assert_array_equal(found, run(stored, tk.uint32, np.array([1, 5, 2, 5], np.uint32), n=4, tile=4))


def test_a_thread_computes_a_counter_once():
    @tk.kernel
    def rows(y: tk.Out, seed):
        i = tk.bid(0) * 8 + tk.arange(8)
        y.store(tk.rand(seed, i[:, None] * 128 + tk.arange(128)[None, :]))

    kernel = rows(api.meta((64, 128)).partition((8, 128)), 1).compile(target="sm_90a")
    elements = 8 * 128 // kernel.block[0]
    assert kernel.ptx.count("mul.wide.u32") <= elements // 4 * 20
    assert kernel.local_bytes == 0


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("tk.rand(1.5, tk.arange(64))", "rand: a seed is an integer scalar, not "),
        ("tk.rand(1, 5)", "rand: the offsets are an integer tile, such as tk.arange(...), not "),
        ("tk.randn(1, tk.arange(64, dtype=tk.float32))", "randn: the offsets are an integer tile, such as tk.arange(...), not a float32"),
        ("tk.rand(1, tk.arange(64), tk.int32)", "rand: random numbers are float16, bfloat16, float32, float64, not int32; cast them"),
        ("tk.randint(1, tk.arange(64), 5, 5)", "randint: low >= high: there is no integer in [5, 5)"),
        ("tk.randint(1, tk.arange(64), 0, 300, tk.int8)", "randint: high = 300 is out of bounds for int8"),
        ("tk.randint(1, tk.arange(64), 0.5, 3)", "randint: low is an integer scalar, not "),
        ("tk.randint(1, tk.arange(64), 0, 3, tk.float32)", "randint: random integers are of an integer dtype, not float32"),
        ("tk.randint(1, tk.arange(64), 0, 2**32 + 1, tk.int64)", "randint: high - low is at most 2**32, not 4294967297"),
        ("tk.philox(1, 2)[0]", "philox: one word of the counter at least must be a tile"),
        ("tk.philox(1, tk.arange(4), 0.5)[0]", "philox: a word of the counter is an integer tile or an integer scalar, not "),
    ],
)  # fmt: skip
def test_what_is_refused_in_the_same_words(device, code, message):
    from scale import kernel_of

    kernel = kernel_of(f"y.store({code})", 0, 0, "Out", "refused")
    with pytest.raises(tk.CompileError) as caught:
        kernel(api.zeros(64).partition(64)).sync()
    with pytest.raises(tk.CompileError) as compiling:
        kernel(api.meta(64).partition(64)).compile(target="sm_80")
    for error in (caught.value, compiling.value):
        assert message in error.reason
        assert error.lineno == 3
