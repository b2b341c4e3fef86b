"""Messages between the members of a joined group and its hub: a line of JSON, and bytes behind it where there is data."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

__all__ = ["GRACE_S", "HOST", "WORK", "at_once", "hang_up", "receive", "send"]

WORK, HOST = "work", "host"  # what a member's device submits, and what its host says meanwhile
GRACE_S = 10.0  # how much longer than the hub a member waits, which then is the one to say who is missing


def hang_up(connection: Connection) -> None:
    """End a connection that another thread may be reading from, or writing to: that gets an error, and the other side an end."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.shutdown(socket.SHUT_RDWR)


def at_once(connection: Connection) -> None:
    """Send small messages now, and not when there are more (Nagle's algorithm, 40 ms each)."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _bytes(data: Any) -> memoryview:
    """The bytes of an array, or of anything that has a buffer."""
    return memoryview(data.reshape(-1).view(np.uint8).data if isinstance(data, np.ndarray) else data)


def send(connection: Connection, header: dict[str, Any], data: Any = b"") -> None:
    """Send a message, with the bytes of `data`."""
    view = _bytes(data)
    connection.send_bytes(json.dumps({**header, "nbytes": view.nbytes}).encode())
    if view.nbytes:
        connection.send_bytes(view)


def receive(connection: Connection, target: np.ndarray[Any, Any] | None = None) -> tuple[dict[str, Any], bytes]:
    """A message; its bytes go to `target`, if there is one of that size."""
    header: dict[str, Any] = json.loads(connection.recv_bytes())
    if not header["nbytes"]:
        return header, b""
    if target is not None and target.nbytes == header["nbytes"]:
        connection.recv_bytes_into(_bytes(target))
        return header, b""
    return header, connection.recv_bytes()
