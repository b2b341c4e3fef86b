"""Kernels of users' as operators of PyTorch's: `tilekit.torch.custom_op`."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[test-torch]'")

import tilekit as tk  # noqa: E402
from tilekit import api, kernels  # noqa: E402
from tilekit.torch import custom_op  # noqa: E402


@tk.kernel
def silu_kernel(y: tk.Out, x: tk.In):
    t = tk.load_tile_like(x, y)
    y.store(t / (1.0 + tk.exp(0.0 - t)))


@tk.kernel
def silu_gradient(dx: tk.Out, dy: tk.In, x: tk.In):
    t = tk.load_tile_like(x, dx)
    s = 1.0 / (1.0 + tk.exp(0.0 - t))
    dx.store(tk.load_tile_like(dy, dx) * s * (1.0 + t * (1.0 - s)))


@tk.kernel
def polar(x: tk.Out, y: tk.Out, r: tk.In, angle: tk.In):
    length, a = tk.load_tile_like(r, x), tk.load_tile_like(angle, x)
    x.store(length * tk.cos(a))
    y.store(length * tk.sin(a))


@tk.kernel
def polar_gradient(dr: tk.Out, da: tk.Out, dx: tk.In, dy: tk.In, angle: tk.In, x: tk.In, y: tk.In):
    gx, gy = tk.load_tile_like(dx, dr), tk.load_tile_like(dy, dr)
    a = tk.load_tile_like(angle, dr)
    dr.store(gx * tk.cos(a) + gy * tk.sin(a))
    da.store(gy * tk.load_tile_like(x, dr) - gx * tk.load_tile_like(y, dr))


@tk.kernel
def saxpy(y: tk.InOut, a, x: tk.In):
    y.store(a * tk.load_tile_like(x, y) + y.load())


def silu_backward(grad, x):
    return silu_gradient(api.empty(x.shape, x.dtype), grad, x).tile(256)


@custom_op("tilekit_tests::silu", backward=silu_backward)
def silu(x: torch.Tensor):
    """SiLU."""
    return silu_kernel(api.empty(x.shape, x.dtype), x).tile(256)


def cartesian_backward(grad_x, grad_y, angle, x, y):
    new = [api.empty(angle.shape, angle.dtype) for _ in range(2)]
    return polar_gradient(*new, grad_x, grad_y, angle, x, y).tile(256).out()


@custom_op("tilekit_tests::cartesian", backward=cartesian_backward, results=("x", "y"))
def cartesian(r: tk.Tensor, angle: tk.Tensor) -> tuple[tk.Tensor, tk.Tensor]:
    return polar(api.empty(r.shape, r.dtype), api.empty(r.shape, r.dtype), r, angle).tile(256).out()


@custom_op("tilekit_tests::saxpy_", mutates=("y",))
def saxpy_(y: torch.Tensor, a: float, x: torch.Tensor) -> None:
    return saxpy(y, a, x).tile(256)


def vector(n=1000, **options):
    torch.manual_seed(n)
    return torch.randn(n, **options)


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        (silu, lambda: (vector(requires_grad=True),)),
        (cartesian, lambda: (vector(requires_grad=True), vector(requires_grad=True))),
        (saxpy_, lambda: (vector(), 2.0, vector())),
    ],
    ids=["silu", "cartesian", "saxpy_"],
)
def test_pytorch_finds_nothing_wrong_with_it(device, op, arguments):
    torch.library.opcheck(op, arguments())


def test_schemas_follow_from_the_annotations():
    def anything(
        x: tk.Tensor, y: tk.Tensor | None, n: int, sizes: list[int], factor: float = 0.5, flag: bool = True, *, mode: str = "a"
    ) -> tk.DeviceOp[tk.Tensor]:
        return kernels.silu(x)

    custom_op("tilekit_tests::anything", anything)
    assert str(torch.ops.tilekit_tests.anything.default._schema) == (
        "tilekit_tests::anything(Tensor x, Tensor? y, SymInt n, SymInt[] sizes, float factor=0.5, bool flag=True, "
        'str mode="a") -> Tensor'
    )
    assert str(torch.ops.tilekit_tests.saxpy_.default._schema) == (
        "tilekit_tests::saxpy_(Tensor(a0!) y, float a, Tensor x) -> ()"
    )
    assert str(torch.ops.tilekit_tests.cartesian.default._schema).endswith("(Tensor r, Tensor angle) -> (Tensor, Tensor)")
    assert silu.__doc__ == "SiLU."


def test_gradients(device):
    x = vector(50, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(silu, x)
    assert torch.autograd.gradcheck(cartesian, (x, vector(50, dtype=torch.float64, requires_grad=True)))
    r, angle = vector(requires_grad=True), vector()
    x, _ = cartesian(r, angle)  # only one of the results, and only one of the arguments
    (grad,) = torch.autograd.grad(x.sum(), r)
    torch.testing.assert_close(grad, angle.cos())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(device, backend):
    def program(r, angle):
        y = torch.zeros_like(r)
        saxpy_(y, 2.0, r)
        saxpy_(y, 1.0, angle)
        x, y = cartesian(silu(y + 1), angle)
        return (x * y).sum()

    r, angle = vector(requires_grad=True), vector(requires_grad=True)
    compiled = torch.compile(lambda r, angle: program(r.detach() * 1 + 0 * r, angle), fullgraph=True, backend=backend)
    plain = program(r.detach(), angle)
    torch.testing.assert_close(compiled(r, angle), plain)
    torch.testing.assert_close(torch.autograd.grad(compiled(r, angle), angle), torch.autograd.grad(plain, angle))


def test_one_program_for_each_shape(device):
    compiled = torch.compile(lambda x: silu(x) + 1, fullgraph=True, backend="aot_eager")
    for n in (10, 1000, 3000):
        torch.testing.assert_close(compiled(vector(n)), torch.nn.functional.silu(vector(n)) + 1)


def test_one_program_for_all_shapes(device):
    @custom_op("tilekit_tests::any_shape", backward=silu_backward, fake=torch.empty_like)
    def any_shape(x: torch.Tensor):
        return silu_kernel(api.empty(x.shape, x.dtype), x).tile(256)

    torch.library.opcheck(any_shape, (vector(requires_grad=True),))
    graphs = []

    def counted(graph, examples):
        graphs.append(graph)
        return graph

    compiled = torch.compile(lambda x: any_shape(x) + 1, fullgraph=True, backend=counted)
    for n in (10, 1000, 3000, 700):
        torch.testing.assert_close(compiled(vector(n)), torch.nn.functional.silu(vector(n)) + 1)
    assert len(graphs) == 2


def test_a_dtype_is_an_argument(device):
    @custom_op("tilekit_tests::converted")
    def converted(x: torch.Tensor, dtype: torch.dtype):
        return kernels.silu(x).astype(dtype)

    assert converted(torch.ones(3), torch.float16).dtype == torch.float16
    with pytest.raises(TypeError, match="tilekit does not have torch.complex64"):
        converted(torch.ones(5), torch.complex64)


def test_what_is_written_is_declared(device):
    x, y = vector(), torch.zeros(1000)
    view, version = y[:], y._version
    saxpy_(y, 2.0, x)
    assert y._version == version + 1
    torch.testing.assert_close(view, 2 * x)
    z = vector(requires_grad=True)
    loss = (z * y).sum()
    saxpy_(y, 1.0, x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_writing_into_a_view(device):
    whole = torch.zeros(4, 10)
    saxpy_(whole[1], 3.0, torch.ones(10))
    assert torch.equal(whole, torch.tensor([0.0, 3.0, 0.0, 0.0])[:, None].expand(4, 10))
    saxpy_(whole[:, 2], 1.0, torch.ones(4))  # with gaps
    assert whole[:, 2].tolist() == [1, 4, 1, 1]


def test_writing_undeclared_is_an_error(device):
    @custom_op("tilekit_tests::undeclared")
    def undeclared(y: torch.Tensor, x: torch.Tensor):
        return saxpy(y, 1.0, x).tile(256).out().then(lambda y: y.dup())

    message = r"undeclared: the launch has written into y, of which PyTorch must know: custom_op\(..., mutates=\(\'y\',\)\)"
    with pytest.raises(ValueError, match=message):
        undeclared(vector(), vector())


def test_returning_an_argument_is_an_error(device):
    @custom_op("tilekit_tests::same", mutates=("y",), results=("result",))
    def same(y: torch.Tensor, x: torch.Tensor):
        return saxpy(y, 1.0, x).tile(256)

    with pytest.raises(ValueError, match=r'a result is its argument y, which no operator.*mutates=\("y",\)'):
        same(vector(), vector())
    constant = api.ones(10).sync()

    @custom_op("tilekit_tests::constant")
    def old(x: torch.Tensor):
        return tk.value(constant)

    with pytest.raises(ValueError, match=r"a result is a tensor that was there before the call; return .dup\(\) of it"):
        old(vector())


def test_tensors_of_tilekits_may_be_used(cpu):
    weight = api.full(1000, 3.0).sync()

    @custom_op("tilekit_tests::weighted")
    def weighted(x: torch.Tensor):
        return saxpy(weight.dup(), 1.0, x).tile(256)

    x = vector()
    torch.testing.assert_close(weighted(x), x + 3)


def test_several_launches_and_an_optional_argument(device):
    @custom_op("tilekit_tests::both", results=("a", "b"))
    def both(x: torch.Tensor, y: torch.Tensor | None = None):
        return kernels.silu(x), kernels.gelu(x if y is None else y)

    x, y = vector(), vector(30)
    for given, second in (((x,), x), ((x, y), y), ((x, None), x)):
        a, b = both(*given)
        torch.testing.assert_close(a, torch.nn.functional.silu(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(b, torch.nn.functional.gelu(second), rtol=1e-4, atol=1e-5)
    torch.library.opcheck(both, (x, y))


def test_an_argument_without_a_tensor_gets_no_gradient(device):
    def backward(grad, a, b):
        by_a = kernels.silu_backward(grad, a)
        return by_a if b is None else (by_a, kernels.silu_backward(grad, b))

    @custom_op("tilekit_tests::sum_of_silus", backward=backward)
    def sum_of_silus(a: torch.Tensor, b: torch.Tensor | None):
        y = kernels.silu(a)
        return y if b is None else saxpy(kernels.silu(b), 1.0, y).tile(256)

    a, b = (vector(20, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(sum_of_silus, (a, b))
    assert torch.autograd.gradcheck(lambda a: sum_of_silus(a, None), a)


def test_tensors_that_have_one_gradient(device):
    def copied(x):
        return kernels.dropout(x, 0.0, 1)

    @custom_op("tilekit_tests::sum_of_two", backward=lambda grad: copied(grad), wrt=(("a", "b"),))
    def sum_of_two(a: torch.Tensor, b: torch.Tensor | None):
        return copied(a) if b is None else saxpy(copied(b), 1.0, a).tile(256)

    a, b = (vector(20, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(sum_of_two, (a, b))
    assert torch.autograd.gradcheck(lambda a: sum_of_two(a, None), a)
    sum_of_two(a, b).square().sum().backward()
    a.grad.add_(1.0)  # which is not b's
    torch.testing.assert_close((a.grad, b.grad), (2 * (a + b) + 1, 2 * (a + b)))
    torch.library.opcheck(sum_of_two, (a, b))


def test_inside_another_op_it_is_refused(device):
    x = vector()
    op = tk.value(1).map(lambda _: silu(x))
    with pytest.raises(RuntimeError, match="cannot run while"):
        op.sync()


def test_a_name_is_replaced(device):
    for factor in (2.0, 3.0):

        @custom_op("tilekit_tests::scaled", autocast="lower")
        def scaled(x: torch.Tensor, factor: float = factor):
            return saxpy(api.zeros(x.shape, x.dtype), factor, x).tile(256)

        assert torch.equal(torch.ops.tilekit_tests.scaled(torch.ones(3)), torch.full((3,), factor))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert scaled(torch.ones(3)).dtype == torch.bfloat16


def mapped(x: torch.Tensor, y: dict):
    return kernels.silu(x)


def of(launch=lambda x: None, *, annotation=torch.Tensor, returned=None, name="tilekit_tests::wrong", **options):
    if annotation is not None:
        launch.__annotations__["x"] = annotation
    if returned is not None:
        launch.__annotations__["return"] = returned
    return custom_op(name, launch, **options)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda: of(name="silu"), ValueError, "'silu' is no name of an operator"),
        (lambda: of(name=3), TypeError, "a name is a str"),
        (lambda: custom_op("a::b", 3), TypeError, "the launch is a function that returns an op, not int"),
        (lambda: of(lambda x: x, annotation=None), TypeError, "parameter x has no annotation"),
        (lambda: of(lambda x: x, annotation=float), TypeError, "no parameter is a tensor"),
        (lambda: of(lambda x, *y: x), TypeError, r"parameter \*y of the launch"),
        (lambda: of(lambda x: x, annotation="Nowhere"), TypeError, "annotation of the launch cannot be read"),
        (lambda: of(lambda x: x, returned=int), TypeError, "the launch returns <class 'int'>; an operator returns tensors"),
        (lambda: of(lambda x: x, returned=torch.Tensor, results=("a", "b")), ValueError, "returns 1 tensors .* names 2"),
        (lambda: of(lambda x: x, results="y"), TypeError, "results is a tuple of names"),
        (lambda: of(lambda x: x, results=("x",)), ValueError, "x is the name of a parameter and of a result"),
        (lambda: of(lambda x: x, mutates="x"), TypeError, "mutates is a tuple of names"),
        (lambda: of(lambda x: x, mutates=("z",)), ValueError, "mutates names z; the tensors are x"),
        (lambda: of(lambda x: x, wrt=("x",)), ValueError, "there is no backward"),
        (lambda: of(lambda x: x, backward=lambda grad, z: grad), TypeError, "backward has a parameter z, which is none of"),
        (lambda: of(lambda x: x, backward=lambda x: x), TypeError, "backward takes no gradient"),
        (lambda: of(lambda x: x, backward=lambda grad: grad, wrt=("y",)), ValueError, "wrt names y"),
        (lambda: of(lambda x: x, backward=lambda grad: grad, wrt="x"), TypeError, "wrt is a tuple of names"),
        (lambda: of(lambda x: x, backward=lambda grad: grad, wrt=(("x", "y"),)), ValueError, "wrt names y"),
        (lambda: of(lambda x: x, backward=lambda grad: grad, wrt=(("x", 3),)), TypeError, "wrt is a tuple of names and of"),
        (lambda: of(lambda x: x, backward=lambda grad: grad, wrt=(3,)), TypeError, "wrt is a tuple of names and of"),
        (lambda: of(lambda x: x, backward=3), TypeError, "backward is a function"),
        (lambda: of(lambda x: x, mutates=("x",), backward=lambda grad: grad), ValueError, "has no gradient in PyTorch"),
        (lambda: of(lambda x: x, autocast="higher"), TypeError, "autocast is a floating-point dtype"),
        (lambda: of(lambda x: x, autocast=torch.int8), TypeError, "autocast is a floating-point dtype"),
        (lambda: of(lambda x: x, fake=3), TypeError, "fake is a function"),
        (lambda: of(lambda x: x, annotation=list[torch.Tensor]), TypeError, "parameter x is list.*; a tensor is torch.Tensor"),
        (lambda: of(mapped), TypeError, "y has unsupported type"),
        (lambda: of(lambda x: 3)(torch.ones(3)), TypeError, "the launch returned int, not an op"),
        (lambda: of(lambda x: kernels.silu(x), results=("a", "b"))(torch.ones(3)), ValueError, "has 1 results, the operator 2"),
        (lambda: of(lambda x: tk.value(3))(torch.ones(3)), TypeError, "gave int for a result, not a tensor"),
    ],
)  # fmt: skip
def test_wrong_arguments(device, wrong, error, message):
    with pytest.raises(error, match=message):
        wrong()


def test_gradients_of_another_number(device):
    @custom_op("tilekit_tests::one_of_two", backward=lambda grad, x: kernels.silu_backward(grad, x))
    def one_of_two(x: torch.Tensor, y: torch.Tensor):
        return kernels.silu(x)

    with pytest.raises(ValueError, match=r"the op has 1 results, gradients are wanted by 2 tensors.*wrt="):
        one_of_two(vector(requires_grad=True), vector()).sum().backward()


def test_gradients_of_another_shape(device):
    @custom_op("tilekit_tests::half_a_gradient", backward=lambda grad, x: kernels.silu_backward(grad[:5], x[:5]))
    def half_a_gradient(x: torch.Tensor):
        return kernels.silu(x)

    with pytest.raises(
        ValueError, match=r"a gradient is torch.float32 of shape \(5,\), what it is by torch.float32 of shape \(1000,"
    ):
        half_a_gradient(vector(requires_grad=True)).sum().backward()


def test_results_that_are_not_known_before(device):
    @custom_op("tilekit_tests::unknown")
    def unknown(x: torch.Tensor):
        return kernels.silu(x).map(lambda y: y)

    assert unknown(vector()).shape == (1000,)
    with pytest.raises(Exception, match="does not know the shape and dtype of its results before it runs"):
        torch.compile(unknown, fullgraph=True, backend="eager")(vector())


def test_arguments_on_several_devices(device):
    @custom_op("tilekit_tests::two")
    def two(x: torch.Tensor, y: torch.Tensor):
        return saxpy(y.dup(), 1.0, x).tile(256)

    with pytest.raises(ValueError, match=r"x is on cpu, y on meta; move one of them with .to\(...\)"):
        two(vector(), vector().to("meta"))


def test_an_error_in_a_kernel_leaves_the_next_call_alone(device):
    from tilekit.torch import ops

    with pytest.raises(tk.TilekitError):
        ops.embedding(torch.randn(4, 3), torch.tensor([1, 9]))
    assert torch.equal(ops.embedding(torch.ones(4, 3), torch.tensor([1])), torch.ones(1, 3))
