"""Memory of others' that is met more than once: as a part and as a whole, as an alias that must not be written, in any order.

Whatever was imported first, launches that use the same bytes run in the order of their submission, and one launch does not write
what another of its arguments reads. On a CPU device, with streams that are held back and with its seeded stepper;
`test_interop_streams.py` has what a GPU's launches make of it.
"""

import gc
import itertools
import random
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from exporter import Exporter
from sharing import TILE, N, copy, held, increment

import tilekit as tk
from tilekit import api
from tilekit._driver.cpu.driver import Stepper
from tilekit._runtime.ranges import ranges_of
from tilekit.interop.owners import owner_range


def numpy_part(array, low, high):
    return array[low:high]


def numpy_whole(array):
    return array


def foreign_part(array, low, high):
    """Of a library that does not say what its arrays are a part of."""
    return Exporter(array[low:high].view(np.uint32), np.float32)


def foreign_whole(array):
    return foreign_part(array, 0, len(array))


def frozen(array):
    array = array[:]
    array.flags.writeable = False
    return array


def table(device):
    """The ranges that are known, those that nobody has any more left out."""
    gc.collect()
    device.synchronize()
    device.collect()
    return [(found.low, found.high) for found, _ in ranges_of(device).across(0, 1 << 63)]


MEETINGS = {
    "numpy, part first": (lambda a: a[100:400], lambda a: a),
    "numpy, whole first": (lambda a: a, lambda a: a[100:400]),
    "numpy, parts": (lambda a: a[100:400], lambda a: a[300:600]),
    "numpy, another dtype": (lambda a: a[100:400].view(np.int32).view(np.float32), lambda a: a.view(np.uint8).view(np.float32)),
    "numpy, strided": (lambda a: a[100:400:3], lambda a: a[::-1]),
    "numpy, as_strided": (lambda a: np.lib.stride_tricks.as_strided(a[100:], (10,), (8,)), lambda a: a),
    "numpy, one buffer": (lambda a: np.frombuffer(a.data, np.float32)[100:400], lambda a: np.frombuffer(a.data, np.float32)),
    "numpy, read-only later": (lambda a: a[100:400], frozen),
    "numpy, broadcast later": (lambda a: a[100:400], lambda a: np.broadcast_to(a, (2, N))),
    "others, part first": (lambda a: foreign_part(a, 100, 400), foreign_whole),
    "others, whole first": (foreign_whole, lambda a: foreign_part(a, 100, 400)),
    "others, parts": (lambda a: foreign_part(a, 100, 400), lambda a: foreign_part(a, 300, 600)),
    "others, then numpy": (lambda a: foreign_part(a, 100, 400), lambda a: a),
    "numpy, then others": (lambda a: a[100:400], foreign_whole),
}


@pytest.mark.parametrize("meeting", MEETINGS)
def test_a_reader_of_either_waits_for_the_writer_of_the_other(cpu, meeting):
    first, second = MEETINGS[meeting]
    array = np.zeros(N, np.float32)
    written, read = tk.as_tensor(first(array)), tk.as_tensor(second(array))
    with cpu.stream() as a, cpu.stream() as b:
        release = held(cpu, a)
        writing = increment(written.partition(TILE)).async_on(a)
        reading = read.to_host().async_on(b)
        assert not b.query(), "it waits"
        release()
        writing.result(60)
        np.testing.assert_array_equal(
            reading.result(60), second(array) if isinstance(second(array), np.ndarray) else read.host_view()
        )
    assert (read.host_view() == 1).any()


@pytest.mark.parametrize("meeting", [name for name in MEETINGS if "read-only" not in name and "broadcast" not in name])
def test_a_writer_of_either_waits_for_the_reader_of_the_other(cpu, meeting):
    first, second = MEETINGS[meeting]
    array = np.zeros(N, np.float32)
    read, written = tk.as_tensor(first(array)), tk.as_tensor(second(array))
    into = api.zeros(read.shape).sync()
    with cpu.stream() as a, cpu.stream() as b:
        release = held(cpu, a)
        reading = copy(into.partition(TILE), read).async_on(a)
        writing = increment(written.partition(TILE)).async_on(b)
        assert not b.query(), "it waits"
        release()
        reading.result(60), writing.result(60)
    assert not into.to_host().sync().any()
    assert (written.host_view() == 1).all()


@pytest.mark.parametrize("meeting", [name for name in MEETINGS if "parts" not in name and "strided" not in name])
def test_one_launch_does_not_write_what_it_reads(cpu, meeting):
    first, second = MEETINGS[meeting]
    array = np.zeros(N, np.float32)
    one, other = tk.as_tensor(first(array)), tk.as_tensor(second(array))
    target, source = (one, other) if other.storage.readonly else (other, one)
    with pytest.raises(ValueError, match="arguments y and x overlap in memory, and y is written; only the very same view"):
        copy(target.partition(TILE), source.reshape(source.shape)).sync()
    assert not array.any()


def test_views_of_one_numpy_array_are_one_storage(cpu):
    array = np.arange(N, dtype=np.float32)
    part, whole = tk.as_tensor(array[4:8]), tk.as_tensor(array)
    assert part.storage is whole.storage
    assert (part.storage.memory.address, part.storage.nbytes) == (array.ctypes.data, array.nbytes)
    assert (part.offset, whole.offset) == (4, 0)
    frozen_parts = [tk.as_tensor(frozen(array)[at : at + 4]).storage for at in (0, 4)]
    assert frozen_parts[0] is frozen_parts[1]
    assert frozen_parts[0] is not whole.storage
    assert frozen_parts[0].readonly == "the NumPy array is"
    assert tk.as_tensor(np.zeros(8, np.float32)).storage is not whole.storage
    # What is not aligned to its owner's memory has a storage of its own, in the same order.
    skewed = np.frombuffer(array.data, np.uint8)[1:]
    inside = skewed[3:11].view(np.float32)
    assert tk.as_tensor(inside).storage.reads is whole.storage.reads
    np.testing.assert_array_equal(tk.as_tensor(inside).to_host().sync(), [1, 2])


def test_elements_between_each_other_do_not_overlap(cpu):
    array = np.arange(8, dtype=np.float32)
    even, odd = (tk.as_tensor(Exporter(array[at::2].view(np.uint32), np.float32)) for at in (0, 1))
    assert even.storage is not odd.storage
    copy(even.partition(4), odd).sync()
    np.testing.assert_array_equal(array, [1, 1, 3, 3, 5, 5, 7, 7])


def test_the_very_same_view_may_be_read_by_its_writer(cpu):
    array = np.arange(N, dtype=np.float32)
    writable, readonly = tk.as_tensor(array), tk.as_tensor(frozen(array))
    copy(writable.partition(TILE), readonly).sync()
    with pytest.raises(ValueError, match=r"is read-only, since the NumPy array is: write to a dup\(\)"):
        copy(readonly.partition(TILE), writable).sync()


def test_parts_that_a_whole_joins(cpu):
    """Both had work that was not done when it came."""
    array = np.zeros(N, np.float32)
    parts = [tk.as_tensor(foreign_part(array, at, at + 100)) for at in (0, 500)]
    assert parts[0].storage.reads is not parts[1].storage.reads, "apart so far"
    with cpu.stream() as a, cpu.stream() as b, cpu.stream() as c:
        releases = [held(cpu, a), held(cpu, b)]
        futures = [increment(part.partition(64)).async_on(stream) for part, stream in zip(parts, (a, b), strict=True)]
        whole = tk.as_tensor(foreign_whole(array))
        reading = whole.to_host().async_on(c)
        for release in releases:
            assert not c.query()
            release()
        host = reading.result(60)
        assert [future.result(60) is not None for future in futures] == [True, True]
        assert host[:100].all()
        assert host[500:600].all()
        # From now on they are used in one order.
        assert parts[0].storage.reads is parts[1].storage.reads is whole.storage.reads
        release = held(cpu, a)
        increment(parts[0].partition(64)).async_on(a)
        reading = whole.to_host().async_on(c)
        assert not c.query()
        release()
        assert (reading.result(60)[:100] == 2).all()


@pytest.mark.parametrize("again", [numpy_whole, foreign_whole])
def test_work_on_what_was_dropped_is_waited_for(cpu, again):
    array = np.zeros(N, np.float32)
    with cpu.stream() as a, cpu.stream() as b:
        release = held(cpu, a)
        increment(tk.as_tensor(foreign_part(array, 100, 400)).partition(TILE)).async_on(a)
        gc.collect()
        reading = tk.as_tensor(again(array)).to_host().async_on(b)
        assert not b.query(), "it waits"
        release()
        assert (reading.result(60)[100:400] == 1).all()


def test_what_was_done_with_is_forgotten(cpu):
    before = table(cpu)
    for _ in range(3):
        array = np.zeros(N, np.float32)
        gone = weakref.ref(array)
        tensors = [tk.as_tensor(view) for view in (array[4:8], array, frozen(array), Exporter(array.view(np.uint32), np.float32))]
        tensors.append(tk.from_pointer(array.ctypes.data, N, tk.float32, owner=array))
        increment(tensors[0].partition(4)).sync()
        assert (array.ctypes.data, array.ctypes.data + array.nbytes) in table(cpu)
        del tensors, array
        assert table(cpu) == before
        assert gone() is None


# addresses, and memory of tilekit's own that others have


def test_addresses_with_an_owner_join_what_is_known(cpu):
    array = np.zeros(N, np.float32)
    tensor = tk.from_pointer(array.ctypes.data + 400, 100, tk.float32, owner=array)
    whole = tk.as_tensor(array)
    assert tensor.storage is not whole.storage
    with cpu.stream() as a, cpu.stream() as b:
        release = held(cpu, a)
        increment(tensor.partition(64)).async_on(a)
        reading = whole.to_host().async_on(b)
        assert not b.query()
        release()
        assert reading.result(60)[100:200].all()
    with pytest.raises(ValueError, match="arguments y and x overlap in memory"):
        copy(tensor.partition(64), whole[50:150]).sync()


def test_a_bare_address_waits_for_who_is_known(cpu):
    array = np.zeros(N, np.float32)
    tensor = tk.as_tensor(array)
    bare = tk.from_pointer(array.ctypes.data, N, tk.float32)
    with cpu.stream() as a:
        release = held(cpu, a)
        increment(tensor.partition(TILE)).async_on(a)
        with cpu.stream() as b:
            op = copy(api.zeros(N).sync_on(b).partition(TILE), bare)
            cpu.driver.submit(b.handle, release)
            assert (op.sync_on(b)[0].unpartition().to_host().sync_on(b) == 1).all()
    with pytest.raises(ValueError, match="arguments y and x overlap in memory"):
        copy(tensor[:500].partition(TILE), bare[250:750]).sync()
    assert tk.as_tensor(array[1:]).storage is tensor.storage, "others do not learn of it"


@pytest.mark.parametrize("export", ["before", "after"])
def test_an_alias_of_tilekits_memory(cpu, export):
    x = api.zeros(N).sync()
    if export == "before":
        np.from_dlpack(x)
    alias = tk.from_pointer(x.address, N, tk.float32, owner=x)
    others = frozen(np.from_dlpack(x))
    seen = tk.as_tensor(others)
    assert seen.storage is not x.storage
    for tensor in (alias, seen):
        with cpu.stream() as a, cpu.stream() as b:
            release = held(cpu, a)
            increment(x.partition(TILE)).async_on(a)
            reading = tensor.to_host().async_on(b)
            assert not b.query()
            release()
            assert reading.result(60).all()
        with pytest.raises(ValueError, match="arguments y and x overlap in memory"):
            copy(x[:500].partition(TILE), tensor[250:750]).sync()
    assert tk.as_tensor(np.from_dlpack(x)).storage is x.storage


def test_an_address_over_a_tensor_that_is_lent_later(cpu):
    x = api.zeros(N).sync()
    alias = tk.from_pointer(x.address, N, tk.float32, owner=[x])  # which does not say whose it is
    np.from_dlpack(x)
    with cpu.stream() as a, cpu.stream() as b:
        release = held(cpu, a)
        increment(alias.partition(TILE)).async_on(a)
        reading = x.to_host().async_on(b)
        assert not b.query()
        release()
        assert reading.result(60).all()


def test_memory_of_several_tensors_is_no_arrays(cpu):
    x, y = api.zeros(N).sync(), api.zeros(N).sync()
    np.from_dlpack(x), np.from_dlpack(y)
    low, high = sorted((x.address, y.address))
    with pytest.raises(ValueError, match=r"reach over several tensors of .*cpu:0.*: that is no one array's memory"):
        tk.from_pointer(low, (high - low) // 4 + N, tk.float32, owner=object())
    assert tk.as_tensor(np.from_dlpack(x)).storage is x.storage, "nothing has changed"
    assert tk.as_tensor(np.from_dlpack(y)).storage is y.storage


# any order


class Meetings:
    """Random imports of one array's bytes, and random work on them on random streams; what NumPy makes of it at once."""

    def __init__(self, device, seed):
        self.random = random.Random(seed)
        self.array = np.zeros(64, np.float32)
        self.expected, self.tensors = self.array.copy(), []
        self.streams = [device.stream() for _ in range(4)]
        self.seen = []

    def view(self):
        low = self.random.randrange(60)
        high = self.random.randrange(low + 1, 65)
        return slice(low, high, self.random.choice((1, 1, 2)))

    def meet(self):
        where = self.view()
        view = self.array[where]
        kind = self.random.randrange(4)
        if kind == 0:
            obj = view
        elif kind == 1:
            obj = frozen(view)
        elif kind == 2:
            obj = Exporter(view.view(np.uint32), np.float32)
        else:
            obj = np.frombuffer(self.array.data, np.float32)[where]
        self.tensors.append((tk.as_tensor(obj), where))

    def step(self):
        if not self.tensors or self.random.random() < 0.3:
            self.meet()
        if len(self.tensors) > 8:
            del self.tensors[self.random.randrange(len(self.tensors))]
        tensor, where = self.random.choice(self.tensors)
        stream = self.random.choice(self.streams)
        if tensor.storage.readonly or self.random.random() < 0.5:
            self.seen.append((tensor.to_host().async_on(stream), self.expected[where].copy()))
        else:
            increment(tensor.partition(16)).async_on(stream)
            self.expected[where] += 1

    def holds(self):
        return all(np.array_equal(future.result(60), expected) for future, expected in self.seen)


@pytest.mark.parametrize("seed", range(40))
def test_the_order_of_submission_decides(cpu, seed):
    with Stepper(cpu, seed):
        meetings = Meetings(cpu, seed)
        for _ in range(40):
            meetings.step()
        assert meetings.holds()
        cpu.synchronize()
    np.testing.assert_array_equal(meetings.array, meetings.expected)


def test_many_threads_import_and_drop(cpu):
    before, array, errors = table(cpu), np.arange(256, dtype=np.float32), []

    def work(seed):
        choose, kept = random.Random(seed), []
        try:
            for _ in range(150):
                low = choose.randrange(250)
                high = choose.randrange(low + 1, 257)
                kept.append((tk.as_tensor(foreign_part(array, low, high), device=cpu), low, high))
                tensor, low, high = choose.choice(kept)
                assert np.array_equal(tensor.to_host().sync(), array[low:high])
                del kept[: max(0, len(kept) - 5)]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    found = [(known.low, known.high) for known in ranges_of(cpu).entries]
    assert all(high <= low for (_, high), (low, _) in itertools.pairwise(found)), "ranges are disjoint"
    assert table(cpu) == before


# what libraries say that their arrays are a part of


def test_the_memory_that_an_array_is_a_part_of():
    torch = SimpleNamespace(untyped_storage=lambda: SimpleNamespace(data_ptr=lambda: 4096, nbytes=lambda: 1024))
    cupy = SimpleNamespace(data=SimpleNamespace(mem=SimpleNamespace(ptr=4096, size=1024)))
    for obj in (torch, cupy):
        assert owner_range(obj, 4100, 4200) == (4096, 5120)
        assert owner_range(obj, 4096, 5120) == (4096, 5120)
        for low, high in ((4000, 4200), (5000, 5124), (9000, 9004)):
            assert owner_range(obj, low, high) == (low, high), "what it says cannot be"

    def refuses():
        raise NotImplementedError("Cannot access storage of a tensor that has none")

    for obj in (
        SimpleNamespace(untyped_storage=refuses),
        SimpleNamespace(data=SimpleNamespace(mem=None)),
        SimpleNamespace(data=SimpleNamespace(mem=SimpleNamespace(ptr=None, size=None))),
        SimpleNamespace(data=memoryview(b"abc")),
        object(),
    ):
        assert owner_range(obj, 4100, 4200) == (4100, 4200)
    whole = np.zeros((6, 8), np.int16)
    start = whole.ctypes.data
    for view in (
        whole[2:4, 1:],
        whole[::-2].T,
        whole.reshape(-1)[7:9],
        np.broadcast_to(whole[0], (3, 8)),
        whole[:1].view(np.int8),
    ):
        low = view.__array_interface__["data"][0]
        assert owner_range(view, low, low + 1) == (start, start + 96)


# masks


def test_masked_arrays_are_refused(cpu):
    array = np.ma.masked_greater(np.arange(8, dtype=np.float32), 3)
    for masked in (array, array[:2], np.ma.zeros(4, np.float32)):
        with pytest.raises(
            TypeError,
            match=r"as_tensor: numpy.ma.*MaskedArray has a mask, which tensors have not: pass .filled\(value\), a copy, or",
        ):
            tk.as_tensor(masked)
        with pytest.raises(TypeError, match=r"from_host: .* has a mask"):
            api.from_host(masked)
    with pytest.raises(TypeError, match=r"memcpy: .* has a mask"):
        api.memcpy(api.zeros(8).sync(), array)
    assert tk.as_tensor(array.filled(-1)).to_host().sync()[-1] == -1
    assert tk.as_tensor(array.data).to_host().sync()[-1] == 7
