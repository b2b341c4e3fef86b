"""What a product is: every spelling, for every pass."""

from __future__ import annotations

import pytest
from through_ir import ir_of

import tilekit as tk
from tilekit import api
from tilekit.compiler.ir.nodes import Constant, Value
from tilekit.compiler.ir.products import PRODUCTS, accumulates, is_product, product_of
from tilekit.compiler.passes.accumulation import accumulate_products
from tilekit.lang.registry import OPS


@tk.kernel
def by_mma(c: tk.Out, a: tk.In):
    x, zeros = tk.load(a, (0, 0), (16, 16)), tk.zeros((16, 16), tk.float32)
    c.store(tk.mma(x, x, zeros, precision="tf32"))


@tk.kernel
def by_names(c: tk.Out, a: tk.In):
    x, zeros = tk.load(a, (0, 0), (16, 16)), tk.zeros((16, 16), tk.float32)
    c.store(tk.mma(acc=zeros, precision="tf32", b=x, a=x))


@tk.kernel
def by_matmul(c: tk.Out, a: tk.In):
    x = tk.load(a, (0, 0), (16, 16))
    c.store(tk.matmul(x, b=x, precision="tf32"))


@tk.kernel
def by_operator(c: tk.Out, a: tk.In):
    x = tk.load(a, (0, 0), (16, 16))
    c.store(x @ x)


@tk.kernel
def in_place(c: tk.Out, a: tk.In):
    x = tk.load(a, (0, 0), (16, 16))
    y = x
    y @= x
    c.store(y)


def launch(kernel):
    return kernel(api.meta((16, 16)).partition((16, 16)), api.meta((16, 16)))


@pytest.mark.parametrize("kernel", [by_mma, by_names, by_matmul, by_operator, in_place], ids=lambda kernel: kernel.source.name)
def test_a_product_is_one_in_every_spelling(kernel):
    (operation,) = filter(is_product, (ir := ir_of(launch(kernel))).walk())
    product = product_of(operation)
    assert product.a is product.b
    assert isinstance(product.a, Value)
    assert accumulates(operation) == (product.total is not None) == (kernel in (by_mma, by_names))
    assert product.options == ({} if kernel in (by_operator, in_place) else {"precision": Constant("tf32")})
    accumulate_products(ir)
    (operation,) = filter(is_product, ir.walk())
    assert accumulates(operation)
    assert len(operation.operands) == 3


def test_arguments_by_name_are_what_they_are_by_place():
    operations = [next(filter(is_product, ir_of(launch(kernel)).walk())) for kernel in (by_mma, by_names)]
    assert [len(operation.operands) for operation in operations] == [3, 3]
    assert [list(operation.keywords) for operation in operations] == [["precision"], ["precision"]]


def test_wrong_arguments_are_refused_as_ever():
    @tk.kernel
    def short(c: tk.Out, a: tk.In):
        x = tk.load(a, (0, 0), (16, 16))
        c.store(tk.mma(x, x))

    with pytest.raises(tk.CompileError, match="acc"):
        launch(short).compile("sm_90a")


def test_products_are_the_rows_of_a_family():
    assert {row.name for row in OPS.values() if row.function in PRODUCTS} == {"mma", "matmul"}


def test_other_operations_are_none():
    ir = ir_of(launch(by_operator))
    assert [is_product(operation) for operation in ir.walk()] == [operation.what == "@" for operation in ir.walk()]
