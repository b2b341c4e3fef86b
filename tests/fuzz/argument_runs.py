"""Calls public functions with random and wrong arguments, and judges what comes of it.

`python tests/fuzz/argument_runs.py FIRST STEP COUNT SECONDS OUT DEVICE` runs cases in a process of its own, since a case may
crash it; it writes the seed of each before it runs it to the file descriptor OUT. With `all` for FIRST they are not random: each
value stands in each place of each call that works, which takes some minutes.
"""

from __future__ import annotations

import ast
import faulthandler
import functools
import inspect
import itertools
import os
import random
import re
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from argument_calls import CALLS
from argument_liars import Hostile, Liar
from argument_pool import FITTING, POOL, SKIPPED, kind_of, other_device, targets

import tilekit as tk
from tilekit import api, memory
from tilekit._runtime.context import submitting
from tilekit.lang.registry import OPS
from tilekit.ops.future import DeviceFuture

__all__ = ["CALLS", "POOL", "SKIPPED", "Case", "State", "drawn", "is_tile_operation", "judged", "main", "places", "problem_of",
           "raised", "replaced", "safe", "shown", "signature", "swept", "targets"]  # fmt: skip

HANG_S = 60
LIMIT = 16 << 20  # bytes a device may give: what is huge is refused, not tried
PACKAGE = Path(tk.__file__).parent
# What may be raised on purpose. OSError: files, and waits with a limit. BufferError: DLPack. StopIteration is never a message.
ALLOWED = (
    TypeError,
    ValueError,
    IndexError,
    AttributeError,
    BufferError,
    OSError,
    RuntimeError,
    tk.TilekitError,
    ImportError,
)
NEVER = (AssertionError, KeyError, RecursionError, UnboundLocalError, NameError, ZeroDivisionError)
_BINDING = re.compile(r"\(\) (missing|takes|got) ")  # how Python refuses a call that does not fit
# Where functions of the user's are called: what they raise comes through, and those in C have no frame.
_CALLS = {("ops", "steps"), ("ops", "of"), ("ops", "called_on_host"), ("tuning", "do_bench")}
_TENSOR = str(PACKAGE / "_tensor" / "tensor.py")  # tensors are made by functions: what makes one directly is no user
_USERS = ("argument_pool", "argument_liars", "numba/cuda/dispatcher")  # where functions of the user's are
Case = tuple[str, list[str], dict[str, str]]  # the target, and the labels of what it is called with


# What takes an int for the address of a CUDA stream, at its word: on a GPU that is the end of the process.
_ADDRESSES = ("sync_on", "async_on", "graph_on", "capture", "scope", "run", "record", "wait", "__dlpack__", "SingleStream",
              "StreamPoolRoundRobin", "LeastLoaded")  # fmt: skip


def safe(case: Case) -> Case:
    """The case as it may run on a GPU."""
    name, args, kwargs = case
    if name.rpartition(".")[2] not in _ADDRESSES:
        return case

    def turned(label: str) -> str:
        value = POOL[label]()
        numbers = value if isinstance(value, (tuple, list)) else (value,)
        taken = any(isinstance(number, (int, np.integer)) and not isinstance(number, bool) for number in numbers)
        return "stream" if taken or isinstance(value, Liar) else label

    return name, list(map(turned, args)), {key: turned(label) for key, label in kwargs.items()}


def drawn(seed: int, names: list[str]) -> Case:
    """The case of a seed."""
    draw = random.Random(seed)
    labels = list(POOL)
    if draw.random() < 0.3:  # a call that works, but for one argument or two
        name = draw.choice(sorted(CALLS))
        wrong = draw.sample(places(name), min(draw.choice([1, 1, 2]), len(places(name))))
        return replaced(name, {place: draw.choice(labels) for place in wrong})
    name = draw.choice(names)
    parameters = parameter_names(name)
    args: list[str] = []
    kwargs: dict[str, str] = {}
    if draw.random() < 0.3 or not parameters:  # anything at all
        args = [draw.choice(labels) for _ in range(draw.choice([0, 1, 1, 2, 2, 3, 4, 6]))]
        if draw.random() < 0.3:
            kwargs[draw.choice([*parameters, "dtype", "nonsense"])] = draw.choice(labels)
        return name, args, kwargs
    wrong = draw.randrange(len(parameters))
    for at, parameter in enumerate(parameters):
        fits = FITTING.get(parameter) or next(
            (some for word, some in FITTING.items() if word in parameter and len(word) > 2), None
        )
        if at == wrong or (fits is None and draw.random() < 0.5):
            label = draw.choice(labels)
        elif fits is None:
            label = draw.choice(["tensor(float32)", "1", "2", "4", "2.0", "tensor (4, 4)", "op", "(4,)", "None"])
        else:
            label = draw.choice(fits)
        if at > wrong and draw.random() < 0.4:
            break
        if draw.random() < 0.2 or kwargs:
            kwargs[parameter] = label
        else:
            args.append(label)
    return name, args, kwargs


def places(name: str) -> list[int | str]:
    """Where a call of `CALLS` takes an argument: the names of its parameters, and positions in its `*args`."""
    row, places = CALLS[name], list[int | str]()
    for at, parameter in enumerate(signature(name)):
        if parameter.kind is parameter.VAR_POSITIONAL:
            places += range(at, max(at + 1, len(row) if isinstance(row, list) else 0))
        elif parameter.kind is parameter.VAR_KEYWORD:
            places.append("x")
        else:
            places.append(parameter.name)
    return places


def replaced(name: str, wrong: dict[int | str, str]) -> Case:
    """A call that works, but for what is passed in these places."""
    row = CALLS[name]
    args, kwargs = ([], dict(row)) if isinstance(row, dict) else (list(row), {})
    positional = [one.name for one in signature(name) if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    for place, label in wrong.items():
        at = positional.index(place) if place in positional else place
        if isinstance(at, int) and at < len(args):
            args[at] = label
        elif isinstance(place, int):
            args.append(label)
        else:
            kwargs[place] = label
    return name, args, kwargs


@functools.cache
def _targets() -> dict[str, tuple[str | None, Any]]:
    return targets()


@functools.cache
def parameter_names(name: str) -> list[str]:
    return [one.name for one in signature(name) if one.kind is not one.VAR_KEYWORD]


def signature(name: str) -> list[inspect.Parameter]:
    """The parameters of a target, without the receiver."""
    receiver, item = _targets()[name]
    function = item if receiver is None else getattr(kind_of(receiver), item)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
    return parameters if receiver is None or _is_static(receiver, item) else parameters[1:]


def _is_static(receiver: str, method: str) -> bool:
    return isinstance(inspect.getattr_static(kind_of(receiver), method), (classmethod, staticmethod))


def is_tile_operation(name: str) -> bool:
    """Whether a target is for kernels: on the host one check refuses every call of these."""
    return _targets()[name][1] in [operation.function for operation in OPS.values()]


def shown(case: Case) -> str:
    """The call, to read."""
    name, args, kwargs = case
    return f"{name}({', '.join([*args, *(f'{key}={label}' for key, label in kwargs.items())])})"


@functools.cache
def _raises(path: str) -> frozenset[int]:
    """The lines of a file on which a raise statement stands."""
    tree = ast.parse(Path(path).read_text())
    return frozenset(
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    )


def judged(error: BaseException, compiled: bool = False) -> str | None:
    """What is wrong with an error, if anything is. The compiled part may raise what it likes, if it does that in order."""
    if compiled:
        return "the compiled part is broken" if isinstance(error, SystemError) else None
    if isinstance(error, Hostile) or isinstance(error.__cause__, Hostile):
        return None
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)]
    if frames and any(users in frames[-1].filename for users in _USERS):
        return None
    if isinstance(error, NEVER) and not (isinstance(error, ZeroDivisionError) and not inside):
        return f"raw {type(error).__name__}"
    if not isinstance(error, ALLOWED):
        return f"{type(error).__name__} is no error of tilekit's"
    if not inside or isinstance(error, tk.TilekitError):  # Python refused the call, or the pool's object failed
        return None
    innermost = inside[-1]
    room = Path(innermost.filename).relative_to(PACKAGE).parts[0]
    if (room, innermost.name) in _CALLS or any(frame.filename == _TENSOR and frame.name == "__init__" for frame in inside):
        return None
    if innermost.lineno in _raises(innermost.filename):
        return None if str(error) else "no message"
    if str(innermost.line or "").startswith("return method(") or _BINDING.search(str(error)):
        return None
    return f"{type(error).__name__} from the inside"


def _snapshot(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype != object:
        return np.asarray(value).tobytes()
    return repr(value) if type(value) in (list, dict, set, bytearray) else None


_WRITES = ("to_host", "to_host_vec", "stream_chunks", "memcpy", "copy_into")


def raised(case: Case, arguments: Iterable[Any] = ()) -> BaseException | None:
    """What a call raises, or its result when it is used, if anything. `arguments` may be those of the case, already built."""
    name, labels, keywords = case
    receiver, function = _targets()[name]
    values = list(arguments) or _arguments(case)
    if receiver is not None:
        of = POOL[receiver]()
        method = getattr(type(of), function)
        function = method if _is_static(receiver, function) else functools.partial(method, of)
    try:
        result = function(*values[: len(labels)], **dict(zip(keywords, values[len(labels) :], strict=True)))
        for _ in range(3):
            result = _followed(result)
    except BaseException as error:
        return error
    return None


def _arguments(case: Case) -> list[Any]:
    _, labels, keywords = case
    return [POOL[label]() for label in (*labels, *keywords.values())]


def run(case: Case) -> str | None:
    """What is wrong with a call, if anything is."""
    arguments = _arguments(case)
    before = [_snapshot(value) for value in arguments]
    error = raised(case, arguments)
    if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
        return f"{type(error).__name__}"
    if error is not None:
        wrong = judged(error, case[0].startswith("_launch."))
        if wrong is not None:
            return wrong + "\n" + "".join(traceback.format_exception(error)[-12:])
    after = [_snapshot(value) for value in arguments]
    if before != after and case[0].rpartition(".")[2] not in _WRITES and "out" not in case[2]:
        return "an argument was changed"
    return None


def _followed(result: Any) -> Any:
    """What a user would do with a result."""
    if isinstance(result, tk.DeviceOp):
        return result.sync()
    if isinstance(result, DeviceFuture) and result.state != "idle":
        return result.result(timeout_s=HANG_S)
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
    repr(result)
    return None


class State:
    """What a call must not change, and puts it back."""

    def __init__(self, kind: str) -> None:
        self.device = tk.Device(kind)
        self.policy = self.device.policy

    def reset(self) -> str | None:
        wrong = None
        if submitting.submission is not None:
            wrong, submitting.submission = "something is still being submitted", None
        tk.set_default_device(self.device)
        self.device.policy = self.policy
        memory.use_allocator(None, self.device)
        memory.set_limit(LIMIT, self.device)
        if self.device.kind == "cpu":
            memory.set_limit(LIMIT, other_device())
        return wrong

    def canary(self) -> str | None:
        """Whether the device still works."""
        try:
            found = api.arange(4).dup().to_host().sync().tolist()
        except Exception as error:
            return f"afterwards the device fails: {error!r}"
        return None if found == [0, 1, 2, 3] else f"afterwards the device gives {found}"


def problem_of(case: Case, state: State) -> str | None:
    """What is wrong with a call, or with the device behind it."""
    state.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = run(case)
        left = state.reset()
        return problem or left or state.canary()


def swept() -> Iterator[Case]:
    """Each call of `CALLS` with each value of the pool in each place, the other arguments right."""
    return (replaced(name, {place: label}) for name in CALLS for place in places(name) for label in POOL)


def main(first: str, step: str, count: str, seconds: str, out: str, kind: str) -> None:
    """Run cases, print what they do: `seed N`, and `wrong` with a report that ends with an empty line."""
    os.environ.setdefault("TILEKIT_CACHE_DIR", "off")
    sys.stderr = sys.__stderr__
    state, names = State(kind), sorted(_targets())
    end = time.monotonic() + float(seconds)
    seeds = range(0 if first == "all" else int(first), sys.maxsize, int(step))
    cases = itertools.islice(swept(), 0, None, int(step)) if first == "all" else (drawn(seed, names) for seed in seeds)
    ran = 0
    for seed, case in zip(seeds, cases, strict=False):
        if ran == int(count) or time.monotonic() >= end:
            break
        os.write(int(out), f"seed {seed}\n".encode())
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        problem = problem_of(safe(case) if kind == "cuda" else case, state)
        if problem is not None:
            os.write(int(out), f"wrong {seed}: {shown(case)}: {problem}\n\n".encode(errors="replace"))
        ran += 1
    faulthandler.cancel_dump_traceback_later()
    os.write(int(out), f"ran {ran} of {len(names)} names\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
