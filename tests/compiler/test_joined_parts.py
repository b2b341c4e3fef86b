"""Parts of a tensor that differ in what is known of them: where they meet, what is known of each holds."""

import re

import numpy as np
import pytest

import tilekit as tk
from tilekit import api


@tk.kernel
def counted_down(y: tk.Out, x: tk.In, n):
    """The start is a constant in the first turn; then it is not."""
    total, at = tk.zeros(16, tk.int32), 4 + 0
    while at > 0:
        total = total + tk.load(x.slice(0, at), 0, (16,))
        at = at - 1
    y.store(total)


@tk.kernel
def viewed(y: tk.Out, x: tk.In, n):
    total, at = tk.zeros(16, tk.int32), 4 + 0
    while at > 0:
        total = total + x.slice(0, at).tiles((16,))[0] + x.slice(0, at).tiled_view((16,)).load(0)
        for t in x.slice(0, at).slice(0, 8, 24).tiles((16,)):
            total = total + t
        for t in tk.pipelined(x.slice(0, at).tiles((16,))[:]):
            total = total + t
        at = at - 1
    y.store(total)


@tk.kernel
def carried(y: tk.Out, x: tk.In, n):
    total, part = tk.zeros(16, tk.int32), x.slice(0, 8)
    for at in range(1, n):
        total = total + tk.load(part, 0, (16,))
        part = x.slice(0, at)
    y.store(total)


@tk.kernel
def chosen(y: tk.Out, x: tk.In, n):
    if n > 2:
        part, tiles, view = x.slice(0, n), x.slice(0, n).tiles((16,)), x.slice(0, 4).tiled_view((16,))
    else:
        part, tiles, view = x.slice(0, 8), x.slice(0, 8).tiles((16,)), x.slice(0, n).tiled_view((16,))
    y.store(tk.load(part, 0, (16,)) + tiles[0] + view.load(0))


KERNELS = [counted_down, viewed, carried, chosen]


def padded(x, start, stop=48):
    return np.concatenate([x[start:stop], np.zeros(16, x.dtype)])


def expected(kernel, x, n):
    first = [padded(x, at)[:16] for at in range(49)]
    if kernel is counted_down:
        return sum(first[at] for at in range(1, 5))
    if kernel is viewed:
        whole = [sum(padded(x, at)[i : i + 16] for i in range(0, 48 - at, 16)) for at in range(1, 5)]
        return sum(2 * first[at] + first[at + 8] + rows for at, rows in zip(range(1, 5), whole, strict=True))
    if kernel is carried:
        return sum(first[at] for at in [8, *range(1, n - 1)])
    return 2 * first[n if n > 2 else 8] + first[4 if n > 2 else n]


@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_the_results(kernel, n, device):
    x = np.arange(1, 49, dtype=np.int32) ** 2
    with tk.use_device(device):
        y = kernel(api.zeros(16, tk.int32).partition(16), api.from_host(x), n).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(y, expected(kernel, x, n))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_nothing_more_is_known_than_of_each(kernel):
    """Such parts may begin anywhere: no load is of more than one element."""
    ptx = kernel(api.meta(16, tk.int32).partition(16), api.meta(48, tk.int32), 3).compile(target="sm_90a").ptx
    assert "ld.global" in ptx
    assert not re.search(r"ld\.global\.v\d|cp\.async", ptx)


def test_parts_of_tensors_of_two_dtypes_are_two_things():
    @tk.kernel
    def either(y: tk.Out, x: tk.In, z: tk.In, n):
        part = x.slice(0, 8)
        if n > 2:
            part = z.slice(0, 8)
        y.store(tk.load(part, 0, (16,)))

    x, z = api.meta(48, tk.int32), api.meta(48, tk.float32)
    with pytest.raises(tk.CompileError, match="part"):
        either(api.meta(16, tk.int32).partition(16), x, z, 3).compile(target="sm_90a")
    assert not either(api.meta(16, tk.int32).partition(16), x, x, 3).compile(target="sm_90a").local_bytes
