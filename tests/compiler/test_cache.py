"""The disk cache: what is saved comes back; what is broken is a miss; nothing that the disk does raises."""

import dataclasses
import logging
import os
import shutil
import tempfile
from pathlib import Path

import pytest

import tilekit as tk
from tilekit import api
from tilekit._driver.tensormaps import TensorMap
from tilekit.compiler import cache
from tilekit.compiler.kernel import CompiledKernel

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


def test_an_entry_under_another_name_is_refused(where, caplog):
    """One kernel's file under another's name must not run: the bytes are whole, and of the wrong kernel."""
    other = KEY[::-1]
    cache.save(KEY, KERNEL)
    cache.save(other, dataclasses.replace(KERNEL, entry="g"))
    shutil.copy(where / f"{other.hex()}.kernel", where / f"{KEY.hex()}.kernel")
    with caplog.at_level(logging.WARNING, "tilekit"):
        assert cache.load(KEY) is None
    assert f"{where / KEY.hex()}.kernel is an entry of another kernel; deleted" in caplog.text
    assert cache.load(other).entry == "g"
    assert cache.load(KEY) is None


def test_swapped_entries_compile_the_right_kernel(where):
    """The same from outside: the machine code is that of the kernel that was asked for."""
    pytest.importorskip("numba.cuda", reason="compiles kernels")

    def code(factor):
        @tk.kernel
        def scale(y: tk.InOut):
            y.store(y.load() * factor)

        ptx = scale(api.meta((4096,), tk.int32).partition(1024)).compile(target="sm_90a").ptx
        return {line.strip() for line in ptx.splitlines() if "mul.lo.s32" in line}

    first = code(3)
    (kept,) = where.iterdir()
    second = code(77)
    (other,) = set(where.iterdir()) - {kept}
    assert first
    assert not first & second
    shutil.copy(other, kept)
    assert code(3) == first
    assert code(77) == second


def test_an_entry_of_an_older_format_is_a_miss(where):
    cache.save(KEY, KERNEL)
    (path,) = where.iterdir()
    path.write_bytes(path.read_bytes().replace(b"tilekit kernel 2\n", b"tilekit kernel 1\n", 1))
    assert cache.load(KEY) is None
    assert not path.exists()


def test_a_folder_that_cannot_be_used_costs_nothing_but_time(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "tilekit"):
        for _ in range(2):
            cache.save(KEY, KERNEL)
            assert cache.load(KEY) is None
    assert caplog.text.count("cannot write the kernel cache") == 1
    assert caplog.text.count("cannot read the kernel cache") == 1


def test_a_read_only_folder_is_read_and_said_once(where, caplog, monkeypatch):
    cache.save(KEY, KERNEL)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(where))

    # Whoever runs the tests as root may write everything.
    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    monkeypatch.setattr(os, "utime", refuse)
    with caplog.at_level(logging.WARNING, "tilekit"):
        assert cache.load(KEY) == KERNEL
        cache.save(KEY[::-1], KERNEL)
        cache.save(KEY[1:] + KEY[:1], KERNEL)
    assert caplog.text.count("cannot write the kernel cache") == 1
    assert len(caplog.records) == 1


def test_contents_and_clear(where):
    assert cache.contents() == cache.Contents(folder=str(where), entries=0, bytes=0, owner=None, refusal=None)
    assert cache.clear() == 0
    cache.save(KEY, KERNEL)
    cache.save(KEY[::-1], KERNEL)
    (where / "tmpabcd_123.partial").write_bytes(b"half")  # of a process that was killed
    kept = {"notes.txt", "mine.kernel", "mine.partial", f"{KEY.hex()}.kernel.old", "folder.kernel"}
    for name in kept - {"folder.kernel"}:
        (where / name).write_bytes(b"not tilekit's")
    (where / "folder.kernel").mkdir()
    held = cache.contents()
    assert held.entries == 2
    assert held.bytes == sum((where / f"{key.hex()}.kernel").stat().st_size for key in (KEY, KEY[::-1]))
    assert cache.clear() == 2
    assert {path.name for path in where.iterdir()} == kept
    assert cache.contents().entries == 0


def test_without_a_home_folder_nothing_is_kept(monkeypatch):
    def homeless(path):
        raise RuntimeError("Could not determine home directory.")

    for name in ("TILEKIT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    assert cache.folder() is None
    monkeypatch.setenv("TILEKIT_CACHE_DIR", "~nobody/kernels")
    with pytest.raises(
        ValueError, match="TILEKIT_CACHE_DIR='~nobody/kernels': there is no such home folder; write the whole path"
    ):
        cache.folder()


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
