"""Crews: the processes of one contestant, which do the same at the same time as they are told, and never keep anybody waiting.

A crew is started with a function that makes its member in each process, an object whose methods are called by their names. What
a method raises comes back as text. A process that ends, or does not answer in time, is the end of its crew.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn, Self

from tilekit.errors import TilekitError

__all__ = ["ANSWER_S", "START_S", "Crew", "CrewError", "Refused"]

START_S = 240.0
"""How long the processes of a crew have to start: to import, and to find each other."""

ANSWER_S = 180.0
"""How long they have to answer."""

_GRACE_S = 10.0  # for the others when one has failed, and to end
_log = logging.getLogger("tilekit_benchmarks")


class CrewError(TilekitError):
    """A process of a crew has ended, or is late: the crew is no more."""


class Refused(Exception):
    """Members raised something, and all answered: the crew goes on. The text is the first one's."""


class Crew:
    """The processes of one contestant.

    Args:
        label: what messages call it.
        make: makes the member of a process, with the arguments of one; a function that the process can import.
        arguments: for each process.
    """

    def __init__(self, label: str, make: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> None:
        self.label = label
        self.lost = False
        context = multiprocessing.get_context("spawn")
        self._processes, self._connections = list[Any](), list[Connection]()
        try:
            for each in arguments:
                ours, theirs = context.Pipe()
                self._connections.append(ours)
                with theirs:
                    process = context.Process(target=_serve, args=(theirs, make, each), daemon=True)
                    process.start()
                self._processes.append(process)
        except BaseException:
            self.kill()
            raise

    @property
    def pids(self) -> list[int]:
        """The processes, by rank."""
        return [process.pid for process in self._processes]

    def started(self, timeout_s: float | None = None) -> list[Any]:
        """Wait until all members are there; what each says of itself. Raises as `ask`; then there is no crew."""
        try:
            return self._answers("starting", START_S if timeout_s is None else timeout_s)
        except Refused:
            self.kill()
            raise

    def ask(self, method: str, *arguments: Any, timeout_s: float | None = None) -> list[Any]:
        """Call a method of all members; what each returns, by rank.

        Raises:
            Refused: what members raised. All have answered.
            CrewError: a process has ended, or is late, be it for another one that failed. All of them are killed.
        """
        if self.lost:
            raise CrewError(f"{self.label}: its processes have ended")
        for connection in self._connections:
            with contextlib.suppress(OSError):  # it has ended, which is seen below
                connection.send((method, arguments))
        return self._answers(method, ANSWER_S if timeout_s is None else timeout_s)

    def _answers(self, doing: str, timeout_s: float) -> list[Any]:
        answers: dict[int, tuple[bool, Any]] = {}
        end_s = time.monotonic() + timeout_s
        pending = set(range(len(self._processes)))
        while pending:
            watched = [self._connections[rank] for rank in pending] + [self._processes[rank].sentinel for rank in pending]
            left_s = end_s - time.monotonic()
            if left_s <= 0 or not wait(watched, left_s):
                self._fail(self._late(doing, pending, answers, timeout_s))
            for rank in sorted(pending):
                if (answer := self._answer(rank, doing, answers)) is None:
                    continue
                answers[rank] = answer
                pending.remove(rank)
                if not answer[0]:
                    end_s = min(end_s, time.monotonic() + _GRACE_S)
        errors = [value for _, (fine, value) in sorted(answers.items()) if not fine]
        if errors:
            _log.warning("%s, %s: %s", self.label, doing, errors[0][1])
            raise Refused(errors[0][0])
        return [answers[rank][1] for rank in range(len(answers))]

    def _answer(self, rank: int, doing: str, answers: dict[int, tuple[bool, Any]]) -> tuple[bool, Any] | None:
        """What a member answered; None if it has not yet."""
        connection, process = self._connections[rank], self._processes[rank]
        alive = process.is_alive()  # asked first: it may answer, and end
        with contextlib.suppress(EOFError, OSError):
            if connection.poll():
                answer: tuple[bool, Any] = connection.recv()
                return answer
            if alive:
                return None
        process.join(_GRACE_S)
        self._fail(self._ended(rank, doing, answers))

    def _ended(self, rank: int, doing: str, answers: dict[int, tuple[bool, Any]]) -> str:
        process = self._processes[rank]
        how = f"exit status {process.exitcode}"
        if process.exitcode is not None and process.exitcode < 0:
            how = f"signal {signal.Signals(-process.exitcode).name}"
        return f"{self.label}: the process of rank {rank} ({process.pid}) has ended, with {how}, while {doing}" + _why(answers)

    def _late(self, doing: str, pending: set[int], answers: dict[int, tuple[bool, Any]], timeout_s: float) -> str:
        names = f"rank{'s' * (len(pending) > 1)} {', '.join(map(str, sorted(pending)))}"
        why = _why(answers)
        seconds = _GRACE_S if why else timeout_s
        return f"{self.label}: {names} did not answer within {seconds:g} s, while {doing}{why}"

    def _fail(self, message: str) -> NoReturn:
        self.kill()
        raise CrewError(message)

    def kill(self) -> None:
        """End all processes now."""
        self.lost = True
        for process in self._processes:
            process.kill()
        self._join()

    def close(self) -> list[str]:
        """Let the members end, at most so long, then end them; those that had to be, as text."""
        if self.lost:
            return []
        self.lost = True
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.send(("close", ()))
        end_s = time.monotonic() + _GRACE_S
        stuck = []
        for rank, process in enumerate(self._processes):
            process.join(max(0.0, end_s - time.monotonic()))
            if process.is_alive():
                stuck.append(f"{self.label}: the process of rank {rank} did not end by itself")
                process.kill()
        self._join()
        return stuck

    def _join(self) -> None:
        for process in self._processes:
            process.join(_GRACE_S)
        for connection in self._connections:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if not self.lost:
            self.kill()


def _why(answers: dict[int, tuple[bool, Any]]) -> str:
    """What a member failed with, if one did, for which others may wait for it."""
    failed = [f"rank {rank} failed: {value[0]}" for rank, (fine, value) in sorted(answers.items()) if not fine]
    return f"; {failed[0]}" if failed else ""


def _serve(connection: Connection, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """What each process does: make the member, and do what it is told, until it is told to end, or whoever tells is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started this, who ends it
    try:
        try:
            member = make(*arguments)
            connection.send((True, member.about))
        except Exception as error:
            connection.send((False, _as_text(error)))
            return
        while True:
            method, values = connection.recv()
            if method == "close":
                break
            try:
                answer = (True, getattr(member, method)(*values))
            except Exception as error:
                answer = (False, _as_text(error))
            connection.send(answer)
    except (EOFError, OSError):  # who started this is gone; to leave the group might wait for others
        os._exit(1)
    member.close()


def _as_text(error: Exception) -> tuple[str, str]:
    """An error as a line, and as all of its traceback."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}", "".join(traceback.format_exception(error))
