"""Attention of packed sequences against NumPy in float64, sequence by sequence; and what is compiled of it."""

from __future__ import annotations

import re
from collections import Counter

import ml_dtypes
import numpy as np
import pytest
from attending import TOLERANCE, compiled, gradients, right
from hazards import multiplying

import tilekit as tk
from tilekit import api, kernels
from tilekit._driver.cpu import driver as cpu
from tilekit.kernels._attention import varlen_backward
from tilekit.kernels._attention.backward import _Tile, _Tiling

f = api.from_host
BF16 = ml_dtypes.bfloat16
# Sequences that are empty, short, on the tiles' borders, and across several.
MIXED = ((5, 0, 300, 1, 128, 130, 0, 84), (5, 7, 200, 3, 128, 400, 33, 0))


def packed(lengths, heads=(2, 2), size=64, dtype=np.float32, seed=0):
    """Queries, keys and values of sequences of these lengths, and where each begins."""
    random = np.random.default_rng(seed)
    starts = [np.concatenate([[0], np.cumsum(each)]).astype(np.int32) for each in lengths]
    (queries, keys), (h, hk) = (s[-1] for s in starts), heads
    shapes = ((queries, h, size), (keys, hk, size), (keys, hk, size))
    return [random.standard_normal(shape).astype(dtype) for shape in shapes], starts


def alone(x, starts, b):
    """A sequence as `attention` takes it."""
    return x[starts[b] : starts[b + 1]].swapaxes(0, 1)[None]


def wanted_of(q, k, v, starts, **options):
    """The result and the logarithms of the sums; zeros and -inf where no sequence is."""
    y, lse = np.zeros(q.shape), np.full(q.shape[1::-1], -np.inf)
    for b in range(len(starts[0]) - 1):
        mine = slice(starts[0][b], starts[0][b + 1])
        one = alone(q, starts[0], b), alone(k, starts[1], b), alone(v, starts[1], b)
        if one[0].size and one[1].size:
            made, sums = right(*one, **options)
            y[mine], lse[:, mine] = made[0].swapaxes(0, 1), sums[0]
    return y, lse


def check(operands, starts, **options):
    q = operands[0]
    out = f(np.full(q.shape, np.nan).astype(q.dtype)).sync()
    given = (*(f(x) for x in operands), *(f(s) for s in starts))
    y, lse = kernels.attention_varlen(*given, return_lse=True, out=out, **options).sync()
    assert y is out
    agrees(y.to_host().sync(), lse.to_host().sync(), *wanted_of(*operands, starts, **options))


def agrees(y, lse, wanted, sums):
    blind = np.isneginf(sums)
    # Scores are rounded to float32 before they become exponents.
    tolerance = TOLERANCE[y.dtype] + 2e-7 * np.abs(sums[~blind]).max()
    assert np.abs(y.astype(np.float64) - wanted).max() <= tolerance * np.abs(wanted).max()
    assert (y[blind.T] == 0).all()
    assert np.array_equal(np.isneginf(lse), blind)
    assert np.abs(lse[~blind] - sums[~blind]).max() <= 1e-5 * (1 + np.abs(sums[~blind]).max())


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 40}, {"window": 200, "causal": True}], ids=str)
def test_mixed_lengths(device, options, dtype):
    """The last query of each sequence stands at its last key; some see none."""
    check(*packed(MIXED, dtype=dtype), **options)


@pytest.mark.parametrize("size", [1, 32, 40, 64, 80, 96, 128, 192, 256])
def test_head_sizes(device, size):
    check(*packed(((70, 150, 9), (90, 150, 30)), size=size, dtype=np.float16), causal=True)


@pytest.mark.parametrize("heads", [(4, 2), (5, 1), (3, 3)])
def test_grouped_queries(device, heads):
    check(*packed(((70, 0, 150), (90, 20, 130)), heads, dtype=BF16), causal=True, scale=0.3)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 40])
def test_any_number_of_sequences(device, count):
    """Many of which share a tile; each is found by bisection."""
    lengths = np.random.default_rng(count).integers(0, 9, (2, count))
    check(*packed((lengths[0] + 1, lengths[1])), causal=True)


def test_large_scores(device):
    operands, starts = packed(((130, 20), (300, 5)))
    check([30 * operands[0], 30 * operands[1], operands[2]], starts)


def test_what_belongs_to_no_sequence(device):
    """Queries before the first and behind the last get zeros; keys there are not seen, whatever they hold."""
    operands, starts = packed(((40, 130, 60, 150), (70, 100, 200, 90)), dtype=np.float16)
    cut = [s[1:4] for s in starts]
    for x, s in zip(operands, (cut[0], cut[1], cut[1]), strict=True):
        x[: s[0]], x[s[-1] :] = np.nan, np.inf
    check(operands, cut, causal=True)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_sequence_does_not_spoil_its_neighbours(device, bad, dtype):
    operands, starts = packed(((40, 130, 60), (70, 100, 200)), dtype=dtype)
    wanted, sums = wanted_of(*operands, starts)
    operands[1][70:170, 0], operands[2][70:170] = bad, bad
    y, lse = kernels.attention_varlen(*map(f, operands), *map(f, starts), return_lse=True).sync()
    y, lse = y.to_host().sync(), lse.to_host().sync()
    others = np.r_[0:40, 170:230]
    agrees(y[others], lse[:, others], wanted[others], sums[:, others])
    assert np.isnan(y[40:170]).any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("starts", [[0, 90, 30, 100], [-50, 20, 2**31 - 1, 100], [2**31 - 1, -(2**31), 70, -5]], ids=str)
def test_starts_that_make_no_sense_stay_inside(device, starts, dtype):
    """What queries get is not said, but nothing around the tensors is read or written."""
    room = [np.full((300, 2, 64), np.nan, dtype) for _ in range(3)]
    for x in room:
        x[100:200] = 1
    out = f(np.full((300, 2, 64), 7, dtype)).sync()
    tensors = [f(x).sync()[100:200] for x in room]
    table = f(np.array(starts, np.int32)).sync()
    try:
        kernels.attention_varlen(*tensors, table, table, out=out[100:200], causal=True).sync()
    except tk.DeviceError as error:
        assert (device.kind, "both write o" in str(error)) == ("cpu", True)  # noqa: PT017
    made = out.to_host().sync()
    assert (made[:100] == 7).all()
    assert (made[200:] == 7).all()
    assert not np.isnan(made).any()


def test_strides(device):
    """Heads may be the first dimension in memory."""
    operands, starts = packed(((50, 90), (120, 33)), dtype=np.float16)
    views = [f(np.ascontiguousarray(x.swapaxes(0, 1))).sync().permute(1, 0, 2) for x in operands]
    found = kernels.attention_varlen(*views, *map(f, starts)).to_host().sync()
    wanted, _ = wanted_of(*operands, starts)
    assert np.abs(found - wanted).max() < 2e-3 * np.abs(wanted).max()


def test_the_same_as_attention(device):
    """Of sequences of one length."""
    operands, starts = packed(((128, 128), (128, 128)))
    found = kernels.attention_varlen(*map(f, operands), *map(f, starts), causal=True).to_host().sync()
    q, k, v = (f(np.ascontiguousarray(x.reshape(2, 128, 2, 64).swapaxes(1, 2))) for x in operands)
    same = kernels.attention(q, k, v, causal=True).to_host().sync()
    assert np.abs(found.reshape(2, 128, 2, 64).swapaxes(1, 2) - same).max() < 1e-5


def test_nothing_to_do(device):
    starts = api.zeros(3, tk.int32).sync()
    none, some = api.zeros((0, 2, 64)).sync(), api.ones((5, 2, 64)).sync()
    assert kernels.attention_varlen(none, some, some, starts, starts).sync().shape == (0, 2, 64)
    y, lse = kernels.attention_varlen(some, none, none, starts, starts, return_lse=True).sync()
    assert (y.to_host().sync() == 0).all()
    assert np.isneginf(lse.to_host().sync()).all()
    y = kernels.attention_varlen(some, some, some, starts[:1], starts[:1]).sync()
    assert (y.to_host().sync() == 0).all(), "no sequence at all"


# -------------------------------------------------------------------------------------------------------------------- gradients


def gradients_of(g, operands, starts, **options):
    made = [np.zeros(x.shape) for x in operands]
    for b in range(len(starts[0]) - 1):
        of = (starts[0], starts[1], starts[1])
        one = [alone(x, s, b) for x, s in zip((g, *operands), (starts[0], *of), strict=True)]
        if one[0].size and one[2].size:
            for into, s, found in zip(made, of, gradients(*one, **options), strict=True):
                into[s[b] : s[b + 1]] = found[0].swapaxes(0, 1)
    return made


def backward(g, operands, starts, deterministic=False, **options):
    given = [*(f(x).sync() for x in operands), *(f(s).sync() for s in starts)]
    y, lse = kernels.attention_varlen(*given, return_lse=True, **options).sync()
    options["deterministic"] = deterministic
    made = kernels.attention_varlen_backward(f(g), *given[:3], y, lse, *given[3:], **options).sync()
    return [x.to_host().sync() for x in made]


def check_gradients(found, wanted):
    for one, right_one in zip(found, wanted, strict=True):
        tolerance = {"float16": 3e-3, "bfloat16": 2e-2, "float32": 4e-6}[one.dtype.name]
        assert np.abs(one.astype(np.float64) - right_one).max() <= tolerance * max(np.abs(right_one).max(), 1.0)


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(
    "options", [{}, {"causal": True, "scale": 0.2}, {"window": 40}, {"window": 200, "causal": True}], ids=str
)
def test_gradients(device, options, dtype):
    lengths = ((5, 0, 150, 1, 84), (5, 7, 100, 3, 130))
    operands, starts = packed(lengths, (2, 1), dtype=dtype)
    g = packed(lengths, (2, 1), dtype=dtype, seed=1)[0][0]
    wanted = gradients_of(g, operands, starts, **options)
    for deterministic in (False, True):
        made = backward(g, operands, starts, deterministic, **options)
        assert [x.dtype for x in made] == [np.dtype(dtype)] * 3
        check_gradients(made, wanted)


@pytest.mark.parametrize("size", [40, 80, 96, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_head_sizes(device, causal, size):
    """Of sequences with several tiles of queries and of keys, and of some with parts of one."""
    lengths = ((70, 390, 9, 256), (90, 260, 30, 300))
    operands, starts = packed(lengths, size=size, dtype=np.float16)
    g = packed(lengths, size=size, dtype=np.float16, seed=1)[0][0]
    check_gradients(backward(g, operands, starts, causal=causal), gradients_of(g, operands, starts, causal=causal))


def test_gradients_by_keys_and_by_values_in_two_launches(cpu, monkeypatch):
    """As where warpgroups multiply and heads have 256 elements."""
    tile = _Tile(32, 32, 2, 1)
    tiling = _Tiling(256, tile, tile)
    monkeypatch.setattr(varlen_backward, "tiling_of", lambda *_, **__: tiling)
    lengths = ((70, 90, 9), (90, 60, 30))
    operands, starts = packed(lengths, size=256, dtype=np.float32)
    g = packed(lengths, size=256, dtype=np.float32, seed=1)[0][0]
    check_gradients(backward(g, operands, starts, causal=True), gradients_of(g, operands, starts, causal=True))


def test_gradients_of_a_window_within_a_tile(device):
    """Of the queries that a tile of keys meets, those of both ends are cut."""
    operands, starts = packed(((700, 60), (700, 300)), (2, 1), dtype=BF16)
    g = packed(((700, 60), (700, 300)), (2, 1), dtype=BF16, seed=1)[0][0]
    for window in (100, 300):
        check_gradients(backward(g, operands, starts, window=window), gradients_of(g, operands, starts, window=window))


@pytest.mark.parametrize("which", [(0, 1, 2, 3), (0,), (1,), (2,), (3,)])
def test_gradients_are_not_spoiled_by_neighbours(device, which):
    """Wherever these have what is infinite or no number."""
    operands, starts = packed(((40, 130, 60), (70, 100, 200)), dtype=np.float16)
    g = np.ascontiguousarray(operands[0][::-1])
    wanted = gradients_of(g, operands, starts)
    bad = [
        (operands[0], np.s_[40:170, 0, 3], np.nan), (g, np.s_[40:170, :, 5], np.inf),
        (operands[1], np.s_[70:170, 1], np.nan), (operands[2], np.s_[70:170, :, 7], np.inf),
    ]  # fmt: skip
    for one in which:
        x, place, value = bad[one]
        x[place] = value
    made = backward(g, operands, starts)
    assert np.isnan(made[0][40:170]).any()
    for x, right_one, (first, last) in zip(made, wanted, ((40, 170), (70, 170), (70, 170)), strict=True):
        check_gradients([np.delete(x, np.s_[first:last], 0)], [np.delete(right_one, np.s_[first:last], 0)])


def test_gradients_beside_very_large_numbers(device):
    """Products with those of a neighbour are infinite."""
    operands, starts = packed(((40, 130, 60), (70, 100, 200)), dtype=BF16)
    g = np.ascontiguousarray(operands[0][::-1])
    wanted = gradients_of(g, operands, starts)
    operands[0][40:170], g[40:170], operands[1][70:170], operands[2][70:170] = 3e38, -3e38, 3e38, 3e38
    with np.errstate(all="ignore"):
        made = backward(g, operands, starts)
    for x, right_one, (first, last) in zip(made, wanted, ((40, 170), (70, 170), (70, 170)), strict=True):
        check_gradients([np.delete(x, np.s_[first:last], 0)], [np.delete(right_one, np.s_[first:last], 0)])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_gradients_of_what_belongs_to_no_sequence(device, dtype):
    """Zeros, whatever stands there."""
    operands, starts = packed(((40, 130, 60, 150), (70, 100, 200, 90)), dtype=dtype)
    cut = [s[1:4] for s in starts]
    wanted = gradients_of(operands[0], operands, cut)
    check_gradients(backward(operands[0], operands, cut), wanted)
    for x, s in zip(operands, (cut[0], cut[1], cut[1]), strict=True):
        x[: s[0]], x[s[-1] :] = np.nan, np.inf
    check_gradients(backward(operands[0], operands, cut), wanted)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("starts", [[0, 90, 30, 100], [-50, 20, 2**31 - 1, 100], [2**31 - 1, -(2**31), 70, -5]], ids=str)
def test_gradients_of_starts_that_make_no_sense_stay_inside(device, starts, deterministic):
    """Nothing around the tensors is read."""
    room = [np.full((300, 2, 64), np.nan, np.float16) for _ in range(4)]
    for x in room:
        x[100:200] = 1
    tensors = [f(x).sync()[100:200] for x in room]
    table, lse = f(np.array(starts, np.int32)).sync(), api.zeros((2, 100)).sync()
    try:
        made = kernels.attention_varlen_backward(*tensors, tensors[0], lse, table, table, deterministic=deterministic).sync()
    except tk.DeviceError as error:
        assert (device.kind, "both write d" in str(error)) == ("cpu", True)  # noqa: PT017
    else:
        assert not any(np.isnan(x.to_host().sync()).any() for x in made)


@pytest.mark.parametrize("size", [64, 128])
def test_gradients_are_the_same_each_time(device, size):
    operands, starts = packed(((300, 700), (400, 600)), size=size, dtype=BF16)
    runs = [backward(operands[0], operands, starts, deterministic=True, causal=True) for _ in range(2)]
    first, second = ([x.tobytes() for x in run] for run in runs)
    assert first == second


def test_gradients_of_nothing(device):
    starts = api.zeros(3, tk.int32).sync()
    q, k = api.ones((5, 2, 64)).sync(), api.zeros((0, 2, 64)).sync()
    dq, dk, dv = kernels.attention_varlen_backward(q, q, k, k, q, api.zeros((2, 5)), starts, starts).sync()
    assert (dq.to_host().sync() == 0).all()
    assert dk.shape == dv.shape == (0, 2, 64)


# --------------------------------------------------------------------------------------------------------------------- mistakes


def x(*shape, dtype=tk.float16):
    return api.meta(shape, dtype)


def call(q=None, k=None, starts=None, key_starts=None, **options):
    q, k = x(90, 4, 64) if q is None else q, x(80, 2, 64) if k is None else k
    starts = x(4, dtype=tk.int32) if starts is None else starts
    return kernels.attention_varlen(q, k, k, starts, starts if key_starts is None else key_starts, **options)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: call(x(1, 90, 4, 64)), ValueError, r"q has shape \(1, 90, 4, 64\); it takes 3 dimensions: length, heads, head"),
        (lambda: call(x(90, 3, 64)), ValueError, "3 heads, k 2; the former must be a multiple"),
        (lambda: call(k=x(80, 2, 32)), ValueError, r"k \(80, 2, 32\); the head size must be the same"),
        (lambda: call(x(90, 4, 512), x(90, 4, 512)), ValueError, "head size is 512; it is from 1 to 256"),
        (lambda: call(k=x(80, 2, 64, dtype=tk.float32)), TypeError, "q holds float16, k float32"),
        (lambda: call(starts=x(4, dtype=tk.int64)), TypeError, r"cu_seqlens_q holds int64; it takes int32: .*astype\(tk.int32\)"),
        (lambda: call(key_starts=x(4, dtype=tk.float32)), TypeError, "cu_seqlens_k holds float32; it takes int32"),
        (lambda: call(starts=x(4, 1, dtype=tk.int32)), ValueError, r"cu_seqlens_q has shape \(4, 1\); for B sequences"),
        (lambda: call(starts=x(0, dtype=tk.int32)), ValueError, r"cu_seqlens_q has shape \(0,\); for B sequences"),
        (
            lambda: call(key_starts=x(5, dtype=tk.int32)),
            ValueError, r"cu_seqlens_q has shape \(4,\), cu_seqlens_k \(5,\); they must have equally many sequences",
        ),
        (lambda: call(starts=[0, 1, 2, 3]), TypeError, "cu_seqlens_q is a tensor or an op .*, not list"),
        (lambda: call(window=0), ValueError, "attention_varlen: window is from 1 on, not 0"),
        (lambda: call(precision="fast"), ValueError, 'attention_varlen: precision is "ieee" or "tf32"'),
        (lambda: call(out=x(90, 4, 32)), ValueError, "out is float16 of shape"),
        (
            lambda: kernels.attention_varlen_backward(*[x(90, 4, 64)] * 5, x(90, 4), *[x(4, dtype=tk.int32)] * 2),
            ValueError, r"lse is float16 of shape \(90, 4\); for queries of .* float32 of shape \(4, 90\): .*return_lse=True",
        ),
        (
            lambda: kernels.attention_varlen_backward(
                *[x(90, 4, 64)] * 5, x(4, 90, dtype=tk.float32), *[x(4, dtype=tk.int32)] * 2, deterministic=1
            ),
            TypeError, "attention_varlen_backward: deterministic is True or False, not 1",
        ),
    ],
)  # fmt: skip
def test_errors(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_starts_on_another_device(device):
    one, other = (tk.Device.of_driver(driver) for driver in cpu.discover(2))
    q, starts = api.zeros((4, 1, 64)).on(one).sync(), api.zeros(2, tk.int32).on(other).sync()
    with pytest.raises(ValueError, match=r"cu_seqlens_q is on cpu:1, q on cpu:0; copy it with \.to\(q\.device\)"):
        kernels.attention_varlen(q, q, q, starts, starts)


# --------------------------------------------------------------------------------------------------------------- what is compiled


def given(size, dtype=tk.bfloat16):
    starts = api.meta((17,), tk.int32)
    return x(36000, 32, size, dtype=dtype), *[x(36000, 8, size, dtype=dtype)] * 2, starts, starts


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window": 4096}], ids=str)
@pytest.mark.parametrize("size", [64, 128, 256])
def test_products_by_warpgroups(size, options):
    """Tiles come by the TMA though their places are looked up. Scores are waited for with another product under way, in one loop
    over whole tiles and one over those that are cut, or two with a window; the former does nothing that `attention` does not."""
    kernel, lines = compiled(kernels.attention_varlen(*given(size), **options), "sm_90a")
    assert any("UTMALDG.3D" in line for line in lines)
    assert not any("HMMA" in line.replace("HGMMA", "") for line in lines)
    came = [n for n, line in enumerate(lines) if "DEPBAR.LE gsb0, 0x1" in line]
    ends = [next(n for n in range(begin, len(lines)) if re.search(r"\bBRA\b", lines[n])) for begin in came]
    turns = [Counter(re.findall(r"\b[A-Z]\w+", "\n".join(lines[n:end]))) for n, end in zip(came, ends, strict=True)]
    assert len(turns) == 2 + ("window" in options)
    *_, whole, cut = turns
    assert whole["MUFU"] == cut["MUFU"] > 0
    assert cut["FSEL"]
    assert cut["ISETP"] <= cut["FSEL"] * (1 + ("window" in options)) + 6, "with constants, one from each side"
    assert not any(whole[name] for name in ("FSEL", "LDL", "STL", "BAR", "LDS", "FENCE"))
    assert {store for line in lines for store in re.findall(r"STG[.\w]*", line)} == {"STG.E.128", "STG.E"}, "the latter for lse"
    assert kernel.registers == (96 if size == 64 else 168), "which are dealt out anew"
    assert kernel.local_bytes <= 8 * (size == 64 and "window" in options), "by toolkit 13.0, where others' values are infinite"


def launches(size, **options):
    """Names, and the launches of gradients."""
    q, k, _, starts, _ = given(size)
    op = kernels.attention_varlen_backward(q, q, k, k, q, api.meta((32, 36000), tk.float32), starts, starts, **options)
    op.consumed()
    return [(launch.kernel.name, launch) for launch in op.parts() if isinstance(launch, tk.KernelLaunch)]


@pytest.mark.parametrize(
    ("size", "options"),
    [(64, {"causal": True, "window": 4096}), (128, {}), (128, {"causal": True}), (256, {"causal": True})],
    ids=str,
)
def test_gradients_keep_nothing_of_their_loops_in_local_memory(size, options):
    found = launches(size, **options)
    of = [launch.arguments[-2:] for name, launch in found if name == "_backward_dkv"]
    assert of == ([(True, False), (False, True)] if size == 256 else [(True, True)]), "sums of 256 columns by keys or by values"
    for name, launch in found:
        kernel = launch.compile(target="sm_90a")
        assert kernel.local_bytes <= 32, name
        turns = multiplying(kernel.sass)
        assert not any(step.startswith(("LDL", "STL")) for turn in turns for step in turn), "nothing in loops that multiply"
        assert bool(turns) == ("HGMMA" in kernel.sass) == ("backward_" in name), name


def test_gradients_by_warpgroups():
    """Both kernels have their rings; over whole tiles goes a loop of its own, in which two products are under way."""
    found = dict(launches(128, causal=True, deterministic=True))
    for name, waits, loops in (("_backward_dkv", 4, 1), ("_backward_dq", 3, 2)):
        sass = found[name].compile(target="sm_90a").sass
        assert "UTMALDG.3D" in sass
        assert "HMMA" not in sass.replace("HGMMA", "")
        assert len(re.findall(r"HGMMA.*gsb0", sass)) == 2 * waits
        steps = re.findall(r"WARPGROUP\.(?:ARRIVE|DEPBAR\.LE gsb0, 0x.)", sass)
        order = "".join("A" if step.endswith("ARRIVE") else step[-1] for step in steps)
        assert order.count("AA1") == loops


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [64, 128])
def test_gradients_whose_products_stay_under_way(size, causal):
    """Five products a turn, in a loop over whole tiles and one over those that are cut; the latter alone has conditions."""
    found = dict(launches(size, causal=causal))
    assert list(found) == ["_find", "_of_rows", "meet_others", "backward_dkv", "of_sums", "_backward_dkv", "_backward_dq"]
    sass = found["backward_dkv"].compile(target="sm_90a").sass
    assert "UTMALDG.3D" in sass
    assert "HMMA" not in sass.replace("HGMMA", "")
    assert len(re.findall(r"HGMMA.*gsb0", sass)) == 2 * 5
    calculating = sass.split("USETMAXREG.TRY_ALLOC")[-1]
    loops = re.findall(r"HGMMA.*?REDG?\.E\.ADD\.F32x4.*?\bBRA\b", calculating, re.S)
    assert len(loops) == 2
    whole, cut = loops
    for loop in loops:
        assert re.findall(r"DEPBAR\.LE gsb0, 0x.", loop)[0].endswith("1"), "scores are waited for while `g @ v.T` is computed"
    assert "FSEL" in cut
    assert "FSEL" not in whole
    assert not re.search(r"\b(?:LDL|STL)\b", whole)


@pytest.mark.parametrize("size", [64, 128])
def test_products_by_warps(size):
    _, lines = compiled(kernels.attention_varlen(*given(size), causal=True), "sm_80")
    text = "\n".join(lines)
    assert "HMMA.16816.F32.BF16" in text
    assert "LDSM" in text
