"""Kernels on the CPU device by way of the IR: what passes make of them, run as Python."""

from __future__ import annotations

import contextlib

import pytest

from tilekit._runtime.device import Device, use_device
from tilekit.compiler import optimize
from tilekit.compiler.ir.accesses import accesses
from tilekit.compiler.ir.build import build
from tilekit.compiler.ir.python import to_python
from tilekit.compiler.ir.verify import verify
from tilekit.compiler.kernel import choose_config
from tilekit.launch import on_cpu, specialisation

__all__ = ["both_ways", "ir_of", "rewritten", "ringless", "run_through_ir"]


def ir_of(launch, *passes):
    """The IR of a launch's kernel, behind some passes; verified behind each."""
    launch.consumed()
    chosen = launch._plan("a test").specialisation
    kernel = build(chosen.bound, chosen.facts)
    verify(kernel)
    for rewrite in passes:
        rewrite(kernel)
        verify(kernel)
    return kernel


@contextlib.contextmanager
def run_through_ir(*passes):
    """While the block runs, kernels that first meet their arguments are rewritten; it gets the list of their IRs."""
    kernels = []

    def interpreted(chosen):
        made = on_cpu.Interpreted(chosen)
        kernel = build(chosen.bound, chosen.facts)
        kernel.config = choose_config(chosen.facts, None, tuple(accesses(kernel)))
        verify(kernel)
        for rewrite in passes:
            rewrite(kernel)
            verify(kernel)
        kernels.append(kernel)
        made._bound = to_python(kernel, chosen.bound)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(specialisation, "OnCpu", interpreted)
        yield kernels
    assert kernels, "none was rewritten: a kernel that has met its arguments before runs as it did then; make it anew"


def rewritten():
    """All passes, in order."""
    return run_through_ir(*optimize.PASSES)


def ringless():
    """Those of kernels without rings."""
    return run_through_ir(*optimize.WITHOUT_RINGS)


def both_ways(run, device):
    """What `run()` gives, which launches on the default device: on the CPU device as kernels are written, and as passes leave
    them, which `device` compiles if it is a GPU.
    """
    with use_device(Device("cpu")):
        plain = run()
    if device.kind == "cuda":
        return plain, run()
    with rewritten():
        return plain, run()
