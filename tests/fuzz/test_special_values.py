"""Every operation on floats, and every conversion, over the values that are special (see `special`)."""

from __future__ import annotations

import pytest
import special
from values import DTYPES, F32, FLOATS

import tilekit as tk
from tilekit.lang.registry import OPS

CASES = [(kind, dtype) for kind in ("unary", "binary", "ternary", "folds") for dtype in FLOATS]
CASES += [("conversions", dtype) for dtype in DTYPES.values()]


def _thorough(kind, dtype):
    """What the quick run leaves out: of what takes seconds, one dtype stays."""
    return [pytest.mark.thorough] if kind == "ternary" or (kind in ("unary", "binary") and dtype != F32) else []


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [pytest.param(kind, dtype, id=f"{kind}-{dtype.name}", marks=_thorough(kind, dtype)) for kind, dtype in CASES],
)
def test_special_values(device, kind, dtype):
    devices = [tk.Device("cpu"), device] if device.kind == "cuda" else [device]
    found = list(special.differences(kind, dtype, devices))
    assert not found, "\n".join([f"{len(found)} differences", *found[:40]])


def test_every_operation_on_floats_is_in_the_table():
    rows = {row.text for kind, rows in special.KINDS.items() for dtype in FLOATS for row in rows(dtype)}
    texts = " ".join(rows)
    families = ("calculation", "elementwise", "exponential", "trigonometry", "comparison")
    spelt = {"negative": "-a", "astype": ".astype(", "floordiv": "//", "mod": "%", "divmod": "divmod("}
    spelt |= dict(
        zip(
            ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
            ("==", "!=", "<", "<=", ">", "<"),
            strict=True,
        )
    )
    integers = {"cdiv", "mulhi"}
    missing = [
        name
        for name, op in OPS.items()
        if op.family in families and name not in integers and f"tk.{name}(" not in texts and spelt.get(name, "?!") not in texts
    ]
    assert not missing, f"tests/fuzz/special.py has no row for {', '.join(missing)}"
