"""The IR as users see it: `op.explain().ir`, and `TILEKIT_DUMP`."""

from __future__ import annotations

import pytest

import tilekit as tk
from tilekit import api
from tilekit.compiler import optimize
from tilekit.compiler.ir import verdict
from tilekit.compiler.ir.build import Unsupported
from tilekit.compiler.ir.nodes import Location
from tilekit.compiler.optimize import PASSES


@tk.kernel
def product(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(tk.cdiv(a.shape[1], 64)):
        acc = tk.mma(tk.load(a, (0, k), (64, 64)), tk.load(b, (k, 0), (64, 64)), acc)
    c.store(acc)


def launch():
    a = api.meta((64, 256), tk.float16)
    return product(api.meta((64, 64)).partition((64, 64)), a, api.meta((256, 64), tk.float16))


def test_explain_shows_what_the_passes_made():
    text = launch().explain("sm_90a").ir
    assert text.startswith("kernel product(c: out float32 tensor of rank 2 in tiles of [64, 64], a: in float16 tensor of rank 2")
    assert "float32[64, 64] = stream " in text
    assert "# product:18" in text


def test_what_has_no_ir_says_why(monkeypatch):
    def build(bound, facts, num_warps):
        raise Unsupported("Starred", Location(bound.source, 15))

    monkeypatch.setattr(verdict, "build", build)
    explained = launch().explain("sm_90a")
    assert explained.ir == "# no IR: Starred, in product:15"
    assert not explained.pipelines


@pytest.mark.parametrize(("wanted", "steps"), [("", 0), ("ir", 1), ("passes", 1 + len(PASSES)), ("ir,passes", 2 + len(PASSES))])
def test_the_dump(monkeypatch, capfd, wanted, steps):
    monkeypatch.setenv("TILEKIT_DUMP", wanted)
    launch().explain("sm_90a")
    printed = capfd.readouterr().err
    assert printed.count("kernel product(") == steps
    assert ("# built\n" in printed) == ("ir" in wanted)


def test_a_pass_that_fails_leaves_the_kernel_as_it_is_written(monkeypatch, caplog):
    def broken(kernel):
        raise KeyError("a mistake")

    monkeypatch.setattr(optimize, "PASSES", (broken,))
    explained = launch().explain("sm_90a")
    assert explained.ir == "# no IR: pass broken failed: KeyError: 'a mistake'"
    assert not explained.pipelines
    assert "HMMA" in explained.compiled.sass
    assert "kernel product: a pass over its IR failed" in caplog.text
    assert "PassError: pass broken failed" in caplog.text


def raises(kernel):
    raise KeyError("a mistake")


def forgets(kernel):
    """Take away what others read."""
    del kernel.operations[0]


def takes_operands(kernel):
    """What it leaves has no text."""
    kernel.operations[-1].operands = None


@pytest.mark.parametrize(
    ("broken", "says", "has_text"),
    [
        (raises, "pass raises failed: KeyError: 'a mistake'", False),
        (forgets, r"what pass forgets made is not well formed: product:19: acc is read where it is not defined", True),
        (takes_operands, "what pass takes_operands made is not well formed", False),
    ],
)
def test_a_dump_has_all_up_to_the_pass_that_fails(monkeypatch, capfd, broken, says, has_text):
    at = [one.__name__ for one in PASSES].index("hoist_invariants")
    monkeypatch.setattr(optimize, "PASSES", (*PASSES[:at], broken, *PASSES[at:]))
    monkeypatch.setenv("TILEKIT_DUMP", "ir,passes")
    with pytest.raises(optimize.PassError, match=says) as raised:
        launch().compile("sm_90a")
    assert "kernel product: " in str(raised.value)
    assert str(raised.value).endswith("TILEKIT_DUMP=ir,passes has printed what there was up to there on standard error")
    printed = capfd.readouterr().err
    for step in ("built", *(one.__name__ for one in PASSES[:at])):
        assert f"# {step}\nkernel product(" in printed
    assert printed.count("kernel product(") == 1 + at + has_text
    assert "# hoist_invariants" not in printed
