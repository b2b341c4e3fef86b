"""Kernels in spellings that are drawn anew in each run: they compute the same, by the same machine code, or nearly."""

from __future__ import annotations

import importlib.util
import linecache
import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import through_ir

from tilekit import api
from tilekit.compiler.passes.partial_sums import PARTS
from tilekit.compiler.passes.visits import ORDER

HERE = Path(__file__).parent


def module_of(name):
    spec = importlib.util.spec_from_file_location(f"spellings_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


mutations, kernels = module_of("mutations"), module_of("kernels")
QUICK, ALL = 1, int(os.environ.get("TILEKIT_SPELLINGS", 10))  # mutants of each kernel
SEED = int(os.environ.get("TILEKIT_SPELLINGS_SEED", random.SystemRandom().randrange(1 << 30)))
NUMBERS = [pytest.param(number, marks=() if number < QUICK else pytest.mark.thorough) for number in range(ALL)]
COUNTED = ("HGMMA", "UTMALDG", "LDGSTS", "WARPGROUP.DEPBAR", "LDSM", "MUFU.EX2", "MUFU.RSQ")
MET = ("SHFL", "BAR.SYNC", "LDG.E.128", "LDG.E.64", "LDG.E.U16")  # where threads meet, and how they load


def compiled_kernel(source, label):
    """The kernel of a source text."""
    filename = f"<{label}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace = {"__name__": "spelled"}
    exec(compile("import tilekit as tk\n", filename, "exec"), namespace)
    exec(compile(source, filename, "exec"), namespace)
    return namespace["kernel"]


def op_of(kernel, name, tensors, out):
    *_, (_, tile), scalars, _ = kernels.KERNELS[name]
    return kernel(out.partition(tile), *tensors, *scalars)


@pytest.fixture(scope="module")
def originals():
    return {}


def explained(source, name, label):
    _, arrays, (shape, _), _, _ = kernels.KERNELS[name]
    tensors = [api.meta(x.shape, x.dtype) for x in arrays(np.random.default_rng(0))]
    out = api.meta(shape, np.float32 if name == "split-K" else np.float16)
    return op_of(compiled_kernel(source, label), name, tensors, out).explain("sm_90a")


def shown(name, seed, source):
    return f"{name}, again: TILEKIT_SPELLINGS=1 TILEKIT_SPELLINGS_SEED={seed}\n{source}"


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", kernels.KERNELS)
def test_spellings_are_as_fast(name, number, originals):
    seed, source = SEED + number, kernels.KERNELS[name][0]
    if name not in originals:
        originals[name] = explained(source, name, name)
    like, text = originals[name], mutations.mutated(source, seed)
    one, said = explained(text, name, f"{name} {seed}"), shown(name, seed, text)
    for word in COUNTED if "HGMMA" in like.compiled.sass else (*COUNTED, *MET):
        both = one.compiled.sass.count(word), like.compiled.sass.count(word)
        assert both[0] == both[1], f"{word}: {both}, {said}"
    stages = [[(ring.stages, ring.reason) for ring in each.pipelines] for each in (one, like)]
    assert sorted(stages[0]) == sorted(stages[1]), said
    # In which order loads are written decides about more registers where no product wants most of them.
    assert abs(one.compiled.registers - like.compiled.registers) <= (8 if "HGMMA" in like.compiled.sass else 16), said
    assert one.compiled.local_bytes <= like.compiled.local_bytes, said
    assert one.serialised == like.serialised, said
    orders = [{(r.done, r.text) for r in each.remarks if r.transformation == ORDER} for each in (one, like)]
    assert orders[0] == orders[1], said
    parts = [sorted(r.done for r in each.remarks if r.transformation == PARTS) for each in (one, like)]
    assert parts[0] == parts[1], said


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", kernels.KERNELS)
def test_spellings_compute_the_same(name, number, cpu):
    source, arrays, (shape, _), _, reference = kernels.KERNELS[name]
    seed = SEED + number
    text = mutations.mutated(source, seed)
    inputs = arrays(np.random.default_rng(seed))
    expected = reference(*inputs)
    for rewritten in (False, True):
        out = api.full(shape, np.nan, np.float32).sync()
        op = op_of(compiled_kernel(text, f"{name} {seed}"), name, [api.from_host(x).sync() for x in inputs], out)
        if rewritten:
            with through_ir.rewritten():
                op.sync()
        else:
            op.sync()
        assert np.abs(out.to_host().sync() - expected).max() <= 4e-3 * np.abs(expected).max(), shown(name, seed, text)


def test_a_mutant_is_another_text():
    texts = {mutations.mutated(kernels.GEMM, seed) for seed in range(20)}
    assert len(texts) == 20
    assert any("while" in text for text in texts)
    assert any("@tk.function" in text for text in texts)
    assert any(".tiles(" in text for text in texts)
