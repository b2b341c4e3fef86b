"""What the tests of the compiler for CPUs share: kernels run as another CPU would run them."""

from __future__ import annotations

import pytest
from machines import MACHINES, runs_here

from tilekit.compiler.cpu import build
from tilekit.compiler.cpu.kernel import LoadedKernel
from tilekit.compiler.cpu.machine import Machine
from tilekit.launch.on_cpu import OnCpu


@pytest.fixture(params=[name for name, one in MACHINES.items() if not one.triple])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, cpu: object) -> Machine:
    """A CPU that kernels are compiled for while the test runs, on this one."""
    chosen = MACHINES[request.param]
    if not runs_here(chosen):
        pytest.skip(f"this CPU does not run code for {chosen.name}")
    monkeypatch.setenv("TILEKIT_CACHE_DIR", "off")
    monkeypatch.setattr(build, "host", lambda: chosen)
    codes: dict[tuple[OnCpu, bool], LoadedKernel | None] = {}

    def code(self: OnCpu, aliased: bool) -> LoadedKernel | None:
        """Not that which an earlier test had compiled for another CPU."""
        if (self, aliased) not in codes:
            codes[self, aliased] = self._loaded(aliased)
        return codes[self, aliased]

    monkeypatch.setattr(OnCpu, "_code", code)
    return chosen
