"""The kernels of the benchmark of launches in cuTile Python, which reads the source of this file. Imported when it takes part."""

# mypy: ignore-errors
# ruff: noqa: I002 - cuTile looks at the annotations themselves, not at their text.
# Kernels are read by cuTile's rules, not by Python's typing.

import cuda.tile as ct


@ct.kernel
def nothing():
    pass


@ct.kernel
def of_1(y, tile: ct.Constant[int]):
    ct.store(y, index=(ct.bid(0),), tile=ct.full((tile,), 1, ct.int32))


@ct.kernel
def of_3(y, a, b, tile: ct.Constant[int]):
    at = (ct.bid(0),)
    total = ct.load(a, index=at, shape=(tile,))
    total = total + ct.load(b, index=at, shape=(tile,))
    ct.store(y, index=at, tile=total)


@ct.kernel
def of_8(y, a, b, c, d, e, f, g, tile: ct.Constant[int]):
    at = (ct.bid(0),)
    total = ct.load(a, index=at, shape=(tile,))
    total = total + ct.load(b, index=at, shape=(tile,))
    total = total + ct.load(c, index=at, shape=(tile,))
    total = total + ct.load(d, index=at, shape=(tile,))
    total = total + ct.load(e, index=at, shape=(tile,))
    total = total + ct.load(f, index=at, shape=(tile,))
    total = total + ct.load(g, index=at, shape=(tile,))
    ct.store(y, index=at, tile=total)


@ct.kernel
def of_16(y, a, b, c, d, e, f, g, h, i, j, k, p, m, n, o, tile: ct.Constant[int]):
    at = (ct.bid(0),)
    total = ct.load(a, index=at, shape=(tile,))
    total = total + ct.load(b, index=at, shape=(tile,))
    total = total + ct.load(c, index=at, shape=(tile,))
    total = total + ct.load(d, index=at, shape=(tile,))
    total = total + ct.load(e, index=at, shape=(tile,))
    total = total + ct.load(f, index=at, shape=(tile,))
    total = total + ct.load(g, index=at, shape=(tile,))
    total = total + ct.load(h, index=at, shape=(tile,))
    total = total + ct.load(i, index=at, shape=(tile,))
    total = total + ct.load(j, index=at, shape=(tile,))
    total = total + ct.load(k, index=at, shape=(tile,))
    total = total + ct.load(p, index=at, shape=(tile,))
    total = total + ct.load(m, index=at, shape=(tile,))
    total = total + ct.load(n, index=at, shape=(tile,))
    total = total + ct.load(o, index=at, shape=(tile,))
    ct.store(y, index=at, tile=total)


LAUNCHES = {0: nothing, 1: of_1, 3: of_3, 8: of_8, 16: of_16}
