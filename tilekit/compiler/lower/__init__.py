"""Lowering of tile operations to LLVM and PTX: one file a family, named as in `tilekit.lang`. Importing it tells numba of all."""

from __future__ import annotations

from tilekit.compiler.codegen import convert_layout as relayout
from tilekit.compiler.codegen import definition as ops
from tilekit.compiler.lower import (
    atomic,
    bits,
    calculation,
    comparison,
    counting,
    create,
    debug,
    elementwise,
    exponential,
    indexed,
    literals,
    matmul,
    memory,
    pipelines,
    randomness,
    reduction,
    scanning,
    shape,
    sorting,
    tile,
    trigonometry,
    views,
)
from tilekit.compiler.nvidia import cluster_sums

__all__ = [
    "atomic",
    "bits",
    "calculation",
    "cluster_sums",
    "comparison",
    "counting",
    "create",
    "debug",
    "elementwise",
    "exponential",
    "indexed",
    "literals",
    "matmul",
    "memory",
    "pipelines",
    "randomness",
    "reduction",
    "relayout",
    "scanning",
    "shape",
    "sorting",
    "tile",
    "trigonometry",
    "views",
]

ops.install()
