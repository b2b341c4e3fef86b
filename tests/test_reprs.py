"""What a session of Python's shows of tilekit's objects: one line each, and no machine code."""

import threading

import pytest
from held_up import held

import tilekit as tk
from tilekit import api, memory

SOURCE = 'extern "C" __global__ void nothing(int* y) {}'


@tk.kernel
def double(y: tk.InOut):
    y.store(2 * y.load())


@tk.graphed
def twice(y):
    return double(y.partition(4))


def len_of(t):
    return t.shape[0]


@tk.operation
def total(x):
    yield api.zeros(3)


def launch():
    return double(api.ones(8).sync().partition(4))


THINGS = {
    "kernel": lambda d: double,
    "code": lambda d: tk.cuda_source(SOURCE, "nothing", "y: InOut[i32]"),
    "compiled": lambda d: launch().compile("sm_90a"),
    "explanation": lambda d: launch().explain("sm_90a"),
    "launch": lambda d: launch(),
    "operation": lambda d: total(1),
    "graph": lambda d: launch().graph(),
    "prepared": lambda d: launch().prepare(),
    "graphed": lambda d: twice,
    "scope": lambda d: tk.CudaGraph.scope(d.stream()),
    "launch of a graph": lambda d: launch().graph().launch(),
    "helper": lambda d: tk.function(len_of),
    "explanation of the CPU's": lambda d: launch().explain("cpu"),
    "statistics": lambda d: memory.stats(d),
    "annotation": lambda d: tk.In[-1, 4],
    "padding": lambda d: tk.PaddingMode.ZERO,
    "tensor": lambda d: api.ones(8).sync(),
    "meta": lambda d: api.meta((3, 4)),
    "partition": lambda d: api.meta((3, 4)).partition((4, 4)),
    "map": lambda d: api.meta((3, 4)).partition((4, 4)).map(group=2 * (1,)),
    "scattered": lambda d: api.meta((3, 4)).scattered(),
    "future": lambda d: launch().async_on(d.stream()),
    "idle": lambda d: launch().into_future(),
    "device": lambda d: d,
    "stream": lambda d: d.stream(),
    "event": lambda d: d.event(),
    "policy": lambda d: d.policy,
    "slot": lambda d: tk.slot("y", api.ones(8).sync()),
    "storage": lambda d: api.ones(8).sync().storage,
    "zip": lambda d: tk.zip(*[launch() for _ in range(20)]),
    "config": lambda d: tk.LaunchConfig(grid=(1,), block=32),
    "generic": lambda d: tk.generics("BM"),
}


@pytest.mark.parametrize("name", THINGS)
def test_a_repr_is_one_line(cpu, name):
    thing = THINGS[name](cpu)
    text = repr(thing)
    assert "\n" not in text
    assert len(text) < 400
    assert " at 0x" not in text, "it says what it is, not where"
    if isinstance(thing, tk.DeviceOp):
        thing.consumed()


DECLARED = {"Const", "In", "InOut", "Out"}  # which only stand in annotations
BASES = {"SchedulingPolicy"}  # of classes of the user's


def test_every_public_class_has_a_text_of_its_own():
    classes = {name: value for name in tk.__all__ if isinstance(value := getattr(tk, name), type)}
    assert len(classes) > 20
    assert {name for name, kind in classes.items() if kind.__repr__ is object.__repr__} == DECLARED | BASES


@pytest.mark.parametrize("name", ["Tensor", "Partition", "DeviceFuture", "Stream"])
def test_a_repr_does_not_wait_for_the_device(cpu, name):
    gate = threading.Event()
    stream = cpu.stream()
    x = api.zeros(4).sync()
    futures = [held(gate).async_on(stream), x.fill(1).async_on(stream)]
    things = {"Tensor": x, "Partition": x.partition(4), "DeviceFuture": futures[1], "Stream": stream}
    try:
        text = repr(things[name])
        assert not futures[1].done()
    finally:
        gate.set()
    assert name.lower() in text.lower()
    assert futures[1].result().numpy().tolist() == [1] * 4


def test_the_repr_of_machine_code_says_what_it_takes():
    compiled = double(api.meta(8).partition(4)).compile("sm_90a")
    text = repr(compiled)
    assert text.startswith(f"<CompiledKernel {__name__}.double for sm_90a: {compiled.registers} registers, ")
    assert compiled.entry in compiled.ptx, "the whole name is there to ask for"


@pytest.mark.parametrize(("make", "name"), [(api.ones, "ones"), (api.zeros, "zeros"), (lambda n: api.full(n, 7), "full")])
def test_an_op_is_called_by_the_function_that_built_it(cpu, make, name):
    op = make(8)
    assert repr(op) == name
    op.sync()
    with pytest.raises(ValueError, match=f"^{name} has already run"):
        op.sync()
