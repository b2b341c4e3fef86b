"""The folder of the kernel cache: whose it is, who may write it, and files in it that nobody else wrote.

Whoever can write an entry decides what code runs on the GPU, so nothing is read that another user could have written. Two
checks say so: the folder belongs to this process's user and only they may write it; and the same of each entry, asked of the
file that was opened, so that nobody can exchange it in between. The second holds whatever folder the path leads to at that
moment: the folders above, which may be links or open to all (`/tmp`), need no look. Systems that know no owners (Windows)
keep users apart by other means; there only the kind of file is looked at.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
from pathlib import Path

__all__ = ["create", "is_own", "owner", "read_own", "refusal", "say_once"]

_ELSEWHERE = "or name another folder: TILEKIT_CACHE_DIR=..."
_log = logging.getLogger("tilekit")
_said: set[object] = set()
_saying = threading.Lock()


def create(where: Path) -> None:
    """Make the folder `where`, and those of its parents that are missing, closed to others; another process may do the same.

    Raises:
        OSError: it cannot be made.
    """
    missing = []
    for folder in (where, *where.parents):
        if folder.is_dir():
            break
        missing.append(folder)
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)


def refusal(where: Path) -> str | None:
    """Why the folder `where` is not used, with the cure; None if it is used, or is not there yet.

    Raises:
        OSError: nobody can tell, because a folder above it is closed to this user.
    """
    try:
        status = where.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISDIR(status.st_mode):
        return f"{where} is no folder; remove it, {_ELSEWHERE}"
    if not _is_own(status):
        return f"{where} belongs to {owner(where)}, not to {_name(_user())}; {_ELSEWHERE.removeprefix('or ')}"
    if _others_write(status):
        return (
            f"others may write {where} (mode {stat.S_IMODE(status.st_mode):o}), and so decide what code runs; "
            f"chmod 700 {where} and `python -m tilekit cache clear`, {_ELSEWHERE}"
        )
    return None


def read_own(path: Path) -> bytes:
    """What is in the file `path`.

    Raises:
        OSError: it cannot be read, is no file, or somebody else could have written it (PermissionError).
    """
    # A named pipe would keep an ordinary open waiting for a writer.
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(f"{path} is no file")
        if not _is_own(status):
            raise PermissionError(f"{path} belongs to {_name(status.st_uid)}, not to {_name(_user())}")
        if _others_write(status):
            raise PermissionError(f"others may write {path} (mode {stat.S_IMODE(status.st_mode):o})")
        with open(handle, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)


def is_own(where: Path) -> bool:
    """Whether `where` belongs to this process's user.

    Raises:
        OSError: it is not there, or out of reach.
    """
    return _is_own(where.stat())


def owner(where: Path) -> str | None:
    """The name of the user that `where` belongs to; None where there is nothing, or where the system knows no owners."""
    with contextlib.suppress(OSError):
        return _name(where.stat().st_uid) if _user() is not None else None
    return None


def say_once(key: object, message: str, *arguments: object) -> None:
    """Log a warning, the first time in this process that `key` comes: a launch for each kernel says nothing new."""
    with _saying:
        if key in _said:
            return
        _said.add(key)
    _log.warning(message, *arguments)


def _user() -> int | None:
    """Whose files this process makes; None where the system knows no owners."""
    ask = getattr(os, "geteuid", None)
    return ask() if ask is not None else None


def _is_own(status: os.stat_result) -> bool:
    return _user() in (None, status.st_uid)


def _others_write(status: os.stat_result) -> bool:
    return _user() is not None and bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _name(user: int | None) -> str:
    try:
        import pwd

        return pwd.getpwuid(user).pw_name if user is not None else "nobody"
    except (ImportError, KeyError):  # a container's user often has no name
        return f"user {user}"
