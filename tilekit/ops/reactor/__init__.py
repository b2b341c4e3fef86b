"""The reactor: waiting for a stream from a coroutine. Nothing blocks, and nothing runs Python on the driver's thread.

Every event loop has a `Reactor` of its own, which is looked up at each `await`. A library whose coroutines can await ops has a
file here: a class derived from `Reactor`, which says how its tasks suspend and are resumed, and a `Library`, which says how its
running loop is known. `_running.LIBRARIES` has them all.
"""

from __future__ import annotations

from tilekit.ops.reactor._reactor import Ask as Ask
from tilekit.ops.reactor._waiting import awaited as awaited
from tilekit.ops.reactor._waiting import patience as patience
from tilekit.ops.reactor._waiting import reached as reached
from tilekit.ops.reactor._waiting import rung as rung
from tilekit.ops.reactor._waiting import submitted as submitted

__all__ = ["Ask", "awaited", "patience", "reached", "rung", "submitted"]
