"""The same seed on a GPU and on the CPU device: the same bits."""

import numpy as np
import pytest

import tilekit as tk
from tilekit import api

N = 3_000_001


def both(make):
    """The result of an op on the GPU, and of its like on the CPU device."""
    return make().on("cuda").to_host().sync(), make().on("cpu").to_host().sync()


def check_bits(make):
    gpu, cpu = both(make)
    assert gpu.dtype == cpu.dtype
    unsigned = f"u{gpu.dtype.itemsize}"
    np.testing.assert_array_equal(gpu.view(unsigned), cpu.view(unsigned))


@pytest.mark.parametrize("seed", [0, 2**63 + 12345])
@pytest.mark.parametrize("dtype", [tk.float16, tk.bfloat16, tk.float32, tk.float64], ids=str)
def test_rand_is_the_same_to_the_bit(device, dtype, seed):
    check_bits(lambda: api.rand(N, seed, dtype))


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (1.0, 1.0), (-1e3, 0.5)])
@pytest.mark.parametrize("dtype", [tk.float16, tk.bfloat16, tk.float32], ids=str)
def test_randn_is_the_same_to_the_bit(device, dtype, mean, std):
    check_bits(lambda: api.randn(mean, std, N, 7, dtype))


def test_randn_of_float64_is_the_same_to_a_few_units(device):
    gpu, cpu = both(lambda: api.randn(0.0, 1.0, N, 7, tk.float64))
    assert (np.abs(gpu - cpu) / np.spacing(np.abs(cpu))).max() <= 8
    gpu, cpu = both(lambda: api.randn(1.0, 3.0, N, 7, tk.float64))
    assert np.abs(gpu - cpu).max() <= 3 * 8 * np.spacing(8.0)


@pytest.mark.parametrize(
    ("low", "high", "dtype"), [(0, 10, tk.int32), (-7, 120, tk.int8), (-(2**62), 2**62, tk.int64), (0, 2**64, tk.uint64)], ids=str
)
def test_randint_is_the_same(device, low, high, dtype):
    check_bits(lambda: api.randint(low, high, N, dtype, seed=3))


@pytest.mark.parametrize("dtype", [tk.float16, tk.bfloat16, tk.float32, tk.float64], ids=str)
def test_linspace_and_arange_are_the_same_to_the_bit(device, dtype):
    check_bits(lambda: api.linspace(-1.1, 3.7, N, dtype=dtype))
    check_bits(lambda: api.arange(-0.3, 1e5, 0.07, dtype=dtype))


def test_counters_above_32_bits(device):
    """Elements of one byte, two a counter: past element 2**33 the second word of the counter counts. NumPy draws them again."""
    first, count = 1 << 33, 4096
    try:
        tensor = api.randint(0, 256, first + count, tk.uint8, seed=21).sync()
    except tk.OutOfMemoryError:
        pytest.skip("needs 9 GB of GPU memory")
    blocks = np.arange(first // 2, (first + count) // 2, dtype=np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    c = [blocks & low, blocks >> half, np.full_like(blocks, 2), np.zeros_like(blocks)]
    key = [21, 0]
    for _ in range(10):
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(q >> half) ^ c[1] ^ np.uint64(key[0]), q & low, (p >> half) ^ c[3] ^ np.uint64(key[1]), p & low]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    # 256 numbers: the upper 8 bits of the first word of each element.
    expected = np.stack([c[0] >> np.uint64(24), c[2] >> np.uint64(24)], axis=1).reshape(-1).astype(np.uint8)
    np.testing.assert_array_equal(tensor[first:].to_host().sync(), expected)
