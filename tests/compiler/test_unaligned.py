"""Tensors whose rows begin anywhere: neighbouring lanes read and write neighbouring elements."""

import hazards
import numpy as np
import pytest

import tilekit as tk
from tilekit import api, kernels


@tk.kernel
def scaled(y: tk.Out, x: tk.In, w: tk.In):
    y.store(
        (tk.load_tile_like(x, y).astype(tk.float32) * tk.load(w, tk.bid(1), y.tile_shape[1]).astype(tk.float32)).astype(y.dtype)
    )


@tk.kernel
def doubled(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y) + tk.load_tile_like(x, y))


def accesses(op, *names):
    return [access for access in op.explain("sm_90a").accesses if access.parameter in names]


@pytest.mark.parametrize("dtype", [tk.int8, tk.bfloat16, tk.float32, tk.float64], ids=str)
@pytest.mark.parametrize("width", [10_007, 1_002, 514])
def test_rows_of_any_width(dtype, width):
    y, x, w = api.meta((64, width), dtype), api.meta((64, width), dtype), api.meta(width, dtype)
    found = accesses(scaled(y.partition((2, 512)), x, w), "x", "y")
    assert sorted(access.kind for access in found) == ["load", "store"]
    for access in found:
        assert access.coalesced == 1
        assert access.bits == 8 * np.dtype(dtype).itemsize * min(width & -width, 16 // np.dtype(dtype).itemsize)


@pytest.mark.parametrize("offset", [1, 2, 4])
def test_vectors_from_any_element_on(offset):
    y, x = (api.meta(1 << 16, tk.float32)[offset : offset + 4096] for _ in range(2))
    assert [(a.coalesced, a.bits) for a in accesses(doubled(y.partition(1024), x), "x", "y")] == [(1, 32 * offset)] * 3


def test_a_vector_beside_matrices_leaves_these_wide():
    y, x, w = api.meta((64, 512), tk.bfloat16), api.meta((64, 512), tk.bfloat16), api.meta(1024, tk.bfloat16)[1:513]
    assert {access.bits for access in accesses(scaled(y.partition((2, 512)), x, w), "x", "y")} == {128}


@tk.kernel
def chosen(y: tk.Out, x: tk.In, which: tk.In):
    y.store(tk.load_tile_like(x, y) + tk.load(which, (tk.bid(0), 0), (2, 1)).astype(y.dtype))


def test_a_small_matrix_beside_large_ones_leaves_these_wide():
    y, x, which = api.meta((64, 512), tk.bfloat16), api.meta((64, 512), tk.bfloat16), api.meta((64, 7), tk.int32)
    assert {access.bits for access in accesses(chosen(y.partition((2, 512)), x, which), "x", "y")} == {128}


def test_wide_elements_beside_narrow_ones_limit_nothing():
    """Of four float32 in 16 bytes nothing follows for eight bfloat16."""
    y, x = api.meta((64, 512), tk.float32), api.meta((64, 512), tk.bfloat16)
    (load,) = (a for a in accesses(scaled(y.partition((2, 512)), x, api.meta(512)), "x") if a.kind == "load")
    assert load.bits == 128


@pytest.mark.parametrize("dtype", [tk.bfloat16, tk.float32], ids=str)
@pytest.mark.parametrize("shape", [(4096, 1001), (4096, 10_007), (600, 100_003), (16, 1_000_003)])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "rms_norm", "layer_norm", "l2_norm", "softmax_backward", "cumsum"])
def test_ready_made_kernels_on_rows(name, shape, dtype):
    x, w = api.meta(shape, dtype), api.meta(shape[1], dtype)
    more = {"rms_norm": (w,), "layer_norm": (w, w), "softmax_backward": (x,)}.get(name, ())
    op = getattr(kernels, name)(x, *more)
    op.consumed()
    for launch in op.parts():
        found = [a for a in accesses(launch, "x", "y", "dx", "dy") if a.tile_shape[1] > 32]
        assert all(access.coalesced == 1 for access in found), [(a.parameter, a.bits, a.coalesced) for a in found]


@tk.kernel
def product(y: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros(y.tile_shape, tk.float32)
    for k in range(tk.cdiv(a.shape[1], 32)):
        acc = acc + tk.load(a, (tk.bid(0), k), (y.tile_shape[0], 32)) @ tk.load(b, (k, tk.bid(1)), (32, y.tile_shape[1]))
    y.store(acc.astype(y.dtype))


@tk.kernel
def widened(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_what_lanes_hold_otherwise_is_stored_by_neighbouring_lanes(target):
    """Beside tensors with wide rows; the elements change places within warps, through no shared memory."""
    for dtype, width in ((tk.float16, 771), (tk.bfloat16, 770), (tk.int8, 771)):
        y = api.meta((512, width), dtype)
        launches = [widened(y.partition((16, 256)), api.meta((512, 1024), dtype)[:, :width])]
        if dtype != tk.int8:
            launches.append(product(y.partition((128, 64)), api.meta((512, 512), dtype), api.meta((512, width + 29), dtype)))
        for launch in launches:
            explained = launch.explain(target)
            (store,) = (access for access in explained.accesses if access.kind == "store")
            assert store.bits == 8 * dtype.itemsize * (width & -width)
            assert store.coalesced >= 0.5
            assert [c.way for c in explained.conversions if c.line == store.line] in ([], ["registers"])


@pytest.mark.parametrize("width", [37, 514, 1_002])
def test_they_are_right(device, width):
    rng = np.random.default_rng(width)
    data, weight = rng.standard_normal((6, width)).astype(np.float32), rng.standard_normal(width).astype(np.float32)
    y, x, w = api.zeros((6, width)).sync(), api.from_host(data).sync(), api.from_host(weight).sync()
    result = scaled(y.partition((2, 512)), x, w).out().sync().numpy()
    np.testing.assert_array_equal(result, data * weight)


@pytest.mark.parametrize(("dtype", "coalesced"), [(tk.bfloat16, 0.5), (tk.float32, 1.0), (tk.int8, 0.25)], ids=str)
@pytest.mark.parametrize("read", [False, True])
def test_rows_that_begin_anywhere_beside_aligned_ones(dtype, coalesced, read):
    """Lanes have four bytes: what is read element by element comes from one line, the rest still in whole lines."""
    odd, even = api.meta((64, 1001), dtype), api.meta((64, 1024), dtype)[:, :1001]
    y, x = (even, odd) if read else (odd, even)
    found = {(a.parameter, a.coalesced, a.bits) for a in accesses(doubled(y.partition((2, 1024)), x), "x", "y")}
    one_by_one, whole = (coalesced, 8 * np.dtype(dtype).itemsize), (1, 32)
    assert found == {("x", *(one_by_one if read else whole)), ("y", *(whole if read else one_by_one))}


@pytest.mark.parametrize(("dtype", "width"), [(tk.bfloat16, 10_007), (tk.float32, 10_007), (tk.bool_, 514), (tk.int8, 1_003)])
def test_a_warp_stores_whole_lines_of_rows_that_begin_anywhere(dtype, width):
    """What a mask leaves, it stores as the mask says: by elements."""
    y, x = api.meta((64, width), dtype), api.meta((64, width), dtype)
    op = copied(y.partition((8, 512)), x).num_warps(1)
    (stored,) = [access for access in accesses(op, "y") if access.kind == "store"]
    assert (stored.bits, stored.count, stored.masked, stored.branches) == (32, 32 * dtype.itemsize, True, True)
    compiled = op.compile("sm_90a")
    assert "SHFL.IDX" in compiled.sass and compiled.local_bytes == 0
    hazards.check(compiled)
    assert "SHFL.IDX" not in copied_where(y.partition((8, 512)), x).num_warps(1).compile("sm_90a").sass


@tk.kernel
def copied(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y))


@tk.kernel
def copied_where(y: tk.Out, x: tk.In):
    t = tk.load_tile_like(x, y)
    tk.store(y, (tk.bid(0), tk.bid(1)), t, mask=t != t)
