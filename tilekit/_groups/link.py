"""`Link`: what a member of a joined group asks the hub of rank 0's process."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from typing import Any, NoReturn

import numpy as np

from tilekit._groups.call import Call
from tilekit._groups.messages import GRACE_S, at_once, hang_up, receive, send
from tilekit.errors import GroupError

__all__ = ["Link"]

_RETRY_S = 0.02


class Link:
    """A member's connection to the hub. One thread at a time asks.

    Raises:
        GroupError: the hub cannot be reached in time, or not all members have joined.
    """

    def __init__(self, channel: str, rank: int, size: int, address: tuple[str, int], key: bytes, timeout_s: float) -> None:
        self.rank, self._timeout_s = rank, timeout_s
        self._lock, self._numbers = threading.Lock(), 0
        where = f"{address[0]}:{address[1]}"
        end_s = time.monotonic() + timeout_s
        while True:
            try:
                self._connection = Client(address, authkey=key)
                at_once(self._connection)
                break
            except AuthenticationError as error:
                raise GroupError(f"who listens on {where} has another key than rank {rank}: give all members the same") from error
            except socket.gaierror as error:
                raise GroupError(f"rank {rank} knows no host {address[0]!r}: {error}") from error
            except (OSError, EOFError) as error:  # rank 0 may not listen yet
                if time.monotonic() > end_s:
                    raise GroupError(
                        f"rank {rank} could not reach rank 0 at {where} within {timeout_s:g} s: {error}. Is its process running, "
                        "and the address its own?",
                        ranks=(0,),
                    ) from error
                time.sleep(_RETRY_S)
        self._ask({"kind": "join", "channel": channel, "rank": rank, "size": size})

    def exchange(self, value: Any) -> list[Any]:
        """What all members give, by rank: values that JSON has."""
        with self._lock:
            header = {"kind": "exchange", "number": self._next(), "text": "exchange", "value": value}
            values: list[Any] = self._ask(header)["values"]
            return values

    def report(self, count: int) -> None:
        """Say how many collectives were submitted to the GPU, and learn whether the group is whole."""
        with self._lock:
            self._ask({"kind": "report", "count": count})

    def accuse(self, number: int, text: str, timeout_s: float) -> NoReturn:
        """A collective does not end: a GroupError that names who has not submitted it."""
        with self._lock:
            self._ask({"kind": "accuse", "number": number, "text": text, "timeout_s": timeout_s})
        raise AssertionError("the hub answers with an error")

    def give_up(self, text: str) -> NoReturn:
        """Tell all members why this one can go on no more: a GroupError, here too."""
        with self._lock:
            self._ask({"kind": "give up", "text": text})
        raise AssertionError("the hub answers with an error")

    def collective(self, call: Call, data: Any, target: np.ndarray[Any, Any] | None, *, checks: bool = False) -> None:
        """Take part in a collective, or send or receive.

        Args:
            call: which.
            data: the bytes of this member's tensor, C-contiguous; None if it brings none.
            target: where the result goes, C-contiguous; None if there is none.
            checks: only whether all members submit the same; the data stays where it is.
        """
        with self._lock:
            header: dict[str, Any] = {"kind": call.kind, "text": str(call), "shape": call.shape, "dtype": call.dtype.name}
            header |= {"op": call.op, "root": call.root, "pairs": call.pairs, "checks": checks}
            if call.kind not in ("send", "recv"):
                header["number"] = self._next()
            self._ask(header, data, target)

    def close(self) -> None:
        """Leave the group. Others learn that this member has, not that it is lost; a thread that asks gets a GroupError."""
        if self._lock.acquire(blocking=False):
            with contextlib.suppress(OSError):
                send(self._connection, {"kind": "close"})
        else:  # no message can come in between, and nobody may wait for an answer any more
            hang_up(self._connection)
            self._lock.acquire()
        self._connection.close()
        self._lock.release()

    def abandon(self) -> None:
        """In a forked process: let go of the parent's connection."""
        self._connection.close()

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    def _ask(self, header: dict[str, Any], data: Any = None, target: np.ndarray[Any, Any] | None = None) -> dict[str, Any]:
        try:
            send(self._connection, header, b"" if data is None else data)
            if not self._connection.poll(2 * self._timeout_s + GRACE_S):
                raise GroupError("the process of rank 0, which connects the members, does not answer", ranks=(0,))
            answer, _ = receive(self._connection, target)
        except (EOFError, OSError) as error:
            raise GroupError("the process of rank 0, which connects the members, has ended", ranks=(0,)) from error
        if "error" in answer:
            raise GroupError(answer["error"], ranks=tuple(answer["ranks"]))
        return answer
