"""Arrays of PyTorch and CuPy that are met again: one export, but the order of the streams each time."""

import gc
import sys
import weakref
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from exporter import Exporter
from fake_gpu import first_gpu

import tilekit as tk
from tilekit.interop import again

BASE = 1 << 40


@pytest.fixture
def gpu(monkeypatch):
    pytest.importorskip("cuda.bindings.driver", reason="the stand-in is driven by cuda.bindings")
    with first_gpu(monkeypatch) as (device, _):
        yield device


@pytest.fixture
def torch(monkeypatch):
    """A library whose arrays are exported by DLPack, and whose current stream is 77."""
    module = ModuleType("torch")
    module.current = 77
    module._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: module.current)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


class Theirs(Exporter):
    """An array of that library."""

    requires_grad = False

    def __init__(self, array=None):
        super().__init__(np.zeros(64, np.uint32) if array is None else array, np.float32, device=(2, 0))

    def detach(self):
        """Another array of the same memory, which is asked in this one's place."""
        alias = type(self)(self.array)
        alias.asked = self.asked
        return alias

    def data_ptr(self):
        return self.array.ctypes.data

    @property
    def shape(self):
        return self.array.shape

    def stride(self):
        return self.array.strides


Theirs.__module__ = "torch._tensor"


class Owned(Theirs):
    """One of a library whose streams may go."""

    def __init__(self, shape=(64,), dtype=np.float32, memptr=None, strides=None):
        super().__init__(None if memptr is None else memptr.array)

    @property
    def data(self):
        return SimpleNamespace(ptr=self.array.ctypes.data, array=self.array)

    @property
    def strides(self):
        return self.array.strides


Owned.__module__ = "cupy._core.core"


@pytest.fixture(autouse=True)
def _forget():
    again._libraries.clear()
    yield
    again._libraries.clear()


def test_an_array_is_exported_once(gpu, torch):
    theirs = Theirs()
    first = tk.as_tensor(theirs)
    assert tk.as_tensor(theirs) is first
    assert tk.as_tensor(theirs) is first
    assert len(theirs.asked) == 1
    assert tk.as_tensor(theirs, device="cuda").storage is first.storage
    assert len(theirs.asked) == 2, "whoever names a device is told if it is another"


def test_its_users_come_behind_the_librarys_current_stream(gpu, torch):
    theirs = Theirs()
    tensor = tk.as_tensor(theirs)
    with gpu.stream() as ours:
        for current, later in ((77, 0), (77, 0), (0, 1), (ours.address, 1), (ours.address, 1), (99, 0)):
            torch.current = current
            tk.as_tensor(theirs)
            stream, serial = tensor.storage.theirs
            assert stream.address == current
            assert serial == stream.pending - 1 + later, "recorded when somebody waits, but at once in what may be gone then"


def test_streams_of_cupys_are_kept(gpu, monkeypatch):
    cupy = ModuleType("cupy")
    theirs_now = SimpleNamespace(ptr=55)
    cupy.cuda = SimpleNamespace(get_current_stream=lambda: theirs_now)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    theirs = Owned()
    tensor = tk.as_tensor(theirs)
    assert tk.as_tensor(theirs) is tensor
    stream, serial = tensor.storage.theirs
    assert (stream.address, serial) == (55, stream.pending)
    assert stream._source is theirs_now
    gone = weakref.ref(theirs)
    del theirs, tensor
    gc.collect()
    assert gone() is None


def test_what_has_changed_is_exported_anew(gpu, torch):
    theirs = Theirs()
    first = tk.as_tensor(theirs)
    theirs.array = theirs.array.reshape(8, 8)
    second = tk.as_tensor(theirs)
    assert second.shape == (8, 8)
    assert second.storage is first.storage
    theirs.array = np.zeros(64, np.uint32)
    assert tk.as_tensor(theirs).address == theirs.array.ctypes.data
    assert len(theirs.asked) == 3
    theirs.requires_grad = True  # which the real library refuses to export
    tk.as_tensor(theirs)
    assert len(theirs.asked) == 4


def test_nothing_is_kept_of_an_array_that_is_gone(gpu, torch):
    theirs = Theirs()
    tk.as_tensor(theirs)
    key = id(theirs)
    assert again._known[key].array() is theirs
    del theirs
    gc.collect()
    assert key not in again._known


def test_other_libraries_are_always_asked(gpu):
    theirs = Exporter(np.zeros(64, np.uint32), np.float32, device=(2, 0))
    tk.as_tensor(theirs)
    tk.as_tensor(theirs)
    assert len(theirs.asked) == 2
