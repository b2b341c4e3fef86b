"""How the processes of a group find each other, agree, and learn that one of them is gone.

Rank 0's process has a hub: a server with a thread for each connection. Each member has two, one for what its device's stream
submits ("work"), one for what its host says meanwhile ("host"). A message is a line of JSON, and bytes behind it where there is
data; nothing is unpickled. All that members do together is a round: the hub collects what each brings, and answers all of them,
or none: if a member's process ends, does something else, or does not come in time, the group is broken, and everybody who waits,
or asks later, gets a GroupError that names the rank.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener, answer_challenge, deliver_challenge
from typing import Any, NoReturn

import numpy as np

from tilekit import dtypes
from tilekit._groups.arithmetic import results
from tilekit._groups.call import Call
from tilekit._groups.messages import GRACE_S, HOST, WORK, at_once, hang_up, receive, send
from tilekit.errors import GroupError

__all__ = ["Hub", "free_address", "parsed"]

_FAREWELL_S = 10.0  # how long the hub of a broken group stays to say so to members that have not asked yet


def free_address(host: str = "127.0.0.1") -> str:
    """`host:port` with a port that nobody uses now, for `Group.join`."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"


def parsed(address: Any) -> tuple[str, int]:
    """The host and the port of `host:port`.

    Raises:
        TypeError, ValueError: it is none.
    """
    if not isinstance(address, str):
        raise TypeError(f'Group.join: an address is a str such as "node0:29500", not {address!r}')
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f'Group.join: {address!r} is no host and port: write "node0:29500", or see Group.free_address()')
    return host, int(port)


class _Round:
    """What all members do together, once: what each has brought, and the answers."""

    __slots__ = ("answers", "brought", "since_s")

    def __init__(self) -> None:
        self.brought: dict[int, tuple[dict[str, Any], bytes]] = {}
        self.answers: list[tuple[dict[str, Any], Any]] | None = None
        self.since_s = time.monotonic()


class Hub:
    """The server, in the process of rank 0.

    Args:
        size: how many members there are.
        address: where to listen.
        key: what members prove that they know.
        timeout_s: how long members wait for each other.

    Raises:
        GroupError: the address cannot be listened on.
    """

    def __init__(self, size: int, address: tuple[str, int], key: bytes, timeout_s: float) -> None:
        self.size, self.timeout_s, self._address = size, timeout_s, address
        try:
            self._listener = Listener(address, backlog=2 * size)
        except OSError as error:
            unknown = isinstance(error, socket.gaierror)
            cure = "Give a name or number of its machine" if unknown else "Another program may have the port: take another one"
            raise GroupError(f"rank 0 cannot listen on {address[0]}:{address[1]}: {error}. {cure}", ranks=(0,)) from error
        self._key = key
        self._connections: set[Connection] = set()
        self._strangers: set[Connection] = set()  # those that have not proved yet that they are members
        self._changed = threading.Condition()
        self._broken: tuple[str, tuple[int, ...]] | None = None
        self._stopped = False
        self._joined: dict[str, set[int]] = {WORK: set(), HOST: set()}
        self._ended: set[int] = set()  # members that have closed the group
        self._gone: set[tuple[str, int]] = set()  # connections that are over
        self._rounds: dict[tuple[str, int], _Round] = {}
        self._mail: dict[tuple[int, int], list[tuple[dict[str, Any], bytes]]] = {}
        self._progress: dict[int, int] = {}  # how many collectives each has submitted to its GPU
        self._acceptor = threading.Thread(target=self._accept, name="tilekit-hub", daemon=True)
        self._acceptor.start()

    def stop(self) -> None:
        """Let nobody join any more, and the port go."""
        self.give_up("rank 0 gave up", (0,))
        self._stopped = True
        self._admit_no_more()
        self._acceptor.join(GRACE_S)

    def give_up(self, message: str, ranks: tuple[int, ...]) -> None:
        """The group is broken, if it was not: who asks gets a GroupError."""
        self._break(message, ranks)

    def wait_for_others(self, timeout_s: float) -> bool:
        """Block until every other member has closed the group or is gone, at most so long; whether they have."""
        expected = {(channel, rank) for channel in (WORK, HOST) for rank in range(1, self.size)}
        with self._changed:
            return self._changed.wait_for(
                lambda: expected <= self._gone, min(timeout_s, _FAREWELL_S) if self._broken else timeout_s
            )

    def abandon(self) -> None:
        """In a forked process: let go of the parent's connections."""
        for connection in self._connections:
            connection.close()
        self._listener.close()

    # the server

    def _accept(self) -> None:
        """Serve whoever comes, each from a thread of its own: one that says nothing keeps nobody waiting. Of a broken group, too:
        those that come late are told why."""
        while not self._is_full() and not self._stopped:
            try:
                connection = self._listener.accept()
            except OSError:
                break
            at_once(connection)
            self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), name="tilekit-hub-member", daemon=True).start()
        self._listener.close()

    def _is_full(self) -> bool:
        return all(len(joined) == self.size for joined in self._joined.values())

    def _admit_no_more(self) -> None:
        with contextlib.suppress(OSError), socket.create_connection(self._address, GRACE_S):
            pass  # which wakes who listens
        for stranger in tuple(self._strangers):
            hang_up(stranger)

    def _is_member(self, connection: Connection) -> bool:
        """Whether who has connected knows the key."""
        self._strangers.add(connection)
        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
        except (AuthenticationError, EOFError, OSError):  # somebody else, who has tried
            return False
        finally:
            self._strangers.discard(connection)
        return True

    def _serve(self, connection: Connection) -> None:
        """One connection, from its first message to its end."""
        channel, rank = "", -1
        try:
            if not self._is_member(connection):
                return
            hello, _ = receive(connection)
            channel, rank = hello["channel"], hello["rank"]
            self._welcome(channel, rank, hello["size"])
            send(connection, {})
            while True:
                header, data = receive(connection)
                if header["kind"] == "close":
                    with self._changed:
                        self._ended.add(rank)
                        self._changed.notify_all()
                    return
                send(connection, *self._answer(channel, rank, header, data))
        except GroupError as error:
            self._say(connection, error)
        except (EOFError, OSError):
            closed = rank in self._ended
            self._break(f"rank {rank} closed the group meanwhile" if closed else f"the process of rank {rank} has ended", (rank,))
        except Exception as error:  # nobody is to wait for what cannot be done
            message = f"rank 0 could not do what rank {rank} asked for: {type(error).__name__}: {error}"
            self._break(message, (rank,))
            self._say(connection, GroupError(message, ranks=(rank,)))
        finally:
            with self._changed:
                self._gone.add((channel, rank))
                self._changed.notify_all()
            self._connections.discard(connection)
            connection.close()

    def _say(self, connection: Connection, error: GroupError) -> None:
        with contextlib.suppress(OSError):
            send(connection, {"error": str(error), "ranks": error.ranks})

    def _welcome(self, channel: str, rank: int, size: int) -> None:
        """Wait until all members are there."""
        with self._changed:
            joined = self._joined[channel]
            self._check_whole()
            if size != self.size or not 0 <= rank < self.size:
                self._fail(f"rank {rank} joined a group of {size}, which rank 0 says has {self.size} members", (rank,))
            if rank in joined:
                self._fail(f"two processes joined as rank {rank}: each needs a rank of its own", (rank,))
            joined.add(rank)
            self._changed.notify_all()
            if self._is_full():
                self._admit_no_more()
            self._wait(lambda: len(joined) == self.size, lambda: self._missing("joined the group", joined))

    def _answer(self, channel: str, rank: int, header: dict[str, Any], data: bytes) -> tuple[dict[str, Any], Any]:
        with self._changed:
            self._check_whole()
            if header["kind"] == "send":
                self._mail.setdefault((rank, header["root"]), []).append((header, data))
                self._changed.notify_all()
                return {}, b""
            if header["kind"] == "recv":
                return self._letter(rank, header)
            if header["kind"] == "report":
                self._progress[rank] = header["count"]
                return {}, b""
            if header["kind"] == "accuse":
                self._accuse(rank, header)
            if header["kind"] == "give up":
                self._fail(header["text"], (rank,))
            number = header["number"]
            together = self._rounds.setdefault((channel, number), _Round())
            together.brought[rank] = (header, data)
            if len(together.brought) == self.size:
                del self._rounds[channel, number]
                together.answers = self._answers(number, [together.brought[r] for r in range(self.size)])
                self._changed.notify_all()
            else:
                doing = f"submitted number {number}, {header['text']}"
                self._wait(
                    lambda: together.answers is not None,
                    lambda: self._missing(doing, together.brought),
                    others=lambda: set(range(self.size)) - set(together.brought),
                    since_s=together.since_s,
                )
            assert together.answers is not None, "waited for"
            return together.answers[rank]

    def _answers(self, number: int, brought: Sequence[tuple[dict[str, Any], bytes]]) -> list[tuple[dict[str, Any], Any]]:
        """What members that have all come get."""
        headers = [header for header, _ in brought]
        for rank, header in enumerate(headers):
            if header["text"] != headers[0]["text"]:
                self._fail(
                    f"members disagree on number {number} of what they do together: rank 0 submitted {headers[0]['text']}, "
                    f"rank {rank} {header['text']}. All members submit the same collectives in the same order",
                    (rank,),
                )
        if headers[0]["kind"] == "exchange":
            return [({"values": [header["value"] for header in headers]}, b"")] * self.size
        call = _call(headers[0])
        if headers[0]["checks"] or call.kind == "barrier":
            return [({}, b"")] * self.size
        arrays = [np.frombuffer(data, call.dtype).reshape(call.shape) for _, data in brought]
        return [({}, np.ascontiguousarray(result)) for result in results(call, arrays)]

    def _letter(self, rank: int, header: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """What another member has sent to this one."""
        source = header["root"]
        letters = self._mail.setdefault((source, rank), [])
        self._wait(
            lambda: bool(letters),
            lambda: (f"rank {rank} waits for rank {source} to send {header['text']}, and nothing came", (source,)),
            others=lambda: {source},
        )
        sent, data = letters.pop(0)
        if (sent["shape"], sent["dtype"]) != (header["shape"], header["dtype"]):
            self._fail(
                f"rank {rank} expects {header['dtype']} {tuple(header['shape'])} from rank {source}, which sent "
                f"{sent['dtype']} {tuple(sent['shape'])}",
                (source, rank),
            )
        return {}, data

    # what goes wrong; all with the lock held

    def _accuse(self, rank: int, header: dict[str, Any]) -> NoReturn:
        """What a member has submitted to its GPU does not end: who has not, is to blame."""
        number, seconds = header["number"], header["timeout_s"]
        absent = tuple(r for r in range(self.size) if self._progress.get(r, 0) < number)
        blame = f"{_ranks(absent)} did not submit that many" if absent else "all members have submitted it"
        self._fail(f"number {number}, {header['text']}, of rank {rank} was not done within {seconds:g} s: {blame}", absent)

    def _wait(
        self,
        ready: Callable[[], bool],
        late: Callable[[], tuple[str, tuple[int, ...]]],
        others: Callable[[], set[int]] | None = None,
        since_s: float | None = None,
    ) -> None:
        """Wait until `ready`; not for members that have closed the group, nor longer than the time-out."""

        def ended() -> set[int]:
            return set() if others is None else others() & self._ended

        left_s = self.timeout_s - (0.0 if since_s is None else time.monotonic() - since_s)
        on = self._changed.wait_for(lambda: ready() or self._broken is not None or bool(ended()), max(left_s, 0.0))
        if ready():
            return
        self._check_whole()
        if on:
            left = tuple(sorted(ended()))
            self._fail(f"{late()[0]}: {_ranks(left)} closed the group before", left)
        message, ranks = late()
        self._fail(f"{message} within {self.timeout_s:g} s", ranks)

    def _check_whole(self) -> None:
        if self._broken is not None:
            raise GroupError(self._broken[0], ranks=self._broken[1])

    def _missing(self, doing: str, there: Any) -> tuple[str, tuple[int, ...]]:
        absent = tuple(sorted(set(range(self.size)) - set(there)))
        return f"{_ranks(tuple(sorted(there)))} {doing}, and {_ranks(absent)} did not", absent

    def _fail(self, message: str, ranks: tuple[int, ...]) -> NoReturn:
        if self._broken is None:
            self._broken = (message, ranks)
            self._changed.notify_all()
        raise GroupError(self._broken[0], ranks=self._broken[1])

    def _break(self, message: str, ranks: tuple[int, ...]) -> None:
        with self._changed, contextlib.suppress(GroupError):
            self._fail(message, ranks)


def _call(header: dict[str, Any]) -> Call:
    return Call(
        kind=header["kind"],
        shape=tuple(header["shape"]),
        dtype=dtypes.as_dtype(header["dtype"]),
        op=header["op"],
        root=header["root"],
        pairs=tuple((source, target) for source, target in header["pairs"]),
    )


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
