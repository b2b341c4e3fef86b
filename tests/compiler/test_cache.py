"""The disk cache: what is saved comes back; what is broken is a miss; nothing that the disk does raises."""

import logging
import os

import pytest

from tilekit.compiler import cache
from tilekit.compiler.kernel import CompiledKernel
from tilekit.driver.tensormaps import TensorMap

KEY = bytes(range(32))
KERNEL = CompiledKernel(
    entry="f",
    ptx=".target sm_80 // é",
    cubin=b"\x7fELF\n\0\n" * 100,
    target="sm_80",
    registers=24,
    shared_bytes=0,
    local_bytes=8,
    block=(128, 1, 1),
    param_format="<Qi4x",
    maps=(TensorMap(1, "float16", (128, 64), (1, 0), 128), TensorMap(0, "bool", (16,), (0,), 0)),
)


@pytest.fixture
def where(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


def test_what_is_saved_comes_back(where):
    assert cache.load(KEY) is None
    cache.save(KEY, KERNEL)
    assert cache.load(KEY) == KERNEL
    assert cache.load(KEY[::-1]) is None
    assert [p.suffix for p in where.iterdir()] == [".kernel"]


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: b"", lambda d: d[:40] + b"!" + d[41:], lambda d: b"foreign" + d])
def test_a_damaged_entry_is_a_miss_and_goes(where, caplog, damage):
    cache.save(KEY, KERNEL)
    (path,) = where.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING, "tilekit"):
        assert cache.load(KEY) is None
    assert "corrupt or foreign" in caplog.text
    assert not path.exists()
    cache.save(KEY, KERNEL)
    assert cache.load(KEY) == KERNEL


def test_a_folder_that_cannot_be_used_costs_nothing_but_time(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "tilekit"):
        cache.save(KEY, KERNEL)
        assert cache.load(KEY) is None
    assert "cannot write the kernel cache" in caplog.text


def test_off(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEKIT_CACHE_DIR", "off")
    assert cache.folder() is None
    cache.save(KEY, KERNEL)
    assert cache.load(KEY) is None


def test_the_least_recently_used_go_first(where, monkeypatch):
    cache.save(KEY, KERNEL)
    size = next(where.iterdir()).stat().st_size
    monkeypatch.setattr(cache, "MAX_BYTES", 4 * size)
    keys = [bytes([n]) * 32 for n in range(4)]
    for age, key in enumerate(keys[:3]):
        cache.save(key, KERNEL)
        os.utime(where / f"{key.hex()}.kernel", (1000 + age, 1000 + age))
    assert cache.load(keys[0]) == KERNEL  # used now: keys[1] is the oldest
    cache.save(keys[3], KERNEL)
    assert cache.load(keys[1]) is None
    assert cache.load(keys[0]) == KERNEL
    assert cache.load(keys[3]) == KERNEL


def test_the_fingerprint_is_of_the_toolchain(monkeypatch):
    before = cache.toolchain_fingerprint.__wrapped__()
    assert before == cache.toolchain_fingerprint.__wrapped__()
    monkeypatch.setenv("NUMBA_OPT", "0")
    assert before != cache.toolchain_fingerprint.__wrapped__()
