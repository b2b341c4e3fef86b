"""Products of float32 that threads add up by themselves: what their loop is made of, and how tiles come to it."""

import re

import pytest

import tilekit as tk
from tilekit import api

TARGET = "sm_90a"
TILE = 128
COPIED = "cp.async of 4 bytes, transposed"
BM, BN, BK = tk.generics("BM BN BK")


@tk.kernel
def product(c: tk.Out[BM, BN], a: tk.In, b: tk.In, ahead: tk.Const):
    acc = tk.zeros((BM, BN), tk.float32)
    rows, columns = a.tiles((BM, BK))[tk.bid(0), :], b.tiles((BK, BN))[:, tk.bid(1)]
    for ta, tb in tk.pipelined(rows, columns, warp_specialize=ahead):
        acc = tk.mma(ta, tb, acc)
    c.store(acc)


def matrix(rows, columns, turned):
    return api.meta((columns, rows), tk.float32).T if turned else api.meta((rows, columns), tk.float32)


def op_of(layout, ahead, extent=4096):
    a, b = matrix(extent, extent, layout[0] == "T"), matrix(extent, extent, layout[1] == "T")
    c = api.meta((extent, extent), tk.float32).partition((TILE, TILE))
    return product(c, a, b, ahead).generics(BK=16).num_warps(4).occupancy(2)


def loop_of(sass):
    """The instructions of the innermost loop with multiply-adds."""
    lines, labels, loops = [], {}, []
    for line in sass.splitlines():
        label, found = re.match(r"\s*\.?(L_x_\d+):", line), re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?);", line)
        if label:
            labels[label[1]] = len(lines)
        elif found:
            lines.append(found[1].strip())
            target = re.search(r"BRA.*?L_x_(\d+)", found[1])
            if target and f"L_x_{target[1]}" in labels:
                loops.append(lines[labels[f"L_x_{target[1]}"] :])
    return min((loop for loop in loops if any("FFMA" in line for line in loop)), key=len)


@pytest.mark.parametrize("ahead", [None, False])
@pytest.mark.parametrize("layout", ["NN", "TT", pytest.param("NT", marks=pytest.mark.thorough), "TN"])
def test_the_loop_is_multiply_adds(layout, ahead):
    made = op_of(layout, ahead).compile(target=TARGET)
    loop = loop_of(made.sass)
    adds, reads = (sum(what in line for line in loop) for what in ("FFMA", "LDS"))
    assert made.local_bytes == 0
    assert adds / len(loop) > 0.92
    assert 128 * reads == 6 * adds, "of 8 rows and 16 columns"
    assert all("LDS.128" in line for line in loop if "LDS" in line)


@pytest.mark.parametrize(
    ("layout", "ways"),
    [
        ("TN", ("TMA", "TMA")),
        ("NT", (COPIED, COPIED)),
        ("NN", (COPIED, "TMA")),
    ],
)
def test_tiles_lie_across_what_is_summed_over(layout, ways):
    (pipeline,) = op_of(layout, None).explain(TARGET).pipelines
    assert tuple(tile.partition(" by ")[2] for tile in pipeline.tiles) == ways
