"""Which commit of tilekit is measured."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import tilekit

__all__ = ["Sources", "sources"]

_PACKAGE = Path(tilekit.__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The state of tilekit's sources.

    Attributes:
        commit: git's hash of the checkout that the package runs from; None if it is no checkout.
        dirty: whether the checkout has changes, or files, that are not committed; None if it is no checkout.
    """

    commit: str | None
    dirty: bool | None


def sources(package: Path = _PACKAGE) -> Sources:
    """Ask git about the checkout that the folder `package` is part of."""
    try:
        # A package that is installed somewhere below another project's checkout is no part of it.
        _git(package, "ls-files", "--error-unmatch", "__init__.py")
        commit = _git(package, "rev-parse", "HEAD")
        return Sources(commit=commit, dirty=bool(_git(package, "status", "--porcelain")))
    except (OSError, subprocess.SubprocessError):
        return Sources(commit=None, dirty=None)


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()
