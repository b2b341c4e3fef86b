"""What a kernel does with arguments of one kind: which specialisation, on which grid, reading and writing what.

A plan is made once for arguments that look alike, and kept by their form. What differs between two launches of one plan is the
addresses; the one rule about these, that what is written overlaps nothing else, is checked at each launch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilekit import dtypes
from tilekit._driver.tensormaps import MOST_STRIDE
from tilekit._runtime.device import Device
from tilekit._runtime.storage import Storage
from tilekit._tensor.partition import MappedPartition, Partition, PrefixPartition, Scattered
from tilekit._tensor.tensor import Tensor
from tilekit.compiler.facts import (
    MOST_NARROW,
    ArgumentFacts,
    Role,
    ScalarFacts,
    TensorFacts,
    divisor,
    extent_divisor,
    is_positive,
    is_short,
    tile_extents,
)
from tilekit.compiler.grids import MOST_BLOCKS, fold_of
from tilekit.lang.annotations import Generic
from tilekit.lang.signature import Parameter
from tilekit.launch.aliasing import check_distinct, check_extents
from tilekit.ops import DeviceOp, Executable
from tilekit.ops.fast_path import FAST_PATH, NativeLaunch

if TYPE_CHECKING:
    from tilekit.launch.decorator import Kernel

__all__ = [
    "KEYED_COMPUTED",
    "KEYED_ITSELF",
    "KEYED_NOT",
    "KEYED_SIGNED",
    "KEYED_TRAITS",
    "Form",
    "Options",
    "Plan",
    "check_grid",
    "constant_key",
]

# How many plans a form keeps. Programs whose shapes never repeat would otherwise keep one for each.
_PLANS_KEPT = 1024
_OPERAND_BYTES = 2  # of an element that tensor cores multiply as it is

# What tells the plans of a form from each other: of an argument its traits, the argument itself, something that Python works out,
# or nothing. `Form.keyed` says it to native code.
KEYED_TRAITS, KEYED_ITSELF, KEYED_COMPUTED, KEYED_NOT, KEYED_SIGNED = range(5)

Named = Sequence[tuple[Parameter, Any]]
Cuts = dict[tuple[Any, ...], int]
Storages = tuple[tuple[Storage, ...], tuple[Storage, ...], bool]


class Options(NamedTuple):
    """What was said about a launch besides its arguments."""

    grid: tuple[int, int, int] | None
    generics: tuple[tuple[str, Any], ...]
    num_warps: int | None
    occupancy: int | None


class Plan:
    """Everything about a launch but the addresses. Positions are those of the kernel's parameters.

    Attributes:
        specialisation: what runs.
        grid: the blocks along each axis.
        device: where the tensors are; None if there are none, or one has no memory.
        count: of the arguments.
        passed: the arguments that the compiled kernel gets, which are those that are not `Const`.
        all_passed: whether that is all of them.
        reads, writes: the arguments whose memory is read, and written.
        storages: a function that takes the arguments and gives the storages of these two, and whether all are tilekit's own.
        empty: whether there is no block to run.
        meta: the name of an argument that has no memory, if there is one.
        home: the device to run on: `device`; of a plan without tensors None.
        elsewhere: of a plan without tensors those for devices that it ran on.
        executable: what runs at home, once it is there.
        native: launches it in one call, where there is such a thing.
        apart: for a written and a read argument whether a block reads no tile that another writes, where somebody asked.
    """

    __slots__ = (
        "all_passed",
        "apart",
        "count",
        "device",
        "elsewhere",
        "empty",
        "executable",
        "grid",
        "home",
        "meta",
        "native",
        "passed",
        "reads",
        "specialisation",
        "storages",
        "writes",
    )

    def __init__(self, kernel: Kernel, arguments: Sequence[Any], options: Options) -> None:
        """Answer every question about a launch, or say what is wrong with it.

        Raises:
            TypeError, ValueError: the arguments, the grid or the generics contradict each other, or what the kernel declares.
            CompileError: a generic that the body uses has no value.
        """
        parameters = kernel.signature.parameters
        passed = tuple(i for i, p in enumerate(parameters) if p.kind != "const")
        tensors = [(parameters[i], arguments[i]) for i in passed if isinstance(arguments[i], (Tensor, Partition))]
        for parameter, argument in tensors:
            if parameter.is_written and isinstance(argument, Tensor):
                raise TypeError(
                    f"{kernel.label}, argument {parameter.name}: writing needs a partition, which gives each block a tile of its "
                    f"own: say .tile(shape) on the launch, or pass {parameter.name}.partition(shape)"
                )
        written = [(p, a) for p, a in tensors if isinstance(a, Partition)]
        generics = _bind_generics(kernel, tensors, options)
        cut = [a for _, a in written if not isinstance(a, Scattered)]
        covers, tiles = _covered(cut), tile_extents([a.tile_shape for a in cut] + [value for _, value in generics])
        constants = tuple((p.name, a) for p, a in zip(parameters, arguments, strict=True) if p.kind == "const")
        self.grid = _infer_grid(kernel, written, options.grid)
        for parameter, partition in written:
            check_distinct(kernel, parameter, partition)
        cuts: Cuts = {}
        facts = tuple(_facts(parameters[i], arguments[i], covers, tiles, cuts) for i in passed)
        sizes = (*tiles, *tile_extents(value for _, value in constants))
        short = _short_rows(kernel, tensors, sizes, others=not generics)
        if short:
            facts = tuple(_shortened(f, arguments[i], short) for f, i in zip(facts, passed, strict=True))
        if kernel.takes_exponentials:
            facts = tuple(map(_signed, facts, (arguments[i] for i in passed)))
        fold = fold_of(self.grid)
        self.specialisation = kernel.specialise(facts, generics, constants, options.num_warps, options.occupancy, fold)
        check_extents(kernel, self.specialisation.bound, {p.name: a for p, a in tensors}, self.grid)
        device = _common_device(kernel, tensors)
        self.meta = next((p.name for p, a in tensors if a.storage is None), None)
        self.device = None if self.meta else device
        self.count, self.passed, self.all_passed = len(parameters), passed, len(passed) == len(parameters)
        self.reads = tuple(i for i in passed if isinstance(arguments[i], (Tensor, Partition)) and parameters[i].kind != "out")
        self.writes = tuple(i for i in passed if isinstance(arguments[i], Partition))
        sides = ("".join(f"a[{i}].storage, " for i in side) for side in (self.reads, self.writes))
        ours = " and ".join(f"a[{i}].storage.owned" for i in sorted({*self.reads, *self.writes})) or "True"
        self.storages: Callable[[Sequence[Any]], Storages] = eval("lambda a: (({}), ({}), {})".format(*sides, ours))
        self.empty = 0 in self.grid
        self.home = self.device
        self.elsewhere: dict[Device, Plan] = {}
        self.executable: Executable | None = None
        self.native: NativeLaunch | None = None
        self.apart: dict[tuple[int, int], bool] = {}

    def on(self, device: Device) -> Plan:
        """A plan without tensors, for `device`."""
        plan = self.elsewhere.get(device)
        if plan is None:
            copied = copy.copy(self)
            copied.home = device
            plan = self.elsewhere.setdefault(device, copied)
        return plan

    def keep(self, executable: Executable) -> None:
        """Remember what runs at home."""
        self.native = None if FAST_PATH.launcher is None else FAST_PATH.launcher(executable, self)
        self.executable = executable


class Form:
    """What the types of the arguments decide, and the plans for arguments of these types.

    Args:
        parameters: the kernel's.
        types: of the arguments.
        signed: whether the compiler asks of floats whether they are positive (`facts.is_positive`).

    Attributes:
        lazy: whether any is an op.
        ints: which are Python ints, that a kernel gets in 64 bits: at each call it is seen whether they fit.
        tuples: which are for a `Const`, and are looked into at each call.
        key: a function of the arguments and options whose results tell the plans from each other.
        plans: by these.
        types: the types.
        keyed: for native code, what `key` takes of each argument: bytes, each one of the five below.
        last: for native code, the plan that it looked up last, and by what.
        tiled: which of such arguments `KernelLaunch.tile` cuts that is given a shape alone, and the form with these cut; or None.
    """

    __slots__ = ("ints", "key", "keyed", "last", "lazy", "plans", "tiled", "tuples", "types")

    def __init__(self, parameters: Sequence[Parameter], types: tuple[type, ...], signed: bool) -> None:
        self.lazy = any(issubclass(kind, DeviceOp) for kind in types)
        constant = [p.kind == "const" for p in parameters]
        self.ints = tuple(i for i, t in enumerate(types) if issubclass(t, int) and t is not bool and not constant[i])
        self.tuples = tuple(i for i, t in enumerate(types) if issubclass(t, tuple) and constant[i])
        self.plans: dict[Any, Plan] = {}
        self.types, self.last = types, None
        self.tiled: tuple[tuple[int, ...], Form] | None = None
        parts, keyed = [], bytearray([KEYED_NOT] * len(types))
        for i, kind in enumerate(types):
            if constant[i]:
                plain = kind in (bool, int, str) or issubclass(kind, np.dtype)
                parts.append(f"a[{i}], " if plain else f"constant_key(a[{i}]), ")
                keyed[i] = KEYED_ITSELF if plain else KEYED_COMPUTED
            elif issubclass(kind, (Tensor, Partition)):
                parts.append(f"a[{i}].traits, ")
                keyed[i] = KEYED_TRAITS
            elif kind is float and signed:  # no slot's, which may be another number at each launch
                parts.append(f"is_positive(a[{i}]), ")
                keyed[i] = KEYED_SIGNED
        self.keyed = bytes(keyed)
        # Written out for these types, what tells one plan from another takes no loop.
        self.key = eval(
            f"lambda a, options: (options, {''.join(parts)})", {"constant_key": constant_key, "is_positive": is_positive}
        )

    def alone(self, options: Options, plan: Plan) -> Form:
        """The form of arguments that are known to have this plan: there is nothing in them to look at."""
        form = copy.copy(self)
        form.keyed, form.key, form.last = bytes([KEYED_NOT] * len(self.types)), _options_alone, None
        form.plans = {(options,): plan}
        return form

    def plan(self, kernel: Kernel, arguments: Sequence[Any], options: Options) -> Plan:
        """The plan for such arguments, made at the first call. Raises what `Plan` raises."""
        key = self.key(arguments, options)
        plan = self.plans.get(key)
        if plan is None:
            plan = Plan(kernel, arguments, options)
            if len(self.plans) >= _PLANS_KEPT:
                self.plans.clear()
            self.plans[key] = plan
        return plan


def _options_alone(arguments: Sequence[Any], options: Options) -> tuple[Options]:
    return (options,)


def constant_key(value: Any) -> Any:
    """What tells a `Const` value from others. 1 == 1.0 == True and 0.0 == -0.0 for a dictionary, not for a kernel."""
    if type(value) is tuple:
        return tuple(map(constant_key, value))
    return (type(value), repr(value))


def _bind_generics(kernel: Kernel, tensors: Named, options: Options) -> tuple[tuple[str, Any], ...]:
    """The value of each generic, from the shapes and from `generics()`; checks declared shapes on the way."""
    bound: dict[str, Any] = dict(options.generics)
    origin = dict.fromkeys(bound, "generics()")
    for parameter, argument in tensors:
        if parameter.dims is None:
            continue
        tiled = isinstance(argument, Partition) and not isinstance(argument, Scattered)
        shape = argument.tile_shape if tiled else argument.shape
        noun = "tiles" if tiled else "a tensor"
        who = f"{kernel.label}, argument {parameter.name}"
        dims = parameter.dims
        pairs: list[tuple[int | Generic, Any]]
        if len(dims) == 1 and isinstance(dims[0], Generic) and dims[0].whole:
            pairs = [(dims[0], shape)]
        elif len(dims) != len(shape):
            raise ValueError(f"{who}: declared with {len(dims)} dimensions, got {noun} of shape {shape}")
        else:
            pairs = list(zip(dims, shape, strict=True))
        for dim, extent in pairs:
            if isinstance(dim, Generic):
                if bound.setdefault(dim.name, extent) != extent:
                    raise ValueError(f"{who}: generic {dim.name} is {bound[dim.name]} by {origin[dim.name]}, and {extent} here")
                origin.setdefault(dim.name, f"argument {parameter.name}")
            elif dim not in (-1, extent):
                raise ValueError(f"{who}: declared {list(dims)}, got {noun} of shape {shape}")
    return tuple(sorted(bound.items()))


def _infer_grid(kernel: Kernel, written: Named, requested: tuple[int, int, int] | None) -> tuple[int, int, int]:
    """A block for each tile; every partition, and the grid if it was given, must agree. Prefixes say how large it may be."""
    inferred: tuple[int, int, int] | None = None
    who = ""
    bounds: list[tuple[str, Partition]] = []
    for parameter, partition in written:
        if isinstance(partition, Scattered):
            continue
        if isinstance(partition, PrefixPartition) and partition.tiles is None:
            bounds.append((parameter.name, partition))
            continue
        if isinstance(partition, MappedPartition):
            grid, cut = (partition.num_blocks, 1, 1), "mapped to as many blocks"
        else:
            grid, cut = _launch_grid(partition.grid), f"shape {partition.shape} in tiles of {partition.tile_shape}"
        if inferred is not None and grid != inferred:
            raise ValueError(
                f"{kernel.label}: the grids of its partitions disagree: {who} has {inferred}, {parameter.name} ({cut}) has {grid}"
            )
        inferred, who = grid, parameter.name
    if inferred is not None and requested is not None and requested != inferred:
        raise ValueError(f"{kernel.label}: the grid {requested} is not the {inferred} that the partition {who} has")
    grid = inferred or requested  # type: ignore[assignment]
    if grid is None:
        if bounds:
            raise ValueError(
                f"{kernel.label}: {bounds[0][0]} is a prefix, which says how many blocks there may be, not how many there are: "
                "give the grid, .grid((blocks, 1, 1)), or the number of tiles, .prefix(tiles)"
            )
        what = "cut into tiles" if written else "a partition"
        raise ValueError(f"{kernel.label}: no argument is {what}, so the grid must be given: .grid((blocks, 1, 1))")
    for name, partition in bounds:
        limits = _launch_grid(partition.grid)
        for axis, (blocks, limit) in enumerate(zip(grid, limits, strict=True)):
            if blocks > limit:
                raise ValueError(
                    f"{kernel.label}: the grid {grid} has more blocks along axis {axis} than the prefix {name} has tiles: shape "
                    f"{partition.shape} in tiles of {partition.tile_shape} takes {limits} at most"
                )
    return check_grid(grid, kernel.label)


def _launch_grid(tiles: tuple[int, ...]) -> tuple[int, int, int]:
    """The grid for a partition of so many tiles: dimension d along axis d; of four dimensions the first two share axis 0."""
    if len(tiles) == 4:
        tiles = (tiles[0] * tiles[1], *tiles[2:])
    return (*tiles, 1, 1)[:3]  # type: ignore[return-value]


def check_grid(grid: tuple[int, ...], who: str) -> tuple[int, int, int]:
    """`grid`, if so many blocks can be launched, folded where CUDA has limits; ValueError if not. The same on a CPU device."""
    if fold_of(grid) is not None and math.prod(grid) > MOST_BLOCKS:  # type: ignore[arg-type]
        raise ValueError(
            f"{who}: the grid {grid} has {math.prod(grid)} blocks; {MOST_BLOCKS} are launched at most. Take larger tiles"
        )
    return grid  # type: ignore[return-value]


def _common_device(kernel: Kernel, tensors: Named) -> Device | None:
    """The device that all tensors with memory are on."""
    device, who = None, ""
    for parameter, argument in tensors:
        if argument.device is None:
            continue
        if device is not None and argument.device is not device:
            raise ValueError(
                f"{kernel.label}: arguments {who} and {parameter.name} are on {device!r} and {argument.device!r}; "
                "all must be on one device: .to(device) brings a tensor there, and api.empty(...).on(device) makes one there"
            )
        device, who = argument.device, parameter.name
    return device


def _covered(written: Sequence[Partition]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Shapes of tensors in which a tile index that a block gets from a partition, whichever that is, is sure to be inside; with
    the shape of the tiles.
    """
    tiles = {partition.tile_shape for partition in written}
    shapes = {partition.shape for partition in written}
    mapped = any(isinstance(partition, MappedPartition) for partition in written)
    # The grid has no more blocks along an axis than any partition has tiles there. In a map, and in four dimensions, the tile is
    # computed from the block, by the partition's own shape.
    if len(tiles) != 1 or (len(shapes) > 1 and (mapped or len(written[0].shape) > 3)):
        return {}
    return dict.fromkeys(shapes, written[0].tile_shape)


def _facts(
    parameter: Parameter, argument: Any, covers: dict[tuple[int, ...], tuple[int, ...]], tiles: tuple[int, ...], cuts: Cuts
) -> ArgumentFacts:
    """What may be assumed about an argument; `covers` as `_covered` gives it, `tiles` as `tile_extents` does, `cuts` numbers
    the mapped partitions that differ.
    """
    if isinstance(argument, Partition):
        role: Role = "inout" if parameter.kind == "auto" else parameter.kind  # type: ignore[assignment]
        if isinstance(argument, Scattered):
            return _tensor_facts(argument.tensor, role, None, None, tiles)
        facts = _tensor_facts(argument.tensor, role, argument.tile_shape, argument.tile_shape, tiles)
        if isinstance(argument, MappedPartition):
            cut = (argument.shape, argument.tile_shape, argument.group, argument.cluster, argument.blocks_per_tile)
            kind = cuts.setdefault(cut, len(cuts))
            facts = facts._replace(
                group=argument.group, cluster=argument.cluster, blocks_per_tile=argument.blocks_per_tile, cut_class=kind,
                many=argument.many,
            )  # fmt: skip
        return facts
    if isinstance(argument, Tensor):
        return _tensor_facts(argument, "in", None, covers.get(argument.shape), tiles)
    if isinstance(argument, np.generic):
        return ScalarFacts(dtypes.as_dtype(argument.dtype).name)
    return next(facts for kind, facts in _PYTHON_SCALARS.items() if isinstance(argument, kind))


def _short_rows(kernel: Kernel, tensors: Named, tiles: tuple[int, ...], *, others: bool) -> set[int]:
    """The extents of rows of operands of products that tiles are longer than, by `is_short`. A CPU device has no use for them."""
    if any(argument.device is not None and argument.device.kind == "cpu" for _, argument in tensors):
        return set()
    read = [a for _, a in tensors if isinstance(a, Tensor) and a.ndim > 1 and a.unit is not None and a.itemsize <= _OPERAND_BYTES]
    short = {n for n in (a.shape[a.unit] for a in read) if is_short(n, tiles, others=others)}  # type: ignore[index]
    return short if short and kernel.multiplies else set()


def _shortened(facts: ArgumentFacts, argument: Any, short: set[int]) -> ArgumentFacts:
    """The facts, and of a matrix whose rows have one of these extents that extent, whatever its dtype: sums are stored, too."""
    if not isinstance(facts, TensorFacts) or facts.unit is None or facts.rank < 2:
        return facts
    extent = argument.shape[facts.unit]
    return facts._replace(short=extent) if extent in short else facts


def _signed(facts: ArgumentFacts, argument: Any) -> ArgumentFacts:
    """The facts, and of a float whether it is positive. Those of slots, which have a type of their own, may be others later."""
    return ScalarFacts(facts.dtype, is_positive(argument)) if type(argument) is float else facts


_PYTHON_SCALARS = {bool: ScalarFacts("bool"), int: ScalarFacts("int64"), float: ScalarFacts("float64")}


def _tensor_facts(
    tensor: Tensor, role: Role, tile: tuple[int, ...] | None, grid_tile: tuple[int, ...] | None, tiles: tuple[int, ...]
) -> TensorFacts:
    """What may be assumed about a tensor in such a role; `grid_tile` if the grid covers it in tiles of that shape."""
    if not 1 <= tensor.ndim <= 4:
        number = "" if tensor.ndim else "; a scalar is passed as a number, which .item() of an array is"
        raise ValueError(f"kernels take tensors of 1 to 4 dimensions, not {tensor.ndim} as {tensor!r} has{number}")
    extents = tuple(extent_divisor(extent, tiles) for extent in tensor.shape)
    if grid_tile is not None:  # the tile's own extent where it divides, so that nothing hangs over the edge
        known = zip(tensor.shape, grid_tile, extents, strict=True)
        extents = tuple(n if extent and extent % n == 0 else there for extent, n, there in known)
    return TensorFacts(
        dtype=tensor.dtype.name,
        role=role,
        tile=tile,
        rank=tensor.ndim,
        unit=tensor.unit,
        align=tensor.align,
        extents=extents,
        strides=tuple(0 if d == tensor.unit else divisor(abs(stride)) for d, stride in enumerate(tensor.strides)),
        wide=max(tensor.shape) > MOST_NARROW,
        covered=grid_tile is not None,
        many=tensor.size >= 1 << 31,
        steps=all(0 <= stride * tensor.itemsize < MOST_STRIDE for stride in tensor.strides),
    )
