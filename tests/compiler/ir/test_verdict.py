"""The verdict on a kernel: by what is known when it is compiled, and once for all that compile it."""

from __future__ import annotations

import pytest
from lines import both_refuse, kernel_of

import tilekit as tk
from tilekit import api
from tilekit.compiler.ir import verdict as room
from tilekit.compiler.ir.verdict import verdict


def accepted(op):
    op.consumed()
    chosen = op._plan("a test").specialisation
    return verdict(chosen.bound, chosen.facts)


@pytest.mark.parametrize(
    "line",
    [
        "v = tk.randint(1, tk.arange(16), 0, n)",
        "v = tk.randint(n, tk.arange(16), n, n + 5)",
        "v = tk.arange(16, start=n, step=n)",
        "v = tk.extract(t, n - 1, 4)",
        "v = tk.load(x, n, 16, padding_value=n)",
        "v = tk.cdiv(tk.arange(4), n) + tk.arange(4) // n",
        "v = math.log(n) + math.sqrt(n - 1) + 1 / n",
        "v = x.slice(0, n, n + 4)",
        "v = n ** -1 + (1 << n)",
        "for i in range(0, n, n): t = t + i",
    ],
)
def test_numbers_that_the_kernel_computes_are_no_reason(line):
    """They may be any: only those that are known when it is compiled are looked at."""
    kernel = kernel_of("n = tk.bid(0)", line, "y.store(t)")
    found = accepted(kernel(api.meta(64).partition(16), api.meta(64))).kernel
    assert "?" not in {str(value.type) for operation in found.walk() for value in operation.results}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("v = tk.randint(1, tk.arange(16), 5, 5)", "randint: low >= high"),
        ("v = tk.extract(t, 4, 4)", "extract: index (4,) of parts of which there are (4,)"),
        ("v = tk.sum(t, tk.bid(0))", "sum: axis must be known when the kernel is compiled; it is a scalar (int)"),
        (
            "v = tk.load(x, 0, 16, padding_mode=t)",
            "load: padding_mode must be known when the kernel is compiled; it is a float32",
        ),
        ("v = (1, t)[tk.bid(0)]", "index: of a tuple of different things"),
        ("v = (x if tk.bid(0) > 1 else t)", "the value is the tensor x and a float32 tile of shape (16,)"),
    ],
)
def test_what_is_known_is_looked_at(line, reason):
    for error in both_refuse(kernel_of(line, "y.store(t)")):
        assert error.reason.startswith(reason)
        assert error.lineno == 4


def test_what_is_numbas_own_is_left_to_numba():
    from numba import cuda

    kernel = kernel_of("i = cuda.threadIdx.x", "if i > 3:", "    t = t + i", "y.store(t)", cuda=cuda)
    op = kernel(api.meta(64).partition(16), api.meta(64))
    assert accepted(op).kernel is not None
    assert op.compile(target="sm_80").registers


@tk.kernel
def product(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((64, 64), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((64, 64))[tk.bid(0), :], b.tiles((64, 64))[:, tk.bid(1)]):
        acc = tk.mma(ta, tb, acc)
    tk.static_print("acc is a", acc)
    c.store(acc)


def test_the_ir_is_built_once(monkeypatch, capfd):
    """Passes get copies of it, whatever is tried; what `static_print` says is said once."""
    built, build = [], room.build
    monkeypatch.setattr(room, "build", lambda *of: built.append(of) or build(*of))
    a = api.meta((256, 256), tk.float16)
    product(api.meta((256, 256)).partition((64, 64)), a, a).compile(target="sm_90a")
    assert len(built) == 1
    assert capfd.readouterr().out == "acc is a float32 tile of shape (64, 64)\n"


def test_a_copy_is_of_its_own():
    a = api.meta((256, 256), tk.float16)
    kept = accepted(product(api.meta((256, 256)).partition((64, 64)), a, a))
    values = [{v for o in ir.walk() for v in (*o.results, *o.reads())} for ir in (kept.ir(), kept.ir())]
    assert values[0] and not values[0] & values[1]
