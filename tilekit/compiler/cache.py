"""Compiled kernels on disk: one file each, named by the digest of everything that decided the code. No numba here.

A file is a magic, the SHA-256 of what follows, and that: the fields of `CompiledKernel` as JSON, with the lengths of the texts
that come after it. What does not check out is a miss and is deleted. What the disk refuses is logged, never raised: a cache that
cannot be used costs time alone.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tilekit.compiler.kernel import CompiledKernel
from tilekit.driver.report import Site
from tilekit.driver.tensormaps import TensorMap
from tilekit.settings import load_settings

__all__ = ["MAX_BYTES", "folder", "load", "save", "toolchain_fingerprint"]

MAX_BYTES = 256 << 20
"""How much the cache may hold, in bytes. Beyond it the entries that were not used for longest go, down to three quarters."""

_MAGIC = b"tilekit kernel 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_SUFFIX = ".kernel"
_log = logging.getLogger("tilekit")


def folder() -> Path | None:
    """Where the entries are; None if the cache is off (`TILEKIT_CACHE_DIR=off`)."""
    root = load_settings().cache_dir
    return root / "kernels" if root else None


def load(key: bytes) -> CompiledKernel | None:
    """The kernel that was saved under `key`, or None."""
    path = _path(key)
    if path is None:
        return None
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning("tilekit: cannot read the kernel cache: %s", error)
        return None
    kernel = _decode(data)
    try:
        if kernel is None:
            _log.warning("tilekit: %s is corrupt or foreign; deleted", path)
            path.unlink(missing_ok=True)
        else:
            os.utime(path)  # it was used: the oldest go first
    except OSError as error:
        _log.debug("tilekit: %s", error)
    return kernel


def save(key: bytes, kernel: CompiledKernel) -> None:
    """Keep `kernel` under `key`. Other processes see the whole entry or none."""
    import tempfile

    path = _path(key)
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent, suffix=".partial")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_encode(kernel))
            os.replace(partial, path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
        _evict(path.parent)
    except OSError as error:
        _log.warning("tilekit: cannot write the kernel cache: %s", error)


@functools.cache
def toolchain_fingerprint() -> str:
    """A digest of what turns a kernel into code: tilekit's own sources, the packages beneath, and their settings."""
    from importlib import metadata

    digest = hashlib.sha256(f"{sys.version_info[:2]} {sys.platform}".encode())
    package = Path(__file__).parent.parent
    below = [package / name for name in ("dtypes.py", "driver/report.py", "driver/tensormaps.py")]
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


_FIELDS = (
    "entry",
    "target",
    "registers",
    "shared_bytes",
    "dynamic_shared_bytes",
    "local_bytes",
    "block",
    "param_format",
    "sites",
)


def _encode(kernel: CompiledKernel) -> bytes:
    ptx = kernel.ptx.encode()
    fields = {name: getattr(kernel, name) for name in _FIELDS}
    maps = [dataclasses.astuple(known) for known in kernel.maps]
    header = json.dumps({**fields, "maps": maps, "ptx_bytes": len(ptx)}).encode()
    body = header + b"\n" + ptx + kernel.cubin
    return _MAGIC + hashlib.sha256(body).digest() + body


def _decode(data: bytes) -> CompiledKernel | None:
    start = len(_MAGIC) + _DIGEST_BYTES
    digest, body = data[len(_MAGIC) : start], data[start:]
    if not data.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest:
        return None
    header, _, rest = body.partition(b"\n")
    try:
        fields = json.loads(header)
        split = fields.pop("ptx_bytes")
        fields["block"], fields["sites"] = tuple(fields["block"]), tuple(Site(*site) for site in fields["sites"])
        fields["maps"] = tuple(TensorMap(at, dtype, tuple(box), tuple(order), s) for at, dtype, box, order, s in fields["maps"])
        return CompiledKernel(ptx=rest[:split].decode(), cubin=rest[split:], **fields)
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
        if path.suffix in (_SUFFIX, ".partial"):
            try:
                status = path.stat()
            except FileNotFoundError:  # another process deleted it
                continue
            yield status.st_mtime, status.st_size, path
