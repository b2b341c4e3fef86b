"""The program of the design's first section, word for word."""

import asyncio

import numpy as np

import tilekit as tk
from tilekit import api

BM, BN, BK = tk.generics("BM BN BK")       # tile-shape generics: names in the kernel, integers once specialised

@tk.kernel
def saxpy(y: tk.InOut, a, x: tk.In):
    y.store(a * tk.load_tile_like(x, y) + y.load())

@tk.kernel
def gemm(c: tk.Out[BM, BN], a: tk.In[-1, -1], b: tk.In[-1, -1]):
    i, j = tk.bid(0), tk.bid(1)
    acc = tk.zeros((BM, BN), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[i, :], b.tiles((BK, BN))[:, j]):
        acc = tk.mma(ta, tb, acc)
    c.store(acc.astype(c.dtype))

x = api.from_host(np.arange(4096, dtype=np.float32)).sync()     # api calls are DeviceOps: nothing happens before sync, await...
y = api.zeros(4096).sync()
saxpy(y.partition(1024), 2.0, x).sync()                         # y holds it; the grid follows from the partition
host = saxpy(api.ones(4096).partition(1024), 2.0, x).first().unpartition().to_host().sync()

with tk.default_device().stream() as stream:
    saxpy(y.partition(1024), 0.5, x).grid((4, 1, 1)).sync_on(stream)

async def main():
    a, b = await tk.zip(api.randn(0.0, 1.0, (256, 256)), api.randn(0.0, 1.0, (256, 256)))
    c, *_ = await gemm(api.zeros((256, 256)).partition((64, 64)), a, b).generics(BK=32)
    r1, r2 = await asyncio.gather(api.dup(a).to_host(), api.dup(b).to_host())      # overlap on the stream pool

asyncio.run(main())
