"""Tensors of bare addresses: with an owner as good as any, without one for work that is waited for in place."""

import asyncio
import gc
import weakref

import numpy as np
import pytest
from sharing import TILE, N, copy, held, increment

import tilekit as tk
from tilekit import api
from tilekit._runtime.storage import BORROWED


def test_a_pointer_with_an_owner_is_as_good_as_any(cpu):
    class Owner:
        pass

    array, owner = np.arange(N, dtype=np.float32), Owner()
    gone = weakref.ref(owner)
    tensor = tk.from_pointer(array.ctypes.data, (N // 2,), tk.float32, (2,), owner=owner, nbytes=array.nbytes)
    del owner
    assert not tensor.storage.borrowed
    with cpu.stream() as stream:
        increment(tensor.partition(TILE)).async_on(stream).result(60)
        asyncio.run(tensor.to_host().run())
    np.testing.assert_array_equal(array[::2], np.arange(0, N, 2) + 1)
    assert gone() is not None
    del tensor
    cpu.synchronize()
    gc.collect()
    cpu.collect()
    assert gone() is None


def test_a_pointer_is_checked(cpu):
    array = np.zeros(64, np.float32)
    at = array.ctypes.data
    cases = [
        ((at, 64, "float32"), {"nbytes": 255}, r"the memory has 255 bytes; a float32 tensor .* needs those from 0 to 256"),
        ((at, (4, 4), "float32", (17, 1)), {"nbytes": 200}, r"strides \(17, 1\) needs those from 0 to 220"),
        ((at, 64, "float32", (-1,)), {"nbytes": 256}, "needs those from -252 to 4"),
        ((0, 64, "float32"), {}, "0 is no address"),
        ((-8, 64, "float32"), {}, "-8 is no address"),
        ((at + 2, 8, "float32"), {}, "is no address of float32 elements, which start at multiples of 4 bytes"),
        ((at, (8, 8), "float32", (1,)), {}, r"1 strides as \(1,\) for a shape of 2 dimensions as \(8, 8\)"),
        ((at, (-1,), "float32"), {}, "negative"),
    ]
    for args, options, match in cases:
        with pytest.raises(ValueError, match=match):
            tk.from_pointer(*args, owner=array, **options)
    for args, match in (
        (("here", 8, "float32"), "the address, nbytes and each of the strides are ints"),
        ((at, 8, "complex64"), "is not a dtype of tilekit"),
        ((at, 8, "float32", (1.5,)), "the address, nbytes and each of the strides are ints"),
    ):
        with pytest.raises(TypeError, match=match):
            tk.from_pointer(*args, owner=array)
    assert tk.from_pointer(at + 252, 64, tk.float32, (-1,), owner=array).strides == (-1,)
    assert tk.from_pointer(0, (0, 4), tk.float32).shape == (0, 4)


def test_a_pointer_may_name_the_stream_of_its_writer(cpu):
    with cpu.stream() as writer, cpu.stream() as reader:
        array = np.zeros(N, np.float32)
        release = held(cpu, writer)
        cpu.driver.submit(writer.handle, lambda: array.fill(4))
        tensor = tk.from_pointer(array.ctypes.data, N, tk.float32, owner=array, stream=writer)
        future = tensor.to_host().async_on(reader)
        assert not future.done()
        release()
        assert (future.result(60) == 4).all()


@pytest.fixture
def borrowed(cpu):
    array = np.ones(N, np.float32)
    return tk.from_pointer(array.ctypes.data, N, tk.float32), array


REFUSED = r"uses borrowed memory, 4,000 bytes at 0x\w+ on cpu:0: .* Give tk.from_pointer an owner=, or run the op in place"


def ops_on(tensor):
    """Ops of many kinds that know, when they are built, that they use `tensor`."""
    return {
        "to_host": lambda: tensor.to_host(),
        "launch, read": lambda: copy(api.zeros(N).partition(TILE), tensor),
        "launch, written": lambda: increment(tensor.partition(TILE)),
        "dup": lambda: tensor.dup(),
        "memcpy into": lambda: api.memcpy(tensor, np.zeros(N, np.float32)),
        "value": lambda: tk.value(tensor).map(lambda x: x),
        "zip": lambda: tk.zip(api.zeros(4), tensor),
        "chain": lambda: tensor.to_host().map(np.sum).then(tk.value),
        "view": lambda: tensor[::2].reshape(5, 100).to_host(),
        "host_fn": lambda: tk.host_fn(lambda x: x.shape, tensor),
    }


@pytest.mark.parametrize("kind", list(ops_on(None)))
def test_borrowed_memory_is_used_in_place_alone(cpu, borrowed, kind):
    make = ops_on(borrowed[0])[kind]
    with cpu.stream() as stream:
        for spawn in (
            lambda op: op.async_on(stream),
            lambda op: op.schedule(cpu.policy),
            lambda op: op.run(),
            lambda op: op.into_future().submit(),
        ):
            op = make()
            before = stream.pending
            with pytest.raises(ValueError, match=REFUSED) as refusal:
                spawn(op)
            assert stream.pending == before, "nothing was submitted"
            assert any("built at" in note for note in refusal.value.__notes__)
            op.sync_on(stream)  # it has not been spent
        make().sync()

        async def main():
            return await make()

        asyncio.run(main())


def test_borrowed_memory_that_closures_bring_is_refused_when_it_is_used(cpu, borrowed):
    tensor, array = borrowed
    makes = (
        lambda: api.zeros(N).then(lambda y: copy(y.partition(TILE), tensor)),
        lambda: tk.with_context(lambda ctx: increment(tensor.partition(TILE))),
        lambda: tk.with_context(lambda ctx: tensor.to_host()),
        lambda: api.zeros(N).then(lambda y: api.memcpy(tensor, y)).shared(),
        lambda: api.zeros(4).to_host().then(lambda host: tensor.to_host()),  # after a wait, by the callback thread
        lambda: tk.with_context(lambda ctx: tensor.to_host()).on("cpu").with_policy(cpu.policy),
        lambda: tk.zip(api.zeros(4), tk.with_context(lambda ctx: tensor.to_host()), parallel=True),
    )
    with cpu.stream() as stream:
        for make in makes:
            with pytest.raises(ValueError, match=REFUSED):
                make().async_on(stream).result(60)

            async def main(make=make):
                task = asyncio.create_task(make().run())
                with pytest.raises(ValueError, match=REFUSED):
                    await task
                await make()

            asyncio.run(main())
            make().sync_on(stream)
    assert array.shape == (N,)


def test_nobody_asks_once_the_last_borrowed_tensor_is_gone(cpu):
    array = np.ones(N, np.float32)
    gc.collect()
    before = len(BORROWED)
    tensor = tk.from_pointer(array.ctypes.data, N, tk.float32)
    assert len(BORROWED) == before + 1
    del tensor
    gc.collect()
    assert len(BORROWED) == before


def test_an_awaited_future_takes_borrowed_memory(cpu, borrowed):
    async def main():
        return await borrowed[0].to_host().into_future()

    assert (asyncio.run(main()) == 1).all()
