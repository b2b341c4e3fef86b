"""What is done with the sums of blocks that share a tile: by each of them for some columns, or by the first for all."""

import pytest

import tilekit as tk
from tilekit import api
from tilekit.compiler.layouts.linear import Config, Layout
from tilekit.compiler.layouts.mma import accumulator, warpgroup_accumulator
from tilekit.compiler.nvidia.cluster_sums import _cut, _pieces

ROWS, COLUMNS = 64, 128


@tk.kernel
def product(
    out: tk.InOut, other: tk.Out, a: tk.In, b: tk.In, c: tk.In, row: tk.In, column: tk.In, factor: float, how: tk.Const,
):  # fmt: skip
    for tile in out.tiles():
        i, j = tile.index
        if how == "read before":
            first = tk.sum(out.load(tile))
        acc = tk.zeros((ROWS, COLUMNS), tk.float32)
        for x, y in tk.pipelined(a.tiles((ROWS, 64))[i, :], b.tiles((64, COLUMNS))[:, j]):
            acc = tk.mma(x, y, acc)
        if how == "number":
            acc = tk.maximum(acc * factor, 0.0)
        elif how == "tile":
            acc = acc + tk.load(c, (i, j), (ROWS, COLUMNS)).astype(tk.float32)
        elif how == "row":
            acc = acc + tk.load(row, j, COLUMNS)
        elif how == "row, spread":
            acc = acc * tk.load(row, j, COLUMNS)[None, :]
        elif how == "row, reshaped":
            acc = acc * tk.exp(tk.load(row, (j,), (COLUMNS,))).reshape((1, COLUMNS))
        elif how == "column":
            acc = acc - tk.load(column, i, ROWS)[:, None]
        elif how == "cast twice":
            acc = acc.astype(tk.float16).astype(tk.float32)
        elif how == "both":
            tk.store(other, (i, j), (acc + 1.0).astype(tk.float16))
        elif how == "sum of rows":
            acc = acc - tk.sum(acc, axis=1, keepdims=True)
        elif how == "mask":
            acc = acc + tk.load(c, (i, j), (ROWS, COLUMNS), mask=tk.arange(COLUMNS)[None, :] > i).astype(tk.float32)
        elif how == "columns counted":
            acc = tk.where(tk.arange(COLUMNS)[None, :] > i, acc, 0.0)
        elif how == "transposed":
            tk.store(other, (j, i), acc.transpose().astype(tk.float16))
        elif how == "read before":
            acc = acc + first
        elif how == "read whole":
            acc = acc + tk.sum(out.load(tile))
        elif how == "perhaps the same memory":
            acc = acc + tk.sum(tk.load(c, (i, j), (ROWS, COLUMNS)).astype(tk.float32))
        elif how == "branch":
            if i > 3:
                acc = acc * 2.0
        elif how == "something else stored":
            tk.store(other, (i, 0), tk.zeros((ROWS, 16), tk.float16))
        out.store(acc, tile)


def explained(how, blocks=4):
    def meta(*shape, dtype=tk.float16):
        return api.meta(shape, dtype)

    c = meta(1024, 1024, dtype=tk.float32).partition((ROWS, COLUMNS)).map(num_blocks=blocks * 128, blocks_per_tile=blocks)
    x, more = meta(1024, 1024), meta(1024, dtype=tk.float32)
    return product(c, meta(1024, 1024).scattered(), x, x, x, more, more, 2.0, how).num_warps(4).explain("sm_90a")


@pytest.mark.parametrize("how", ["", "number", "tile", "row", "row, spread", "row, reshaped", "column", "cast twice", "both"])
def test_blocks_have_columns_of_what_goes_by_columns(how):
    said = explained(how)
    assert "tilekit__sum_of_blocks(0, 4, 4, " in said.ir
    assert "tilekit__store_piece(out, " in said.ir
    assert said.compiled.spilled_bytes == 0
    # Each thread has 64 elements of the tile; three pieces of 16 go, and three come.
    assert said.compiled.ptx.count("st.async") == 3 * 16 // 4


@pytest.mark.parametrize(
    "how",
    [
        "sum of rows",
        "mask",
        "columns counted",
        "transposed",
        "branch",
        "something else stored",
        "read before",
        "read whole",
        "perhaps the same memory",
    ],
)
def test_the_first_block_has_what_takes_whole_tiles(how):
    said = explained(how)
    assert "tilekit__sum_of_blocks(0, 4, 1, " in said.ir
    assert "tilekit__store_piece" not in said.ir
    assert "4 blocks share its turns, and the first does what follows for the whole tile" in str(said)
    assert said.compiled.ptx.count("st.async") == 64 // 4


@pytest.mark.parametrize(("blocks", "pieces"), [(2, 2), (3, 2), (6, 4), (8, 8)])
def test_there_are_a_power_of_two_of_pieces(blocks, pieces):
    said = explained("tile", blocks)
    assert f"tilekit__sum_of_blocks(0, {blocks}, {pieces}, " in said.ir
    assert said.compiled.spilled_bytes == 0


@pytest.mark.parametrize(
    "layout",
    [
        warpgroup_accumulator((64, 128), 4),
        warpgroup_accumulator((128, 32), 8),
        warpgroup_accumulator((64, 64), 8),  # whose second half of columns other warps have
        accumulator((32, 32), 2, 2),
        Layout.blocked((64, 32), Config(4, 4)),
    ],
    ids=str,
)
@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_pieces_are_columns(layout, pieces):
    cut, piece = _cut(layout, pieces)
    columns, registers = layout.shape[1] // pieces, list(range(cut.num_registers))
    assert piece.shape == (layout.shape[0], columns)
    for thread in (0, 1, 5, 31, 63):
        for number, mine in enumerate(_pieces(cut, pieces, registers)):
            assert len(mine) == piece.num_registers
            for register, at in zip(mine, piece.coordinates(), strict=True):
                row, column = (a ^ b for a, b in zip(cut.coordinates()[register], cut.thread_coordinate(thread), strict=True))
                wanted = tuple(a ^ b for a, b in zip(at, piece.thread_coordinate(thread), strict=True))
                assert (row, column) == (wanted[0], wanted[1] + number * columns)
