"""CPUs to compile for, whether or not they are at hand."""

from __future__ import annotations

from tilekit.compiler.cpu.machine import Machine, host

__all__ = ["MACHINES", "runs_here"]

MACHINES = {
    "avx512": Machine("skylake-avx512", "-prefer-256-bit", 64, True),
    "avx2": Machine("haswell", "", 32, True),
    "baseline": Machine("x86-64", "", 16, False),
    "neon": Machine("generic", "+neon", 16, True, "aarch64-unknown-linux-gnu"),
}
"""Code for the last one is only looked at: nothing here runs it."""


def runs_here(machine: Machine) -> bool:
    """Whether this CPU runs what is compiled for another."""
    features = host().features
    needed = {64: ("+avx512f", "+avx512bw", "+avx512dq", "+avx512vl"), 32: ("+avx2", "+fma")}.get(machine.vector_bytes, ())
    return not machine.triple and all(name in features for name in needed)
