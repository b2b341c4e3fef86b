"""The expressions that random graphs are made of: each is built as an op of tilekit's, and evaluated by NumPy.

An expression is a list of its name and its operands, so that a plan prints as what it is and travels as JSON. What it evaluates
to is a view of the model's memory, as the op's result is a view of the device's: evaluating the expressions one after the other
is running them in the order of their submission.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tilekit as tk
from tilekit import api

N = 8  # elements of a shared tensor
VIEWS = {
    "all": slice(None),
    "low": slice(0, 4),
    "high": slice(4, 8),
    "middle": slice(2, 6),
    "even": slice(0, 8, 2),
    "odd": slice(1, 8, 2),
    "turned": slice(None, None, -1),
}
Term = Any  # JSON: a list of a name and operands


class Boom(Exception):
    """What the closures raise that are to fail."""


@tk.kernel
def mix(y: tk.InOut, a, x: tk.In):
    y.store(y.load() * a + tk.load_tile_like(x, y))


@tk.kernel
def copy(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y))


@tk.kernel
def both(y: tk.InOut, z: tk.InOut, a):
    y.store(y.load() + z.load())
    z.store(z.load() * a)


@tk.kernel
def beyond(y: tk.Out, x: tk.In):
    y.store(tk.load(x, tk.bid(0) + 100, 4))


def size(view: str) -> int:
    return len(range(*VIEWS[view].indices(N)))


def boom(number: int) -> Any:
    def fail(*_: Any) -> Any:
        raise Boom(number)

    return fail


# What the expressions mean to NumPy.


class Model:
    """The shared tensors' memory, and what the shared ops have given."""

    def __init__(self, tensors: list[np.ndarray], shared: list[Term]) -> None:
        self.tensors, self.shared = tensors, shared
        self.kept: dict[int, Any] = {}

    def run(self, term: Term) -> Any:
        """The result: a view, a copy for the host (an array of its own), a tuple. Raises what the op is to raise."""
        name, *given = term
        return getattr(self, name)(*given)

    def tensor(self, index: int, view: str) -> Any:
        return self.tensors[index][VIEWS[view]]

    lazy = tensor

    def fresh(self, how: str, n: int, k: int) -> Any:
        return np.arange(k, k + n) if how == "arange" else np.full(n, k)

    def memo(self, index: int) -> Any:
        if index not in self.kept:
            try:
                self.kept[index] = (self.run(self.shared[index]), None)
            except (Boom, ValueError, TypeError) as error:
                self.kept[index] = (None, error)
        result, error = self.kept[index]
        if error is not None:
            raise error
        return result

    def mix(self, tile: int, target: Term, a: int, source: Term) -> Any:
        y, x = self.run(target), self.run(source)
        refuse_overlap(y, x)
        y[:] = y * a + x
        return y

    def then_mix(self, tile: int, target: Term, a: int, source: Term) -> Any:
        return self.mix(tile, target, a, source)

    def copy(self, tile: int, target: Term, source: Term) -> Any:
        y, x = self.run(target), self.run(source)
        refuse_overlap(y, x)
        y[:] = x.copy()
        return y

    def both(self, which: int, target: Term, other: Term, a: int) -> Any:
        y, z = self.run(target), self.run(other)
        if np.shares_memory(y, z):
            raise ValueError
        y[:], z[:] = y + z, z * a
        return (y, z)[which]

    def dup(self, source: Term) -> Any:
        return self.run(source).copy()

    def fill(self, source: Term, k: int) -> Any:
        y = self.run(source)
        y[:] = k
        return y

    def part(self, source: Term, key: list[Any]) -> Any:
        return self.run(source)[slice(*key)]

    def same(self, how: str, source: Term) -> Any:
        return self.run(source)

    def placed(self, how: str, home: int, which: int, source: Term) -> Any:
        return self.run(source)

    def bring(self, there: int, here: int, source: Term) -> Any:
        return self.run(source).copy() if there != here else self.run(source)

    def roundtrip(self, source: Term, k: int) -> Any:
        return self.run(source) + k

    def write(self, source: Term, k: int) -> Any:
        return self.fill(source, k)

    def pair(self, how: str, first: Term, second: Term) -> Any:
        a, b = self.run(first), self.run(second)
        return b if how in ("second", "unzip") else a

    def steps(self, first: Term, second: Term) -> Any:
        a, b = self.run(first), self.run(second)
        refuse_overlap(a, b)
        a[:] = a + b
        return a

    def host_function(self, home: int, source: Term, k: int) -> Any:
        return self.run(source) + k

    def fail(self, how: str, number: int, source: Term) -> Any:
        self.run(source)
        raise TypeError if how == "no op" else Boom(number)

    def mend(self, source: Term, instead: Term) -> Any:
        try:
            return self.run(source)
        except (Boom, ValueError, TypeError):
            return self.run(instead)

    def host(self, how: str, source: Term) -> Any:
        return self.run(source).copy()

    def hosts(self, parallel: bool, first: Term, second: Term) -> Any:
        return (self.host("", first), self.host("", second))


def refuse_overlap(y: np.ndarray, x: np.ndarray) -> None:
    """What a launch refuses: memory that it reads and writes, but for the very same view."""
    same = y.__array_interface__["data"] == x.__array_interface__["data"] and y.strides == x.strides and y.shape == x.shape
    if not same and np.shares_memory(y, x):
        raise ValueError


# What is known of an expression without running it.

_SPLITS = {"roundtrip", "write", "host_function", "mend"}  # where the host waits in the middle
_EFFECTS = {"tensor", "lazy", "memo"}


def parts(term: Term) -> list[Term]:
    return [operand for operand in term[1:] if isinstance(operand, list) and operand and isinstance(operand[0], str)]


def splits(term: Term, plan: Any) -> bool:
    """Whether the op is submitted in several stretches: others may come in between."""
    if term[0] in _SPLITS or (term[0] == "memo" and splits(plan["shared"][term[1]], plan)):
        return True
    if term[0] == "bring" and plan["kinds"][term[1]] != plan["kinds"][term[2]]:
        return True
    return any(splits(part, plan) for part in parts(term))


def touches(term: Term) -> bool:
    """Whether it reads or writes what others may write."""
    return term[0] in _EFFECTS or any(map(touches, parts(term)))


def may_fail(term: Term) -> bool:
    return term[0] in ("fail", "memo", "mix", "then_mix", "copy", "both", "steps") or any(map(may_fail, parts(term)))


# What the expressions are as ops.


class Builder:
    """Builds them for the tensors of a run."""

    def __init__(self, devices: list[Any], policies: list[list[Any]], tensors: list[Any], shared: list[Term]) -> None:
        self.devices, self.policies, self.tensors = devices, policies, tensors
        self.memos: list[Any] = []
        for term in shared:  # which may use those before
            self.memos.append(self.op(term).shared())

    def op(self, term: Term) -> Any:
        """The op of a term."""
        built = self.argument(term)
        return built if isinstance(built, tk.DeviceOp) else tk.value(built)

    def argument(self, term: Term) -> Any:
        """As `op`, but a tensor stays one."""
        name, *given = term
        return getattr(self, name)(*given)

    def tensor(self, index: int, view: str) -> Any:
        return self.tensors[index] if view == "all" else self.tensors[index][VIEWS[view]]

    def lazy(self, index: int, view: str) -> Any:
        return tk.value(self.tensor(index, view))

    def fresh(self, how: str, n: int, k: int) -> Any:
        return api.arange(k, k + n) if how == "arange" else api.full(n, k, tk.int64)

    def memo(self, index: int) -> Any:
        return self.memos[index]

    def mix(self, tile: int, target: Term, a: int, source: Term) -> Any:
        return mix(self.argument(target).partition(tile), a, self.argument(source)).first().unpartition()

    def then_mix(self, tile: int, target: Term, a: int, source: Term) -> Any:
        op, x = self.op(target), self.op(source)
        return tk.zip(op, x).apply(lambda y, x: mix(y.partition(tile), a, x).apply(lambda y, a, x: tk.value(y.unpartition())))

    def copy(self, tile: int, target: Term, source: Term) -> Any:
        return copy(self.argument(target).partition(tile), self.argument(source)).map(lambda results: results[0].unpartition())

    def both(self, which: int, target: Term, other: Term, a: int) -> Any:
        op = both(self.argument(target).partition(4), self.argument(other).partition(4), a)
        return op.unzip()[which].unpartition()

    def dup(self, source: Term) -> Any:
        return self.op(source).dup()

    def fill(self, source: Term, k: int) -> Any:
        return self.op(source).then(lambda y: y.fill(k))

    def part(self, source: Term, key: list[Any]) -> Any:
        return self.op(source).map(lambda y: y[slice(*key)])

    def same(self, how: str, source: Term) -> Any:
        op = self.op(source)
        if how == "inspect":
            return op.inspect(lambda y: y.shape)
        if how == "then":
            return op.then(tk.value)
        if how == "context":
            op.consumed()
            return tk.with_context(lambda ctx: op)
        if how == "join_all":
            return tk.join_all([op, 5]).map(lambda results: results[0])
        return op.and_then_with_context(lambda ctx, y: tk.value(y))

    def placed(self, how: str, home: int, which: int, source: Term) -> Any:
        op = self.op(source)
        return op.on(self.devices[home]) if how == "on" else op.with_policy(self.policies[home][which])

    def bring(self, there: int, here: int, source: Term) -> Any:
        # Built when it runs: the device of an op is that of its first part, which here is not where the result is.
        op = self.op(source).on(self.devices[there]).then(lambda y: y.to(self.devices[here]))
        op.consumed()
        return tk.with_context(lambda ctx: op)

    def roundtrip(self, source: Term, k: int) -> Any:
        return self.op(source).to_host().then(lambda array: api.from_host(array + k))

    def write(self, source: Term, k: int) -> Any:
        return self.op(source).then(lambda y: api.memcpy(y, np.full(y.shape, k)))

    def pair(self, how: str, first: Term, second: Term) -> Any:
        op = tk.zip(self.op(first), self.op(second), parallel=how in ("parallel", "second"))
        if how == "unzip":
            return op.unzip()[1]
        return op.last() if how == "second" else op.first()

    def steps(self, first: Term, second: Term) -> Any:
        @tk.operation
        def added(first: Any, second: Any) -> Any:
            a = yield first
            b = yield second
            a, _, _ = yield mix(a.partition(2), 1, b)
            return a.unpartition()

        return added(self.op(first), self.op(second))

    def host_function(self, home: int, source: Term, k: int) -> Any:
        device = self.devices[home]  # the thread that calls the function may have another default
        return self.op(source).to_host().then(lambda array: tk.host_fn(lambda: api.from_host(array + k).on(device).sync()))

    def fail(self, how: str, number: int, source: Term) -> Any:
        op = self.op(source)
        if how == "no op":
            return op.then(lambda y: 5)
        return {"then": op.then, "map": op.map, "inspect": op.inspect, "and_then": op.and_then}[how](boom(number))

    def mend(self, source: Term, instead: Term) -> Any:
        return self.op(source).or_else(lambda error: self.op(instead))

    def host(self, how: str, source: Term) -> Any:
        op = self.op(source)
        if how == "out":
            return op.then(lambda y: y.to_host(out=np.empty(y.shape, np.int64)))
        return op.to_host()

    def hosts(self, parallel: bool, first: Term, second: Term) -> Any:
        return tk.zip(self.op(first).to_host(), self.op(second).to_host(), parallel=parallel)
