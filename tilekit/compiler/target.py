"""The GPUs that tilekit compiles for: one record for each compute capability. No numba here, and nothing of the driver.

What differs between GPUs is asked for by name (`target.tma`, `target.wgmma`...), never by comparing compute capabilities: so a
new GPU is one more record. What the code for a device is compiled under is the driver's to say (`target_for`), which lies below.
The numbers are those of the CUDA programming guide ("Compute Capabilities") and of the PTX ISA ("target ISA notes").
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from tilekit import dtypes
from tilekit.dtypes import DType

__all__ = ["STATIC_SHARED_BYTES", "TARGETS", "WAITS", "Target", "named", "numba_capability", "of"]

STATIC_SHARED_BYTES = 48 << 10
"""What a block of any GPU may have of static shared memory, that is in variables of the kernel's: ptxas refuses more."""

# Of 16 bits all GPUs multiply both floats, and 8-bit integers, tf32 and float64.
_MMA = frozenset({dtypes.float16, dtypes.bfloat16, dtypes.int8, dtypes.uint8, dtypes.float32, dtypes.float64})


@dataclass(frozen=True, kw_only=True)
class Target:
    """What the GPUs of one compute capability have.

    Attributes:
        capability: the compute capability, as `(9, 0)`.
        suffixes: of the names that code for it is compiled under; see `TARGETS`.
        plain_suffix: what a name without one is taken for.
        registers: of a multiprocessor, of 32 bits each.
        thread_registers: that a thread may have at most; it gets a multiple of `register_unit`.
        register_unit: see there.
        warps, blocks: that a multiprocessor can hold at a time.
        shared_bytes: shared memory of a multiprocessor.
        launch_shared_bytes: what CUDA takes of that for each block.
        block_shared_bytes: what a launch may give a block, static and dynamic together.
        ptxas_shared_bytes: what ptxas counts among a kernel's static bytes for CUDA itself, beside what the block may have.
        mma_dtypes: of the operands that `mma.sync` takes (float32 as tf32).
        mma_unpacks: ptxas makes float16 of 8-bit floats for `mma.sync`, which tilekit does itself (see `nvidia.mma_sync`).
        mma_rows_f64: the rows of an `mma.sync` of float64: 16, or 8.
        wgmma: warpgroups multiply tiles in shared memory (`wgmma`), and go on before the result is there.
        setmaxnreg: warpgroups of a block can give registers to others while it runs.
        tma: the tensor memory accelerator copies whole tiles to shared memory (`cp.async.bulk.tensor`).
        tma_alignment: what it wants addresses and strides to be multiples of, in bytes.
        clusters: neighbouring blocks can run together, and reach each other's shared memory and barriers.
        multicast: the TMA brings a tile to several blocks of a cluster at the price of one.
        early_starts: a launch can begin before what it waits for has ended (programmatic dependent launch, `griddepcontrol`).
        mbarrier_sleeps: `mbarrier.try_wait` waits in hardware; elsewhere threads ask again and again.
        red_bytes: how much one `red` adds neighbouring floats to, at most; 4 where two float16 alone go together.
        red_bfloat16: there are atomic sums of bfloat16.
        typed_attributes: NVVM reads a newer dialect of LLVM's language for it, in which `byval` names a type.
    """

    capability: tuple[int, int]
    suffixes: tuple[str, ...] = ("",)
    plain_suffix: str = ""
    registers: int = 65536
    thread_registers: int = 255
    register_unit: int = 8
    warps: int
    blocks: int
    shared_bytes: int
    launch_shared_bytes: int = 1 << 10
    block_shared_bytes: int
    ptxas_shared_bytes: int = 0
    mma_dtypes: frozenset[DType] = _MMA
    mma_unpacks: bool = False
    mma_rows_f64: int = 8
    wgmma: bool = False
    setmaxnreg: bool = False
    tma: bool = False
    tma_alignment: int = 16
    clusters: bool = False
    multicast: bool = False
    early_starts: bool = False
    mbarrier_sleeps: bool = False
    red_bytes: int = 4
    red_bfloat16: bool = False
    typed_attributes: bool = False

    @property
    def label(self) -> str:
        """The name without a suffix, for messages: `"sm_90"`."""
        major, minor = self.capability
        return f"sm_{major}{minor}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names that code for it is compiled under."""
        return tuple(self.label + suffix for suffix in self.suffixes)

    @property
    def room(self) -> int:
        """What a block may take of shared memory, with what ptxas counts for CUDA: as a cubin tells of it."""
        return self.block_shared_bytes + self.ptxas_shared_bytes

    def registers_of(self, threads: int) -> int:
        """How many registers each of so many threads of a multiprocessor may have."""
        return min(self.thread_registers, self.registers // threads // self.register_unit * self.register_unit)


def _ampere(minor: int, warps: int, blocks: int, kilobytes: int, *, eight_bit_floats: bool = False) -> Target:
    """8.x: copies by threads (`cp.async`), `mma.sync`."""
    return Target(
        capability=(8, minor),
        warps=warps,
        blocks=blocks,
        shared_bytes=kilobytes << 10,
        block_shared_bytes=kilobytes - 1 << 10,
        mma_dtypes=_MMA | set(dtypes.EIGHT_BIT_FLOATS) if eight_bit_floats else _MMA,
    )


def _with_tma(
    capability: tuple[int, int],
    suffixes: tuple[str, ...],
    plain_suffix: str,
    warps: int,
    blocks: int,
    kilobytes: int,
    *,
    mma_unpacks: bool = True,
    wgmma: bool = False,
    setmaxnreg: bool = True,
    multicast: bool = True,
    typed_attributes: bool = True,
) -> Target:
    """9.0 and later."""
    return Target(
        capability=capability,
        suffixes=suffixes,
        plain_suffix=plain_suffix,
        warps=warps,
        blocks=blocks,
        shared_bytes=kilobytes << 10,
        block_shared_bytes=kilobytes - 1 << 10,
        ptxas_shared_bytes=1 << 10,
        mma_dtypes=_MMA | set(dtypes.EIGHT_BIT_FLOATS),
        mma_unpacks=mma_unpacks,
        mma_rows_f64=16,
        wgmma=wgmma,
        setmaxnreg=setmaxnreg,
        tma=True,
        clusters=True,
        multicast=multicast,
        early_starts=True,
        mbarrier_sleeps=True,
        red_bytes=16,
        red_bfloat16=True,
        typed_attributes=typed_attributes,
    )


# GeForce Blackwell (12.x) has clusters, and no gain from multicast. It deals registers out anew under its `a` name alone.
_RECORDS = (
    _ampere(0, 64, 32, 164),
    _ampere(6, 48, 16, 100),
    _ampere(7, 48, 16, 164),
    _ampere(9, 48, 24, 100, eight_bit_floats=True),
    _with_tma((9, 0), ("", "a"), "a", 64, 32, 228, wgmma=True, typed_attributes=False),
    _with_tma((10, 0), ("", "a", "f"), "a", 64, 32, 228),
    _with_tma((10, 3), ("", "a"), "a", 64, 32, 228),
    _with_tma((11, 0), ("", "a"), "a", 48, 24, 228),
    _with_tma((12, 0), ("", "a", "f"), "", 48, 24, 100, mma_unpacks=False, setmaxnreg=False, multicast=False),
    _with_tma((12, 1), ("", "a"), "", 48, 24, 100, mma_unpacks=False, setmaxnreg=False, multicast=False),
)
_BY_CAPABILITY = {record.capability: record for record in _RECORDS}

WAITS = "griddepcontrol.wait"
"""What the PTX of a kernel has that waits for the launch before it by itself (see `nvidia.early_starts`)."""

TARGETS = MappingProxyType({name: record for record in _RECORDS for name in record.names})
"""By the name that code is compiled under.

The `a` targets have instructions (wgmma, setmaxnreg...) that run on that architecture alone, the `f` targets those of its family
(10.0 and 10.3; 12.0 and 12.1); plain ones run on later minors. `sm_90`, 10.x and 11.0 without a suffix are taken for their `a`
targets.
"""


def of(capability: tuple[int, int]) -> Target:
    """The record of a compute capability.

    Raises:
        ValueError: tilekit does not compile for it.
    """
    if capability not in _BY_CAPABILITY:
        known = ", ".join(f"{major}.{minor}" for major, minor in _BY_CAPABILITY)
        raise ValueError(f"compute capability {capability[0]}.{capability[1]}: tilekit compiles for {known}")
    return _BY_CAPABILITY[capability]


def named(name: str) -> Target:
    """The record of a target that `TARGETS` has.

    Raises:
        ValueError: there is no such target.
    """
    if not isinstance(name, str) or name not in TARGETS:
        raise ValueError(f"target {name!r}: tilekit compiles for {', '.join(TARGETS)}")
    return TARGETS[name]


def numba_capability(name: str) -> tuple[int, int] | tuple[int, int, str]:
    """The compute capability of a target, as numba writes it: `(9, 0, "a")` for `"sm_90a"`, and for `"sm_90"`.

    Raises:
        ValueError: there is no such target.
    """
    target = named(name)
    major, minor = target.capability
    suffix = name.removeprefix(target.label) or target.plain_suffix
    return (major, minor, suffix) if suffix else (major, minor)
