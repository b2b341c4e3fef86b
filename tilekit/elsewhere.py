"""What other libraries call things, and the line of tilekit's that does them: for errors alone.

Who meets a name that does not exist asks `advice`: of a habit from elsewhere it has the line to write, of a misspelt name the one
that is nearly it. Each table is for one kind of owner, and says after the name what follows a colon.
"""

# ruff: noqa: E501 - a row of a table is one line

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = [
    "API", "CALLS", "DEVICE_OPS", "FUTURES", "KERNELS", "LAUNCHES", "LAUNCH_KEYWORDS", "LIBRARIES", "MODULE", "OPERATIONS", "PARTITIONS", "TENSORS",
    "TILES", "TRITON", "VIEWS", "UnknownAttribute", "advice", "keyword", "no_name", "similar",
]  # fmt: skip

Table = Mapping[str, str]


def similar(name: str, known: Iterable[str]) -> str:
    """The known name that a misspelt one may mean; empty if there is none."""
    import difflib  # for errors only

    public = [k for k in known if not k.startswith("_")]
    by_small_letters = {k.lower(): k for k in public}
    close = difflib.get_close_matches(name.lower(), by_small_letters, n=1, cutoff=0.7)
    return by_small_letters[close[0]] if close else ""


def advice(table: Table, name: str, known: Iterable[str] = (), prefix: str = "") -> str:
    """What to write in the place of a name that does not exist, to be put behind the sentence that says so.

    Args:
        table: what others call things there.
        name: what was written.
        known: the names that there are.
        prefix: what the known ones are written with, `tk.`.
    """
    close = name if name in table else similar(name, (*table, *known))
    if close in table:
        return f": {table[close]}"
    return f"; did you mean {prefix}{close}?" if close else ""


class UnknownAttribute(AttributeError):
    """An attribute that an object lacks. What to write instead is looked up when somebody reads the message: most are raised
    for `hasattr`.

    Args:
        owner, name: the object, and what it lacks.
        table: what others call things there.
        called: what the message calls the object; `{!r}` in it is the object's own text.
    """

    def __init__(self, owner: object, name: str, table: Table, called: str | None = None) -> None:
        super().__init__(name=name, obj=owner)
        self._owner, self._table = owner, table
        self._called = called or f"{type(owner).__name__!r} object"

    def __reduce__(self) -> tuple[Any, ...]:
        return AttributeError, (str(self),)

    def __str__(self) -> str:
        name = str(self.name)
        owner = self._owner
        known = dir(owner) if isinstance(owner, types.ModuleType) else dir(type(owner))
        return f"{self._called.format(owner)} has no attribute {name!r}{advice(self._table, name, known)}"


def no_name(module: types.ModuleType, name: str) -> UnknownAttribute:
    """That a module for the host has no such name; of the language's, what kernels call it."""
    table = API if module.__name__ == "tilekit.api" else _of_the_module()
    return UnknownAttribute(module, name, table, f"module {module.__name__!r}")


@functools.cache
def _of_the_module() -> Table:
    return {k: f"in a kernel, {line}" for k, line in OPERATIONS.items()} | dict(MODULE)


def _same(names: str, line: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), line)


LIBRARIES = {
    "tl": "Triton", "triton": "Triton", "ct": "cuTile", "cuda.tile": "cuTile", "cuda": "numba", "numba": "numba",
    "numba_cuda": "numba", "torch": "PyTorch", "cupy": "CuPy", "cp": "CuPy", "jax": "JAX", "jnp": "JAX",
}  # fmt: skip
"""Modules, and names that they are commonly imported by, whose functions mean nothing in a kernel; and whose they are."""

_NO_THREADS = "there are no threads to number: operations work on whole tiles, whose elements tk.arange(n) numbers"
_NO_BARRIER = "leave it out: the threads of a block wait for each other where they must"
_NO_SHARED = "leave it out: tiles are kept in registers and shared memory where they are needed; write tk.zeros(shape, dtype)"
_NO_POINTERS = "there are no pointers: write tk.load(x, (i, j), shape) for a tile, tk.gather(x, (i, j)) for elements"
_ALIGNMENT = "leave it out: a launch sees how its arguments are aligned"
_HERE = "mathematics of tiles stands in tk itself: write tk.exp(x); of scalars, in Python's math"

OPERATIONS: Table = {
    # where a block is
    **_same(
        "program_id block_id block_idx blockIdx pid tile_id tile_block_id grid",
        "write tk.bid(0), the index of the block along axis 0",
    ),
    **_same("num_programs gridsize gridDim num_tile_blocks", "write tk.num_blocks(0)"),
    **_same("threadIdx thread_id thread_idx laneid lane_id blockDim warpsize warp_id tid", _NO_THREADS),
    **_same("syncthreads syncwarp barrier debug_barrier threadfence fence", _NO_BARRIER),
    "sync": "leave it out: operations in a kernel come one after the other; .sync() of the launch waits for it on the host",
    **_same("shared local const shared_memory alloc alloc_shared", _NO_SHARED),
    # memory
    **_same("make_block_ptr make_tensor_descriptor advance pointer_type addptr", _NO_POINTERS),
    "atomic": "write tk.atomic_add(y, index, value)",
    "load_tile": "write tk.load(x, index, shape), or tk.load_tile_like(x, y) for the tile that the block owns of y",
    "store_tile": "write y.store(tile) for the tile that the block owns, tk.store(y, index, tile) for any",
    **_same("multiple_of max_contiguous max_constancy assume assume_div_by", _ALIGNMENT),
    "swizzle2d": "leave it out: blocks start in an order that keeps what they share in the cache",
    # making tiles
    "zeros_like": "write tk.zeros(x.shape, x.dtype)",
    "ones_like": "write tk.ones(x.shape, x.dtype)",
    "full_like": "write tk.full(x.shape, value, x.dtype)",
    **_same("empty empty_like", "a tile has no elements that nobody has written: write tk.zeros(shape)"),
    **_same("array tensor asarray", "write tk.astile((1.0, 2.0)) for a tile of constants"),
    "linspace": "write low + (high - low) / (n - 1) * tk.arange(n)",
    "eye": "write tk.arange(n)[:, None] == tk.arange(n)",
    # mathematics
    **_same("dot matrix_multiply", "write a @ b; to add to an accumulator, acc = tk.mma(a, b, acc)"),
    **_same("mm bmm", "write a @ b"),
    "einsum": "write a @ b, or tk.sum(a * b, axis)",
    **_same("fdiv div_rn div divide true_divide", "write x / y"),
    "multiply": "write x * y",
    "subtract": "write x - y",
    "umulhi": "write tk.mulhi(x, y)",
    **_same("sqrt_rn", "write tk.sqrt(x)"),
    **_same("clamp", "write tk.clip(x, low, high)"),
    "square": "write x * x",
    "hypot": "write tk.sqrt(x * x + y * y)",
    "outer": "write x[:, None] * y",
    "power": "write x ** y",
    **_same("absolute fabs", "write tk.abs(x)"),
    "relu": "write tk.maximum(x, 0)",
    **_same("silu swish", "write x * tk.sigmoid(x)"),
    "gelu": "write x * 0.5 * (1 + tk.erf(x * 0.5**0.5))",
    "softmax": "write e = tk.exp(x - tk.max(x, 1, keepdims=True)), then e / tk.sum(e, 1, keepdims=True)",
    "logsumexp": "write m = tk.max(x), then m + tk.log(tk.sum(tk.exp(x - m)))",
    "reciprocal": "write 1 / x",
    **_same("fmax", "write tk.maximum(x, y)"),
    **_same("fmin", "write tk.minimum(x, y)"),
    **_same("math libdevice extra", _HERE),
    **_same("inf nan pi e", "write math.inf, math.nan, math.pi, math.e (import math)"),
    # reductions
    "mean": "write tk.sum(x, axis) / x.shape[axis]",
    **_same("var std", "write d = x - tk.sum(x) / n, then tk.sum(d * d) / n; its tk.sqrt for the deviation"),
    **_same("median quantile percentile", "write tk.sort(x, axis), of which tk.extract takes the middle"),
    "norm": "write tk.sqrt(tk.sum(x * x, axis))",
    "nansum": "write tk.sum(tk.where(x == x, x, 0), axis)",
    "amax": "write tk.max(x, axis)",
    "amin": "write tk.min(x, axis)",
    "reduce_or": "write tk.any(x, axis)",
    "reduce_and": "write tk.all(x, axis)",
    "xor_sum": "write tk.reduce(x, axis, lambda a, b: a ^ b, 0)",
    "associative_scan": "write tk.scan(x, axis, function, identity)",
    "count_nonzero": "write tk.sum((x != 0).astype(tk.int32))",
    # shapes and dtypes
    **_same("trans swapaxes t", "write tk.transpose(x)"),
    **_same("cast to convert", "write x.astype(tk.float16)"),
    **_same("view", "write x.reshape((m, n))"),
    **_same("ravel flatten squeeze", "write x.reshape(n)"),
    "unsqueeze": "write x[:, None], or tk.expand_dims(x, axis)",
    "broadcast": "write tk.broadcast_to(x, shape); operators broadcast by themselves",
    **_same("concatenate concat hstack vstack", "write tk.cat((a, b), axis)"),
    "stack": "write tk.cat((a[None], b[None]), 0)",
    "join": "write tk.cat((a[..., None], b[..., None]), -1)",
    "interleave": "write tk.cat((a[..., None], b[..., None]), -1).reshape(shape)",
    **_same("tril triu", "write tk.where(tk.arange(m)[:, None] >= tk.arange(n), x, 0)"),
    "meshgrid": "write tk.arange(m)[:, None] and tk.arange(n)[None, :], which broadcast",
    "take": "write tk.gather(x, indices), of a tensor",
    "roll": "write tk.gather(x, indices), of a tensor, with (tk.arange(n) + k) % n for one of them",
    "pad": "loads pad at the edge: write tk.load(x, index, shape, padding_value=0)",
    **_same("split chunk", "write tk.extract(x, index, shape) for each part"),
    **_same("flip", "pass the tensor reversed at the launch, x[::-1]"),
    "newaxis": "write x[:, None]",
    "ndim": "write x.ndim",
    "shape": "write x.shape",
    **_same("int1 bool", "write tk.bool_"),
    "float": "write tk.float32, or tk.float64",
    "double": "write tk.float64",
    "half": "write tk.float16",
    "int": "write tk.int32, or tk.int64",
    "long": "write tk.int64",
    # the rest
    **_same(
        "constexpr Constant", "annotate the parameter tk.Const; names of the module, and tk.generics, are constants as they are"
    ),
    **_same("range", "write range(n), or tk.static_range(n) to have it written out"),
    "static_iter": "write tk.static_range(n), or loop over a tuple",
    "device_print": "write tk.print('x', x)",
    **_same("device_assert assume_true", "write tk.assert_(condition, 'why')"),
    "inline_asm_elementwise": "wrap PTX or CUDA C++ as an op of its own: tk.load_module, tk.cuda_source",
}
"""Of `tk`, in a kernel."""

TRITON: Table = {
    "load": "write tk.load(x, index, shape), which counts in tiles and pads at the edge, or tk.gather(x, indices) for elements",
    "store": "write y.store(tile), tk.store(y, index, tile), or tk.scatter(y, indices, tile) for elements",
    "arange": "write tk.arange(n)",
    **{
        f"atomic_{name}": f"write tk.atomic_{name}(y, index, value)" for name in ("add", "max", "min", "and", "or", "xor", "xchg")
    },
    "max": "write tk.max(x, axis)",
    "sum": "write tk.sum(x, axis)",
}
"""Of Triton's language, where an operation of tilekit's has the same name and takes other things."""

_FROM_HOST = "write api.from_host(array).sync() (from tilekit import api)"
_GEMM = "write kernels.gemm(a, b).sync() (from tilekit import kernels)"

MODULE: dict[str, str] = {
    "kernels": "write from tilekit import kernels",
    **_same("dot mm bmm", f"{_GEMM}; in a kernel, a @ b of tiles"),
    **_same("array asarray tensor from_numpy to_device from_host copy_to_device", _FROM_HOST),
    **_same(
        "empty zeros_like ones_like full_like empty_like linspace eye",
        "write api.zeros(shape, dtype).sync() (from tilekit import api)",
    ),
    "synchronize": "op.sync() waits for an op, stream.synchronize() for a stream, tk.default_device().synchronize() for all",
    "device": "write tk.Device('cpu'), or tk.default_device()",
    "cuda": "write tk.Device('cuda'), or tk.default_device()",
    "stream": "write with tk.default_device().stream() as stream:",
    **_same("jit cudajit", "write @tk.kernel"),
    "heuristics": "write @tk.autotune(configs), or give generics their values by .generics(BM=128)",
    "compile": "write kernel(*arguments).compile(target='sm_90a')",
    "next_power_of_2": "write 1 << (n - 1).bit_length()",
    "constexpr": "annotate the parameter tk.Const",
    "Constant": "annotate the parameter tk.Const",
    "gather_async": "write await asyncio.gather(op, other)",
}
"""Of `tk`, on the host; what is missing here is looked up among the operations."""

API: Table = {
    "zeros_like": "write api.zeros(x.shape, x.dtype)",
    "ones_like": "write api.ones(x.shape, x.dtype)",
    "full_like": "write api.full(x.shape, value, x.dtype)",
    "empty_like": "write api.empty(x.shape, x.dtype)",
    **_same("array asarray tensor from_numpy to_device", "write api.from_host(array)"),
    **_same("copy clone", "write api.dup(x)"),
    "copyto": "write api.memcpy(target, source)",
    **_same("to_host asnumpy", "write x.to_host()"),
    **_same("dot matmul mm", _GEMM),
    **_same("sum mean max min", "write x.to_host().sync().sum(), or a kernel with tk.sum"),
    "uniform": "write api.rand(shape)",
    "normal": "write api.randn(mean, deviation, shape)",
}
"""Of `tilekit.api`."""

_UNCHANGING = "leave it out: a tile never changes"

TILES: Table = {
    **_same("T mT", "write x.transpose()"),
    **_same("t swapaxes trans", "write x.transpose()"),
    "view": "write x.reshape((m, n))",
    **_same("flatten ravel squeeze", "write x.reshape(n)"),
    "unsqueeze": "write x[:, None]",
    **_same("expand broadcast repeat", "write x.broadcast_to(shape)"),
    **_same("to type cast convert", "write x.astype(tk.float16)"),
    "float": "write x.astype(tk.float32)",
    "double": "write x.astype(tk.float64)",
    "half": "write x.astype(tk.float16)",
    "bfloat16": "write x.astype(tk.bfloat16)",
    "int": "write x.astype(tk.int32)",
    "long": "write x.astype(tk.int64)",
    "bool": "write x != 0",
    "mean": "write tk.sum(x, axis) / x.shape[axis]",
    **_same("amax", "write tk.max(x, axis)"),
    **_same("clip clamp", "write tk.clip(x, low, high)"),
    "absolute": "write tk.abs(x)",
    **_same("clone copy dup contiguous detach", _UNCHANGING),
    **_same("fill fill_ zero_", "a tile never changes: write tk.full(x.shape, value, x.dtype)"),
    "masked_fill": "write tk.where(mask, value, x)",
    **_same("size numel", "write math.prod(x.shape) (import math)"),
    "dim": "write x.ndim",
    **_same("dot mm matmul", "write x @ y"),
    **_same("sync result wait", "leave it out: a tile is there as soon as it is loaded"),
    **_same("tolist numpy cpu", "print it with tk.print(x), or store it and read the tensor on the host"),
    "store": "store into the partition: y.store(x)",
    "load": "leave it out: it is loaded",
}
"""Of tiles; operations of `tk` that take one are known without being here."""

_ON_HOST = "leave it out here: that belongs on the host"

VIEWS: Table = {
    **_same("size numel nbytes", "write x.shape[0], and multiply the extents"),
    "dim": "write x.ndim",
    "tile": "write x.load() for the block's own tile",
    **_same("tileshape block_shape", "write x.tile_shape"),
    **_same("strides stride", "tiles are loaded by their index, whatever the strides"),
    **_same("ptr data data_ptr ctypes address", _NO_POINTERS),
    **_same(
        "partition", "cut it on the host: kernel(y.partition(shape)); here y.load() and y.store(tile) are the block's own tile"
    ),
    **_same("unpartition to_host numpy cpu device to item tolist", _ON_HOST),
    **_same("sync result wait", "leave it out: .sync() of the launch waits for it on the host"),
    **_same("T t transpose permute", "load a tile of it, and write tile.transpose()"),
    **_same("reshape view flatten ravel", "load a tile of it, and write tile.reshape(shape)"),
    **_same("astype cast float half", "load a tile of it, and write tile.astype(tk.float16)"),
    **_same("fill fill_ zero_", "write x.store(value)"),
    **_same("write save set assign copy_", "write x.store(tile)"),
    **_same("copy dup clone", "write y.store(x.load())"),
    **_same("read get", "write x.load()"),
    "append": "a tensor keeps its shape: write x.store(tile)",
}
"""Of tensors and partitions, in a kernel."""

_RUN = "write op.sync(), which runs it, waits, and gives the result"
_TO_HOST = "write op.to_host().sync(), a NumPy array"
_FOLDS = "sum mean min max argmax argmin all any prod std var"

DEVICE_OPS: Table = {
    **_same("result get wait value compute block_until_ready synchronize join done execute_sync launch", _RUN),
    **_same("numpy cpu asnumpy to_numpy copy_to_host detach data", _TO_HOST),
    "item": "write op.to_host().sync().item()",
    "tolist": "write op.to_host().sync().tolist()",
    **{name: f"write op.to_host().sync().{name}()" for name in _FOLDS.split()},
    **_same("copy clone", "write op.dup()"),
    **_same("flatten ravel", "write op.reshape(-1)"),
    **_same("T ndim size strides storage", "the tensor has it: write op.sync()"),
    **_same("load store", "kernels load and store; of an op, write op.to_host().sync()"),
    **_same("cuda to device_put", "write op.on('cuda')"),
    **_same("grid generics compile explain", "launches of kernels have it: kernel(y.partition(shape))"),
    **_same(
        "block threads blockdim blocks",
        "the partitions say how many blocks there are; write op.num_warps(4) for the threads of each",
    ),
    "num_stages": "write tk.pipelined(..., stages=3) in the kernel",
    "stream": "write op.async_on(stream), or op.sync_on(stream)",
    **_same("add_done_callback cancel cancelled exception", "write op.async_on(stream), whose future has it"),
    **_same("catch except_", "write op.or_else(function)"),
    **_same("chain pipe flat_map", "write op.then(function)"),
}
"""Of ops that have not run."""

FUTURES: Table = {
    **_same("sync wait get join synchronize", "write future.result(), which waits"),
    **_same(
        "to_host numpy item shape dtype partition unpartition first",
        "write future.result(), which waits and gives what the op gives",
    ),
    **_same("ready is_done finished running", "write future.done()"),
    "then": "write op.then(function) before the op is submitted",
}
"""Of futures."""

LAUNCHES: Table = {
    **{
        name: "a launch gives its arguments: write op.sync(), and read what it wrote, y.to_host().sync()"
        for name, line in DEVICE_OPS.items()
        if "to_host" in line
    },
    **{name: line for name, line in DEVICE_OPS.items() if "to_host" not in line},
}
"""Of launches that have not run."""

KERNELS: Table = {
    **_same("launch start warmup", "call it, and run the launch: "),
    **_same("forall configure", "call it; the grid follows from the partition: "),
    **_same("inspect_asm inspect_llvm asm ptx", "write kernel(*arguments).compile(target='sm_90a').ptx"),
    **_same("fn func py_func", "write kernel.__wrapped__"),
}
"""Of kernels; where a row ends in a colon the kernel's own call follows."""

TENSORS: Table = {
    **_same("sync result wait get_result", "leave it out: a tensor is a result already; ops are run by .sync()"),
    **_same(
        "store load",
        "kernels load and store: pass x.partition(shape) to one; on the host write x.fill(value).sync(), x.to_host().sync()",
    ),
    **_same("numel count", "write x.size"),
    "dim": "write x.ndim",
    "stride": "write x.strides",
    **_same("data_ptr ptr data", "write x.address"),
    **_same("cuda", "write x.to('cuda').sync()"),
    **_same("copy_to_host asarray", "write x.to_host().sync()"),
    **_same("copy_to_device copy_", "write api.memcpy(x, source).sync() (from tilekit import api)"),
    **_same("contiguous", "write x.dup().sync()"),
    **_same("transpose swapaxes t mT", "write x.permute(1, 0), or x.T"),
    **_same("squeeze expand unsqueeze", "write x.reshape(shape)"),
    "float": "write x.astype(tk.float32).sync()",
    "double": "write x.astype(tk.float64).sync()",
    "half": "write x.astype(tk.float16).sync()",
    "int": "write x.astype(tk.int32).sync()",
    **_same("fill_", "write x.fill(value).sync()"),
    "zero_": "write x.fill(0).sync()",
    **_same("dot matmul mm", "write kernels.gemm(x, y).sync() (from tilekit import kernels)"),
    **_same(
        "exp log sqrt sin cos tanh abs pow add mul sub div relu softmax",
        "write a kernel, with the tile operation of that name; on the host, NumPy's of x.to_host().sync()",
    ),
    **_same("is_cuda", "write x.device.kind == 'cuda'"),
    "element_size": "write x.itemsize",
    **_same("grad backward requires_grad requires_grad_", "there are no gradients: write the backward kernel"),
    **_same("tiles", "write x.partition(shape); in a kernel, x.tiles(shape)"),
}
"""Of tensors, on the host."""

PARTITIONS: Table = {
    **{name: line for name, line in TENSORS.items() if name in ("sync", "result", "wait", "dim")},
    **_same("store load", "kernels do that: pass it to one, kernel(x); on the host write x.unpartition().to_host().sync()"),
    **_same(
        "partition reshape view permute astype fill dup copy_into to size strides T", "the tensor has it: write x.unpartition()"
    ),
    "tiles": "kernels have it; on the host x.grid is the number of tiles",
}
"""Of partitions, on the host."""

CALLS: Table = {
    "load": "write tk.load(x, (i, j), (64, 32))",
    "store": "write y.store(tile) for the block's own tile, tk.store(y, (i, j), tile) for any",
    "arange": "write tk.arange(1024), or tk.arange(1024, start=first)",
    "mma": "write acc = tk.mma(a, b, acc); without an accumulator, a @ b",
    "reshape": "the shape is one tuple, x.reshape((32, 32))",
    "permute": "the axes are one tuple, x.permute((1, 0))",
    "cat": "the tiles are one tuple, tk.cat((a, b), axis)",
    "full": "write tk.full((64, 32), 0.0, tk.float32)",
    "gather": "write tk.gather(x, (rows, columns))",
    "num_tiles": "write tk.num_tiles(x, 0, (64, 32))",
    "where": "write tk.where(condition, x, y)",
    "extract": "write tk.extract(x, (1, 0), (16, 16))",
}
"""Operations that others call with other arguments, and a call of them."""

_KEYWORDS = (
    ("axis", "dim dims axes"), ("keepdims", "keepdim keep_dims"), ("padding_value", "other fill_value pad_value"),
    ("value", "fill_value tile"), ("padding_mode", "padding pad"), ("shape", "size tile_shape block_shape tile_size"),
    ("size", "shape n end stop"), ("index", "idx indices offsets offset"), ("indices", "index idx offsets"),
    ("dtype", "out_dtype type"), ("eviction_policy", "cache_modifier"), ("precision", "allow_tf32 input_precision"),
    ("stages", "num_stages"), ("acc", "accumulator c"), ("lo", "min a_min low"), ("hi", "max a_max high"),
    ("axis0", "dim0"), ("axis1", "dim1"), ("axes", "dims"), ("func", "fn function combine_fn"), ("tile", "value"),
)  # fmt: skip


def keyword(name: str, parameters: Iterable[str]) -> str:
    """The parameter that a keyword of another name may mean; empty if there is none."""
    known = tuple(parameters)
    meant = next((ours for ours, theirs in _KEYWORDS if ours in known and name in theirs.split()), "")
    return meant or similar(name, known)


LAUNCH_KEYWORDS: Table = {
    "grid": "the grid follows from the partitions; where there are none, write {call}.grid(blocks)",
    **_same("block blockdim threads threads_per_block num_threads", "write {call}.num_warps(4) for the threads of a block"),
    "num_warps": "write {call}.num_warps(4), or @tk.kernel(num_warps=4)",
    "num_stages": "write tk.pipelined(..., stages=3) in the kernel",
    "occupancy": "write {call}.occupancy(2), or @tk.kernel(occupancy=2)",
    "stream": "write {call}.async_on(stream), or .sync_on(stream)",
    "device": "the arguments say where it runs; {call}.on(device) for others",
}
"""Keywords that others pass with the arguments of a launch."""
