"""Where the tiles of streams begin."""

import pytest
from through_ir import ir_of

import tilekit as tk
from tilekit import api
from tilekit.compiler.ir.nodes import definitions
from tilekit.compiler.passes.begins import begins_of, combined
from tilekit.compiler.passes.dead_code import eliminate_dead_code
from tilekit.compiler.passes.multiples import ANYWHERE, Congruence


def streams_of(make, *more):
    """Where the tiles of each of a kernel's streams begin."""
    x = api.meta((256, 256), tk.float16)
    kernel = ir_of(tk.kernel(make)(api.meta((64, 64)).partition((64, 64)), x, *more), eliminate_dead_code)
    defined = definitions(kernel)
    loops = [operation for operation in kernel.walk() if operation.kind == "stream"]
    return [begins_of(stream, defined) for loop in loops for stream in loop.operands[: len(loop.operands) - len(loop.results)]]


def rows_and_columns(y: tk.Out, x: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for t, u in tk.pipelined(x.tiles((64, 64))[tk.bid(0), :], x.tiles((64, 64))[:, 2]):
        acc = acc + t.astype(tk.float32) + u.astype(tk.float32)
    for t in tk.pipelined(x.tiles((64, 64))):
        acc = acc + t.astype(tk.float32)
    y.store(acc)


def slices(y: tk.Out, x: tk.In, n: int):
    acc, begin = tk.zeros((64, 64), tk.float32), 96 * tk.bid(0)
    behind = begin + 64 if begin + 64 < x.shape[0] else 0
    known, unknown = x.slice(0, behind).slice(1, 8), x.slice(0, n)
    for t, u in tk.pipelined(known.tiles((64, 64))[0, :], unknown.tiles((64, 64))[tk.bid(0), :]):
        acc = acc + t.astype(tk.float32) + u.astype(tk.float32)
    y.store(acc)


def test_tiles_begin_at_their_multiples():
    first, second, whole = streams_of(rows_and_columns, 3)
    assert first == (Congruence(64, 0), ANYWHERE), "a loop goes along its columns"
    assert second == (ANYWHERE, Congruence(0, 128)), "one tile"
    assert set(whole) == {ANYWHERE}


def test_tiles_of_slices_begin_behind_these():
    known, unknown = streams_of(slices, 3)
    assert known == (Congruence(96, 64), ANYWHERE), "the other way is for a block that has none"
    assert unknown == (ANYWHERE, ANYWHERE), "a multiple of 64, behind anything"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [((96, 0), (96, 0), (96, 0)), ((96, 64), (96, 0), (32, 0)), ((0, 64), (128, 0), (64, 0)), ((0, 5), (0, 5), (0, 5)),
     ((96, 1), (64, 2), (1, 0))],
)  # fmt: skip
def test_what_loops_of_the_same_stages_have_in_common(first, second, expected):
    (common,) = combined([(Congruence(*first),), (Congruence(*second),)])
    assert common == expected
