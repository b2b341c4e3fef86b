"""Draw up `docs/reference/tensors-and-peers.md`: what tensors can do, in NumPy, CuPy, PyTorch, cuTile Rust and tilekit.

    python docs/tools/peer_table.py

Every expression of the table is run by `tests/docs/test_peer_table.py`, with the libraries that are installed, and must give what
NumPy's gives. (cuTile Rust's column is what its source of version 0.3 offers; nobody runs it.)
"""

# ruff: noqa: E501 - a row of a table is one line

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "reference" / "tensors-and-peers.md"

_INTRODUCTION = """\
# Tensors, and what others call it

Each row is one thing that can be done with a tensor. In the expressions `x` is a tensor of 4 by 6 float32, `y` another one of the same shape, `a` a NumPy array and `code` a text; what tilekit returns is an op where the expression ends in
`.sync()`, and a view, at no cost, where it does not. A dash means that the library has no such thing.

All expressions but those of cuTile Rust are run by the tests, where the library is installed, and must give the same numbers. The table is made by `python docs/tools/peer_table.py`.
"""


@dataclass(frozen=True)
class Row:
    """One line of the table. An expression that is empty means that the library has no such thing.

    Attributes:
        what: in words.
        numpy, cupy, torch, cutile, tilekit: the expressions. `cupy` is NumPy's with `cp` for `np` if it is None.
        after: what to look at when the expression has been evaluated; the value itself if it is None.
        random: whether the numbers are the library's own: only shape and dtype are compared.
        gpu: whether tilekit's needs a GPU.
    """

    what: str
    numpy: str
    torch: str
    cutile: str
    tilekit: str
    cupy: str | None = None
    after: str | None = None
    random: bool = False
    gpu: bool = False

    @property
    def of_cupy(self) -> str:
        """CuPy's expression."""
        return self.numpy.replace("np.", "cp.") if self.cupy is None else self.cupy


@dataclass(frozen=True)
class Group:
    """Lines that belong together."""

    title: str
    rows: tuple[Row, ...]


GROUPS = (
    Group(
        "Making one",
        (
            Row("zeros", "np.zeros((2, 3), np.float32)", "torch.zeros(2, 3, device=x.device)", "api::zeros(&[2, 3])", "api.zeros((2, 3)).sync()"),
            Row("ones", "np.ones(5, np.int32)", "torch.ones(5, dtype=torch.int32, device=x.device)", "api::ones(&[5])", "api.ones(5, tk.int32).sync()"),
            Row("one value", "np.full((2, 3), 7, np.float32)", "torch.full((2, 3), 7.0, device=x.device)", "api::full(7.0, &[2, 3])", "api.full((2, 3), 7).sync()"),
            Row("a range", "np.arange(2, 20, 3, np.int32)", "torch.arange(2, 20, 3, dtype=torch.int32, device=x.device)", "api::arange(n)", "api.arange(2, 20, 3, dtype=tk.int32).sync()"),
            Row("points between two", "np.linspace(0, 1, 5, dtype=np.float32)", "torch.linspace(0, 1, 5, device=x.device)", "api::linspace(0.0, 1.0, 5)", "api.linspace(0, 1, 5).sync()"),
            Row("the identity", "np.eye(3, 4, dtype=np.float32)", "torch.eye(3, 4, device=x.device)", "api::eye_rect(3, 4)", "api.eye(3, 4).sync()"),
            Row("unwritten memory", "np.empty((2, 3), np.float32)", "torch.empty(2, 3, device=x.device)", "Tensor::uninitialized(6)", "api.empty((2, 3)).sync()", after="value.shape"),
            Row("uniform random numbers", "np.random.rand(2, 3).astype(np.float32)", "torch.rand(2, 3, device=x.device)", "api::rand([2, 3], seed)", "api.rand((2, 3), seed=1).sync()", random=True),
            Row("normal random numbers", "np.random.randn(2, 3).astype(np.float32)", "torch.randn(2, 3, device=x.device)", "api::randn(0.0, 1.0, [2, 3], seed)", "api.randn(0, 1, (2, 3), seed=1).sync()", random=True),
            Row("random integers", "np.random.randint(0, 9, (2, 3), np.int32)", "torch.randint(0, 9, (2, 3), dtype=torch.int32, device=x.device)", "", "api.randint(0, 9, (2, 3), seed=1).sync()", cupy="cp.random.randint(0, 9, (2, 3), cp.int32)", random=True),
            Row("a copy of a NumPy array", "np.array(a)", "torch.tensor(a, device=x.device)", "api::copy_host_vec_to_device(&v)", "api.from_host(a).sync()", cupy="cp.asarray(a)"),
            Row("a shape without memory", "", "torch.empty(2, 3, device='meta')", "api::meta(&[2, 3])", "api.meta((2, 3))", cupy="", after="tuple(value.shape)"),
        ),
    ),
    Group(
        "What it is",
        (
            Row("shape", "x.shape", "tuple(x.shape)", "x.shape()", "x.shape"),
            Row("strides, in elements", "tuple(s // x.itemsize for s in x.strides)", "x.stride()", "x.strides()", "x.strides"),
            Row("bytes", "x.nbytes", "x.nbytes", "x.num_bytes()", "x.nbytes"),
            Row("without gaps, in C order", "bool(x.flags.c_contiguous)", "x.is_contiguous()", "x.is_contiguous()", "x.is_contiguous"),
        ),
    ),
    Group(
        "Views",
        (
            Row("another shape", "x.reshape(3, 8)", "x.reshape(3, 8)", "x.reshape(&[3, 8])", "x.reshape(3, 8)"),
            Row("another shape, never copying", "x.view().reshape(2, -1)", "x.view(2, -1)", "x.view(&[2, 12])", "x.view(2, -1)"),
            Row("a part", "x[1:3, 2:]", "x[1:3, 2:]", "x.slice(&[1..3, 2..6])", "x[1:3, 2:]"),
            Row("every second", "x[:, ::2]", "x[:, ::2]", "", "x[:, ::2]"),
            Row("one row", "x[2]", "x[2]", "", "x[2]"),
            Row("a new dimension", "x[:, None]", "x[:, None]", "", "x[:, None]"),
            Row("the dimensions in another order", "x.transpose(1, 0)", "x.permute(1, 0)", "", "x.permute(1, 0)"),
            Row("the bits as another dtype", "x.view(np.int32)", "x.view(torch.int32)", "x.reinterpret::<i32>(&[4, 6])", "x.reinterpret(tk.int32)", cupy="x.view(cp.int32)"),
        ),
    ),
    Group(
        "Copies",
        (
            Row("another dtype", "x.astype(np.float16)", "x.to(torch.float16)", "api::convert(x)", "x.astype(tk.float16).sync()", cupy="x.astype(cp.float16)"),
            Row("a copy", "x.copy()", "x.clone()", "x.dup()", "x.dup().sync()"),
            Row("a copy into another", "np.copyto(y, x)", "y.copy_(x)", "api::memcpy(&mut y, &x)", "x.copy_into(y).sync()", after="y"),
            Row("into a part of another", "np.copyto(y[:, ::2], x[:, 1::2])", "y[:, ::2].copy_(x[:, 1::2])", "", "x[:, 1::2].copy_into(y[:, ::2]).sync()", after="y"),
            Row("one value into it", "x.fill(3)", "x.fill_(3)", "api::fill(x, 3.0)", "x.fill(3).sync()", after="x"),
            Row("to the host", "x.copy()", "x.cpu().numpy()", "x.to_host_vec()", "x.to_host().sync()", cupy="cp.asnumpy(x)"),
            Row("to another device", "", "x.to(x.device)", "", "x.to(x.device).sync()", cupy="", after="tuple(value.shape)"),
        ),
    ),
    Group(
        "For kernels",
        (
            Row("tiles for a kernel to write", "", "", "x.partition([2, 2])", "x.partition((2, 2)).unpartition()", cupy=""),
            Row("if nobody shares the memory", "", "", "x.try_partition([2, 2])", "x.try_partition((2, 2)).unpartition()", cupy=""),
        ),
    ),
    Group(
        "Other libraries",
        (
            Row("take another's tensor, without copying", "np.from_dlpack(x)", "torch.from_dlpack(x)", "Tensor::from_foreign(owner, ..)", "tk.as_tensor(x)", cupy="cp.from_dlpack(x)"),
            Row("lend it to another", "x.__dlpack__()", "x.__dlpack__()", "", "x.__dlpack__()", after="value is not None"),
            Row("a kernel in CUDA C++", "", "", "AsyncKernelLaunch::new(function)", "tk.cuda_source(code, 'f', 'y: Out[f32]')", cupy="cp.RawKernel(code, 'f')", after="value.name"),
            Row("how much memory is in use", "", "torch.cuda.memory_allocated()", "", "memory.stats().used_bytes", cupy="cp.get_default_memory_pool().used_bytes()", after="value >= 0"),
            Row("no more than so much", "", "torch.cuda.set_per_process_memory_fraction(1.0)", "set_device_pool(id, pool)", "memory.set_limit(None)", cupy="cp.get_default_memory_pool().set_limit(size=0)", after="None"),
            Row("page-locked memory of the host's", "", "torch.empty(8).pin_memory()", "", "memory.pinned(8, tk.float32)", cupy="cp.cuda.alloc_pinned_memory(32)", after="value is not None"),
            Row("give pooled memory back", "", "torch.cuda.empty_cache()", "", "memory.release()", cupy="cp.get_default_memory_pool().free_all_blocks()", after="None"),
        ),
    ),
)  # fmt: skip


# What a tab is called, its short name, and the expression in it.
LIBRARIES: tuple[tuple[str, str, Callable[[Row], str]], ...] = (
    ("NumPy", "numpy", lambda row: row.numpy),
    ("PyTorch", "torch", lambda row: row.torch),
    ("CuPy", "cupy", lambda row: row.of_cupy),
    ("cuTile Rust", "cutile", lambda row: row.cutile),
)


def _shown(expression: str) -> str:
    return f"`{expression.replace(', device=x.device', '')}`" if expression else "-"


def markdown() -> str:
    """The page: for each group a tab for each library, with its expressions beside tilekit's."""
    lines = [_INTRODUCTION]
    for group in GROUPS:
        lines += [f"## {group.title}\n", ":::::{div} expressions", "::::{tab-set}", ":sync-group: library", ""]
        for title, short, expression in LIBRARIES:
            lines += [f":::{{tab-item}} {title}", f":sync: {short}", "", f"| | {title} | tilekit |", "|---|---|---|"]
            lines += [f"| {row.what} | {_shown(expression(row))} | {_shown(row.tilekit)} |" for row in group.rows]
            lines += [":::", ""]
        lines += ["::::", ":::::", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
