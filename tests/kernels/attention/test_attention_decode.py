"""Attention of the last queries of each sequence, against NumPy in float64: lengths, pages, parts."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilekit as tk
from tilekit import api, kernels
from tilekit.kernels._attention import decode

f = api.from_host


def operands(q_shape, k_shape, dtype=np.float32):
    random = np.random.default_rng(7)
    return [random.standard_normal(s).astype(dtype) for s in (q_shape, k_shape, k_shape)]


def right(q, k, v, lengths=None):
    """Sequence by sequence, the keys that there are."""
    made = np.zeros(q.shape)
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group, queries = q.shape[1] // k.shape[1], q.shape[2]
    for b, h in np.ndindex(q.shape[:2]):
        n = k.shape[2] if lengths is None else lengths[b]
        for t in range(queries):
            seen = n - queries + t + 1
            if seen > 0:
                scores = k[b, h // group, :seen] @ q[b, h, t] * q.shape[3] ** -0.5
                e = np.exp(scores - scores.max())
                made[b, h, t] = e / e.sum() @ v[b, h // group, :seen]
    return made


def check(found, wanted):
    tolerance = {"float16": 2e-3, "bfloat16": 1.2e-2, "float32": 4e-6}[np.dtype(found.dtype).name]
    assert np.abs(found.astype(np.float64) - wanted).max() <= tolerance * np.abs(wanted).max()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("size", [64, 128, 40, 80, 96])
@pytest.mark.parametrize("heads", [(8, 2), (3, 3), (4, 1)])
def test_one_query(device, heads, size, dtype):
    q, k, v = operands((2, heads[0], 1, size), (2, heads[1], 700, size), dtype)
    check(kernels.attention_decode(f(q), f(k), f(v)).to_host().sync(), right(q, k, v))


@pytest.mark.parametrize("splits", [None, 1, 2, 5, 100])
def test_parts_and_lengths(device, splits):
    q, k, v = operands((5, 4, 3, 64), (5, 2, 1000, 64))
    lengths = np.array([1000, 1, 3, 513, 0], np.int32)
    found = kernels.attention_decode(f(q), f(k), f(v), f(lengths), splits=splits).to_host().sync()
    check(found, right(q, k, v, lengths))
    assert (found[4] == 0).all()


@pytest.mark.parametrize("page", [16, 64, 512])
def test_pages(device, page):
    """In any order, with some that belong to nobody."""
    q, k, v = operands((3, 4, 2, 64), (3, 2, 1024, 64), np.float16)
    lengths, each = np.array([1000, 17, 512], np.int64), 1024 // page
    random = np.random.default_rng(1)
    table = random.permutation(3 * each + 5)[: 3 * each].reshape(3, each)
    stores = []
    for x in (k, v):
        store = random.standard_normal((3 * each + 5, page, 2, 64)).astype(x.dtype)  # as such caches usually lie
        store[table] = x.reshape(3, 2, each, page, 64).transpose(0, 2, 3, 1, 4)
        stores.append(f(store).sync().permute(0, 2, 1, 3))
    table = table.astype(np.int32)
    table[1, -(-17 // page) :] = 10**6  # behind the length
    found = kernels.attention_decode(f(q), *stores, f(lengths), block_table=f(table)).to_host().sync()
    check(found, right(q, k, v, lengths))


def test_the_same_as_attention(device):
    q, k, v = operands((2, 4, 4, 64), (2, 2, 300, 64))
    found = kernels.attention_decode(f(q), f(k), f(v)).to_host().sync()
    assert np.abs(found - kernels.attention(f(q), f(k), f(v), causal=True).to_host().sync()).max() < 1e-5


def test_strides_and_out(device):
    q, k, v = operands((2, 4, 2, 64), (2, 2, 100, 64))
    turned = f(np.ascontiguousarray(q.swapaxes(1, 2))).sync().permute(0, 2, 1, 3)
    out = api.zeros(q.shape).sync()
    assert kernels.attention_decode(turned, f(k), f(v), out=out).sync() is out
    check(out.to_host().sync(), right(q, k, v))


@pytest.mark.parametrize("splits", [1, 3])
def test_in_place_of_the_queries(device, splits):
    """Each block has loaded what it writes over."""
    q, k, v = operands((2, 4, 2, 64), (2, 2, 1000, 64), np.float16)
    found = f(q).sync()
    assert kernels.attention_decode(found, f(k), f(v), splits=splits, out=found).sync() is found
    check(found.to_host().sync(), right(q, k, v))


@pytest.mark.parametrize(("blocks", "parts"), [(64, 4), (8, 29), (1, 64), (132, 2), (200, 1), (264, 1), (5000, 1)])
def test_parts_keep_two_blocks_of_each_multiprocessor_busy(blocks, parts):
    """The fewest that leave nearly as few of the 264 idle, at the end, as any number does, unless all are done sooner otherwise:
    of 200 sequences each has as much of the bandwidth as it can use."""
    schedule = decode._schedule(blocks, 4, 128, 2, 32768, 32768, 132, 3, False, None)
    assert (schedule.parts, schedule.occupancy) == (parts, 2)


def test_sequences_of_different_lengths_have_some_parts():
    """While the longest goes on, the others' places are not to stay empty."""
    for blocks, keys, parts in ((264, 32768, 4), (5000, 32768, 4), (64, 32768, 4), (264, 100, 1)):
        assert decode._schedule(blocks, 4, 128, 2, keys, keys, 132, 3, False, None, True).parts == parts


def test_short_sequences_have_four_blocks_on_a_multiprocessor():
    for blocks, size, keys in ((320, 64, 91), (1024, 128, 300), (432, 80, 1024), (1000, 64, 700)):
        schedule = decode._schedule(blocks, 4, size, 2, keys, keys, 132, 3, False, None)
        assert (schedule.occupancy, schedule.stages, schedule.parts) == (4, 1, 1), (blocks, size, keys)
    for blocks, size, keys in ((144, 128, 2448), (64, 128, 32768), (8, 128, 20000)):
        assert decode._schedule(blocks, 4, size, 2, keys, keys, 132, 3, False, None).occupancy == 2, (blocks, size, keys)


def test_large_heads_of_short_sequences_share_a_multiprocessor():
    for blocks, keys, wanted in ((198, 64, (4, 2, 3)), (1694, 76, (4, 4, 1)), (50, 146, (8, 1, 3))):
        schedule = decode._schedule(blocks, 8, 256, 2, keys, keys, 132, 3, False, None)
        assert (schedule.num_warps, schedule.occupancy, schedule.stages) == wanted, (blocks, keys)


@pytest.mark.parametrize("size", [128, 256])
def test_four_blocks_on_a_multiprocessor_spill_nothing(size):
    q, k = api.meta((100, 14, 1, size), tk.bfloat16), api.meta((100, 14, 91, size), tk.bfloat16)
    op = kernels.attention_decode(q, k, k)
    op.consumed()
    (launch,) = [part for part in op.parts() if isinstance(part, tk.KernelLaunch)]
    told = launch.explain("sm_90a")
    assert (told.compiled.local_bytes, told.blocks_per_multiprocessor) == (0, 4)
    assert all(pipeline.stages for pipeline in told.pipelines)


def test_splits_are_some_at_most():
    assert decode._schedule(64, 4, 128, 2, 1 << 20, 1 << 20, 132, 3, False, 500).parts == 64


def test_small_pages_have_few_warps():
    schedules = [decode._schedule(64, 4, 128, 2, 32768, page, 132, 3, False, None) for page in (16, 32)]
    assert [(schedule.columns, schedule.num_warps) for schedule in schedules] == [(16, 2), (32, 4)]


def test_short_sequences_have_few_parts():
    schedule = decode._schedule(1, 4, 128, 2, 500, 500, 132, 3, False, None)
    assert (schedule.parts, schedule.columns) == (4, 64), "of two tiles"


def x(*shape, dtype=tk.float16):
    return api.meta(shape, dtype)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda q, k: kernels.attention_decode(x(2, 8, 40, 64), k, k), ValueError, "40 queries of 4 heads .* take attention"),
        (lambda q, k: kernels.attention_decode(q, k, k, x(3, dtype=tk.int32)), ValueError, r"lengths has shape \(3,\); .*2"),
        (lambda q, k: kernels.attention_decode(q, k, k, x(2)), TypeError, "lengths holds float16; it takes int32"),
        (lambda q, k: kernels.attention_decode(q, k, k, splits=0), ValueError, "splits is an int from 1 on, not 0"),
        (
            lambda q, k: kernels.attention_decode(q, x(9, 2, 24, 64), x(9, 2, 24, 64), block_table=x(2, 4, dtype=tk.int32)),
            ValueError, "pages have 24 keys; it takes powers of two",
        ),
        (
            lambda q, k: kernels.attention_decode(q, k, k, block_table=x(3, 4, dtype=tk.int32)),
            ValueError, r"block_table has shape \(3, 4\); for 2 sequences",
        ),
        (lambda q, k: kernels.attention_decode(q, x(9, 2, 64, 64), x(9, 2, 64, 64)), ValueError, "batch and head size must be"),
    ],
)  # fmt: skip
def test_errors(make, error, message):
    with pytest.raises(error, match=message):
        make(x(2, 8, 1, 64), x(2, 2, 64, 64))
