"""Settings, read from the environment. Each has one name, one type, and one place where it is parsed."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Settings", "load_settings"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the environment asks for. Every field names its variable.

    Attributes:
        device: `TILEKIT_DEVICE`: `"cuda"`, `"cuda:1"`, `"cpu"`, `"cpu:2"`; None picks the first usable GPU, else the CPU.
        cpu_devices: `TILEKIT_CPU_DEVICES`: how many CPU devices there are (1).
        spin_us: `TILEKIT_SPIN_US`: how long, in microseconds, a waiter polls itself before it leaves that to the driver, or its
            task to others (20). 0 never polls: waiting threads sleep.
        native: `TILEKIT_NATIVE`: whether to launch by the compiled part of tilekit, where it is installed (1; 0 for not).
        checks: `TILEKIT_CHECKS`: whether kernels on a GPU check tile indices, indices and `tk.assert_` while they run, and those
            on a CPU device are interpreted, which finds races and reads of what nobody has written, too (0; 1 for yes). Asked
            for when a kernel first meets arguments of a kind.
        cpu: `TILEKIT_CPU`: how kernels run on a CPU device: `compiled` (the default), or `interpreted`, operation by operation.
        cpu_threads: `TILEKIT_CPU_THREADS`: how many threads run the blocks of a launch on a CPU device at most; None (0, the
            default) is as many as the process may use cores.
        dump: `TILEKIT_DUMP`: what to print on standard error of each kernel that is compiled for a GPU: `ir`, the kernel IR as it
            is built; `passes`, what each pass makes of it. Both, with a comma; nothing by default.
        cache_dir: `TILEKIT_CACHE_DIR`: where compiled kernels and tuning records are kept; None (the values `0`, `off`, `none`,
            and by default where there is no home folder) keeps none.
    """

    device: str | None = None
    cpu_devices: int = 1
    spin_us: float = 20.0
    native: bool = True
    checks: bool = False
    cpu: str = "compiled"
    cpu_threads: int | None = None
    dump: frozenset[str] = frozenset()
    cache_dir: Path | None = None


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Parse the settings out of `environ` (the process's own by default).

    Raises:
        ValueError: a variable holds something else than its type; the text names the variable, the value, what is allowed.
    """
    env = os.environ if environ is None else environ
    return _parsed(tuple((name, value) for name in _VARIABLES if (value := env.get(name)) is not None))


# All that is asked for, and what says where the user's home folder is.
_VARIABLES = (
    "TILEKIT_DEVICE", "TILEKIT_CPU_DEVICES", "TILEKIT_SPIN_US", "TILEKIT_NATIVE", "TILEKIT_CHECKS", "TILEKIT_CPU",
    "TILEKIT_CPU_THREADS", "TILEKIT_DUMP", "TILEKIT_CACHE_DIR", "XDG_CACHE_HOME", "HOME", "USERPROFILE",
)  # fmt: skip


@functools.lru_cache(maxsize=8)
def _parsed(variables: tuple[tuple[str, str], ...]) -> Settings:
    env = dict(variables)
    cache = env.get("TILEKIT_CACHE_DIR", "").strip()
    if cache.lower() in ("0", "off", "none"):
        cache_dir = None
    elif cache:
        cache_dir = _expanded(cache)
        if cache_dir is None:
            raise ValueError(f"TILEKIT_CACHE_DIR={cache!r}: there is no such home folder; write the whole path")
    else:
        base = _expanded(env.get("XDG_CACHE_HOME") or "~/.cache")
        cache_dir = base / "tilekit" if base else None
    return Settings(
        device=env.get("TILEKIT_DEVICE", "").strip().lower() or None,
        cpu_devices=int(_number(env, "TILEKIT_CPU_DEVICES", "1", int, 1, 64)),
        spin_us=_number(env, "TILEKIT_SPIN_US", "20", float, 0, 1e6),
        native=bool(_number(env, "TILEKIT_NATIVE", "1", int, 0, 1)),
        checks=bool(_number(env, "TILEKIT_CHECKS", "0", int, 0, 1)),
        cpu=_choice(env, "TILEKIT_CPU", ("compiled", "interpreted")),
        cpu_threads=int(_number(env, "TILEKIT_CPU_THREADS", "0", int, 0, 4096)) or None,
        dump=_words(env, "TILEKIT_DUMP", ("ir", "passes")),
        cache_dir=cache_dir,
    )


def _choice(env: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """One of some words; the first by default."""
    word = env.get(name, "").strip().lower() or allowed[0]
    if word not in allowed:
        raise ValueError(f"{name}={env[name]!r}: it is {' or '.join(allowed)}")
    return word


def _words(env: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> frozenset[str]:
    words = frozenset(word.strip().lower() for word in env.get(name, "").split(",")) - {""}
    if not words <= set(allowed):
        raise ValueError(f"{name}={env[name]!r}: it is {' or '.join(allowed)}, or both with a comma")
    return words


def _expanded(path: str) -> Path | None:
    """`path` with `~` as the home folder; None if there is none, as for a container's user that the system does not know."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return None


def _number(env: Mapping[str, str], name: str, default: str, kind: type, low: float, high: float) -> float:
    text = env.get(name, "").strip() or default
    try:
        value: float = kind(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        noun = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name}={text!r}: expected {noun} between {low:g} and {high:g}")
    return value
