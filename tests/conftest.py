"""What every test shares: the device it runs on, chosen once with `--device=cpu|cuda`; which tests run without `--thorough`, and
in how many processes."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
import seeds
import thorough
from hazards import check

if TYPE_CHECKING:
    import tilekit as tk
    from tilekit.compiler.kernel import CompiledKernel

HERE = Path(__file__).parent
# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("tilekit", deadline=None)
hypothesis.settings.load_profile("tilekit")
NEEDS_GPU = "needs a GPU: run `pytest --device=cuda` on a machine that has one"
MOST_PROCESSES = 8  # each takes a gigabyte, and seconds to begin


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=("cpu", "cuda"), default="cpu", help="the device the tests run on (default: cpu)")
    parser.addoption("--thorough", action="store_true", help="all tests, also those that take long and rarely find anything")
    share = "how much of what takes long is run, drawn anew each time (default: 1)"
    parser.addoption("--share", type=float, default=1.0, help=share)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks at what was asked for
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The whole suite runs in several processes, unless `-n` says otherwise; a file that is named runs in this one."""
    options = config.option
    is_worker = hasattr(config, "workerinput")
    if is_worker or getattr(options, "numprocesses", 0) is not None or options.usepdb or options.collectonly:
        return
    # Of a GPU's memory and time a process takes what it likes: how many share one is for those to say who run the tests.
    if options.device == "cpu" and not thorough.names_files(config):
        options.numprocesses = min(_cores(), MOST_PROCESSES)
        if options.dist == "no":
            options.dist = "worksteal"  # neighbours together, which share what their module compiled or imported
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads, beside so many processes


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pytest_configure(config: pytest.Config) -> None:
    kind = config.getoption("--device")
    # A shell's background job (`pytest &`, nohup) ignores Ctrl-C, and so would the tests that press it, for ever.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    seeds.first_seed()  # before pytest starts its worker processes, which start where this one does
    # Tests that start other processes, or that take the default device without naming one, get the same device.
    os.environ["TILEKIT_DEVICE"] = kind
    # Else JAX takes three quarters of the GPU's free memory for as long as the process lives.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if "TILEKIT_CACHE_DIR" not in os.environ:
        # A test must see what the compiler does, not what an earlier run left in the user's cache.
        os.environ["TILEKIT_CACHE_DIR"] = "off"
    if kind == "cuda":
        from tilekit._runtime.device import cuda_unavailable_reason

        reason = cuda_unavailable_reason()
        if reason is not None:
            raise pytest.UsageError(f"--device=cuda: {reason}")


def pytest_report_header(config: pytest.Config) -> list[str]:
    quick = [] if thorough.is_asked_for(config) else [thorough.HEADER]
    return [*quick, f"fuzzers start at seed {seeds.first_seed()}"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for key in ("", "passed", "failed", "error") for report in terminalreporter.getreports(key)]
    line = seeds.summary([report for report in reports if report.when == "teardown"])
    if line is not None:
        terminalreporter.write_line(line)


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    addresses = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if addresses:  # pytest-xdist would say that its processes found different tests
        raise pytest.UsageError(f"the name of a test differs from process to process; give it other ids: {addresses[0]}")
    thorough.leave_out(config, items)
    skip = pytest.mark.skip(reason=NEEDS_GPU)
    for item in items:
        if item.path.is_relative_to(HERE / "gpu"):
            item.add_marker("gpu")
        if item.get_closest_marker("gpu") and config.getoption("--device") != "cuda":
            item.add_marker(skip)


_files: set[Path] = set()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What lives before a file's tests lives on: 14,000 items, modules, numba. `gc.collect()` in a test need not look at it."""
    if item.path not in _files:
        _files.add(item.path)
        gc.collect()
        gc.freeze()


_WITHOUT_END = re.compile(r"^(\$L\w+):\s+bra\.uni\s+\1;", re.MULTILINE)


@pytest.fixture(autouse=True, scope="session")
def compiled_products() -> Iterator[list[CompiledKernel]]:
    """The kernels with products by warpgroups that were compiled since somebody looked. None waits for nothing, and for ever."""
    from tilekit.compiler.kernel import CompiledKernel

    kernels: list[CompiledKernel] = []
    initialise = CompiledKernel.__init__

    def noted(self: CompiledKernel, *args: object, **kwargs: object) -> None:
        initialise(self, *args, **kwargs)  # type: ignore[arg-type]
        assert not _WITHOUT_END.search(self.ptx), f"{self.entry} has a loop that does nothing, and does not end"
        if "wgmma.mma_async" in self.ptx:
            kernels.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompiledKernel, "__init__", noted)
        yield kernels


@pytest.fixture(autouse=True)
def _nothing_is_overwritten(compiled_products: list[CompiledKernel]) -> Iterator[None]:
    """In no kernel that a test compiles is anything overwritten that a product under way uses."""
    compiled_products.clear()
    yield
    for kernel in compiled_products:
        check(kernel)
    compiled_products.clear()


@pytest.fixture(autouse=True, scope="session")
def _the_same_text_is_assembled_once() -> Iterator[None]:
    """Tests run the same kernel in several ways; LLVM takes half of their time."""
    from tilekit.compiler.cpu.machine import Machine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Machine, "assembled", functools.lru_cache(maxsize=256)(Machine.assembled))
        yield


@pytest.fixture(autouse=True, scope="session")
def interpreted_kernels() -> Iterator[list[str]]:
    """The kernels that a CPU device was to compile, and interpreted without finding anything wrong, since somebody looked."""
    from tilekit.errors import CompileError
    from tilekit.launch.on_cpu import NOT_COMPILED, OnCpu

    kernels: list[str] = []
    interpret = OnCpu._interpret

    def noted(self: OnCpu, *args: object) -> None:
        try:
            interpret(self, *args)  # type: ignore[arg-type]
        except CompileError:
            raise
        except Exception:
            note(self)
            raise
        note(self)

    def note(self: OnCpu) -> None:
        name = self._bound.source.name
        if self._compiles and name in NOT_COMPILED:
            kernels.append(f"{name}: {NOT_COMPILED[name]}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OnCpu, "_interpret", noted)
        yield kernels


@pytest.fixture(autouse=True)
def _all_kernels_are_compiled(interpreted_kernels: list[str]) -> Iterator[None]:
    """Whatever the language accepts is compiled for the CPU: no kernel of a test is interpreted, unless it is refused."""
    interpreted_kernels.clear()
    yield
    assert not interpreted_kernels, "a kernel is interpreted that should be compiled"


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[tk.Device]:
    """The device under test, the default one while the test runs."""
    from tilekit._runtime.device import Device, use_device

    chosen = Device(request.config.getoption("--device"))
    with use_device(chosen):
        yield chosen
    # A fault that nobody asked for must not pass unseen.
    chosen.synchronize()


@pytest.fixture
def cpu() -> Iterator[tk.Device]:
    """The first CPU device, whatever is under test, the default one while the test runs."""
    from tilekit._runtime.device import Device, use_device

    chosen = Device("cpu")
    with use_device(chosen):
        yield chosen
    chosen.synchronize()


@pytest.fixture
def cpu_devices(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[tk.Device]]:
    """Makes this a machine without a GPU, of so many CPU devices: these."""

    def make(count: int) -> list[tk.Device]:
        import tilekit._runtime.device as module
        from tilekit._driver.discovery import Discovery

        monkeypatch.setenv("TILEKIT_DEVICE", "cpu")
        monkeypatch.setenv("TILEKIT_CPU_DEVICES", str(count))
        monkeypatch.setattr(module, "_registry", module._Registry(lambda: Discovery(reason="none")))
        return module.devices()

    return make


@pytest.fixture
def several_devices(device: tk.Device, cpu_devices: Callable[[int], list[tk.Device]]) -> Callable[[int], list[tk.Device]]:
    """Makes a list of so many devices of one kind: GPUs, if those are under test and there are as many; else CPU devices."""
    import tilekit as tk

    gpus = [one for one in tk.devices() if one.kind == device.kind == "cuda"]

    cpus: list[tk.Device] = []

    def make(count: int) -> list[tk.Device]:
        if 1 < count <= len(gpus):
            return gpus[:count]
        if not cpus:
            cpus.extend(cpu_devices(8))
        return cpus[:count]

    return make


@pytest.fixture
def checked(cpu: tk.Device, monkeypatch: pytest.MonkeyPatch) -> tk.Device:
    """The CPU device as it is under TILEKIT_CHECKS=1: kernels are interpreted, and races and unwritten reads found."""
    monkeypatch.setenv("TILEKIT_CHECKS", "1")
    return cpu


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that is set when the test is over, whatever happens: work that waits for it must not hold up others."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def printed(device: tk.Device, capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """What was printed since the last call, by Python and by kernels on either device."""

    def read() -> str:
        device.synchronize()  # a GPU hands over its output then, to the C library,
        if device.kind == "cuda":
            ctypes.CDLL(None).fflush(None)  # which keeps it in a buffer of its own
        return capfd.readouterr().out

    return read
