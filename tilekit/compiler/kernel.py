"""A compiled kernel. No numba here: a cached one is used without it."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tilekit import dtypes
from tilekit._driver.report import Site
from tilekit._driver.tensormaps import Last, TensorMap
from tilekit.compiler.facts import ArgumentFacts, TensorFacts
from tilekit.compiler.layouts.linear import ACCESS_BYTES, Config, choose_num_warps, choose_vec, elements
from tilekit.compiler.target import WAITS
from tilekit.errors import TilekitError

__all__ = ["CompiledKernel", "choose_config", "disassemble", "param_format"]


# Warps of a block for what it loads, if that is more than it stores: with more, those that have little to do wait for each other.
# (Sums of 12033 x 45230 float16 by columns: 2 warps 372 us, 4 333, 8 311; of 80280 x 72: 18.6, 20.4, 28.0.)
_FOLDING = 4


def choose_config(
    facts: Sequence[ArgumentFacts],
    num_warps: int | None,
    accesses: Sequence[tuple[TensorFacts, tuple[int, ...]]] = (),
    folded: int = 0,
) -> Config:
    """The warps and the vector width for a kernel with such arguments; `num_warps` if it is given.

    Args:
        facts, num_warps: as for `build`.
        accesses: the tiles that it loads and stores, and what is known of their tensors.
        folded: the elements of the largest tile that it loads, if it is a kernel whose time is that of its loads.
    """
    tensors = [fact for fact in facts if isinstance(fact, TensorFacts)]
    vec = choose_vec(min((dtypes.as_dtype(t.dtype).itemsize for t in tensors), default=4))
    largest = max((elements(t.tile) for t in tensors if t.tile), default=None)
    if num_warps is None:
        # Without a partition nothing says how large the tiles are.
        num_warps = choose_num_warps(largest, vec) if largest else 4 if tensors else 1
        if largest and folded > largest:
            num_warps = max(num_warps, min(_FOLDING, choose_num_warps(folded, vec)))
    # Where all rows begin anywhere, neighbouring elements are for neighbouring lanes: a lane that had several would
    # read them one by one, each apart from those of others. Vectors beside matrices are small, and do not count.
    rank = max((t.rank for t in tensors), default=0)
    aligned = [_aligned(t) or vec for t in tensors if t.rank == rank and t.unit is not None]
    vec = min(vec, max(aligned, default=vec))
    return Config(num_warps, min(_shared_by(vec, accesses), _written_together(tensors, accesses)))


_LINE, _LANES = 128, 32  # bytes that come from the L1 cache at a time
_ASKED = 0.5  # of the time of a line, that an instruction takes besides


def _shared_by(vec: int, accesses: Sequence[tuple[TensorFacts, tuple[int, ...]]]) -> int:
    """The vector width, up to `vec`, for which a kernel's accesses take the least: lines of the cache, and instructions.

    Where some rows are aligned and others begin anywhere, the latter are read an element at a time, and those of neighbouring
    lanes are apart by a vector: as few bytes as four are no loss to the former, for a warp then has a line at a time.
    """
    rank = max((t.rank for t, _ in accesses), default=0)
    tensors = [
        (elements(shape), dtypes.as_dtype(t.dtype).itemsize, _aligned(t))
        for t, shape in accesses
        if t.rank == rank == len(shape) and t.unit is not None and shape[t.unit] > 1
    ]
    if all(not aligned or aligned >= vec for *_, aligned in tensors):
        return vec

    def cost(vec: int) -> float:
        total = 0.0
        for number, itemsize, aligned in tensors:
            at_once = min(vec, ACCESS_BYTES // itemsize, aligned or vec)
            apart = min(_LANES, max(1, _LANES * vec * itemsize // _LINE))
            total += number * vec // at_once * (apart + _ASKED) / (_LANES * vec)
        return total

    return min((vec >> bit for bit in range(vec.bit_length())), key=cost)


def _written_together(tensors: Sequence[TensorFacts], accesses: Sequence[tuple[TensorFacts, tuple[int, ...]]]) -> int:
    """How many elements a lane shall have next to each other for what is written element by element: one access.

    Beside narrower ones that are read, a lane would have two accesses' worth, and each of these would fill half of every sector
    of 32 bytes that the warp touches. What is read so comes from the L1 cache the second time; what is written, or added to,
    goes to the L2 cache in twice as many pieces. It is for matrices that a kernel scatters into, and for vectors that one writes
    which has no other tiles in memory: of others, the time is that of what they read, fold or multiply.
    """
    rank = max((t.rank for t in tensors), default=0)
    written = [t for t in tensors if t.role != "in" and t.unit is not None]
    scattered = [t for t in written if t.tile is None and t.rank == rank > 1]
    vectors = [t for t in written if t.tile] if {len(shape) for _, shape in accesses} == {1} else []
    return max((ACCESS_BYTES // dtypes.as_dtype(t.dtype).itemsize for t in scattered or vectors), default=ACCESS_BYTES)


def _aligned(tensor: TensorFacts) -> int:
    """To the multiple of how many elements the rows of a tensor are aligned; 0 if that is 16 bytes."""
    itemsize = dtypes.as_dtype(tensor.dtype).itemsize
    strides = (stride for dim, stride in enumerate(tensor.strides) if dim != tensor.unit)
    known = min([tensor.align // itemsize, *strides])
    return 0 if known * itemsize >= ACCESS_BYTES else max(1, known)


def param_format(facts: Sequence[ArgumentFacts]) -> str:
    """The `struct` format of a kernel's parameters: one slot of eight bytes for each flat parameter, in order.

    A tensor has its address, its extents, and its strides but the unit one (see `TensorFacts`); a scalar has itself.
    """
    slots = ""
    for fact in facts:
        if isinstance(fact, TensorFacts):
            slots += "Q" + ("q" if fact.wide else "i4x") * fact.rank
            slots += "q" * sum(1 for dim in range(fact.rank) if dim != fact.unit)
        else:
            slots += _SCALAR_SLOTS[fact.dtype]
    return "<" + slots


_SCALAR_SLOTS = {
    "bool": "?7x", "int8": "b7x", "uint8": "B7x", "int16": "h6x", "uint16": "H6x", "int32": "i4x", "uint32": "I4x",
    "int64": "q", "uint64": "Q", "float8_e4m3fn": "f4x", "float8_e5m2": "f4x", "float16": "f4x", "bfloat16": "f4x",
    "float32": "f4x", "float64": "d",
}  # fmt: skip
assert set(_SCALAR_SLOTS) == {d.name for d in dtypes.ALL}


@dataclass(frozen=True, kw_only=True)
class CompiledKernel:
    """Machine code of one specialisation.

    Attributes:
        entry: the name of the function in the cubin.
        ptx: the assembly text, for reading.
        cubin: the binary.
        target: what it was compiled for.
        registers: a thread's.
        shared_bytes: static shared memory of a block.
        dynamic_shared_bytes: what a launch must give each block in addition.
        local_bytes: a thread's memory for what did not fit into registers.
        block: threads of a block along its three axes.
        param_format: the `struct` format of the parameters, see `param_format`. Where the grid is folded (`compiler.grids`) its
            blocks along the three axes follow, 64 bits each.
        sites: what it checks while it runs, if it was compiled with checks.
        maps: of which tensors it gets a tensor map of 128 bytes each, behind the parameters of `param_format` and in that order.
    """

    entry: str
    ptx: str
    cubin: bytes
    target: str
    registers: int
    shared_bytes: int
    dynamic_shared_bytes: int = 0
    local_bytes: int
    block: tuple[int, int, int]
    param_format: str
    sites: tuple[Site, ...] = ()
    maps: tuple[TensorMap, ...] = ()

    @property
    def starts_early(self) -> bool:
        """Whether its launches may begin before what they wait for has ended: it waits by itself."""
        return WAITS in self.ptx

    def to_bytes(self) -> bytes:
        """It, as the cache keeps it: its fields as JSON, with the length of the text that comes before the cubin."""
        ptx = self.ptx.encode()
        fields = {name: getattr(self, name) for name in _FIELDS}
        maps = [dataclasses.astuple(known) for known in self.maps]
        return json.dumps({**fields, "maps": maps, "ptx_bytes": len(ptx)}).encode() + b"\n" + ptx + self.cubin

    @classmethod
    def from_bytes(cls, data: bytes) -> CompiledKernel:
        """The opposite.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: it is something else.
        """
        header, _, rest = data.partition(b"\n")
        fields = json.loads(header)
        split = fields.pop("ptx_bytes")
        fields["block"], fields["sites"] = tuple(fields["block"]), tuple(Site(*site) for site in fields["sites"])
        fields["maps"] = tuple(
            TensorMap(at, dtype, tuple(box), tuple(order), swizzle, last and Last(*last))
            for at, dtype, box, order, swizzle, last in fields["maps"]
        )
        return cls(ptx=rest[:split].decode(), cubin=rest[split:], **fields)

    @cached_property
    def spilled_bytes(self) -> int:
        """Registers that a thread keeps in memory, in bytes: of the local ones, those that are no variables of PTX's."""
        variables = sum(int(size) for size in re.findall(r"\.local .*?__local_depot\w*\[(\d+)\]", self.ptx))
        return max(0, self.local_bytes - -(-variables // 16) * 16)

    @cached_property
    def sass(self) -> str:
        """The machine instructions, as text.

        Raises:
            TilekitError: nvdisasm, which writes it, is not installed.
        """
        return disassemble(self.cubin)

    def __repr__(self) -> str:
        shared = self.shared_bytes + self.dynamic_shared_bytes
        return (
            f"<CompiledKernel {_readable(self.entry)} for {self.target}: {self.registers} registers, {shared} shared and "
            f"{self.local_bytes} local bytes>"
        )


_FIELDS = (
    "entry", "target", "registers", "shared_bytes", "dynamic_shared_bytes", "local_bytes", "block", "param_format", "sites",
)  # fmt: skip


def _readable(entry: str) -> str:
    """The name behind a mangled one, as far as it can be read: `module.function`."""
    names: list[str] = []
    at = len("_ZN")
    while entry.startswith("_ZN") and (length := re.compile(r"\d+").match(entry, at)) is not None:
        at = length.end() + int(length[0])
        names.append(entry[length.end() : at])
    return ".".join(names) or entry


def disassemble(cubin: bytes) -> str:
    """The machine instructions of a cubin, as text.

    Raises:
        TilekitError: nvdisasm, which writes it, is not installed.
    """
    import subprocess
    import tempfile

    program = find_nvdisasm()
    if program is None:
        raise TilekitError('nvdisasm is not installed, so there is no SASS to show: pip install "cuda-toolkit[nvdisasm]==13.*"')
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        done = subprocess.run([program, "-c", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise TilekitError(f"{program} failed: {done.stderr.strip()}")
    return done.stdout


def find_nvdisasm() -> str | None:
    """nvdisasm: from the path, beside Python, or from NVIDIA's wheel."""
    import shutil
    import sysconfig

    name = "nvdisasm.exe" if sys.platform == "win32" else "nvdisasm"
    executable = shutil.which(name) or shutil.which(name, path=sysconfig.get_path("scripts"))
    if executable:
        return executable
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    return next((str(p) for p in sorted(packages.glob(f"*/bin/{name}"), reverse=True)), None)
