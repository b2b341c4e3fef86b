"""Compiled kernels on disk: one file each, named by the digest of everything that decided the code. No numba here.

A file is a magic, the SHA-256 of what follows, and that: the key, and the kernel as its class writes it. What does not check out,
or has another key than its name says, is a miss and is deleted. What the disk refuses is logged, once, never raised: a cache that
cannot be used costs time alone. `cache_folder` decides whom it trusts.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, overload

from tilekit.compiler import cache_folder
from tilekit.compiler.kernel import CompiledKernel
from tilekit.settings import load_settings

__all__ = ["MAX_BYTES", "Contents", "clear", "contents", "folder", "load", "save", "toolchain_fingerprint"]

MAX_BYTES = 256 << 20
"""How much the cache may hold, in bytes. Beyond it the entries that were not used for longest go, down to three quarters."""

_MAGIC = b"tilekit kernel 2\n"
_DIGEST_BYTES = hashlib.sha256().digest_size  # of keys, too
_SUFFIX, _PARTIAL = ".kernel", ".partial"
_OWN_NAME = re.compile(rf"[0-9a-f]{{{2 * _DIGEST_BYTES}}}{re.escape(_SUFFIX)}|tmp\w+{re.escape(_PARTIAL)}")
_log = logging.getLogger("tilekit")


def folder() -> Path | None:
    """Where the entries are; None if the cache is off (`TILEKIT_CACHE_DIR=off`)."""
    root = load_settings().cache_dir
    return root / "kernels" if root else None


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What is in the cache.

    Attributes:
        folder: where the entries are; None if the cache is off.
        entries, bytes: how many there are, and how large they are together.
        owner: the name of the user that the folder belongs to; None where there is no folder, or no owners.
        refusal: why the folder is not used, with the cure; None if it is.
    """

    folder: str | None
    entries: int
    bytes: int
    owner: str | None
    refusal: str | None


def contents() -> Contents:
    """What is in the cache, of any age and by any version of tilekit."""
    where = folder()
    if where is None:
        return Contents(folder=None, entries=0, bytes=0, owner=None, refusal=None)
    sizes: list[int] = []
    try:
        refusal = cache_folder.refusal(where)
        if where.is_dir():
            sizes = [size for _, size, path in _entries(where) if path.suffix == _SUFFIX]
    except OSError as error:
        refusal = f"it cannot be read: {error}"
    owner = cache_folder.owner(where)
    return Contents(folder=str(where), entries=len(sizes), bytes=sum(sizes), owner=owner, refusal=refusal)


def clear() -> int:
    """Delete the entries, and nothing that tilekit did not write; returns how many there were.

    Raises:
        OSError: the folder or an entry cannot be changed, or belongs to somebody else.
    """
    where = folder()
    if where is None or not where.is_dir():
        return 0
    if not cache_folder.is_own(where):
        raise PermissionError(f"{where} belongs to {cache_folder.owner(where)}: it is theirs to clear")
    removed = 0
    for _, _, path in list(_entries(where)):
        path.unlink(missing_ok=True)
        removed += path.suffix == _SUFFIX
    return removed


class Entry(Protocol):
    """A compiled kernel, as it is kept."""

    def to_bytes(self) -> bytes:
        """It, in a form of its own."""
        ...

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The opposite; AttributeError, KeyError, TypeError or ValueError if it is something else."""
        ...


E = TypeVar("E", bound=Entry)


@overload
def load(key: bytes) -> CompiledKernel | None: ...
@overload
def load(key: bytes, kind: type[E]) -> E | None: ...
def load(key: bytes, kind: type[Any] = CompiledKernel) -> Any:
    """The kernel that was saved under `key`, of a kind; or None."""
    path = _path(key)
    if path is None:
        return None
    try:
        if not _is_used(path.parent):
            return None
        data = cache_folder.read_own(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        cache_folder.say_once(("read", path, error.errno), "tilekit: cannot read the kernel cache: %s", error)
        return None
    kernel = _decode(data, key, kind)
    try:
        if kernel is None:
            why = "is an entry of another kernel" if _is_whole(data) else "is corrupt or foreign"
            _log.warning("tilekit: %s %s; deleted", path, why)
            path.unlink(missing_ok=True)
        else:
            os.utime(path)  # it was used: the oldest go first
    except OSError as error:
        _log.debug("tilekit: %s", error)
    return kernel


def save(key: bytes, kernel: Entry) -> None:
    """Keep `kernel` under `key`. Other processes see the whole entry or none."""
    import tempfile

    path = _path(key)
    if path is None:
        return
    try:
        cache_folder.create(path.parent)
        if not _is_used(path.parent):  # asked after it was made: another user may have been faster
            return
        handle, partial = tempfile.mkstemp(dir=path.parent, suffix=_PARTIAL)  # nobody else may read or write it
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_encode(kernel, key))
            os.replace(partial, path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
        _evict(path.parent)
    except OSError as error:
        cache_folder.say_once(("write", path.parent, error.errno), "tilekit: cannot write the kernel cache: %s", error)


def _is_used(where: Path) -> bool:
    refusal = cache_folder.refusal(where)
    if refusal is not None:
        cache_folder.say_once(refusal, "tilekit: the kernel cache is not used: %s", refusal)
    return refusal is None


@functools.cache
def toolchain_fingerprint() -> str:
    """A digest of what turns a kernel into code: tilekit's own sources, the packages beneath, and their settings."""
    from importlib import metadata

    digest = hashlib.sha256(f"{sys.version_info[:2]} {sys.platform}".encode())
    package = Path(__file__).parent.parent
    below = [package / name for name in ("dtypes.py", "_driver/report.py", "_driver/tensormaps.py")]
    for source in sorted([*below, *package.glob("compiler/**/*.py"), *package.glob("lang/*.py")]):
        digest.update(f"{source.relative_to(package)}\n".encode())
        digest.update(source.read_bytes())
    for name in _TOOLCHAIN:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = "-"
        digest.update(f"{name} {version}\n".encode())
    for variable in sorted(os.environ):
        if variable.startswith("NUMBA_") or variable in ("CUDA_HOME", "CUDA_PATH"):
            digest.update(f"{variable}={os.environ[variable]}\n".encode())
    return digest.hexdigest()


_TOOLCHAIN = (
    "numba-cuda", "numba", "llvmlite", "cuda-bindings", "cuda-core", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvcc-cu12",
    "nvidia-nvjitlink-cu12",
)  # fmt: skip


def _path(key: bytes) -> Path | None:
    where = folder()
    return where / (key.hex() + _SUFFIX) if where else None


def _encode(kernel: Entry, key: bytes) -> bytes:
    body = key + kernel.to_bytes()
    return _MAGIC + hashlib.sha256(body).digest() + body


def _is_whole(data: bytes) -> bool:
    """Whether `data` is what `_encode` gave, of whichever key."""
    start = len(_MAGIC) + _DIGEST_BYTES
    return data.startswith(_MAGIC) and hashlib.sha256(data[start:]).digest() == data[len(_MAGIC) : start]


def _decode(data: bytes, key: bytes, kind: type[E]) -> E | None:
    body = data[len(_MAGIC) + _DIGEST_BYTES :]
    if not _is_whole(data) or not body.startswith(key):
        return None
    try:
        return kind.from_bytes(body[len(key) :])
    except (AttributeError, KeyError, TypeError, ValueError):  # whole, but not of this version's making
        return None


def _evict(where: Path) -> None:
    """Delete what was not used for longest, if the cache has grown beyond its limit."""
    entries = sorted(_entries(where))
    total = sum(size for _, size, _ in entries)
    if total <= MAX_BYTES:
        return
    for _, size, path in entries:
        path.unlink(missing_ok=True)
        total -= size
        if total <= MAX_BYTES * 3 // 4:
            return


def _entries(where: Path) -> Iterator[tuple[float, int, Path]]:
    """(last use, bytes, path) of each entry, and of what a killed process left half written."""
    for path in where.iterdir():
        if _OWN_NAME.fullmatch(path.name):
            try:
                status = path.lstat()
            except FileNotFoundError:  # another process deleted it
                continue
            if stat.S_ISDIR(status.st_mode):  # nothing that tilekit writes
                continue
            yield status.st_mtime, status.st_size, path
