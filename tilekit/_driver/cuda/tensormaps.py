"""Encoding tensor maps for the TMA, by cuTensorMapEncodeTiled."""

from __future__ import annotations

import ctypes
from typing import Any

from tilekit._driver.cuda.errors import failure
from tilekit._driver.tensormaps import MAP_BYTES, UNIT, TensorMap, tiled

__all__ = ["encode"]


def encode(bindings: Any, known: TensorMap, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    """The CUtensorMap of a tensor. The memory is not looked at.

    Args:
        bindings: the module `cuda.bindings.driver`.
        known, address, shape, strides: see `tiled`.

    Raises:
        ValueError: see `tiled`. DeviceError: the driver knows no such map.
    """
    cu, layout = bindings, tiled(known, address, shape, strides)
    rank = len(layout.box)
    result = cu.cuTensorMapEncodeTiled(
        getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{layout.type}"),
        rank,
        layout.address,
        [cu.cuuint64_t(n) for n in layout.extents],
        # A map of one dimension has no strides, but the pointer to them must not be null, as it is for an empty list.
        [cu.cuuint64_t(n) for n in layout.strides or (UNIT,)],
        [cu.cuuint32_t(n) for n in layout.box],
        [cu.cuuint32_t(1)] * rank,
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{layout.swizzle}"),
        cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if result[0]:
        raise failure(cu, result[0], f"encoding the map {layout} for {known}")
    return ctypes.string_at(int(result[1].getPtr()), MAP_BYTES)
