"""Whose the folder of the kernel cache is, and who may write it: what others could have written is not used, and said once."""

import logging
import os
import stat
import threading

import pytest

from tilekit.compiler import cache, cache_folder
from tilekit.compiler.kernel import CompiledKernel

KEY = bytes(range(32))
KERNEL = CompiledKernel(
    entry="f",
    ptx=".target sm_80",
    cubin=b"\x7fELF",
    target="sm_80",
    registers=24,
    shared_bytes=0,
    local_bytes=0,
    block=(128, 1, 1),
    param_format="<Q",
)

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system knows no owners of files")


@pytest.fixture
def where(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path / "home" / "cache"))
    return tmp_path / "home" / "cache" / "kernels"


@pytest.fixture
def umask():
    """Sets it, for one test."""
    before = os.umask(0)
    os.umask(before)
    yield os.umask
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def refused(caplog, *texts):
    """Nothing is loaded or saved, which is said once."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "tilekit"):
        for key in (KEY, KEY[::-1]):
            assert cache.load(key) is None
            cache.save(key, KERNEL)
    (record,) = caplog.records
    message = record.getMessage()
    assert all(text in message for text in ("the kernel cache is not used", "TILEKIT_CACHE_DIR=", *texts)), message


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o002, 0o077])
def test_folders_and_entries_are_closed_to_others(where, umask, mask):
    umask(mask)
    cache.save(KEY, KERNEL)
    assert [mode(folder) for folder in (where, where.parent, where.parent.parent)] == [0o700] * 3
    assert [mode(entry) for entry in where.iterdir()] == [0o600]
    assert cache.load(KEY) == KERNEL


def test_folders_that_are_there_already_keep_their_mode(where):
    where.parent.mkdir(parents=True)
    where.parent.chmod(0o755)
    cache.save(KEY, KERNEL)
    assert mode(where.parent) == 0o755
    assert mode(where) == 0o700


@pytest.mark.parametrize("others", [0o020, 0o002, 0o1777])
def test_a_folder_that_others_may_write_is_not_used(where, caplog, others):
    cache.save(KEY, KERNEL)
    where.chmod(0o700 | others)
    refused(caplog, f"others may write {where}", f"chmod 700 {where}", "tilekit cache clear")
    assert [path.name for path in where.iterdir()] == [f"{KEY.hex()}.kernel"]
    where.chmod(0o700)  # the cure
    assert cache.load(KEY) == KERNEL


def test_a_folder_that_others_may_read_is_used(where):
    cache.save(KEY, KERNEL)
    where.chmod(0o755)
    assert cache.load(KEY) == KERNEL


def test_a_folder_of_somebody_else_is_neither_used_nor_cleared(where, caplog, monkeypatch):
    cache.save(KEY, KERNEL)
    other = os.geteuid() + 12345
    monkeypatch.setattr(os, "geteuid", lambda: other)
    refused(caplog, f"{where} belongs to", f"not to user {other}")
    assert cache.contents().refusal is not None
    with pytest.raises(PermissionError, match="theirs to clear"):
        cache.clear()
    assert len(list(where.iterdir())) == 1


def test_a_link_counts_as_what_it_leads_to(where, tmp_path, caplog):
    (tmp_path / "real").mkdir(mode=0o700)
    where.parent.mkdir(parents=True)
    where.symlink_to(tmp_path / "real")
    cache.save(KEY, KERNEL)
    assert cache.load(KEY) == KERNEL
    (tmp_path / "real").chmod(0o777)
    refused(caplog, f"others may write {where}")


def test_an_entry_that_others_may_write_is_a_miss_and_is_replaced(where, caplog):
    cache.save(KEY, KERNEL)
    (path,) = where.iterdir()
    path.chmod(0o622)
    with caplog.at_level(logging.WARNING, "tilekit"):
        assert cache.load(KEY) is None
        assert cache.load(KEY) is None
    assert caplog.text.count(f"others may write {path} (mode 622)") == 1
    cache.save(KEY, KERNEL)
    assert cache.load(KEY) == KERNEL
    assert mode(path) == 0o600


def test_an_entry_of_somebody_else_is_a_miss(where, caplog, monkeypatch):
    cache.save(KEY, KERNEL)
    monkeypatch.setattr(cache_folder, "refusal", lambda folder: None)  # as if the folder were exchanged after the look at it
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with caplog.at_level(logging.WARNING, "tilekit"):
        assert cache.load(KEY) is None
    assert "not to user 54321" in caplog.text


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file_is_a_miss_and_keeps_nobody_waiting(where, caplog, make):
    cache.save(KEY, KERNEL)
    (path,) = where.iterdir()
    path.unlink()
    make(path)
    with caplog.at_level(logging.WARNING, "tilekit"):
        assert cache.load(KEY) is None
    assert f"{path} is no file" in caplog.text


def test_threads_that_make_the_folder_at_once_all_succeed(where):
    ready, failures = threading.Barrier(8), []

    def make():
        ready.wait()
        try:
            cache_folder.create(where)
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert mode(where) == 0o700


def test_systems_without_owners_use_what_is_there(where, monkeypatch):
    cache.save(KEY, KERNEL)
    where.chmod(0o777)
    monkeypatch.delattr(os, "geteuid")
    assert cache.load(KEY) == KERNEL
    assert cache.contents().owner is None
