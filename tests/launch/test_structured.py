"""Tuples of tensors, nested, and None for optional tensors as arguments: the result keeps them in their places."""

import asyncio

import pytest

import tilekit as tk
from tilekit import api


@tk.kernel
def spread(outs: tk.Out, x: tk.In, more):
    first, (second, _) = outs
    t = tk.load_tile_like(x, first)
    first.store(t * more[0])
    second.store(t + more[1][0])


def ones(by=1.0):
    return api.full(16, by).sync()


def test_a_tuple_of_pairs_and_an_optional_tensor(device):
    @tk.kernel
    def k(y: tk.Out, parts, bias: tk.In = None):
        total = tk.zeros(y.tile_shape)
        for x, by in parts:
            total = total + tk.load_tile_like(x, y) * by
        if bias is not None:
            total = total + tk.load_tile_like(bias, y)
        y.store(total)

    parts = ((ones(), 2.0), (ones(3.0), 0.5))
    y, returned, bias = k(api.zeros(16).partition(8), parts).sync()
    assert y.unpartition().to_host().sync().tolist() == [3.5] * 16
    assert returned[0][0] is parts[0][0] and returned[1] == (parts[1][0], 0.5) and bias is None
    y, _, bias = k(api.zeros(16).partition(8), parts, ones(10.0)).sync()
    assert y.unpartition().to_host().sync().tolist() == [13.5] * 16
    assert bias.to_host().sync().tolist() == [10.0] * 16
    y, none, _ = k(api.zeros(16).partition(8), (), ones(4.0)).sync()
    assert y.unpartition().to_host().sync().tolist() == [4.0] * 16 and none == ()


def test_partitions_in_tuples_are_written_and_ops_are_run(device):
    outs = (api.zeros(16).partition(8), (api.zeros(16).partition(8), None))
    (first, (second, nothing)), x, more = spread(outs, api.ones(16), (2.0, (0.25,))).sync()
    assert first.unpartition().to_host().sync().tolist() == [2.0] * 16
    assert second.unpartition().to_host().sync().tolist() == [1.25] * 16
    assert nothing is None and more == (2.0, (0.25,)) and isinstance(x, tk.Tensor)


def test_it_chains_and_awaits(device):
    async def main():
        outs = (api.zeros(16).partition(8), (api.zeros(16).partition(8), None))
        return await spread(outs, api.ones(16), (2, (1,))).first().then(lambda pair: pair[1][0].unpartition().to_host())

    assert asyncio.run(main()).tolist() == [2.0] * 16


def test_one_kernel_takes_both_forms_time_and_again(device):
    @tk.kernel
    def k(y: tk.InOut, bias: tk.In):
        t = y.load()
        y.store(t if bias is None else t + tk.load_tile_like(bias, y))

    for bias, expected in ((None, 5.0), (ones(), 6.0), (None, 5.0), (ones(2.0), 7.0)):
        y = k(api.full(16, 5.0).partition(8), bias).first().unpartition().to_host().sync()
        assert y.tolist() == [expected] * 16


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_it_compiles_without_a_gpu(target):
    meta = api.meta(16)
    outs = (meta.partition(8), (meta.partition(8), None))
    assert spread(outs, meta, (2.0, (1,))).compile(target=target).registers


def test_what_is_wrong_names_the_part(device):
    meta = api.meta(16)
    part = meta.partition(8)
    with pytest.raises(TypeError, match="argument outs_0: writing needs a partition"):
        spread((meta, (part, None)), meta, (1.0, (1.0,))).compile(target="sm_90a")
    with pytest.raises(TypeError, match="argument more_1: kernels take tensors, partitions, scalars, and tuples of these, not"):
        spread((part, (part, None)), meta, (1.0, [3]))


def test_overlaps_within_tuples_are_found(device):
    x = ones()
    with pytest.raises(ValueError, match="outs_0"):
        spread((x.partition(8), (x.partition(8), None)), ones(), (1.0, (1.0,))).sync()
