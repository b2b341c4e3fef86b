"""Kernels of a few lines, on both devices."""

import linecache
import math

import pytest

import tilekit as tk
from tilekit import api
from tilekit.launch.on_cpu import NOT_COMPILED

made = 0


def kernel_of(*lines, **names):
    """A kernel `k(y, x)` with such a body, where `t` is a tile of `x` like those of `y`."""
    global made
    made += 1
    filename = f"<known {made}>"
    body = ["t = tk.load_tile_like(x, y)", *lines]
    text = "@tk.kernel\ndef k(y: tk.Out, x: tk.In):\n" + "".join(f"    {line}\n" for line in body)
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    scope = {"tk": tk, "math": math, **names}
    exec(compile(text, filename, "exec"), scope)
    return scope["k"]


def run(kernel):
    """What it stores for tiles of 16 ones, after it was compiled for a GPU that need not be there."""
    kernel(api.meta(64).partition(16), api.meta(64)).compile(target="sm_80")
    return kernel(api.zeros(64).partition(16), api.ones(64)).first().unpartition().to_host().sync()


def both_refuse(kernel):
    """The errors of the two devices."""
    with pytest.raises(tk.CompileError) as running, tk.use_device("cpu"):
        kernel(api.zeros(64).partition(16), api.ones(64)).sync()
    with pytest.raises(tk.CompileError) as compiling:
        kernel(api.meta(64).partition(16), api.meta(64)).compile(target="sm_80")
    return running.value, compiling.value


def results(*lines, **names):
    """What the same lines store by each way to run them: compiled for the CPU, interpreted; for GPUs they are compiled alone."""
    for target in ("sm_80", "sm_90a"):
        kernel_of(*lines, **names)(api.meta(64).partition(16), api.meta(64)).compile(target=target)
    for way in ("compiled", "interpreted"):
        with pytest.MonkeyPatch.context() as patch, tk.use_device("cpu"):
            patch.setenv("TILEKIT_CPU", way)
            NOT_COMPILED.pop("k", None)
            op = kernel_of(*lines, **names)(api.zeros(64).partition(16), api.arange(64, dtype=tk.float32))
            yield op.first().unpartition().to_host().sync()
            assert "k" not in NOT_COMPILED, NOT_COMPILED["k"]
