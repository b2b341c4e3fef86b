"""Elements that only change places: shapes, loads and stores, constants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scale import Case

import tilekit as tk
from cases.values import LINES, NUMBERS, PLACES, PLANES, bits_of, modest
from tilekit import dtypes
from tilekit.lang.registry import OPS

# op, the shape of x, an expression of its tile t, NumPy's of x.
SHAPES: list[tuple[str, tuple[int, ...], str, Any]] = [
    ("reshape", (8, 32), "t.reshape((32, 8))", lambda x: x.reshape(32, 8)),
    ("reshape", (4, 8, 16), "tk.reshape(t, (64, 8))", lambda x: x.reshape(64, 8)),
    ("reshape", (512,), "tk.reshape(t, (2, 1, 256))", lambda x: x.reshape(2, 1, 256)),
    ("permute", (4, 8, 32), "t.permute((2, 0, 1))", lambda x: x.transpose(2, 0, 1)),
    ("permute", (2, 4, 8, 16), "tk.permute(t, (3, 1, 0, 2))", lambda x: x.transpose(3, 1, 0, 2)),
    ("permute", (16, 64), "tk.permute(t, (1, 0))", lambda x: x.T),
    ("transpose", (32, 64), "tk.transpose(t)", lambda x: x.T),
    ("transpose", (4, 16, 32), "t.transpose(0, 1)", lambda x: x.swapaxes(0, 1)),
    ("expand_dims", (16, 32), "tk.expand_dims(t, 1)", lambda x: x[:, None]),
    ("expand_dims", (64,), "t[None, :]", lambda x: x[None]),
    ("broadcast_to", (1, 64), "tk.broadcast_to(t, (16, 64))", lambda x: np.broadcast_to(x, (16, 64))),
    ("broadcast_to", (32, 1), "t.broadcast_to((32, 16))", lambda x: np.broadcast_to(x, (32, 16))),
    ("cat", (8, 32), "tk.cat((t, t[:, :]), 0)", lambda x: np.concatenate((x, x), 0)),
    ("cat", (16, 16), "tk.cat((t, tk.transpose(t)), 1)", lambda x: np.concatenate((x, x.T), 1)),
    ("cat", (128,), "tk.cat((t, t), -1)", lambda x: np.concatenate((x, x))),
    ("extract", (16, 64), "tk.extract(t, (1, 2), (8, 16))", lambda x: x[8:16, 32:48]),
    ("extract", (256,), "tk.extract(t, 3, 32)", lambda x: x[96:128]),
    ("insert", (16, 32), "tk.insert(t, (1, 0), tk.extract(t, (0, 1), (8, 16)))", lambda x: _inserted(x)),
]


def _inserted(x: Any) -> Any:
    made = x.copy()
    made[8:16, :16] = x[:8, 16:]
    return made


def shapes() -> Iterator[Case]:
    """Each operation on every dtype, with few and with many warps' worth of elements."""
    for op, shape, code, reference in SHAPES:
        result = reference(np.zeros(shape)).shape
        body = f"t = tk.load(a, {(0,) * len(shape)}, {shape})\ny.store({code})"
        for dtype in dtypes.ALL:
            for edge in ("plain", "unaligned"):
                yield Case(
                    op, code, body, result, dtype, result,
                    lambda rng, shape=shape, dtype=dtype: [bits_of(rng, shape, dtype)],
                    lambda x, reference=reference: np.ascontiguousarray(reference(x)), edge=edge,
                )  # fmt: skip


def transposed_grids() -> Iterator[Case]:
    """Ragged transposes of many tiles."""
    body = "y.store(tk.transpose(tk.load(a, (tk.bid(1), tk.bid(0)), (y.tile_shape[1], y.tile_shape[0]))))"
    for dtype in dtypes.ALL:
        for shape, tile in [((100, 37), (32, 16)), ((64, 128), (32, 32)), ((65, 129), (64, 64)), ((128, 96), (64, 32))]:
            yield Case(
                "transpose", "ragged grid", body, shape, dtype, tile,
                lambda rng, shape=shape, dtype=dtype: [bits_of(rng, shape[::-1], dtype)], lambda x: np.ascontiguousarray(x.T),
            )  # fmt: skip


def copies() -> Iterator[Case]:
    """Loads and stores in every dtype, everywhere."""
    own = {
        "load_tile_like": "y.store(tk.load_tile_like(a, y))",
        "load": "y.store(tk.load(a, {index}, y.tile_shape))",
        "store": "tk.store(y, {index}, tk.load_tile_like(a, y))",
    }
    for op, template in own.items():
        for dtype in dtypes.ALL:
            for shape, tile, edge in PLACES if op == "load_tile_like" else [LINES[2], LINES[3], PLANES[1], PLANES[4]]:
                if len(shape) > 3 and op != "load_tile_like":
                    continue
                index = "(" + "".join(f"tk.bid({d}), " for d in range(len(shape))) + ")"
                yield Case(
                    op, "copy", template.format(index=index), shape, dtype, tile,
                    lambda rng, shape=shape, dtype=dtype: [bits_of(rng, shape, dtype)], lambda x: x, edge=edge,
                )  # fmt: skip


def padding() -> Iterator[Case]:
    """What lies beyond the edge is the padding, and nothing else."""
    modes = {"zero": 0.0, "neg_zero": -0.0, "nan": np.nan, "inf": np.inf, "-inf": -np.inf}
    for dtype in [*NUMBERS, tk.bool_]:
        for mode, value in modes.items() if dtypes.is_float(dtype) else [("zero", 0)]:
            for n, edge in [(1, "plain"), (300, "plain"), (513, "unaligned"), (200, "strided"), (512, "plain")]:
                body = f"y.store(tk.load(a, tk.bid(0), 256, padding_mode={mode!r}))"
                whole = (-(-n // 256) * 256,)

                def expected(x: Any, whole: Any = whole, value: Any = value) -> Any:
                    made = np.full(whole, value, x.dtype)
                    made[: x.size] = x
                    return made

                yield Case(
                    "load", f"padding {mode}, {n} elements", body, whole, dtype, (256,),
                    lambda rng, n=n, dtype=dtype: [bits_of(rng, (n,), dtype)], expected, edge=edge,
                )  # fmt: skip


def masks() -> Iterator[Case]:
    """Loads and stores of the elements that a mask picks."""
    for dtype in dtypes.ALL:
        for shape, tile, edge in [LINES[2], LINES[3], LINES[5], PLANES[1]]:
            pick = "tk.load_tile_like(b, y)"
            index = "(" + "".join(f"tk.bid({d}), " for d in range(len(shape))) + ")"
            body = f"y.store(tk.load(a, {index}, y.tile_shape, mask={pick}, padding_value=k))"
            make = lambda rng, shape=shape, dtype=dtype: [bits_of(rng, shape, dtype), bits_of(rng, shape, tk.bool_)]  # noqa: E731
            value = True if dtype == tk.bool_ else 2.0 if dtypes.is_float(dtype) else 2
            yield Case(
                "load", "mask", body, shape, dtype, tile, make,
                lambda x, mask, k: np.where(mask, x, np.asarray(k).astype(x.dtype)), scalars=(value,), edge=edge,
            )  # fmt: skip
            body = f"tk.store(y, {index}, tk.load_tile_like(a, y), mask={pick})"
            poison = np.full(dtype.itemsize, 1 if dtype == tk.bool_ else 0xA5, np.uint8).view(dtype)[0]
            yield Case(
                "store",
                "mask",
                body,
                shape,
                dtype,
                tile,
                make,
                lambda x, mask, poison=poison: np.where(mask, x, poison),
                edge=edge,
            )


def orders() -> Iterator[Case]:
    """Tiles whose dimensions are the tensor's in another order."""
    for dtype in dtypes.ALL:
        for shape, tile in [((33, 40), (32, 16)), ((64, 64), (16, 32))]:
            yield Case(
                "load", "order F", "y.store(tk.load(a, (tk.bid(0), tk.bid(1)), y.tile_shape, order='F'))", shape, dtype, tile,
                lambda rng, shape=shape, dtype=dtype: [bits_of(rng, shape[::-1], dtype)], lambda x: np.ascontiguousarray(x.T),
            )  # fmt: skip


def windows() -> Iterator[Case]:
    """Views whose windows overlap, or leave gaps; parts of tensors."""
    for dtype in dtypes.ALL:
        for step, n in [(32, 64), (64, 64), (100, 64), (16, 64)]:
            body = f"y.store(a.tiled_view(64, traversal_steps={step}).load(tk.bid(0)))"
            yield Case(
                "load", f"windows {step} apart", body, (4 * n,), dtype, (n,),
                lambda rng, dtype=dtype, step=step: [bits_of(rng, (3 * step + 64,), dtype)],
                lambda x, step=step: np.concatenate([x[i * step : i * step + 64] for i in range(4)]),
            )  # fmt: skip
        yield Case(
            "load", "of a slice", "y.store(tk.load(a.slice(0, k, k + 256), tk.bid(0), 64))", (256,), dtype, (64,),
            lambda rng, dtype=dtype: [bits_of(rng, (400,), dtype)], lambda x, k: x[k : k + 256].copy(), scalars=(37,),
        )  # fmt: skip


def constants() -> Iterator[Case]:
    """Tiles made of nothing, and where a block is."""
    for dtype in dtypes.ALL:
        name = "bool_" if dtype == tk.bool_ else dtype.name
        for shape, tile, edge in [LINES[2], LINES[3], PLANES[1], PLANES[3]]:
            for op, code, value in [
                ("zeros", "tk.zeros(y.tile_shape, tk.{0})", 0),
                ("ones", "tk.ones(y.tile_shape, tk.{0})", 1),
                ("full", "tk.full(y.tile_shape, k, tk.{0})", 3),
            ]:
                yield Case(
                    op, code, f"y.store({code.format(name)})", shape, dtype, tile, lambda rng: [],
                    lambda *k, value=value, shape=shape, dtype=dtype: np.full(shape, value).astype(dtype),
                    scalars=(3,) if op == "full" else (), edge=edge,
                )  # fmt: skip
    for dtype in NUMBERS:
        for n in (64, 128, 192, 75, 33):
            body = f"y.store(tk.arange(64, dtype=tk.{dtype.name}, start=k, step=2) + tk.bid(0))"
            yield Case(
                "arange", f"{n}", body, (n,), dtype, (64,), lambda rng: [],
                lambda k, n=n, dtype=dtype: (k + 2 * (np.arange(n) % 64) + np.arange(n) // 64).astype(dtype), scalars=(1,),
            )  # fmt: skip
    if "astile" in OPS:
        for dtype in dtypes.ALL:
            name = "bool_" if dtype == tk.bool_ else dtype.name
            for shape in ((2, 4), (5, 9)):
                yield Case(
                    "astile", "", f"y.store(tk.astile(((1, 2, 3, k), (4, 5, 6, 7)), dtype=tk.{name}))", shape, dtype, (2, 4),
                    lambda rng: [], lambda k, shape=shape, dtype=dtype: _table(k, shape).astype(dtype), scalars=(9,),
                )  # fmt: skip
    for n in (64, 100, 7, 1000):
        blocks = -(-n // 16)
        yield Case(
            "bid", "", "y.store(tk.full(16, tk.bid(0)))", (n,), tk.int32, (16,), lambda rng: [],
            lambda n=n: (np.arange(n) // 16).astype(np.int32),
        )  # fmt: skip
        yield Case(
            "num_blocks", "", "y.store(tk.full(16, tk.num_blocks(0)))", (n,), tk.int32, (16,), lambda rng: [],
            lambda n=n, blocks=blocks: np.full(n, blocks, np.int32),
        )  # fmt: skip
        if "num_tiles" in OPS:
            yield Case(
                "num_tiles", "", "y.store(tk.full(16, tk.num_tiles(a, 0, 8)))", (n,), tk.int32, (16,),
                lambda rng, n=n: [modest(rng, (n,), tk.float32)], lambda x: np.full(x.size, -(-x.size // 8), np.int32),
            )  # fmt: skip


def _table(k: int, shape: tuple[int, ...]) -> Any:
    tile = np.array([[1, 2, 3, k], [4, 5, 6, 7]])
    return np.tile(tile, (-(-shape[0] // 2), -(-shape[1] // 4)))[: shape[0], : shape[1]]


FAMILIES = [shapes, transposed_grids, copies, padding, masks, orders, windows, constants]
