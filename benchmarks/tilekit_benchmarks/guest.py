"""What a guest costs the host: tilekit's kernels on PyTorch's tensors, beside PyTorch's own functions on the same.

The arrays are small, so that the device keeps up, and the clock stops when a call returns. PyTorch works on its default stream,
tilekit on a stream of its own, in order with that one: as in a program that says nothing of streams. Tensors are *fresh* where
each call gets views that tilekit has not met; they are made before the clock starts.
"""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

import tilekit as tk
from tilekit import api, kernels
from tilekit._environment import version_of
from tilekit._runtime.stream import Stream
from tilekit_benchmarks import Options
from tilekit_benchmarks._tilekit_host import LAUNCHES, scale
from tilekit_benchmarks.awaiting import policy_of
from tilekit_benchmarks.harness import Unwaited
from tilekit_benchmarks.report import OWN
from tilekit_benchmarks.saxpy_peers import need
from tilekit_benchmarks.sweep import Candidate, Sweep, Work, sweep

__all__ = ["DEFAULT_N", "run"]

DEFAULT_N = 1024
"""The elements of a vector, and of a row."""

_TILE, _SEED, _ROWS = 1024, 20261121, 64
_log = logging.getLogger("tilekit_benchmarks")


def run(options: Options) -> Sweep:
    """Measure calls on PyTorch's tensors. Blocks until it is done."""
    device, n = options.device, options.n or DEFAULT_N
    with ExitStack() as stack:
        stack.enter_context(tk.use_device(device))
        stream = stack.enter_context(device.stream())
        stack.enter_context(policy_of(device, stream))
        _log.info("guest: rows of %d elements, on %s", n, device.label)
        return sweep(
            options,
            [*_candidates(stream, n), *_awaited(stream, n)],
            [n],
            benchmark="guest",
            axis="elements of a row",
            unit="us per call",
            parameters={"n": n},
            agreement="agrees with PyTorch's",
        )


class _Case(NamedTuple):
    """A function of PyTorch's, and the same of tilekit's.

    Attributes:
        inputs: the names of what it reads, see `_Arrays`.
        theirs: PyTorch's, called with the result's tensor and the inputs; None if that returns its result.
        ours: the op, of tensors of either library.
    """

    inputs: str
    theirs: Callable[..., object]
    ours: Callable[..., Any]
    result: str = "y"


def _cases() -> Mapping[str, _Case]:
    import torch
    import torch.nn.functional as F

    add = LAUNCHES[3]
    return {
        "add": _Case("a b", lambda out, a, b: torch.add(a, b, out=out), lambda out, a, b: add(out, a, b).tile(_TILE), "i"),
        "softmax": _Case("x", lambda out, x: torch.softmax(x, -1, out=out), lambda out, x: kernels.softmax(x, out=out)),
        "layer_norm": _Case(
            "x w w",
            lambda out, x, w, b: F.layer_norm(x, w.shape, w, b),
            lambda out, x, w, b: kernels.layer_norm(x, w, b, out=out),
        ),
        "rms_norm": _Case("x w", lambda out, x, w: F.rms_norm(x, w.shape, w), lambda out, x, w: kernels.rms_norm(x, w, out=out)),
        "gemm": _Case("x m", lambda out, x, m: torch.mm(x, m, out=out), lambda out, x, m: kernels.gemm(x, m, out=out)),
        "gemm of a row": _Case(
            "r m", lambda out, r, m: torch.mm(r, m, out=out), lambda out, r, m: kernels.gemm(r, m, out=out), "z"
        ),
        "attention": _Case(
            "q q q",
            lambda out, q, k, v: F.scaled_dot_product_attention(q, k, v),
            lambda out, q, k, v: kernels.attention(q, k, v, out=out),
            "p",
        ),
    }


def _arrays(n: int) -> Mapping[str, np.ndarray[Any, Any]]:
    """By a letter: small whole numbers, so that each library rounds alike."""
    rng = np.random.default_rng(_SEED)
    shapes = {"x": (_ROWS, n), "y": (_ROWS, n), "w": (n,), "m": (n, n), "r": (1, n), "z": (1, n)}
    arrays = {name: rng.integers(-2, 3, shape).astype(np.float16) for name, shape in shapes.items()}
    heads = (1, 8, 128, 64)
    arrays |= {name: rng.standard_normal(heads).astype(np.float16) for name in "qp"}
    return arrays | {name: rng.integers(-9, 9, n).astype(np.int32) for name in "abi"}


def _candidates(stream: Stream, n: int) -> list[Candidate]:
    version = f"{version_of('torch')}"

    def theirs(name: str) -> Callable[[Any], Work]:
        def build(_: Any) -> Work:
            _, out, inputs = _of_torch(stream, name, n)
            call = _cases()[name].theirs
            return Work(launch=Unwaited(lambda: call(out, *inputs), _synchronize(stream)), reset=lambda: None, check=lambda: None)

        return build

    def ours(name: str, kind: str) -> Callable[[Any], Work]:
        def build(_: Any) -> Work:
            torch, out, inputs = _of_torch(stream, name, n)
            case, synchronize = _cases()[name], _synchronize(stream)
            expected = case.theirs(out.clone(), *inputs)

            def check() -> str | None:
                synchronize()
                close = torch.allclose(out.float(), expected.float(), rtol=2e-2, atol=2e-2)  # type: ignore[attr-defined]
                return None if close else "the result is not PyTorch's"

            tensors = (out, *inputs)
            if kind == "its own tensors":
                tensors = tuple(tk.as_tensor(array) for array in tensors)

            def given() -> tuple[Any, ...]:
                return tuple(array[:] for array in tensors) if kind == "fresh tensors of PyTorch's" else tensors

            op = case.ours
            launch = Unwaited(lambda *given: op(*given).async_on(stream), synchronize, given)
            return Work(launch=launch, reset=lambda: out.zero_(), check=check)

        return build

    def taken(_: Any) -> Work:
        _, out, _ = _of_torch(stream, "add", n)
        return Work(launch=Unwaited(tk.as_tensor, lambda: None, lambda: (out[:],)), reset=lambda: None, check=lambda: None)

    names = ("add", "softmax", "layer_norm", "rms_norm", "gemm", "gemm of a row", "attention")
    candidates = [Candidate(name="torch", version=version, variant=name, build=theirs(name)) for name in names]
    candidates += [
        Candidate(name=OWN, version=tk.__version__, variant=f"{name}, {kind}", build=ours(name, kind))
        for name in names
        for kind in ("its own tensors", "PyTorch's tensors", "fresh tensors of PyTorch's")
    ]
    return [
        *candidates,
        Candidate(name=OWN, version=tk.__version__, variant="as_tensor of a fresh tensor", build=taken),
    ]


def _awaited(stream: Stream, n: int) -> list[Candidate]:
    """Inputs that another stream wrote, and a coroutine; and what of that one is the event loop's."""
    x = api.zeros(n).sync_on(stream)
    y = api.zeros(n).sync_on(stream).partition(_TILE)
    other = stream.device.stream()

    def op() -> Any:
        return scale(y, x, 2.0)

    async def awaited() -> None:
        await op()

    async def turn() -> None:
        await asyncio.sleep(0)

    def in_turns() -> None:
        op().async_on(stream)
        op().async_on(other)

    ways: dict[str, Callable[[], object]] = {
        "built, run": Unwaited(lambda: op().async_on(stream), stream.synchronize),
        "built, run twice, each behind the other's stream": Unwaited(in_turns, stream.device.synchronize),
        "built, awaited": awaited,
    }

    def candidate(name: str, version: str, variant: str, launch: Callable[[], object]) -> Candidate:
        work = Work(launch=launch, reset=lambda: None, check=lambda: None)
        return Candidate(name=name, version=version, variant=variant, build=lambda _: work)

    return [
        *(candidate(OWN, tk.__version__, variant, launch) for variant, launch in ways.items()),
        candidate("asyncio", platform.python_version(), "a turn of the event loop", turn),
    ]


def _of_torch(stream: Stream, name: str, n: int) -> tuple[Any, Any, list[Any]]:
    """PyTorch, the tensor that a case writes, and those that it reads."""
    need(("torch", "torch"))
    import torch

    arrays, case = _arrays(n), _cases()[name]
    device = torch.device("cuda", stream.device.ordinal) if stream.device.kind == "cuda" else torch.device("cpu")
    out, *inputs = (torch.from_numpy(arrays[letter].copy()).to(device) for letter in (case.result, *case.inputs.split()))
    return torch, out, inputs


def _synchronize(stream: Stream) -> Callable[[], object]:
    """What waits for both libraries."""
    if stream.device.kind == "cpu":
        return stream.synchronize
    import torch

    return lambda: torch.cuda.synchronize()
