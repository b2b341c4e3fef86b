"""The command line, `python -m tilekit bench NAME`: `tilekit.cli` takes what is here to complete its own."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from tilekit._runtime.device import Device
from tilekit_benchmarks import BENCHMARKS, Drawn, Options, report, run
from tilekit_benchmarks.report import Run

__all__ = ["add_names", "execute"]


def add_names(parser: argparse.ArgumentParser) -> None:
    """Give `parser`, that of `python -m tilekit bench`, the names of the benchmarks and their options."""
    commands = parser.add_subparsers(dest="benchmark", metavar="NAME")
    for name, benchmark in BENCHMARKS.items():
        one = commands.add_parser(name, help=benchmark.summary, description=benchmark.summary)
        if benchmark.drawn:
            _add_drawn(one)
        else:
            one.add_argument("--n", type=_count, metavar="N", help=f"how many {benchmark.size}, such as 1000 or 2^28")
        one.add_argument(
            "--rounds", type=_count, default=20, metavar="R", help="how many samples of each contestant (default: 20)"
        )
        if benchmark.graph:
            one.add_argument("--graph", action="store_true", help="launch CUDA graphs")
        one.add_argument("--device", metavar="DEVICE", help='such as "cuda:0" or "cpu" (default: the default device)')
        names = ("--json", "--out") if benchmark.drawn else ("--json",)
        one.add_argument(*names, type=Path, metavar="FILE", help="write the record there, as JSON")
        one.add_argument("--commit", metavar="HASH", help="the commit to record where tilekit does not run from a git checkout")
        one.add_argument(
            "--plot", type=Path, metavar="FILE", help="draw the results there, as .png, .svg or .pdf; needs matplotlib"
        )


def _add_drawn(parser: argparse.ArgumentParser) -> None:
    """The options of benchmarks whose cases are drawn."""
    parser.add_argument("family", nargs="?", metavar="FAMILY", help="what the cases are drawn of, such as rows or gemm")
    parser.add_argument("--cases", type=_count, default=60, metavar="N", help="how many cases the sweep has (default: 60)")
    parser.add_argument("--seed", type=int, metavar="S", help="what they are drawn from (default: a fresh one)")
    parser.add_argument("--from", type=int, default=0, dest="start", metavar="K", help="measure from case K on (default: 0)")
    parser.add_argument("--to", type=int, dest="stop", metavar="K", help="measure up to case K, not included (default: all)")
    parser.add_argument(
        "--join", type=Path, nargs="+", metavar="FILE", help="measure nothing: join the records of the pieces of a sweep"
    )
    parser.add_argument("--lock", type=Path, metavar="FILE", help="take turns at the device with all runs that name this file")


def execute(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Run the benchmark that `words`, parsed to `options`, ask for, or list all of them; returns the exit status."""
    if options.benchmark is None:
        for name, benchmark in BENCHMARKS.items():
            print(f"{name:10} {benchmark.summary}")
        return 0
    for path in (options.json, options.plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise ValueError(f"{path} cannot be written: its folder does not exist")
    if options.plot is not None:
        report.check_plot()
    command = f"python -m tilekit {shlex.join(words)}"
    if getattr(options, "join", None):
        from tilekit_benchmarks.drawn import join  # it needs what others do not

        return _show(join(options.join), options)
    asked = Options(
        device=Device(options.device),
        n=getattr(options, "n", None),
        rounds=options.rounds,
        graph=getattr(options, "graph", False),
        command=command,
        drawn=_drawn(options) if BENCHMARKS[options.benchmark].drawn else None,
    )
    log, handler = logging.getLogger("tilekit_benchmarks"), logging.StreamHandler()  # to stderr, what it is busy with
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        record = run(options.benchmark, asked)
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    return _show(record, options)


def _drawn(options: argparse.Namespace) -> Drawn | None:
    if options.family is None:
        return None
    return Drawn(
        family=options.family,
        cases=options.cases,
        seed=options.seed,
        start=options.start,
        stop=options.stop,
        lock=options.lock,
    )


def _show(record: Run, options: argparse.Namespace) -> int:
    """Print the record, keep it and draw it, as `options` ask; returns the exit status."""
    if record.commit is None:
        record = dataclasses.replace(record, commit=options.commit)
    print(report.table(record))
    if options.json is not None:
        report.save(record, options.json)
    if options.plot is not None:
        report.plot(record, options.plot)
    return 0 if record.all_correct else 1


def _count(text: str) -> int:
    """A count on the command line: `1000000`, `1_000_000`, `2^20`, `2**20`."""
    match = re.fullmatch(r"([\d_]+)(?:(?:\^|\*\*)(\d{1,2}))?", text.strip())
    try:
        value = int(match[1]) ** int(match[2] or 1) if match else 0
    except ValueError:  # underscores alone
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count; write 1000000 or 2^20")
    return value
