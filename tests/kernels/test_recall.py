"""What a ready-made kernel decides is found again: the third op for arguments that look alike is built without the function."""

from __future__ import annotations

import asyncio
import gc
import linecache
import threading
import warnings
import weakref

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, kernels
from tilekit._driver.discovery import Discovery
from tilekit.kernels import _recall
from tilekit.kernels._recall import Recall, Recalled
from tilekit.kernels._recipe import Recipe
from tilekit.launch.specialisation import Specialisation
from tilekit.ops.fast_path import FAST_PATH

R = np.random.default_rng(5)
B, H, L, D = 1, 2, 16, 16


def floats(*shape):
    return R.standard_normal(shape).astype(np.float32)


def starts(*ends):
    return np.array((0, *ends), np.int32)


def lse_of(q, k):
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(np.float32(q.shape[-1]))
    return np.log(np.exp(scores).sum(-1)).astype(np.float32)


Q, K, V, G = (floats(B, H, L, D) for _ in range(4))
PACKED = [np.ascontiguousarray(x[0].swapaxes(0, 1)) for x in (Q, K, V, G)]  # one sequence of L
LSE = lse_of(Q, K)
ROWS = (floats(4, 32), floats(4, 32))

# Of each function arrays that become tensors, in order, and all else. Floats are drawn anew for another run.
CASES = {
    "add_rms_norm": ([*ROWS, floats(32)], {}),
    "add_rms_norm_backward": ([*ROWS, floats(4, 32), floats(32)], {}),
    "argmax": ([floats(4, 32)], {}),
    "attention": ([Q, K, V], {"causal": True}),
    "attention_backward": ([G, Q, K, V, G, LSE], {"deterministic": True}),
    "attention_decode": ([Q[:, :, :1], K, V], {}),
    "attention_varlen": ([*PACKED[:3], starts(L), starts(L)], {}),
    "attention_varlen_backward": ([PACKED[3], *PACKED[:3], PACKED[3], LSE[0], starts(L), starts(L)], {"deterministic": True}),
    "cross_entropy": ([floats(4, 32), np.arange(4)], {}),
    "cross_entropy_backward": ([np.float32(1).reshape(()), floats(4, 32), np.arange(4), floats(4)], {}),
    "cumsum": ([floats(4, 32)], {"reverse": True}),
    "dropout": ([floats(4, 32)], {"p": 0.5, "seed": 3}),
    "dropout_backward": ([floats(4, 32)], {"p": 0.5, "seed": 3}),
    "embedding": ([floats(8, 32), np.arange(4)], {}),
    "embedding_backward": ([floats(4, 32), np.arange(4)], {"rows": 8}),
    "gelu": ([floats(4, 32)], {"approximate": "tanh"}),
    "gelu_backward": ([*ROWS], {}),
    "gemm": ([floats(32, 16), floats(16, 32)], {}),
    "grouped_gemm": ([floats(8, 16), floats(2, 16, 16), np.array([3, 8], np.int32)], {}),
    "histogram": ([np.arange(8)], {"bins": 8}),
    "l2_norm": ([floats(4, 32)], {}),
    "l2_norm_backward": ([*ROWS], {}),
    "layer_norm": ([floats(4, 32), floats(32), floats(32)], {}),
    "layer_norm_backward": ([*ROWS, floats(32)], {}),
    "log_softmax": ([floats(4, 32)], {}),
    "log_softmax_backward": ([*ROWS], {}),
    "rms_norm": ([floats(4, 32), floats(32)], {"eps": 1e-3}),
    "rms_norm_backward": ([*ROWS, floats(32)], {}),
    "rope": ([floats(4, 2, 8), floats(4, 4), floats(4, 4)], {}),
    "rope_backward": ([floats(4, 2, 8), floats(4, 4), floats(4, 4)], {}),
    "silu": ([floats(4, 32)], {}),
    "silu_backward": ([*ROWS], {}),
    "softmax": ([floats(4, 32)], {}),
    "softmax_backward": ([*ROWS], {}),
    "swiglu": ([*ROWS], {}),
    "swiglu_backward": ([*ROWS, floats(4, 32)], {}),
    "topk": ([floats(4, 32)], {"k": 4}),
    "transpose": ([floats(4, 32)], {}),
}
# Those of a group of devices, which have tests of their own.
COLLECTIVE = {
    "AllGatherWorkspace",
    "AllReduceWorkspace",
    "ReduceScatterWorkspace",
    "all_gather_matmul",
    "all_reduce",
    "matmul_reduce_scatter",
}
# They fill memory, or chain other ops.
NOT_RECALLED = {"attention_varlen_backward", "embedding_backward", "histogram"}


def test_every_function_is_tried():
    assert set(CASES) == set(kernels.__all__) - {"epilogues", *COLLECTIVE}


def tensors_of(arrays, offset=0):
    """Tensors in new memory, whose first element is so many elements into it."""
    tensors = []
    for array in arrays:
        memory = api.zeros(array.size + offset, array.dtype).sync()
        view = memory[offset:].reshape(array.shape)
        api.memcpy(view, api.from_host(array).sync()).sync()
        tensors.append(view)
    return tensors


def on_host(result):
    return [t.numpy() for t in (result if type(result) is tuple else (result,))]


def without_recall(monkeypatch, call):
    with monkeypatch.context() as patch:
        patch.setattr(Recall, "op", lambda *_: None)
        op = call()
        assert not isinstance(op, Recalled)
        return on_host(op.sync())


def equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_function(device, monkeypatch, name):
    arrays, options = CASES[name]
    function = getattr(kernels, name)
    others = [R.standard_normal(a.shape).astype(a.dtype) if a.dtype == np.float32 else a for a in arrays]
    for offset in (0, 1):  # aligned otherwise, it is decided anew

        def run(arrays, offset=offset):
            return function(*tensors_of(arrays, offset), **options)

        expected = [without_recall(monkeypatch, lambda a=a: run(a)) for a in (arrays, others)]
        recalled = []
        for turn in range(4):
            op = run(others if turn == 3 else arrays)
            recalled.append(isinstance(op, Recalled))
            equal(on_host(op.sync()), expected[turn == 3])
        assert recalled == [False, False, *[name not in NOT_RECALLED] * 2]


@pytest.mark.skipif(FAST_PATH.key is None, reason="tilekit was installed without a C compiler")
def test_the_compiled_part_says_the_same(device):
    x, y, z = tensors_of([ROWS[0], floats(3), floats(4, 4)])
    calls = [
        ((x,), {}),
        ((x, y), {"out": z}),
        ((x, None, 1, True, 2.5, "tanh"), {"dtype": tk.float32, "f": tensors_of, "kind": np.float32}),
        ((), {"out": x, "k": 4}),
        ((x, x), {}),
        ((y, x, x[1], y), {"out": x[2]}),
        ((x, (y, None, x[1])), {"operands": (z,), "tile": (64, 64, 32)}),
        ((x, y, None, x[1]), {"operands": (z, 64), "tile": (64, 32)}),
    ]
    for args, kwargs in calls:
        lists = [], []
        key = FAST_PATH.key(min, args, kwargs, _recall._PLAIN, lists[0])
        assert key == _recall._key(min, args, kwargs, lists[1])
        assert hash(key) == hash(_recall._key(min, args, kwargs, []))
        assert all(one is other for one, other in zip(*lists, strict=True))
    assert len({FAST_PATH.key(min, args, kwargs, _recall._PLAIN, []) for args, kwargs in calls}) == len(calls)
    alike = [((x, 1), {}), ((x, True), {}), ((x, 1.0), {}), ((x,), {"a": 1}), ((x,), {"b": 1}), ((1, x), {}), ((x, None), {})]
    assert len({FAST_PATH.key(min, args, kwargs, _recall._PLAIN, []) for args, kwargs in alike}) == len(alike)
    unusual = [
        x.partition((1, 4)),
        api.meta(3),
        0.0,
        -0.0,
        ((1, 2), 3),
        [1],
        np.float32(1),
        api.zeros(3),
        x.reinterpret(tk.int32),
    ]
    for value in unusual:
        if isinstance(value, tk.DeviceOp):
            value.consumed()
        assert FAST_PATH.key(min, (x, value), {}, _recall._PLAIN, []) is None
    assert FAST_PATH.key(min, (x, *range(40)), {}, _recall._PLAIN, []) is None
    with pytest.raises(TypeError, match="expected a function, a tuple"):
        FAST_PATH.key(min, [x], {}, _recall._PLAIN, [])


def recalled(build, runs=3):
    """The last of so many ops, the others run before."""
    for _ in range(runs - 1):
        build().sync()
    return build()


def test_results_go_where_they_are_wanted(device):
    x, outs = tensors_of([ROWS[0]])[0], tensors_of([ROWS[1]] * 4)
    for out in outs:
        op = kernels.softmax(x, out=out)
        assert op.sync() is out
        np.testing.assert_array_equal(out.numpy(), outs[0].numpy())
    assert isinstance(op, Recalled)


def test_methods_of_the_result_are_those_of_the_op(device):
    x = tensors_of([ROWS[0]])[0]
    for _ in range(4):
        op = kernels.softmax(x)
        tiles = op.partition((1, 4)).sync()
        np.testing.assert_array_equal(kernels.softmax(x).to_host().sync(), tiles.unpartition().numpy())
    assert isinstance(op, Recalled)


def test_no_attribute_hides_a_method():
    methods = {name for base in Recalled.__mro__[1:] for name, value in vars(base).items() if callable(value)}
    assert not methods & set(Recalled.__slots__)


def test_in_place(device):
    for _ in range(4):
        x, w, other = tensors_of([ROWS[0], R.standard_normal(32).astype(np.float32), ROWS[0]])
        op = kernels.rms_norm(x, w, out=x)
        assert op.sync() is x
        apart = kernels.rms_norm(other, w, out=tensors_of([ROWS[0]])[0])
        np.testing.assert_array_equal(x.numpy(), apart.sync().numpy())
    assert isinstance(op, Recalled)
    assert isinstance(apart, Recalled)


def test_an_overlap_is_refused_as_ever(device):
    memory = api.zeros(256).sync()
    x = tensors_of([ROWS[0]])[0]
    recalled(lambda: kernels.softmax(x, out=tensors_of([ROWS[0]])[0])).sync()
    for _ in range(3):
        with pytest.raises(ValueError, match="overlap"):
            kernels.softmax(memory[:128].reshape(4, 32), out=memory[4:132].reshape(4, 32)).sync()


def test_an_overlap_of_memory_of_others_is_refused_when_it_is_recalled(cpu):
    arrays = floats(8, 32), floats(8, 32)

    def rows(array, first):
        return tk.from_pointer(array[first].ctypes.data, (4, 32), tk.float32, nbytes=512)

    for _ in range(3):
        kernels.softmax(rows(arrays[0], 0), out=rows(arrays[1], 0)).sync()
    op = kernels.softmax(rows(arrays[0], 0), out=rows(arrays[0], 1))
    assert isinstance(op, Recalled)
    with pytest.raises(ValueError, match="arguments y and x overlap in memory") as info:
        op.sync()
    assert "test_recall.py" in info.value.__notes__[-1]
    assert "in softmax(kernel _softmax), built at" in info.value.__notes__[-1]


def test_views_of_one_memory_are_told_by_how_far_they_are_apart(device, monkeypatch):
    memory = tensors_of([floats(4, B, H, L, D)])[0]
    for order in ((0, 1, 2), (0, 1, 2), (0, 1, 2), (1, 2, 3), (0, 2, 1), (2, 1, 0), (0, 2, 1), (0, 2, 1)):
        q, k, v = (memory[at] for at in order)
        expected = without_recall(monkeypatch, lambda: kernels.attention(q, k, v))  # noqa: B023
        op = kernels.attention(q, k, v)
        equal(on_host(op.sync()), expected)
    assert isinstance(op, Recalled)


def test_numbers_are_told_apart(device, monkeypatch):
    x, w = tensors_of([ROWS[0] * 0.01, floats(32)])
    for eps in (1e-6, 1.0, 1, 0.0, -0.0, 0.0, 1.0):
        expected = without_recall(monkeypatch, lambda: kernels.rms_norm(x, w, eps))  # noqa: B023
        for _ in range(3):
            op = kernels.rms_norm(x, w, eps)
            equal(on_host(op.sync()), expected)
        assert isinstance(op, Recalled)
        assert isinstance(kernels.rms_norm(x, w, eps=eps).sync(), tk.Tensor)  # by its name
    drawn = {seed: recalled(lambda: kernels.dropout(x, 0.5, seed)).sync().numpy() for seed in range(3)}  # noqa: B023
    assert not np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[1], drawn[2])


def test_ops_and_arrays_as_arguments(device):
    expected = kernels.softmax(tensors_of([ROWS[0]])[0]).sync().numpy()
    for _ in range(4):
        op = kernels.softmax(api.from_host(ROWS[0]))
        assert op.shape == (4, 32)
        np.testing.assert_array_equal(op.sync().numpy(), expected)
        np.testing.assert_array_equal(kernels.softmax(kernels.softmax(api.from_host(ROWS[0]))).sync().shape, (4, 32))
        unknown = api.from_host(ROWS[0]).then(lambda t: tk.value(t))
        np.testing.assert_array_equal(kernels.softmax(unknown).sync().numpy(), expected)
    if device.kind == "cpu":
        for _ in range(4):
            np.testing.assert_array_equal(kernels.softmax(ROWS[0]).sync().numpy(), expected)


def test_mistakes_stay_mistakes(device):
    x = tensors_of([ROWS[0]])[0]
    recalled(lambda: kernels.softmax(x)).sync()
    for _ in range(3):
        with pytest.raises(TypeError, match="softmax: x is a tensor"):
            kernels.softmax(3.0)
        with pytest.raises(TypeError, match="unexpected keyword"):
            kernels.softmax(x, axis=0)
        with pytest.raises(ValueError, match="weight has shape"):
            kernels.rms_norm(x, x)


def test_tensors_without_memory(device):
    x = tensors_of([ROWS[0]])[0]
    recalled(lambda: kernels.softmax(x)).sync()
    for _ in range(3):
        op = kernels.softmax(api.meta((4, 32)))
        assert not isinstance(op, Recalled)
        with pytest.raises(TypeError, match="meta tensor"):
            op.sync()


def test_an_op_that_is_recalled_is_as_any_other(device):
    x, w, out = tensors_of([ROWS[0], floats(32), ROWS[0]])
    first = kernels.rms_norm(x, w, out=out)
    seen = (
        repr(first),
        first.label,
        first.shape,
        first.dtype,
        first.device,
        first.mermaid(),
        [part.label for part in first.parts()],
    )
    expected = first.sync().numpy()
    op = recalled(lambda: kernels.rms_norm(x, w, out=out))
    assert isinstance(op, Recalled)
    assert (repr(op), op.label, op.shape, op.dtype, op.device, op.mermaid(), [part.label for part in op.parts()]) == seen
    assert "test_recall.py" in op.where()
    if device.kind == "cpu":
        assert "rms_norm" in str(op.parts()[0].explain("cpu"))
    assert op.sync() is out
    with pytest.raises(ValueError, match="rms_norm.*has already run"):
        op.sync()
    with pytest.raises(ValueError, match="rms_norm.*has already run"):
        op.sync_on(device.stream())

    def build():
        return kernels.rms_norm(x, w, out=out)

    stream = device.stream()
    assert build().sync_on(stream) is out
    assert build().async_on(stream).result() is out
    named = build().named("mine")
    assert named.label == "mine"
    assert named.sync() is out

    async def awaited():
        return await build(), await kernels.softmax(x)

    kernels.softmax(x).sync(), kernels.softmax(x).sync()
    assert asyncio.run(awaited())[0] is out
    shared = build().shared()
    assert shared.sync() is shared.sync() is out
    assert tk.zip(build(), build()).sync() == (out, out)
    chained = build().then(lambda y: kernels.softmax(y)).then(lambda y: kernels.softmax(y)).sync()
    assert chained.shape == (4, 32)
    graph = build().graph()
    api.memcpy(out, x).sync()
    graph.launch().sync()
    np.testing.assert_array_equal(out.numpy(), expected)
    prepared = build().prepare()
    api.memcpy(out, x).sync()
    prepared.run(stream)
    stream.synchronize()
    np.testing.assert_array_equal(out.numpy(), expected)


def test_graphs_may_come_first(device):
    """What is written down and not run is nothing to go by."""
    x = tensors_of([floats(2, 32)])[0]
    expected = None
    for _ in range(4):
        graph = kernels.softmax(x).graph()
        graph.launch().sync()
        expected = graph.output.numpy() if expected is None else expected
        np.testing.assert_array_equal(graph.output.numpy(), expected)
    np.testing.assert_array_equal(recalled(lambda: kernels.softmax(x)).sync().numpy(), expected)


def test_slots_and_what_is_graphed(device):
    first, second, out = tensors_of([floats(2, 3, 16), floats(2, 3, 16), floats(2, 3, 16)])
    expected = recalled(lambda: kernels.softmax(first)).sync().numpy(), kernels.softmax(second).sync().numpy()
    recalled(lambda: kernels.softmax(first, out=out)).sync()
    op = kernels.softmax(tk.slot("x", first), out=out)
    assert isinstance(op, Recalled)
    graph = op.graph()
    for x, wanted in zip((first, second), expected, strict=True):
        graph.bind(x=x).launch().sync()
        np.testing.assert_array_equal(out.numpy(), wanted)
    graphed = tk.graphed(lambda x: kernels.softmax(x).then(kernels.silu))
    for x in (first, second, first):
        np.testing.assert_array_equal(graphed(x).sync().numpy(), kernels.silu(kernels.softmax(x)).sync().numpy())


def test_borrowed_memory_is_refused_as_ever(cpu):
    array = floats(4, 32)
    bare, out = tk.from_pointer(array.ctypes.data, array.shape, tk.float32, nbytes=array.nbytes), tensors_of([array])[0]
    for _ in range(4):
        op = kernels.softmax(bare, out=out)
        with pytest.raises(ValueError, match="softmax.* uses borrowed memory"):
            op.async_on(cpu.stream())
        with pytest.raises(ValueError, match="softmax.* uses borrowed memory"):
            op.run()
        assert op.sync() is out
    assert isinstance(op, Recalled)


def ways_to_run(device):
    async def awaited(op):
        return await op

    stream = device.stream()
    return [
        lambda op: op.sync(),
        lambda op: op.sync_on(stream),
        lambda op: op.async_on(stream).result(),
        lambda op: asyncio.run(awaited(op)),
        lambda op: tk.zip(op, api.zeros(1)).sync()[0],
    ]


def test_new_memory_may_be_aligned_otherwise(device):
    x = tensors_of([ROWS[0]])[0]
    expected = recalled(lambda: kernels.softmax(x)).sync().numpy()
    ((key, recipe),) = [item for item in Recall.known.items() if type(item[1]) is Recipe]
    other = recipe.new[0]._replace(traits=x[1:].traits)
    Recall.known[key] = recipe._replace(new=(other,))
    for way in ways_to_run(device):
        op = kernels.softmax(x)
        assert isinstance(op, Recalled)
        np.testing.assert_array_equal(way(op).numpy(), expected)
        with pytest.raises(ValueError, match="has already run"):
            op.sync()


@pytest.mark.parametrize("name", ["softmax", "layer_norm_backward"])
def test_kernels_may_have_to_be_compiled_anew(device, monkeypatch, name):
    arrays, options = CASES[name]
    tensors = tensors_of(arrays)
    expected = on_host(recalled(lambda: getattr(kernels, name)(*tensors, **options)).sync())
    ((_, recipe),) = [item for item in Recall.known.items() if type(item[1]) is Recipe]
    monkeypatch.setattr(Specialisation, "loaded", lambda *_: None)
    for way in ways_to_run(device):
        for launch in recipe.launches:
            launch.form.plans.clear()
            launch.form.last = None
        op = getattr(kernels, name)(*tensors, **options)
        assert isinstance(op, Recalled)
        equal(on_host(way(op)), expected)


def test_an_op_that_has_not_run_is_told_of(device):
    x = tensors_of([ROWS[0]])[0]
    op = recalled(lambda: kernels.softmax(x))
    with pytest.warns(tk.UnusedOpWarning, match="softmax"):
        del op
    op = recalled(lambda: kernels.softmax(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op.sync()
        del op


def test_other_devices(cpu, monkeypatch):
    import tilekit._runtime.device as module

    monkeypatch.setenv("TILEKIT_CPU_DEVICES", "3")
    monkeypatch.setattr(module, "_registry", module._Registry(lambda: Discovery(reason="none")))
    results = []
    for name in ("cpu:1", "cpu:2"):
        device = tk.Device(name)
        x = api.from_host(ROWS[0]).on(device).sync()
        op = recalled(lambda: kernels.softmax(x))  # noqa: B023
        assert isinstance(op, Recalled)
        assert op.device is device
        results.append(op.sync())
        assert results[-1].device is device
        for _ in range(2):
            op = kernels.softmax(x, out=results[-1])
            with pytest.raises(ValueError, match="cpu:0"):
                op.sync_on(cpu.stream())
            op.sync()
    np.testing.assert_array_equal(results[0].numpy(), results[1].numpy())


def test_functions_of_the_user_are_looked_at_again(device):
    a, b = tensors_of([floats(16, 16), floats(16, 16)])

    scope = {"tk": tk}
    _define(scope, "@tk.function\ndef factor(x):\n    return x * 2.0\n")
    _define(scope, "@tk.function\ndef scaled(x):\n    return factor(x)\n")
    plain, twice = kernels.gemm(a, b).sync().numpy(), None
    for _ in range(4):
        op = kernels.gemm(a, b, epilogue=scope["scaled"])
        twice = op.sync().numpy()
    assert isinstance(op, Recalled)
    np.testing.assert_allclose(twice, 2 * plain, rtol=1e-6)
    for times in (3, 5):
        _define(scope, f"@tk.function\ndef factor(x):\n    return x * {times}.0\n")
        for _ in range(3):
            found = kernels.gemm(a, b, epilogue=scope["scaled"]).sync().numpy()
            np.testing.assert_allclose(found, times * plain, rtol=1e-6)


_cells = 0


def _define(scope, text):
    """Run `text` as a notebook does, so that its lines are to be had."""
    global _cells
    _cells += 1
    name = f"<cell of test_recall {_cells}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), scope)


def test_only_so_much_is_kept(device, monkeypatch):
    monkeypatch.setattr(_recall, "_KEPT", 4)
    recall = Recall(kernels.softmax.__wrapped__, "softmax")
    xs = tensors_of([floats(1 + n, 8) for n in range(6)])

    def is_recalled(x):
        op = recall.op((x,), {})
        op.sync()
        return isinstance(op, Recalled)

    for x in xs[:4] * 2:
        assert not is_recalled(x)
    assert all(map(is_recalled, xs[:4]))
    for x in xs[4:]:  # the first of which moves all before
        assert [is_recalled(x) for _ in range(3)] == [False, False, True]
    assert is_recalled(xs[0])
    assert is_recalled(xs[3])
    assert (len(Recall.known), len(Recall.before)) == (4, 4)
    assert [is_recalled(x) for x in tensors_of([floats(9, 8)]) * 3] == [False, False, True]  # and what was moved goes
    assert [is_recalled(xs[at]) for at in (0, 3, 4, 5)] == [True] * 4
    assert not is_recalled(xs[1])


def test_what_is_kept_holds_no_memory(device):
    tensors = tensors_of([floats(3, 8), floats(3, 8)])
    assert isinstance(recalled(lambda: kernels.softmax(tensors[0], out=tensors[1])).sync(), tk.Tensor)
    held = [weakref.ref(tensor.storage) for tensor in tensors]
    device.synchronize()
    tensors.clear()
    gc.collect()
    assert [ref() for ref in held] == [None, None]


def test_threads(device):
    xs = tensors_of([np.full((2 + n % 3, 16), n, np.float32) for n in range(8)])
    wrong = []

    def work():
        for turn in range(30):
            x = xs[turn % 8]
            y = kernels.softmax(x).sync().numpy()
            if y.shape != x.shape or not np.allclose(y, 1 / 16):
                wrong.append(turn)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
