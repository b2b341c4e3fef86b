"""What searches found, on disk: a file for each kernel, device, toolkit and size, and one for all of them to take elsewhere.

A record names a configuration; whoever uses one looks whether the kernel's space has it. The folder is beside that of compiled
kernels, and trusted as that is (`compiler.cache_folder`). What the disk refuses is logged, once, and costs another search.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilekit._environment import version_of
from tilekit._runtime.device import Device
from tilekit.compiler import cache_folder
from tilekit.settings import load_settings
from tilekit.tuning.configs import Config
from tilekit.tuning.search import Candidate

__all__ = ["Key", "Record", "device_name", "export", "folder", "import_file", "load", "records", "save", "toolkit_name"]

_FORMAT = "tilekit tuning 1"
_SUFFIX = ".json"
_COMPILES = {"cuda": ("numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink"), "cpu": ("llvmlite",)}
_log = logging.getLogger("tilekit")


@dataclass(frozen=True, kw_only=True)
class Key:
    """What a record is for.

    Attributes:
        device: the device's name.
        toolkit: what compiles for it, with versions.
        kernel: the kernel's module and name.
        source: a digest of its text, and of what it chooses from.
        sizes: of its arguments, in buckets.
    """

    device: str
    toolkit: str
    kernel: str
    source: str
    sizes: str

    @property
    def file_name(self) -> str:
        """Of its record."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest() + _SUFFIX


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a search found.

    Attributes:
        key: what for.
        config: the fastest configuration.
        us: how long it took, in microseconds.
        candidates: all that were looked at, each with its time and why it was not chosen; their samples are one, the median.
    """

    key: Key
    config: Config
    us: float
    candidates: tuple[Candidate, ...]

    def to_json(self) -> dict[str, Any]:
        """It, of what JSON has."""
        outcomes = [{"config": one.config.to_json(), "us": one.us, "reason": one.reason} for one in self.candidates]
        return {**asdict(self.key), "config": self.config.to_json(), "us": self.us, "candidates": outcomes}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Record:
        """The opposite.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: it is something else.
        """
        names = ("device", "toolkit", "kernel", "source", "sizes")
        texts = {name: fields[name] for name in names}
        candidates = tuple(map(_candidate, fields["candidates"]))
        if not all(isinstance(text, str) for text in (*texts.values(), *(one.reason or "" for one in candidates))):
            raise TypeError("a text is none")
        return cls(key=Key(**texts), config=Config.from_json(fields["config"]), us=_time(fields["us"]), candidates=candidates)


def _candidate(fields: Mapping[str, Any]) -> Candidate:
    samples = [] if fields["us"] is None else [_time(fields["us"])]
    return Candidate(config=Config.from_json(fields["config"]), samples=samples, reason=fields["reason"])


def _time(number: Any) -> float:
    us = float(number)
    if not (math.isfinite(us) and us >= 0):
        raise ValueError(f"no time: {number!r}")
    return us


def device_name(device: Device) -> str:
    """What records call a device: the same on every machine that has such a one."""
    if device.kind != "cpu":
        return f"{device.name} ({device.driver.target})"
    from tilekit.compiler.cpu.machine import host
    from tilekit.compiler.cpu.workers import cores

    return f"{host().name}, {cores()} threads"


def toolkit_name(device: Device) -> str:
    """What compiles for a device, with versions."""
    names = ("tilekit-cuda", *_COMPILES[device.kind])
    return ", ".join(f"{name} {version}" for name in names if (version := version_of(name)))


def folder() -> Path | None:
    """Where records are; None if none are kept (`TILEKIT_CACHE_DIR=off`)."""
    root = load_settings().cache_dir
    return root / "tuning" if root else None


def load(key: Key) -> Record | None:
    """The record for `key`, if there is one."""
    where = folder()
    try:
        if where is None or not _is_used(where):
            return None
        record = _read(where / key.file_name)
    except FileNotFoundError:
        return None
    except OSError as error:
        cache_folder.say_once(("read", where, error.errno), "tilekit: cannot read tuning records: %s", error)
        return None
    return record if record is not None and record.key == key else None


def save(record: Record) -> None:
    """Keep a record in the place of an older one. Other processes see all of it or nothing."""
    try:
        _write(record)
    except OSError as error:
        cache_folder.say_once(("write", folder(), error.errno), "tilekit: cannot write tuning records: %s", error)


def records() -> list[Record]:
    """All that are kept, by kernel, device and sizes.

    Raises:
        OSError: the folder cannot be read.
    """
    where = folder()
    if where is None or not where.is_dir() or not _is_used(where):
        return []
    known = [record for path in where.glob(f"*{_SUFFIX}") if (record := _read(path)) is not None]
    return sorted(known, key=lambda record: tuple(asdict(record.key).values()))


def export(path: Path) -> int:
    """Write all records to one file; how many there are.

    Raises:
        OSError: it cannot be written.
    """
    known = records()
    contents = {"format": _FORMAT, "records": [record.to_json() for record in known]}
    path.write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")
    return len(known)


def import_file(path: Path) -> int:
    """Keep all records of a file that `export` wrote, in the place of those for the same; how many there are.

    Raises:
        ValueError: it is no such file; nothing is changed.
        OSError: it cannot be read, or the records cannot be written.
    """
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
        if contents["format"] != _FORMAT:
            raise ValueError(f"its format is {contents['format']!r}, not {_FORMAT!r}")
        read = [Record.from_json(fields) for fields in contents["records"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no file of tuning records: {error}") from None
    if folder() is None:
        raise ValueError("no records are kept: TILEKIT_CACHE_DIR is off, or there is no home folder")
    for record in read:
        _write(record)
    return len(read)


def _write(record: Record) -> None:
    import tempfile

    where = folder()
    if where is None:
        return
    cache_folder.create(where)
    if not _is_used(where):
        return
    handle, partial = tempfile.mkstemp(dir=where, suffix=".partial")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(record.to_json(), file)
        os.replace(partial, where / record.key.file_name)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def _read(path: Path) -> Record | None:
    try:
        return Record.from_json(json.loads(cache_folder.read_own(path)))
    except (AttributeError, KeyError, TypeError, ValueError):
        _log.warning("tilekit: %s is no tuning record of this version; not used", path)
        return None


def _is_used(where: Path) -> bool:
    refusal = cache_folder.refusal(where)
    if refusal is not None:
        cache_folder.say_once(refusal, "tilekit: tuning records are not used: %s", refusal)
    return refusal is None
