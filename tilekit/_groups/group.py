"""`Group`: devices that work together, in one process or one process each, and the collectives among them."""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

from tilekit import dtypes
from tilekit._driver import forking
from tilekit._groups.call import Call, check_reduction
from tilekit._groups.checks import as_devices, as_member, as_pairs, as_rank, as_seconds, check_out, check_value, refused
from tilekit._groups.collective import Collective
from tilekit._groups.control import Hub, free_address, parsed
from tilekit._groups.link import Link
from tilekit._groups.messages import HOST, WORK
from tilekit._groups.transport import AcrossProcesses, InProcess, Transport
from tilekit._groups.watch import Watch
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device, default_device
from tilekit._runtime.stream import Stream
from tilekit._tensor.shapes import as_shape
from tilekit._tensor.tensor import Tensor
from tilekit.errors import GroupError, TilekitError
from tilekit.ops import DeviceOp, join_all, value
from tilekit.ops.sources import as_op

__all__ = ["Group"]

_TIMEOUT_S = 600.0  # as PyTorch's, for NCCL
_KEY = b"tilekit"
_CALLS_KEPT = 256

_open: set[Group] = set()  # the joined ones: at the end of the process they are closed, so that nobody takes it for a loss


@atexit.register
def _close_all() -> None:
    for group in tuple(_open):
        group.close()


def _after_fork() -> None:
    """The groups that were joined are the parent's: its connections would also outlive it here, and nobody learn of its end."""
    for group in _open:
        group.abandon()
    _open.clear()


forking.in_child(_after_fork)


class _Submitting:
    """Around the submission of a collective: one at a time, so that all devices have them in one order.

    Raises:
        GroupError: the group is broken, or closed.
    """

    __slots__ = ("_group",)

    def __init__(self, group: Group) -> None:
        self._group = group

    def __enter__(self) -> None:
        group = self._group
        group._lock.acquire()
        try:
            group._check_open()
        except BaseException:
            group._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._group._lock.release()


class Group:
    """Devices that work together: the members, which have ranks from 0.

        with tk.Group(["cuda:0", "cuda:1"]) as group:                       # one process
            sums = group.all_reduce([x0, x1]).sync()                        # a tensor on each device

        with tk.Group.join(rank, 2, address="node0:29500") as group:        # a process each
            total = group.all_reduce(x).sync()                              # this rank's tensor

    Its methods build ops: lazy, awaitable, ordered with all other work by the memory that they use. In one process they take a
    list with a tensor for each device (or an op that gives one), and give such a list; in a joined group they take and give this
    rank's tensor. Where a tensor is expected, an op that gives one will do: it runs on the member's device. On GPUs the work is
    NCCL's, on a stream of the group's on each device; on CPU devices NumPy's, in the order of the ranks.

    The members submit the same collectives in the same order. On CPU devices, and with `debug=True`, that is checked; on GPUs
    without it two different ones wait for each other until the time-out. A group that a member was lost from, or late, is broken:
    whoever waits for its work, or submits more, gets a GroupError that names the rank.

    Args:
        devices: one for each member, of one kind, each once. By default all of the default device's kind.

    Attributes:
        size: how many members there are, in all processes.
        devices: those of this process.
        ranks: of this process's members, in the order of `devices`.
        submitting, contexts: to be held by who submits; and where, for each device (internal).

    Raises:
        ValueError: no devices, two of one kind and one of another, or one twice.
        ImportError: NCCL's Python package is missing, which GPUs need.
    """

    def __init__(self, devices: Sequence[Device | str] | None = None) -> None:
        chosen = as_devices(devices)
        self._begin(chosen, len(chosen), tuple(range(len(chosen))))
        if chosen[0].kind == "cuda":
            from tilekit._groups.gpus import Gpus

            self.transport: Transport = Gpus.in_process(self)
        else:
            self.transport = InProcess()

    def _begin(self, devices: tuple[Device, ...], size: int, ranks: tuple[int, ...]) -> None:
        self.devices, self.size, self.ranks = devices, size, ranks
        self._streams = [device.stream(priority=-1) for device in devices]
        self._lock, self._breaking = threading.Lock(), threading.Lock()
        self.submitting = _Submitting(self)
        self.contexts = [ExecutionContext(stream.device, stream) for stream in self._streams]
        self._watch: Watch | None = None
        self._ends: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._calls: dict[Any, Call] = {}  # what was looked at, by what the tensors are
        self._failure: GroupError | None = None
        self._joined = self._closed = False
        self._hub: Hub | None = None
        self._host: Link | None = None
        self._work: Link | None = None
        self._mail: dict[tuple[int, int], list[Tensor]] = {}
        self._timeout_s = _TIMEOUT_S

    @classmethod
    def join(
        cls,
        rank: int,
        size: int,
        *,
        address: str,
        device: Device | str | None = None,
        timeout_s: float | None = None,
        debug: bool = False,
        key: bytes = _KEY,
    ) -> Self:
        """Join a group of `size` processes as its member `rank`. Blocks until all have joined.

        Args:
            rank: this process's, from 0. Rank 0 listens at `address`, for as long as the group lasts.
            size: how many processes there are.
            address: `host:port` of rank 0, the same in all processes.
            device: this member's; by default the default one. All members' are of one kind.
            timeout_s: how long members wait for each other, to join and in each collective, in seconds; 600 by default.
            debug: check before each collective on GPUs that all members submit the same. That waits for all of them.
            key: what members prove that they know, the same in all processes. Others cannot join; the data is not encrypted.

        Raises:
            TypeError, ValueError: no such rank; no address; no bytes for `key`; a time that is not positive; the devices are of
                two kinds.
            GroupError: not all members joined in time; it names those that are missing.
        """
        rank, size = as_member(rank, size, key)
        host_and_port = parsed(address)
        seconds = as_seconds(timeout_s, _TIMEOUT_S)
        self = cls.__new__(cls)
        self._begin(as_devices([default_device() if device is None else device]), size, (rank,))
        self._joined = True
        self._hub = Hub(size, host_and_port, key, seconds) if rank == 0 else None
        self._timeout_s = seconds
        try:
            self._connect(host_and_port, key, debug)
        except BaseException:
            for link in filter(None, (self._host, self._work)):
                link.close()
            if self._hub is not None:
                self._hub.stop()
            for stream in self._streams:
                stream.close()
            raise
        _open.add(self)
        return self

    def _connect(self, address: tuple[str, int], key: bytes, debug: bool) -> None:
        """Wait for the other processes, and find what moves the data."""
        rank = self.rank
        self._host = host = Link(HOST, rank, self.size, address, key, self._timeout_s)
        self._work = work = Link(WORK, rank, self.size, address, key, self._timeout_s)
        kinds = self.exchange(self.devices[0].kind)
        if len(set(kinds)) > 1:
            each = ", ".join(f"rank {rank} {kind}" for rank, kind in enumerate(kinds))
            raise ValueError(f"Group.join: the members' devices are of two kinds: {each}")
        if kinds[0] == "cuda":
            from tilekit._groups.gpus import Gpus

            self.transport = Gpus.joined(self, work if debug else None)
        else:
            self.transport = AcrossProcesses(self, work)
        self._watch = Watch(self, host, self._timeout_s, self.transport.failure)
        self.on_loss(self.transport.abort)

    @staticmethod
    def free_address(host: str = "127.0.0.1") -> str:
        """`host:port` with a port of this machine that nobody uses now, for members on one machine to join at."""
        return free_address(host)

    @property
    def joined(self) -> bool:
        """Whether each member has a process of its own, and not all are this one's."""
        return self._joined

    @property
    def rank(self) -> int:
        """This process's, in a joined group. AttributeError in one process, which has all of them."""
        if not self._joined:
            raise AttributeError(f"{self!r} is of one process, which has all ranks: see .ranks")
        return self.ranks[0]

    # collectives

    def all_reduce(self, x: Any, op: str = "sum", out: Any = None) -> DeviceOp[Any]:
        """Each member gets the reduction of all members' tensors, element by element.

        Floats of 8 and 16 bits are summed in float32 on CPU devices, and by NCCL in the precision that it chooses.

        Args:
            x: a tensor for each member, of one shape and dtype.
            op: "sum", "prod", "max", "min", or, of floats, "avg".
            out: where to, as `x`; the same tensors will do. By default new ones.

        Raises:
            TypeError, ValueError: what `x` is not as above, or another number of tensors than members.
            GroupError: when it runs: the group is broken, or closed.
        """
        return self._collective("all_reduce", x, out, op=op)

    def all_gather(self, x: Any, out: Any = None) -> DeviceOp[Any]:
        """Each member gets all members' tensors, of shape (n, ...), behind each other along dimension 0: (size * n, ...)."""
        return self._collective("all_gather", x, out)

    def reduce_scatter(self, x: Any, op: str = "sum", out: Any = None) -> DeviceOp[Any]:
        """Each member gets its part of the reduction of all members' tensors: of (size * n, ...), which are (n, ...)."""
        return self._collective("reduce_scatter", x, out, op=op)

    def broadcast(self, x: Any, root: int = 0, out: Any = None) -> DeviceOp[Any]:
        """Each member gets the tensor of the member `root`. The others' tensors say the shape and dtype."""
        return self._collective("broadcast", x, out, root=root)

    def all_to_all(self, x: Any, out: Any = None) -> DeviceOp[Any]:
        """Each member's tensor is cut along dimension 0 into a part for each; each gets its parts, in the order of the ranks."""
        return self._collective("all_to_all", x, out)

    def permute(self, x: Any, pairs: Sequence[tuple[int, int]], out: Any = None) -> DeviceOp[Any]:
        """Tensors change places: for each pair `(source, target)` member `target` gets the tensor of member `source`, and who is
        no target gets zeros. `[(r, (r + 1) % size) for r in range(size)]` is a ring. jax calls it `ppermute`.

        Args:
            x: a tensor for each member, of one shape and dtype.
            pairs: ranks, the same list at all members; none is a source twice, or a target twice.
            out: where to, as `x`; by default new tensors.

        Raises:
            TypeError, ValueError: `x` is not as above; no pairs of ranks, or one of them twice on a side.
        """
        with refused(x, out):
            chosen = as_pairs(pairs, self.size)
        return self._collective("permute", x, out, pairs=chosen)

    def send(self, x: Any, to: int, *, source: int | None = None) -> DeviceOp[None]:
        """Send a tensor to the member `to`, which receives it with `recv`. What is sent first arrives first.

        Args:
            x: the tensor, of the member that sends.
            to: the rank that it goes to; one's own will do.
            source: in one process, the rank that sends; in a joined group it is this one.
        """
        with refused(x):
            sender = self._member("send", source)
            receiver = as_rank("send", to, self.size, "to")

        def sending(tensor: Any) -> DeviceOp[None]:
            self._check("send", tensor, sender)
            call = Call(kind="send", shape=tensor.shape, dtype=tensor.dtype, root=receiver)
            if self._joined and receiver != sender:
                return Collective(self, call, [tensor], None, joined=True)
            return DeviceOp.map(tensor.dup(), posting).named("send")

        def posting(letter: Tensor) -> None:
            with self.submitting:
                self._mail.setdefault((sender, receiver), []).append(letter)

        return self._of(x, sending, "send", self.devices[self.ranks.index(sender)])

    def recv(self, shape: Any, dtype: Any, source: int, *, to: int | None = None) -> DeviceOp[Tensor]:
        """Receive a tensor that the member `source` sends.

        Args:
            shape, dtype: the tensor's, which the sender's must have.
            source: the rank that it comes from.
            to: in one process, the rank that receives; in a joined group it is this one. What comes from the own process was sent
                before, or it is a GroupError.
        """
        receiver = self._member("recv", to)
        sender = as_rank("recv", source, self.size, "source")
        call = Call(kind="recv", shape=as_shape(shape), dtype=dtypes.as_dtype(dtype), root=sender)
        if self._joined and sender != receiver:
            return Collective(self, call, [], None, joined=True)

        def receiving(_: None) -> DeviceOp[Tensor]:
            with self.submitting:
                letters = self._mail.get((sender, receiver))
                if not letters:
                    raise GroupError(
                        f"recv: rank {receiver} has nothing from rank {sender}. Within one process the send has to run first",
                        ranks=(sender, receiver),
                    )
                if (letters[0].shape, letters[0].dtype) != (call.shape, call.dtype):
                    raise ValueError(f"recv: rank {sender} sent {letters[0].dtype.name} {letters[0].shape}, not {call}")
                letter = letters.pop(0)
            return letter.to(self.devices[self.ranks.index(receiver)])

        return value(None).then(receiving).named("recv")

    def barrier(self) -> DeviceOp[None]:
        """Done when all members have come to it, and all that they had submitted to the group before."""
        return Collective(self, Call(kind="barrier", shape=(), dtype=dtypes.float32), [], None, joined=self._joined)

    def exchange(self, data: Any) -> list[Any]:
        """What the hosts of all members give, by rank: None, numbers, strings, lists and dicts of them. Blocks.

        Tuples arrive as lists.

        Raises:
            TypeError: the group is of one process; a value of another kind, or a dict with a key that is no str: nothing is sent.
            GroupError: a member is lost, or late.
        """
        if self._host is None:
            raise TypeError(f"exchange: {self!r} is of one process, which has all that there is to exchange")
        check_value(data)
        self._check_open()
        try:
            return self._host.exchange(data)
        except GroupError as error:
            self.broken(error)
            raise

    # its end

    def close(self) -> None:
        """Leave the group. Waits for the work that was submitted; rank 0 also until the others have left, up to the time-out.

        Left by an error it waits for no work, and rank 0 for some seconds at most: others that come later get a GroupError.
        """
        if self._closed:
            return
        self._closed = True
        self._mail.clear()
        _open.discard(self)
        if self._failure is None:
            with self._lock:  # somebody may be submitting
                pass
            for stream in self._streams:
                with contextlib.suppress(TilekitError):  # whoever waits for the work is told
                    stream.synchronize()
        if self._watch is not None:
            self._watch.stop()
        self.transport.close()
        for link in filter(None, (self._host, self._work)):
            link.close()
        if self._hub is not None:
            if self._failure is not None:  # who asks later is told, and nobody is waited for long
                self._hub.give_up(str(self._failure), self._failure.ranks)
            self._hub.wait_for_others(self._timeout_s)
        for stream in self._streams:  # a fault of theirs would keep them, and this group, for ever
            stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is not None and self._failure is None:
            self.broken(GroupError(f"{self!r} was left by an error", ranks=self.ranks))
        self.close()

    def abandon(self) -> None:
        """In a forked process: it is the parent's. Takes no lock, which another thread of the parent may have held (internal)."""
        self._lock = threading.Lock()
        self._closed = True
        self._failure = GroupError(
            f"{self!r} was joined by the process that this one was forked from, which is its member; this one may join another "
            "group, under a rank of its own",
            ranks=self.ranks,
        )
        for link in filter(None, (self._host, self._work)):
            link.abandon()
        if self._hub is not None:
            self._hub.abandon()

    def expect(self, what: object, stream: Stream) -> None:
        """What `stream` holds now would wait for ever for a member that is gone: have somebody look (internal)."""
        if self._watch is not None:
            self._watch.expect(what, stream)

    def on_loss(self, end: Callable[[], None]) -> None:
        """Have a method called when the group breaks, which lets kernels end that wait for other members (internal)."""
        self._ends.append(weakref.WeakMethod(end))

    def broken(self, error: Exception) -> None:
        """Nothing more can be done together: whoever waits for work of the devices is told, and that ends (internal)."""
        with self._breaking:
            if self._failure is not None:
                return
            if not isinstance(error, GroupError):
                error = GroupError(f"{self!r} is broken: {error}", ranks=self.ranks)
            self._failure = error
        if self._watch is not None:
            self._watch.fail(error)
        for reference in self._ends:
            end = reference()
            if end is not None:
                end()

    # for the ops

    def streams(self) -> list[Stream]:
        """The streams of the members' devices. What failed there before was told to those who waited (internal).

        Raises:
            GroupError: the group is broken, or closed.
        """
        self._check_open()
        if self.devices[0].kind == "cuda":  # which is lost with the first failure
            return self._streams
        for stream in self._streams:
            try:
                stream.query()
            except TilekitError:
                with contextlib.suppress(TilekitError):
                    stream.synchronize()
        return self._streams

    def _check_open(self) -> None:
        if self._failure is not None:
            raise GroupError(f"{self!r} is broken: {self._failure}", ranks=self._failure.ranks) from self._failure
        if self._closed:
            raise GroupError(f"{self!r} was closed: what it does runs before", ranks=self.ranks)

    def _collective(
        self, kind: str, x: Any, out: Any, *, op: str = "", root: int = 0, pairs: tuple[tuple[int, int], ...] = ()
    ) -> DeviceOp[Any]:
        alike = (x,) if self._joined else x, out if out is None or not self._joined else (out,)
        key = _looks(kind, op, root, pairs, *alike)
        if key is not None and (known := self._calls.get(key)) is not None:
            return Collective(self, known, *alike, joined=self._joined)
        targets: list[Tensor] | None = None

        def of(tensors: Any) -> DeviceOp[Any]:
            inputs = self.tensors(kind, [tensors] if self._joined else tensors)
            call = self._call(kind, inputs, op, root, pairs)
            call.check(self.size)
            if targets is not None:
                check_out(call, self.size, inputs, targets)
            if key is not None:
                if len(self._calls) >= _CALLS_KEPT:
                    self._calls = {}
                self._calls[key] = call
            return Collective(self, call, inputs, targets, joined=self._joined)

        with refused(x, out):
            check_reduction(kind, op)
            root = as_rank(kind, root, self.size, "root")
            if out is not None:
                targets = self.tensors(kind, [out] if self._joined else out, "out")
            if not self._joined and not isinstance(x, DeviceOp):
                x = self.together(kind, x)
            return self._of(x, of, kind, self.devices[0] if self._joined else None)

    def together(self, kind: str, x: Any) -> Any:
        """A list of tensors as it is; with ops in it, an op that gives it, each on its device and all at once (internal)."""
        if not isinstance(x, (list, tuple)) or not any(isinstance(part, DeviceOp) for part in x):
            return x
        self._check_count(kind, x)
        for part, rank in zip(x, self.ranks):
            if not isinstance(part, DeviceOp):
                self._check(kind, part, rank)
        return join_all([as_op(part).on(device) for part, device in zip(x, self.devices)], parallel=True)

    def _of(self, x: Any, function: Any, kind: str, device: Device | None) -> DeviceOp[Any]:
        """What `function(x)` returns; if `x` is an op, that runs before: where it belongs, else on `device`."""
        if isinstance(x, DeviceOp):
            if device is not None and x.device is None:
                x = x.on(device)
            lazily: DeviceOp[Any] = x.then(function)
            lazily._label = kind
            return lazily
        op = function(x)
        assert isinstance(op, DeviceOp), "what the functions above return"
        return op

    def tensors(self, kind: str, x: Any, what: str = "x") -> list[Tensor]:
        """A tensor with memory for each device of this process (internal)."""
        if not isinstance(x, (list, tuple)):
            raise TypeError(
                f"{kind}: {self!r} is of one process, so {what} is a list with a tensor for each of {len(self.devices)} devices, "
                f"not {type(x).__name__}"
            )
        self._check_count(kind, x, what)
        for tensor, rank in zip(x, self.ranks):
            self._check(kind, tensor, rank, what)
        return list(x)

    def _check(self, kind: str, tensor: Any, rank: int, what: str = "x") -> None:
        """Whether that is a tensor of this process's member `rank`."""
        device = self.devices[self.ranks.index(rank)]
        if not isinstance(tensor, Tensor):
            lazily = ", or an op that gives one" if what == "x" else ""
            cure = "; api.from_host(array) makes one" if hasattr(tensor, "__array__") and not isinstance(tensor, DeviceOp) else ""
            raise TypeError(f"{kind}: {what} of rank {rank} is a tensor{lazily}, not {type(tensor).__name__}{cure}")
        if tensor.storage is None:
            raise TypeError(f"{kind}: {what} of rank {rank}, {tensor!r}, has no memory")
        if tensor.device is not device:
            raise ValueError(
                f"{kind}: {what} of rank {rank} is on {tensor.storage.device.label}, and the member is {device.label}: bring it "
                "there with .to(device)"
            )

    def _check_count(self, kind: str, x: Sequence[Any], what: str = "x") -> None:
        if len(x) != len(self.devices):
            raise ValueError(
                f"{kind}: {len(x)} tensors for {what}, and {self!r} has {len(self.devices)} devices here: one for each"
            )

    def _call(self, kind: str, inputs: Sequence[Tensor], op: str, root: int, pairs: tuple[tuple[int, int], ...]) -> Call:
        first = inputs[0]
        for rank, tensor in zip(self.ranks, inputs):
            if (tensor.shape, tensor.dtype) != (first.shape, first.dtype):
                raise ValueError(
                    f"{kind}: members bring tensors of one shape and dtype: rank {self.ranks[0]} has {first.dtype.name} "
                    f"{first.shape}, rank {rank} {tensor.dtype.name} {tensor.shape}"
                )
        return Call(kind=kind, shape=first.shape, dtype=first.dtype, op=op, root=root, pairs=pairs)

    def _member(self, kind: str, rank: int | None) -> int:
        """Which of this process's members is meant."""
        name = "source" if kind == "send" else "to"
        if self._joined:
            if rank not in (None, self.rank):
                raise ValueError(f"{kind}: this process is rank {self.rank}; leave {name}= out")
            return self.rank
        if rank is None:
            raise TypeError(f"{kind}: {self!r} is of one process: say with {name}= which rank does it")
        return as_rank(kind, rank, self.size, name)

    def __repr__(self) -> str:
        if self._joined:
            return f"<tilekit.Group of {self.size}, here rank {self.ranks[0]} on {self.devices[0].label}>"
        return f"<tilekit.Group of {self.size}: {', '.join(device.label for device in self.devices)}>"


def _looks(kind: str, op: Any, root: Any, pairs: Any, inputs: Any, outputs: Any) -> tuple[Any, ...] | None:
    """What tells whether a collective is like one that was looked at before: what is done, and what the tensors are but for their
    memory. None if there is no telling: of anything else than tensors, and of results in the memory of others.
    """
    if type(op) is not str or type(root) is not int or type(inputs) not in (tuple, list):
        return None
    key: list[Any] = [kind, op, root, pairs]
    for x in inputs:
        if type(x) is not Tensor or x.storage is None:
            return None
        key.append(x.traits)
    if outputs is not None:
        if type(outputs) not in (tuple, list) or len(outputs) != len(inputs):
            return None
        for x, y in zip(inputs, outputs):
            if type(y) is not Tensor or y.storage is None or (y.storage is x.storage and y is not x):
                return None
            key += (y.traits, y is x)
    return tuple(key)
