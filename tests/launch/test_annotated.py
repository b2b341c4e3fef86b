"""Annotations in the form that type checkers take: at run time they are what the short ones are, errors included."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import numpy as np
import pytest

import tilekit as tk
from tilekit import api

BM, BN = tk.generics("BM BN")
S = tk.generics("*S")


def declared(kernel: Any) -> list[Any]:
    """What is known of a kernel's parameters, with the names of generics in their places."""
    return [(p.name, p.kind, None if p.dims is None else tuple(map(repr, p.dims))) for p in kernel.signature.parameters]


def test_it_is_the_short_form() -> None:
    @tk.kernel
    def short(c: tk.Out[BM, BN], a: tk.In[-1, 64], b: tk.InOut[S], d: tk.In[4], e: tk.In, n: tk.Const, f: float):
        pass

    @tk.kernel
    def long(
        c: Annotated[tk.Out, BM, BN],
        a: Annotated[tk.In, -1, 64],
        b: Annotated[tk.InOut, S],
        d: Annotated[tk.In, 4],
        e: Annotated[tk.In, 1] | None,
        n: Annotated[int, tk.Const],
        f: Annotated[float, "a factor"],
    ):
        pass

    expected = declared(short)
    expected[4] = ("e", "in", ("1",))
    assert declared(long) == expected
    assert list(long.signature.generics) == list(short.signature.generics) == ["BM", "BN", "S"]


def test_none_and_tuples_are_what_every_parameter_takes(device: tk.Device) -> None:
    @tk.kernel
    def total(y: tk.Out, parts: tuple[tk.In, ...], by: Optional[float], pair: tuple[tk.In, tk.In], bias: tk.In | None = None):  # noqa: UP045
        t = tk.load_tile_like(pair[0], y) + tk.load_tile_like(pair[1], y)
        for part in parts:
            t = t + tk.load_tile_like(part, y)
        if bias is not None:
            t = t + tk.load_tile_like(bias, y)
        if by is not None:
            t = t * by
        y.store(t)

    assert [p.kind for p in total.signature.parameters] == ["out", "in", "scalar", "in", "in"]
    x = api.ones(8).sync()
    assert total(api.zeros(8).partition(4), (x, x), 2.0, (x, x)).out().sync().numpy().tolist() == [8.0] * 8
    assert total(api.zeros(8).partition(4), (x,), None, (x, x), x).out().sync().numpy().tolist() == [4.0] * 8


@pytest.mark.parametrize("wrong", [tuple[tk.In, tk.Out], tk.In | float, list[tk.In], tuple[()]])
def test_what_does_not_agree_is_refused(wrong: Any) -> None:
    def bad(y):
        pass

    bad.__annotations__["y"] = wrong
    with pytest.raises(TypeError, match="kernel bad: parameter y is annotated .*, not In, Out, InOut, Const"):
        tk.kernel(bad)


def test_static_shapes_are_checked_and_cut(device: tk.Device) -> None:
    @tk.kernel
    def rows(y: Annotated[tk.Out, 4], x: Annotated[tk.In, -1, 4]):
        y.store(tk.sum(x.tiles((4, 4))[tk.bid(0), 0], 1))

    @tk.kernel
    def short(y: tk.Out[4], x: tk.In[-1, 4]):
        y.store(0.0)

    result = rows(api.zeros(8), api.ones((8, 4))).out().sync().numpy()  # the parameter cuts the tensor
    np.testing.assert_array_equal(result, np.full(8, 4.0, np.float32))
    for x in (api.ones(8).sync(), api.ones((8, 5)).sync()):
        texts = set()
        for kernel in (rows, short):
            with pytest.raises(ValueError, match="argument x: declared") as error:
                kernel(api.zeros(8).sync(), x).sync()
            texts.add(str(error.value).split("\n")[0].replace("kernel rows", "kernel short"))
        assert len(texts) == 1


def test_generics_get_their_values(device: tk.Device) -> None:
    @tk.kernel
    def fill(y: Annotated[tk.Out, BM, BM]):
        y.store(tk.full((BM, BM), BM, y.dtype))

    assert fill(api.zeros((4, 4)).partition((2, 2))).out().sync().numpy().tolist() == [[2.0] * 4] * 4
    with pytest.raises(ValueError, match="kernel fill, argument y: generic BM is 2 by argument y, and 4 here"):
        fill(api.zeros((4, 4)).sync().partition((2, 4))).sync()


@pytest.mark.parametrize("wrong", [0, -2, True, 1.5, "N"])
def test_dimensions_that_are_none(wrong: Any) -> None:
    texts = []
    for annotation in ("tk.In[-1, wrong]", "Annotated[tk.In, -1, wrong]"):

        def bad(x):
            pass

        bad.__annotations__["x"] = annotation.replace("wrong", repr(wrong))
        with pytest.raises(TypeError) as error:
            tk.kernel(bad)
        texts.append(str(error.value))
    assert texts[0] == texts[1]
    assert texts[0].startswith(
        f"kernel bad: its annotations cannot be evaluated: In[...] takes positive ints, -1, and generics, not {wrong!r}"
    )


def test_constants_of_helpers() -> None:
    @tk.function
    def helper(x, n: Annotated[int, tk.Const]):
        return x * n

    assert helper.constants == {"n"}
