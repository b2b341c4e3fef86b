"""Products of matrices that are dealt out to the members of a group, which overlap with what the members tell each other.

`all_gather_matmul`: of `a` each member has some rows. Copy engines take them to the others while its kernel multiplies its own;
blocks go on to a member's rows once these have come. `matmul_reduce_scatter`: each member has a part of the sums. A first
kernel multiplies the others' rows, which copy engines take to them, a chunk of rows as soon as it is done; a second one its own,
to which it adds what has come meanwhile. (Blocks that write to other devices by themselves do so all at the same time, and
multiply nothing until all that has gone through: of 8192 x 8192 x 8192 on two H200 that hid 12 % of the way.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tilekit import api, dtypes
from tilekit._driver.protocol import Memory
from tilekit._groups.group import Group
from tilekit._groups.symmetric_memory import symmetric
from tilekit._runtime.context import ExecutionContext
from tilekit._tensor.shapes import as_shape
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._collective.product_kernels import adding, arriving, leave, leaving, ready
from tilekit.kernels._collective.signals import RELEASED, lanes_for
from tilekit.kernels._collective.together import Together, again, known, of_members, started
from tilekit.kernels._gemm.model import Product
from tilekit.kernels._gemm.schedules import Schedule, check_tile, result_dtype, schedule_of, sum_dtype
from tilekit.kernels._host import multiprocessors, on_cpu
from tilekit.kernels._launches import allocated
from tilekit.kernels._staging import COPIES, LINES, aligned, in_stages, pitched, staged_operands
from tilekit.launch.copying import copy_elements
from tilekit.launch.launch import KernelLaunch
from tilekit.ops import DeviceOp, Spec

__all__ = ["AllGatherWorkspace", "ReduceScatterWorkspace", "all_gather_matmul", "matmul_reduce_scatter"]

# Rows leave in so many chunks at most, of a multiple of so many rows: blocks visit eight rows of tiles together, whose tiles have
# 128 rows where there is much to do, and finish them at the same time.
_CHUNKS, _CHUNK_ROWS = 4, 1024
_PRODUCTS_KEPT = 64  # launches of a workspace and a member


# ---------------------------------------------------------------------------------------------------------------- workspaces


class _Workspace:
    """What both have: a group, a shape, a dtype, and on each device a counter of calls and `arrivals` flags for each member."""

    def __init__(self, name: str, group: Group, shape: tuple[int, int], dtype: Any, arrivals: int) -> None:
        if not isinstance(group, Group):
            raise TypeError(f"{name}: group is a tk.Group, not {group!r}")
        self.group, self.shape, self.dtype = group, as_shape(shape), dtypes.as_dtype(dtype)
        if len(self.shape) != 2 or not all(self.shape):
            raise ValueError(f"{name}: the shape of a matrix has two extents, from 1 on, not {shape}")
        self._calls = [api.zeros(1, dtypes.int64).on(device).sync() for device in group.devices]
        # The flags that other members set: that something has come, and that what was sent to them has been read.
        self._arrivals, self._left = self._waited_for = [
            symmetric(group, (group.size, flags), dtypes.int64) for flags in (arrivals, 1)
        ]
        group.on_loss(self.release)

    def _around(self, at: int) -> list[KernelLaunch]:
        """What a member's calls begin and end with."""
        rank, size, calls = self.group.ranks[at], self.group.size, self._calls[at]
        left, lanes = self._left.whole(rank).scattered(), lanes_for(size)
        begin, end = ready(left, calls.scattered(), rank, size, lanes), leave(left, calls, rank, size, lanes)
        return [known(launch.grid(1).num_warps(1)) for launch in (begin, end)]

    def release(self) -> None:
        """Let kernels that wait for members that are gone go on: what they give means nothing, and neither do later calls. Blocks
        until they have been told. Called when the group breaks."""
        for flags in self._waited_for:
            flags.overwrite(RELEASED)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.dtype.name} {self.shape} for {self.group!r}>"


class AllGatherWorkspace(_Workspace):
    """What `kernels.all_gather_matmul` needs of a group: on each device room for all members' rows. Blocks until all members have
    come; made once, for any number of calls.

    Calls that use it come one after the other, in the same order at all members.

    Args:
        group: whose. All its members make one, in the same order.
        shape: `(m, K)`, of each member's part of `a`.
        dtype: of `a`.

    Attributes:
        group, shape, dtype: these.

    Raises:
        TypeError, ValueError: other arguments, or not those of the other members.
        What `tk.symmetric` raises.
    """

    def __init__(self, group: Group, shape: tuple[int, int], dtype: Any = dtypes.float32) -> None:
        super().__init__("AllGatherWorkspace", group, shape, dtype, 1)
        self._gathered = symmetric(group, (group.size, *self.shape), self.dtype)
        self._places = [_Gathering(self, at) for at in range(len(group.ranks))]


class ReduceScatterWorkspace(_Workspace):
    """What `kernels.matmul_reduce_scatter` needs of a group: on each device room for sums of others' rows, and for theirs of its
    own. Blocks until all members have come; made once, for any number of calls.

    Calls that use it come one after the other, in the same order at all members.

    Args:
        group: whose. All its members make one, in the same order.
        shape: `(M, N)`, of the whole product; `M` is a multiple of the number of members.
        dtype: of the result.

    Attributes:
        group, shape, dtype: these.

    Raises:
        TypeError, ValueError: other arguments, or not those of the other members.
        What `tk.symmetric` raises.
    """

    def __init__(self, group: Group, shape: tuple[int, int], dtype: Any = dtypes.float32) -> None:
        super().__init__("ReduceScatterWorkspace", group, shape, dtype, _CHUNKS)
        (m, n), size = self.shape, group.size
        if m % size:
            raise ValueError(
                f"ReduceScatterWorkspace: {m} rows are dealt out to {size} members, and {m} is no multiple of {size}: pad the "
                f"matrix to {-(-m // size) * size}"
            )
        self._done = symmetric(group, (size, _CHUNKS), dtypes.int64)  # of one's own: streams wait for no other memory
        # Rows begin at a multiple of 128 bytes.
        self._parts = symmetric(group, (size, m // size, n + -n % (128 // self.dtype.itemsize)), self.dtype)
        self._places = [_Scattering(self, at) for at in range(len(group.ranks))]


# ---------------------------------------------------------------------------------------------------------------- the functions


class _Product(NamedTuple):
    """A product: the dtypes of sums and of the result, and how it is dealt out."""

    wide: Any
    result: Any
    warp_specialize: bool | None
    schedule: Schedule

    def tiles(self, rows: int, columns: int) -> tuple[int, int]:
        return -(-rows // self.schedule.rows), -(-columns // self.schedule.columns)

    def launched(self, launch: KernelLaunch) -> KernelLaunch:
        schedule = self.schedule
        launch = launch.generics(BM=schedule.rows, BN=schedule.columns, BK=schedule.depth).num_warps(schedule.num_warps)
        return launch if schedule.occupancy is None else launch.occupancy(schedule.occupancy)


def _product(
    name: str, a: Tensor, b: Tensor, batch: int, dtype: Any, precision: str, tile: Any, *, clusters: bool
) -> _Product:  # fmt: skip
    """What `kernels.gemm` would choose for a batch of so many members' rows, which all lie as `a` does."""
    wide = sum_dtype(name, a, b, precision)
    exact = a.dtype == dtypes.float32 and precision != "tf32"
    (m, k), n = a.shape, b.shape[1]
    product = Product(
        (batch, m, n, k), multiprocessors(a), a.itemsize, lines=pitched(a, b, to=LINES), clusters=clusters,
        summed=a.dtype in dtypes.EIGHT_BIT_FLOATS and precision != "fast",
    )  # fmt: skip
    schedule = schedule_of(
        product, staged=not exact and staged_operands(a, b), copied=in_stages(a, b, to=COPIES, warpgroups=False),
        even=aligned(a, b), cpu=on_cpu(a), tf32=a.dtype == dtypes.float32 and not exact, tile=tile, num_warps=None, splits=1,
    )  # fmt: skip
    slow = exact or a.dtype == dtypes.float64
    return _Product(wide, result_dtype(a, dtype, wide), False if slow else None, schedule)


def _again(
    launches: dict[Any, KernelLaunch], key: Any, theirs: dict[int, Any], launched: Callable[[], KernelLaunch]
) -> KernelLaunch:
    """A launch like the one before whose arguments looked like these; the first is made.

    Args:
        launches: those of before, without arguments of the caller's.
        key: what tells how arguments look.
        theirs: the arguments of the caller's, by place.
        launched: makes it.
    """
    launch = launches.get(key)
    if launch is None:
        if len(launches) >= _PRODUCTS_KEPT:
            launches.clear()
        launch = known(launched())
        launch.arguments = tuple(None if at in theirs else argument for at, argument in enumerate(launch.arguments))
        launches[key] = launch
    return again(launch, tuple(theirs.get(at, argument) for at, argument in enumerate(launch.arguments)))


class _Gathering:
    """What is the same in each call of `all_gather_matmul` by one member: its views of the workspace, and what is launched around
    the product.

    Attributes:
        theirs: for each other member where it wants this one's rows, and the word that says that they are there.
        a, arrivals: what the product reads while others write it: with no order but that of the arrivals.
        around: the launches with which it begins and ends.
        products: those that were launched, by what their arguments look like.
    """

    def __init__(self, workspace: AllGatherWorkspace, at: int) -> None:
        rank, size = workspace.group.ranks[at], workspace.group.size
        self.theirs = [
            (workspace._gathered.peer(other, rank)[rank], workspace._arrivals.peer(other, rank)[rank])
            for other in ((rank + turn) % size for turn in range(1, size))
        ]
        self.a = workspace._gathered.alias(rank)
        self.arrivals = workspace._arrivals.alias(rank)[rank].reshape(size).scattered()
        self.around = workspace._around(at)
        self.products: dict[Any, KernelLaunch] = {}


class _Gathered:
    """One member's part of `all_gather_matmul`."""

    def __init__(self, workspace: AllGatherWorkspace, at: int, y: Tensor, x: Tensor, w: Tensor, options: tuple[Any, ...]) -> None:
        group, m = workspace.group, workspace.shape[0]
        size, rank = group.size, group.ranks[at]
        self._y, self._x, self._calls = y, x, workspace._calls[at]
        self._gathering = gathering = workspace._places[at]
        rows_of = y.reshape(size, m, w.shape[1]).scattered()

        def launched() -> KernelLaunch:
            whole = workspace._gathered.local(rank)
            product = _product("all_gather_matmul", whole[0], w, size, *options, clusters=False)
            rows, columns = product.tiles(m, w.shape[1])
            launch = product.launched(
                arriving(
                    rows_of, x, gathering.a[rank], w, gathering.arrivals, workspace._calls[at], rank, rows, columns, size,
                    product.wide, options[1], product.warp_specialize,
                )
            )  # fmt: skip
            return launch.grid(product.schedule.blocks)

        key = (rows_of.traits, x.traits, w.traits, options)
        self._product = _again(gathering.products, key, {0: rows_of, 1: x, 3: w}, launched)
        self._begin, self._end = (again(launch, launch.arguments) for launch in gathering.around)
        self.launches = (self._begin, self._product, self._end)

    def submit(self, ctx: ExecutionContext) -> Tensor:
        gathering = self._gathering
        started(self._begin, ctx)
        # Nothing but copies is beside the product, which leaves no room for other kernels.
        beside = ctx.beside() if gathering.theirs else ctx
        beside.stream.wait_for(ctx.stream, ctx.stream.mark())
        for rows, word in gathering.theirs:
            copy_elements(beside, rows, self._x)  # of contiguous tensors, by the driver
            copy_elements(beside, word, self._calls)
        started(self._product, ctx)
        started(self._end, ctx)
        ctx.stream.wait_for(beside.stream, beside.stream.mark())
        return self._y


class _Chunk(NamedTuple):
    """Some of another member's rows: how many, the word that counts their tiles, and where they and the call's number go."""

    rows: int
    word: Tensor
    copies: tuple[tuple[Tensor, Tensor], ...]


class _Scattering:
    """What is the same in each call of `matmul_reduce_scatter` by one member: its views of the workspace, and what is launched
    around the product.

    Attributes:
        sent: the products of others' rows, from the next member's on.
        done, counts: of each chunk of them how many tiles are there; and as the kernel counts them.
        parts, arrivals: what others have of this one's rows, and the flags that say that it has come.
        rows: of a chunk.
        chunks: those that leave.
        around: as of `_Gathering`.
        plans: how products are dealt out, by what their operands look like.
    """

    def __init__(self, workspace: ReduceScatterWorkspace, at: int) -> None:
        group, (m, n) = workspace.group, workspace.shape
        rank, size, device, height = group.ranks[at], group.size, group.devices[at], m // group.size
        part = -(-height // _CHUNKS)
        self.rows = part + -part % _CHUNK_ROWS
        self.arrivals = workspace._arrivals.whole(rank).scattered()
        parts = workspace._parts.whole(rank)
        sent = api.zeros((max(size - 1, 1), *parts.shape[2:]), workspace.dtype).on(device).sync()
        self.done = workspace._done.local(rank)
        self.counts = self.done.reshape(self.done.size).scattered()
        self.parts, self.sent = parts[rank, :, :, :n].scattered(), sent[:, :, :n]
        self.chunks = []
        for turn, other in enumerate((rank + further) % size for further in range(1, size)):
            target, flags = workspace._parts.peer(other, rank)[rank], workspace._arrivals.peer(other, rank)[rank]
            for number, start in enumerate(range(0, height, self.rows)):
                rows = slice(start, min(start + self.rows, height))
                copies = ((target[rows], sent[turn, rows]), (flags[number : number + 1], workspace._calls[at]))
                self.chunks.append(_Chunk(rows.stop - start, self.done[turn, number : number + 1], copies))
        self.around = workspace._around(at)
        self.plans: dict[Any, _Parts] = {}


class _Parts(NamedTuple):
    """The products of others' rows, of which there may be none, and of one's own, without those of their arguments that are the
    caller's; how own rows are dealt out; and of the others', the rows of a tile and how many there are next to each other.
    """

    others: KernelLaunch
    mine: KernelLaunch
    schedule: Schedule
    tile: int
    columns: int


class _Scattered:
    """One member's part of `matmul_reduce_scatter`."""

    def __init__(
        self, workspace: ReduceScatterWorkspace, at: int, y: Tensor, x: Tensor, w: Tensor, options: tuple[Any, ...]
    ) -> None:
        size, rank = workspace.group.size, workspace.group.ranks[at]
        self._y, self._scattering = y, workspace._places[at]
        rows = x.reshape(size, x.shape[0] // size, x.shape[1])
        plans, key = self._scattering.plans, (y.traits, x.traits, w.traits, options)
        if key not in plans:
            if len(plans) >= _PRODUCTS_KEPT:
                plans.clear()
            plans[key] = self._planned(workspace, at, rows, w, options)
        self._parts = parts = plans[key]
        target, *further = parts.others.arguments
        others = again(parts.others, (target, rows, w, *further[2:]))
        mine = again(parts.mine, (parts.schedule.mapped(y), rows[rank], w, *parts.mine.arguments[3:]))
        begin, end = (again(launch, launch.arguments) for launch in self._scattering.around)
        self.launches = (begin, *([others] if size > 1 else []), mine, end)

    def _planned(self, workspace: ReduceScatterWorkspace, at: int, rows: Tensor, w: Tensor, options: tuple[Any, ...]) -> _Parts:
        size, rank, scattering = workspace.group.size, workspace.group.ranks[at], self._scattering
        one, sent = rows[rank], scattering.sent
        leaves, stays = (
            _product("matmul_reduce_scatter", one, w, batch, *options, clusters=True) for batch in (sent.shape[0], 1)
        )  # fmt: skip
        chunk, way = scattering.rows // leaves.schedule.rows, (leaves.wide, options[1], leaves.warp_specialize)
        others = leaving(leaves.schedule.mapped(sent), rows, w, scattering.counts, rank, chunk, _CHUNKS, size, *way)
        mine = adding(
            stays.schedule.mapped(self._y), one, w, scattering.parts, scattering.arrivals, workspace._calls[at], rank,
            scattering.rows // stays.schedule.rows, size, lanes_for(size), *way,
        )  # fmt: skip
        plan = _Parts(
            known(leaves.launched(others)), known(stays.launched(mine)), stays.schedule, leaves.schedule.rows,
            -(-w.shape[1] // leaves.schedule.columns),
        )  # fmt: skip
        for launch in plan[:2]:  # which keep nothing of the caller's
            launch.arguments = tuple(x if at > 2 or x is others.arguments[0] else None for at, x in enumerate(launch.arguments))
        return plan

    def submit(self, ctx: ExecutionContext) -> Tensor:
        scattering, (begin, *others, mine, end) = self._scattering, self.launches
        started(begin, ctx)
        beside = ctx.beside() if others else ctx
        beside.stream.wait_for(ctx.stream, ctx.stream.mark())
        for product in others:
            started(product, ctx)
        # By the driver itself, which does not order it behind the product that writes what leaves.
        driver, stream = beside.driver, beside.stream.handle
        for chunk in scattering.chunks:
            driver.wait_for_word(*_start_of(chunk.word), -(-chunk.rows // self._parts.tile) * self._parts.columns, stream)
            for target, source in chunk.copies:
                driver.copy(*_start_of(target), *_start_of(source), source.nbytes, stream)
        if others:
            driver.fill(*_start_of(scattering.done), scattering.done.nbytes, bytes(1), stream)
        # Its blocks wait for what comes from others, which these send without waiting for anybody: in whatever order the device
        # does what it could do at the same time, all of it ends.
        started(mine, ctx)
        ctx.stream.wait_for(beside.stream, beside.stream.mark())
        started(end, ctx)
        return self._y


def _start_of(tensor: Tensor) -> tuple[Memory, int]:
    """The memory of a tensor, and how many bytes into it the tensor begins."""
    assert tensor.storage is not None, "the workspace's own"
    return tensor.storage.memory, tensor.offset * tensor.itemsize


def all_gather_matmul(
    x: Any, w: Any, workspace: AllGatherWorkspace, *, dtype: Any = None, precision: str = "ieee", out: Any = None,
    tile: tuple[int, int, int] | None = None,
) -> DeviceOp[Any]:  # fmt: skip
    """For each member, the product of all members' `x`, behind each other, with its own `w`: what `group.all_gather` and
    `kernels.gemm` give, while the rows of others are on their way.

    The members wait for each other on their devices: all run it, in the same order as all other such ops. It can be recorded in a
    CUDA graph.

    Args:
        x: in one process, a list with a tensor for each member, of shape `(m, K)`, or an op that gives one (or a list with ops);
            in a joined group, this member's tensor or an op.
        w: likewise, of shape `(K, N)`; `N` may differ. Any strides will do.
        workspace: what the group's members share for it, for the shape and dtype of `x`.
        dtype, precision: as for `kernels.gemm`.
        out: where to: contiguous, of shape `(size * m, N)`; by default new tensors.
        tile: `(BM, BN, BK)`, powers of two, instead of the tile that the sizes suggest.

    Returns:
        An op whose result is a tensor of shape `(size * m, N)`, or a list with one for each member.

    Raises:
        TypeError, ValueError: other arguments.
        GroupError: when it runs: the group is closed or broken.
    """
    name = "all_gather_matmul"
    if not isinstance(workspace, AllGatherWorkspace):
        raise TypeError(f"{name}: workspace is a kernels.AllGatherWorkspace, not {workspace!r}")
    group, m = workspace.group, workspace.shape[0]

    def of(lefts: list[Tensor], rights: list[Tensor]) -> DeviceOp[Any]:
        for rank, a, b in zip(group.ranks, lefts, rights, strict=True):
            if (a.shape, a.dtype) != (workspace.shape, workspace.dtype):
                raise ValueError(
                    f"{name}: x of rank {rank} is {a.dtype.name} {a.shape}, and the workspace is for {workspace.dtype.name} "
                    f"{workspace.shape}"
                )
            _check_right(name, rank, a, b)
        results = [
            Spec((group.size * m, b.shape[1]), result_dtype(a, dtype, sum_dtype(name, a, b, precision)))
            for a, b in zip(lefts, rights, strict=True)
        ]
        return _together(name, workspace, _Gathered, lefts, rights, results, out, (dtype, precision, tile))

    return of_members(name, group, {"x": x, "w": w}, of)


def matmul_reduce_scatter(
    x: Any, w: Any, workspace: ReduceScatterWorkspace, *, dtype: Any = None, precision: str = "ieee", out: Any = None,
    tile: tuple[int, int, int] | None = None,
) -> DeviceOp[Any]:  # fmt: skip
    """For each member, its rows of the sum of all members' products `x @ w`: what `kernels.gemm` and `group.reduce_scatter` give,
    while the parts of the sums are on their way.

    The members wait for each other on their devices: all run it, in the same order as all other such ops. It can be recorded in a
    CUDA graph.

    Args:
        x: in one process, a list with a tensor for each member, of shape `(M, K)`, or an op that gives one (or a list with ops);
            in a joined group, this member's tensor or an op. `M` is a multiple of the number of members; `K` may differ.
        w: likewise, of shape `(K, N)`. Any strides will do.
        workspace: what the group's members share for it, for the shape `(M, N)` and the dtype of the result.
        dtype, precision: as for `kernels.gemm`; the dtype is that of the workspace.
        out: where to: contiguous, of shape `(M / size, N)`; by default new tensors.
        tile: `(BM, BN, BK)`, powers of two, BM up to 1024, instead of the tile that the sizes suggest.

    Returns:
        An op whose result is a tensor of shape `(M / size, N)`, or a list with one for each member. Each member's part of a sum
        is rounded to its dtype before they are added up, in the order of the ranks from its own on.

    Raises:
        TypeError, ValueError: other arguments.
        GroupError: when it runs: the group is closed or broken.
    """
    name = "matmul_reduce_scatter"
    if not isinstance(workspace, ReduceScatterWorkspace):
        raise TypeError(f"{name}: workspace is a kernels.ReduceScatterWorkspace, not {workspace!r}")
    if tile is not None and (check_tile(name, tile) or (0,))[0] > _CHUNK_ROWS:
        raise ValueError(f"{name}: tile is (BM, BN, BK), with BM up to {_CHUNK_ROWS}, not {tile!r}")
    group, (m, n) = workspace.group, workspace.shape

    def of(lefts: list[Tensor], rights: list[Tensor]) -> DeviceOp[Any]:
        for rank, a, b in zip(group.ranks, lefts, rights, strict=True):
            _check_right(name, rank, a, b)
            result = result_dtype(a, dtype, sum_dtype(name, a, b, precision))
            if (a.shape[0], b.shape[1], result) != (m, n, workspace.dtype):
                raise ValueError(
                    f"{name}: the product of rank {rank} is {result.name} {(a.shape[0], b.shape[1])}, and the workspace is for "
                    f"{workspace.dtype.name} {workspace.shape}"
                )
        results = [Spec((m // group.size, n), workspace.dtype)] * len(lefts)
        return _together(name, workspace, _Scattered, lefts, rights, results, out, (dtype, precision, tile))

    return of_members(name, group, {"x": x, "w": w}, of)


def _together(
    name: str, workspace: Any, member: Any, lefts: list[Tensor], rights: list[Tensor], results: list[Spec], out: Any,
    options: tuple[Any, ...],
) -> Together:  # fmt: skip
    """The op in which each member does its part."""
    dtype, precision, tile = options
    options = (None if dtype is None else dtypes.as_dtype(dtype), precision, check_tile(name, tile))
    group = workspace.group
    outputs = None if out is None else group.tensors(name, [out] if group.joined else out, "out")
    for rank, target, result in zip(group.ranks, outputs or (), results, strict=outputs is not None):
        if (target.shape, target.dtype) != (result.shape, result.dtype) or not target.is_contiguous:
            raise ValueError(
                f"{name}: out of rank {rank} is {target.dtype.name} {target.shape} with strides {target.strides}, and the result "
                f"{result.dtype.name} {result.shape}, contiguous"
            )

    def work(at: int, ctx: ExecutionContext, x: Tensor, w: Tensor) -> Any:
        return member(workspace, at, allocated(ctx, results[at]) if outputs is None else outputs[at], x, w, options)

    return Together(group, list(zip(lefts, rights, strict=True)), work, name, results[0])


def _check_right(name: str, rank: int, a: Tensor, b: Tensor) -> None:
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"{name}: x of rank {rank} has shape {a.shape}, w {b.shape}: matrices of shape (m, K) and (K, N)")
    if 0 in (*a.shape, *b.shape):
        raise ValueError(f"{name}: x of rank {rank} has shape {a.shape}, w {b.shape}: there is nothing to multiply")
