"""Operators of `tilekit.torch` on a GPU: PyTorch's current stream, its CUDA graphs, autocast, compiled programs."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("torch was installed without CUDA, or finds no GPU", allow_module_level=True)

import tilekit as tk  # noqa: E402
import tilekit.torch  # noqa: E402
from tilekit import api  # noqa: E402
from tilekit.torch import custom_op, ops  # noqa: E402

F = torch.nn.functional
CLOCKS = 20_000_000  # some ten milliseconds: long enough that nobody gets there by chance

# PyTorch's own, of its own parts
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.filterwarnings("ignore::UserWarning:torch")]


@tk.kernel
def saxpy(y: tk.InOut, a, x: tk.In):
    y.store(a * tk.load_tile_like(x, y) + y.load())


@custom_op("tilekit_gpu_tests::saxpy_", mutates=("y",))
def saxpy_(y: torch.Tensor, a: float, x: torch.Tensor) -> None:
    return saxpy(y, a, x).tile(1024)


@custom_op("tilekit_gpu_tests::sum_of", autocast="lower")
def sum_of(x: torch.Tensor, y: torch.Tensor):
    return saxpy(y.dup(), 1.0, x).tile(1024)


def drawn(*shape, dtype=None, **options):
    return torch.randn(*shape, device="cuda", dtype=dtype or torch.float32, **options)


def heads(dtype=torch.bfloat16, **options):
    return [drawn(2, 4, 128, 64, dtype=dtype, **options) for _ in range(3)]


CASES = {
    "softmax": lambda: (drawn(37, 1000, requires_grad=True),),
    "log_softmax": lambda: (drawn(37, 1000, requires_grad=True),),
    "layer_norm": lambda: tuple(drawn(*shape, requires_grad=True) for shape in ((37, 1000), (1000,), (1000,))),
    "rms_norm": lambda: tuple(drawn(*shape, requires_grad=True) for shape in ((37, 1000), (1000,))),
    "add_rms_norm": lambda: tuple(drawn(*shape, requires_grad=True) for shape in ((37, 1000), (37, 1000), (1000,))),
    "l2_norm": lambda: (drawn(37, 1000, requires_grad=True),),
    "cumsum": lambda: (drawn(37, 1000, requires_grad=True),),
    "transpose": lambda: (drawn(3, 37, 100, requires_grad=True),),
    "cross_entropy": lambda: (drawn(37, 1000, requires_grad=True), torch.arange(37, device="cuda")),
    "gelu": lambda: (drawn(37, 1000, requires_grad=True),),
    "silu": lambda: (drawn(37, 1000, requires_grad=True),),
    "swiglu": lambda: (drawn(37, 1000, requires_grad=True), drawn(37, 1000, requires_grad=True)),
    "dropout": lambda: (drawn(37, 1000, requires_grad=True), 0.5, 3),
    "embedding": lambda: (drawn(20, 64, requires_grad=True), torch.arange(12, device="cuda").reshape(3, 4)),
    "rope": lambda: (drawn(2, 5, 3, 16, requires_grad=True), drawn(5, 8), drawn(5, 8)),
    "gemm": lambda: (drawn(130, 64, requires_grad=True), drawn(64, 72, requires_grad=True)),
    "attention": lambda: (*heads(torch.float32, requires_grad=True), None, True, None, "ieee", True),
    "attention_varlen": lambda: (
        *(drawn(17, 4, 64, requires_grad=True) for _ in range(3)),
        *[torch.tensor([0, 5, 17], dtype=torch.int32, device="cuda")] * 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_pytorch_finds_nothing_wrong_with_the_operator(device, name):
    torch.library.opcheck(getattr(torch.ops.tilekit, name).default, CASES[name](), rtol=1e-3, atol=1e-4)


def test_pytorch_finds_nothing_wrong_with_one_that_writes(device):
    torch.library.opcheck(saxpy_, (drawn(5000), 2.0, drawn(5000)))


def test_attention_and_its_gradients(device):
    q, k, v = heads(requires_grad=True)
    y, expected = ops.attention(q, k, v, causal=True), F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)
    grad = torch.randn_like(y)
    found, wanted = (torch.autograd.grad(each, (q, k, v), grad) for each in (y, expected))
    torch.testing.assert_close(found, wanted, rtol=5e-2, atol=5e-2)


def test_deterministic_algorithms_are_heeded(device):
    q, k, v = heads(requires_grad=True)
    grad = torch.randn_like(q)
    torch.use_deterministic_algorithms(True)
    try:
        first, again = (torch.autograd.grad(ops.attention(q, k, v), (q, k, v), grad) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(first, again))


def test_an_operator_is_in_the_order_of_pytorchs_current_stream(device):
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream(priority=-1)):
        with torch.cuda.stream(stream):
            x = torch.zeros(1 << 16, device="cuda")
            y = torch.zeros(1 << 16, device="cuda")
            saxpy_(y, 1.0, x)  # compiled
            torch.cuda._sleep(CLOCKS)
            x.fill_(2.0)
            saxpy_(y, 3.0, x)  # behind what is slow
            event = stream.record_event()
            assert not event.query(), "the operator has waited"
            z = y + 1
            x.fill_(-1.0)  # and what comes later is behind it
        stream.synchronize()
        assert (z == 7).all()


def test_results_and_workspaces_are_given_out_again_in_order(device):
    x = drawn(512, 1024, requires_grad=True)
    weight = drawn(1024, requires_grad=True)
    expected = torch.autograd.grad(F.rms_norm(x, (1024,), weight, 1e-6).sum(), (x, weight))
    torch.cuda._sleep(CLOCKS)
    found = [torch.autograd.grad(ops.rms_norm(x, weight).sum(), (x, weight)) for _ in range(20)]
    for each in found:
        torch.testing.assert_close(each, expected, rtol=1e-3, atol=1e-3)


def test_pytorchs_cuda_graphs(device):
    x, weight, y = drawn(64, 1000), drawn(1000), torch.zeros(64 * 1000, device="cuda")

    def step():
        h = ops.softmax(ops.rms_norm(x, weight))
        saxpy_(y, 2.0, h.reshape(-1))
        return h

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    y.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        h = step()
    for turn in range(1, 4):
        x.normal_()
        y.zero_()
        graph.replay()
        expected = F.rms_norm(x, (1000,), weight, 1e-6).softmax(-1)
        torch.testing.assert_close(h, expected, rtol=1e-4, atol=1e-5, msg=f"in turn {turn}")
        torch.testing.assert_close(y, 2 * expected.reshape(-1), rtol=1e-4, atol=1e-5)


def test_a_training_step_in_a_cuda_graph(device):
    q, k, v = heads(requires_grad=True)
    a, b = drawn(64, 64, dtype=torch.bfloat16, requires_grad=True), drawn(64, 64, dtype=torch.bfloat16, requires_grad=True)

    def step():
        y = ops.gemm(ops.attention(q, k, v, causal=True).reshape(-1, 64), a)
        return torch.autograd.grad(ops.gemm(ops.silu(y), b).float().square().mean(), (q, k, v, a, b))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        expected = step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    torch.testing.assert_close(found, expected, rtol=5e-2, atol=1e-3)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_with_gradients(device, mode):
    pytest.importorskip("triton", reason="inductor needs Triton")
    torch._dynamo.reset()
    x, weight = drawn(64, 1024, requires_grad=True), drawn(1024, requires_grad=True)

    def program(x, weight):
        return (ops.silu(ops.rms_norm(2 * x, weight)) + 1).square().mean()

    def reference(x, weight):
        return (F.silu(F.rms_norm(2 * x, (1024,), weight, 1e-6)) + 1).square().mean()

    compiled = torch.compile(program, fullgraph=True, mode=mode)
    wanted = torch.autograd.grad(reference(x, weight), (x, weight))
    for _ in range(4):  # the first ones warm up and record
        torch.compiler.cudagraph_mark_step_begin()
        found = torch.autograd.grad(compiled(x, weight), (x, weight))
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast(device, dtype):
    x, w = drawn(64, 128, requires_grad=True), drawn(96, 128, requires_grad=True)
    with torch.autocast("cuda", dtype=dtype):
        y = ops.gemm(x, w.T)
        assert y.dtype == dtype == (x @ w.T).dtype
        assert ops.softmax(y).dtype == torch.float32
        assert sum_of(drawn(4096), drawn(4096)).dtype == dtype
        z = ops.attention(*heads(torch.float32))
        assert z.dtype == dtype
    y.float().square().mean().backward()
    assert x.grad.dtype == w.grad.dtype == torch.float32
    torch.testing.assert_close(y.float(), x @ w.T, rtol=5e-2, atol=0.2)


@pytest.mark.alone  # which is about what has not happened yet
def test_current_stream(device):
    array = torch.zeros(1 << 16, device="cuda")
    ours = tk.as_tensor(array)
    ones = api.ones(1 << 16).sync()
    saxpy(ours, 2.0, ones).tile(1024).sync()  # compiled
    side = torch.cuda.Stream()
    for stream in (torch.cuda.current_stream(), side):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), tilekit.torch.current_stream():
            assert device.policy.next_stream().address == stream.cuda_stream
            array.zero_()
            torch.cuda._sleep(CLOCKS)
            array += 1
            future = saxpy(ours, 2.0, ones).tile(1024).schedule(device.policy)
            assert not future.done(), "it has not waited"
            array *= 10
            host = array.cpu()
        assert (host == 30).all()
    assert device.policy.next_stream().address not in (side.cuda_stream, torch.cuda.current_stream().cuda_stream)


def test_tensors_of_tilekits_keep_their_order(device):
    """A launch uses a tensor that is being written on a stream of tilekit's."""
    weight = api.zeros(1 << 20).sync()
    ones = api.ones(1 << 20).sync()

    @custom_op("tilekit_gpu_tests::with_weight")
    def with_weight(x: torch.Tensor):
        return saxpy(x.dup(), 1.0, weight).tile(1024)

    x = torch.zeros(1 << 20, device="cuda")
    with_weight(x)
    for turn in range(1, 6):
        with device.stream() as stream:
            for _ in range(10):
                saxpy(weight, 1.0, ones).tile(1024).async_on(stream)
            assert (with_weight(x) == 10 * turn).all()


def test_cpu_tensors_beside_the_gpus(device):
    x = torch.randn(5, 33)
    torch.testing.assert_close(ops.softmax(x), x.softmax(-1), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="x is on cuda:0, weight on cpu"):
        ops.rms_norm(x.cuda(), torch.ones(33))


def test_backward_on_another_thread_and_stream(device):
    side = torch.cuda.Stream()
    x = drawn(256, 1000, requires_grad=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(CLOCKS)
        loss = ops.softmax(2 * x).square().sum()
    loss.backward()  # PyTorch runs it on the forward pass's stream, and has the current one wait
    expected = torch.autograd.grad((2 * x).softmax(-1).square().sum(), x)[0]
    torch.testing.assert_close(x.grad, expected, rtol=1e-3, atol=1e-6)


def test_what_pytorchs_other_gpu_is_stays_so(device):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    with torch.cuda.device(0):
        x = torch.randn(64, 1000, device="cuda:1")
        torch.testing.assert_close(ops.softmax(x), x.softmax(-1), rtol=1e-4, atol=1e-5)
        assert torch.cuda.current_device() == 0
        assert torch.empty(1, device="cuda").device.index == 0


def test_numpy_is_refused_as_ever(device):
    with pytest.raises((TypeError, RuntimeError)):
        ops.softmax(np.ones((2, 2), np.float32))


def test_work_that_is_done_again_is_on_the_memory_that_is_given(device):
    """`pure` operators, from the third alike call on: other arguments each time, on the current stream, whichever that is."""
    for turn, stream in enumerate([torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()] * 3):
        with torch.cuda.stream(stream):
            a, b = drawn(136, 264, dtype=torch.bfloat16, requires_grad=True), drawn(264, 72, dtype=torch.bfloat16)
            x, weight = drawn(37, 1000, requires_grad=True), drawn(1000, requires_grad=True)
            q, k, v = heads(requires_grad=True)
            torch.cuda._sleep(CLOCKS // 10)
            both = torch.stack([a.detach(), a.detach() + 1])  # parts of one tensor are arguments as any others
            found = [
                *torch.autograd.grad(ops.gemm(a, b).square().sum(), (a,)),
                *torch.autograd.grad(ops.rms_norm(x, weight).square().sum(), (x, weight)),
                *torch.autograd.grad(ops.attention(q, k, v, causal=True).square().sum(), (q, k, v)),
                ops.gemm(both[1], b),
            ]
            wanted = [
                *torch.autograd.grad((a @ b).square().sum(), (a,)),
                *torch.autograd.grad(F.rms_norm(x, (1000,), weight, 1e-6).square().sum(), (x, weight)),
                *torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=True).square().sum(), (q, k, v)),
                both[1] @ b,
            ]
        stream.synchronize()
        for number, (one, other) in enumerate(zip(found, wanted)):
            apart = (one - other).float().norm() / other.float().norm()
            assert apart < 0.02, f"result {number} in turn {turn} is {apart:.1%} off"


def test_work_that_is_done_again_from_several_threads(device):
    from concurrent.futures import ThreadPoolExecutor

    def work(seed):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                x = torch.full((64, 1000), float(seed), device="cuda")
                y = ops.softmax(ops.silu(x) * x)
                if not torch.allclose(y, torch.full_like(y, 1e-3), rtol=1e-3):
                    return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
