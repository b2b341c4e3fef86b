"""`op.explain()`: what the compiler notes is what the machine code does."""

import importlib
import re
import sys

import pytest

import tilekit as tk
from tilekit import api
from tilekit.compiler import assembly, optimize
from tilekit.compiler.explain import resident_blocks
from tilekit.compiler.ir.products import is_product
from tilekit.compiler.ir.remarks import remark
from tilekit.compiler.kernel import CompiledKernel


@tk.kernel
def softmax(y: tk.Out, x: tk.In):
    t = tk.load_tile_like(x, y, padding_mode="-inf")
    e = tk.exp(t - tk.max(t, 1)[:, None])
    y.store(e / tk.sum(e, 1)[:, None])


@tk.kernel
def turn(y: tk.Out, x: tk.In):
    t = tk.load(x, (tk.bid(1), tk.bid(0)), (64, 64))
    y.store(tk.transpose(t))


def meta(*shape, dtype=tk.float32):
    return api.meta(shape, dtype)


def line_of(kernel, text):
    """The line of the kernel that has `text`."""
    return next(n for n, line in enumerate(kernel.source._lines, kernel.source._first) if text in line)


def test_accesses_and_their_lines():
    explained = turn(meta(4096, 4096).partition((64, 64)), meta(4096, 4096)).explain("sm_90a")
    load, store = explained.accesses
    assert (load.line, load.kind, load.parameter, load.bits, load.count) == (line_of(turn, "tk.load"), "load", "x", 128, 4)
    assert (store.line, store.kind, store.parameter, store.bits, store.count) == (line_of(turn, "y.store"), "store", "y", 128, 4)
    assert (load.masked, store.masked) == (True, False)
    assert load.coalesced == store.coalesced == 1.0
    assert explained.compiled.sass.count("LDG.E.128") == load.count
    assert explained.compiled.sass.count("STG.E.128") == store.count


def test_a_conversion_and_its_way():
    explained = turn(meta(4096, 4096).partition((64, 64)), meta(4096, 4096)).explain("sm_80")
    (conversion,) = explained.conversions
    assert (conversion.line, conversion.way, conversion.nbytes) == (line_of(turn, "y.store"), "shared memory", 64 * 64 * 4)
    names = [use.name for use in explained.layouts]
    assert {conversion.source, conversion.target} == set(names) == {"L0", "L1"}
    assert all(use.registers == 64 * 64 // explained.compiled.block[0] and use.copies == 1 for use in explained.layouts)


def test_exchanges_of_a_reduction():
    explained = softmax(meta(777, 1024).partition((1, 1024)), meta(777, 1024)).explain("sm_90a")
    ways = {(c.line, c.way): c.count for c in explained.conversions}
    for text in ("tk.max", "tk.sum"):
        assert ways[line_of(softmax, text), "shuffle"] == 5
    assert explained.compiled.sass.count("SHFL") >= 10


def test_edges_are_told_apart():
    ragged = softmax(meta(777, 1001).partition((1, 1024)), meta(777, 1001)).explain("sm_90a").accesses[0]
    assert (ragged.bits, ragged.masked, ragged.branches) == (32, True, False)
    assert ragged.coalesced == 1
    cut = softmax(meta(777, 1026).partition((1, 1024)), meta(777, 1026)).explain("sm_90a").accesses[0]
    assert cut.bits > 32
    assert cut.masked


def test_a_tensor_without_neighbours_is_not_coalesced():
    x = meta(4096, 4096)[:, ::2]
    load = softmax(meta(777, 1024).partition((1, 1024)), x[:777, :1024]).explain("sm_90a").accesses[0]
    assert (load.bits, load.coalesced) == (32, 4 / 32)


def test_gathers_depend_on_their_indices():
    @tk.kernel
    def pick(y: tk.Out, x: tk.In, at: tk.In):
        y.store(tk.gather(x, tk.load_tile_like(at, y)))

    explained = pick(meta(4096).partition(512), meta(4096), meta(4096, dtype=tk.int32)).explain("sm_80")
    gather = next(a for a in explained.accesses if a.kind == "gather")
    assert (gather.parameter, gather.coalesced, gather.masked) == ("x", None, True)
    assert "by index" in str(explained)


def test_a_tile_that_is_added_is_written():
    @tk.kernel
    def add_tile(y: tk.InOut, x: tk.In):
        at = tk.bid(0), tk.bid(1)
        tk.atomic_add_tile(y, at, tk.load(x, at, (32, 64)))

    shapes = {(256, 256): (128, True, False), (256, 250): (64, True, True), (256, 252): (128, True, True)}
    for shape, wanted in shapes.items():
        op = add_tile(meta(*shape).scattered(), meta(*shape)).grid((8, 4))
        written = next(a for a in op.explain("sm_90a").accesses if a.kind == "store")
        assert (written.parameter, (written.bits, written.masked, written.branches)) == ("y", wanted)
    assert next(a for a in op.explain("sm_80").accesses if a.kind == "store").bits == 32


def test_the_table_says_all_of_it():
    explained = turn(meta(4096, 4096).partition((64, 64)), meta(4096, 4096)).explain("sm_80")
    text = str(explained)
    first, second = text.splitlines()[:2]
    needs = r"\d+ registers and 0 local bytes a thread, 16384 bytes of shared memory"
    assert re.fullmatch(rf"kernel turn for sm_80: 256 threads \(8 warps\) in a block, {needs}", first)
    assert re.fullmatch(r"room for \d+ blocks on a multiprocessor \(limited by [\w ]+\): \d+% of its warps", second)
    assert re.search(rf"^{line_of(turn, 'tk.load')} +load +x: float32 +64x64 +128 +4 +yes +100%$", text, re.M)
    assert re.search(r"^L0 +64x64 +16 +1 +0,1 0,2 ", text, re.M)
    assert re.search(r"float32 tile of 64x64 +L\d to L\d +shared memory +1 +16384$", text, re.M)


def test_nothing_is_noted_where_nobody_asks():
    from tilekit.compiler.codegen.compilation import compiling
    from tilekit.compiler.layouts.linear import Config

    with compiling(Config(4, 4)) as compilation:
        compilation.note("something")
        assert compilation.notes is None


def compiled(target, registers, threads, shared):
    return CompiledKernel(
        entry="k", ptx="", cubin=b"", target=target, registers=registers, shared_bytes=shared, local_bytes=0,
        block=(threads, 1, 1), param_format="<",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("target", "registers", "threads", "shared", "expected"),
    [
        ("sm_90a", 32, 256, 0, (8, 1.0)),
        ("sm_90a", 128, 256, 0, (2, 0.25)),
        ("sm_90a", 33, 256, 0, (6, 0.75)),  # 40 registers are given out
        ("sm_90a", 16, 32, 0, (32, 0.5)),
        ("sm_90a", 32, 128, 100 * 1024, (2, 0.125)),
        ("sm_80", 32, 128, 100 * 1024, (1, 0.0625)),
        ("sm_86", 32, 256, 0, (6, 1.0)),
    ],
)
def test_room_on_a_multiprocessor(target, registers, threads, shared, expected):
    blocks, _, share = resident_blocks(compiled(target, registers, threads, shared))
    assert (blocks, share) == expected


def test_what_limits_it():
    assert resident_blocks(compiled("sm_90a", 128, 256, 0))[1] == "registers"
    assert resident_blocks(compiled("sm_90a", 16, 32, 0))[1] == "the number of blocks"
    assert resident_blocks(compiled("sm_80", 32, 128, 100 * 1024))[1] == "shared memory"
    assert resident_blocks(compiled("sm_90a", 24, 1024, 0))[1] == "threads"


def test_without_a_gpu_a_target_is_needed(cpu):
    with pytest.raises(ValueError, match=r"no GPU to compile for; name a target, such as .compile\(target='sm_90a'\)"):
        turn(api.zeros((64, 64)).sync().partition((64, 64)), api.zeros((64, 64)).sync()).explain()


@pytest.mark.parametrize(
    ("number", "reason", "of"),
    [
        ("C7513", "non wgmma instructions defining input registers of a wgmma", " in the function 'attend'\n\x00"),
        ("C7512", "insufficient register resources", " for the function 'attend'\n\x00"),
        ("C7514", "something else", "\nINFO: another line\n\x00"),
    ],
)
def test_products_that_ptxas_serialises_are_compiled_otherwise(monkeypatch, number, reason, of):
    """Operands in registers of their own are given up; what ptxas still says then is told."""
    said = f"ptxas info    : ({number}) Potential Performance Loss: wgmma.mma_async instructions are serialized due to {reason}"
    log = f"INFO: NVVM70 LTOIR Container created (112492 bytes)\n{said}{of}"
    attempts, look = [], assembly._look_at_log

    def looked(_, compilation):
        attempts.append(compilation.pipelines.apart)
        look(log if attempts[-1] or always else "", compilation)

    @tk.kernel(num_warps=4)
    def attend(o: tk.Out, q: tk.In, k: tk.In, v: tk.In):
        query, acc = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 64), tk.float32)
        for key, value in tk.pipelined(k.tiles((64, 64))[:, 0], v.tiles((64, 64))[:, 0], rotate=False):
            p = tk.exp(tk.mma(query, key.transpose(), tk.zeros((64, 64), tk.float32)))
            acc = tk.mma(p.astype(tk.float16), value, acc)
        o.store(acc)

    monkeypatch.setattr(assembly, "_look_at_log", looked)
    o, q = api.meta((512, 64)), api.meta((512, 64), tk.float16)
    for always in (False, True):
        attempts.clear()
        explained = attend(o.partition((64, 64)), q, q, q).explain("sm_90a")
        assert attempts == [True, False]
        assert explained.serialised == (reason if always else "")
        assert ("one after the other" in str(explained)) == always


def test_remarks_are_of_what_is_compiled():
    """A kernel that is compiled as it is written has nothing done to it, though passes over its IR would."""

    @tk.kernel(num_warps=4)
    def weighed(o: tk.Out, q: tk.In, k: tk.In):
        query, acc = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 1), tk.float32)
        for key in tk.pipelined(k.tiles((64, 64))[:, 0]):
            s = tk.mma(query, key.transpose(), tk.zeros((64, 64), tk.float32))
            acc = acc + tk.sum(tk.exp(s - tk.max(s, 1, keepdims=True)), 1, keepdims=True)
        o.store(tk.broadcast_to(acc, (64, 64)))

    q = meta(512, 64, dtype=tk.float16)
    alone = softmax(meta(64, 64).partition((8, 64)), meta(64, 64)).explain("sm_90a")
    ringed = weighed(meta(512, 64).partition((64, 64)), q, q).explain("sm_90a")
    assert ringed.pipelines[0].stages
    said = [{(remark.transformation, remark.done, remark.text) for remark in each.remarks} for each in (alone, ringed)]
    assert ("exponential", False, "the kernel is compiled as it is written: no loop loads tiles ahead") in said[0]
    assert not any(done for _, done, _ in said[0])
    assert ("exponential", True, "of scores below their maximum: by a fused multiply-add and exp2") in said[1]
    assert not any("as it is written" in text for _, _, text in said[1])


def test_what_a_pass_saw_is_shown_of_kernels_as_they_are_written(monkeypatch):
    def count_operations(kernel):
        remark(kernel.operations[-1].location, "operations", f"{len(kernel.operations)} of them", done=None)

    monkeypatch.setattr(optimize, "PASSES", (*optimize.PASSES, count_operations))
    explained = softmax(meta(64, 64).partition((8, 64)), meta(64, 64)).explain("sm_90a")
    (seen,) = (one for one in explained.remarks if one.transformation == "operations")
    assert seen.done is None
    assert not any(one.done for one in explained.remarks), "it is compiled as it is written"
    assert re.search(rf"operations +- +{seen.text}", str(explained))


def count_products(kernel):
    for operation in filter(is_product, kernel.walk()):
        remark(operation.location, "products", "one", done=None)


def of_products(monkeypatch, kernel):
    """What is explained of a kernel with a remark about each of its products."""
    monkeypatch.setattr(optimize, "PASSES", (count_products,))
    x = meta(16, 16)
    explained = kernel(meta(16, 16).partition((16, 16)), x).explain("sm_90a")
    return explained, [remark for remark in explained.remarks if remark.transformation == "products"]


def test_calls_of_one_helper_are_places_of_their_own(monkeypatch):
    def square(t):
        return t @ t

    def twice(t):
        return square(t) + square(t.transpose())

    @tk.kernel
    def powers(y: tk.Out, x: tk.In):
        t = tk.load(x, (0, 0), (16, 16))
        y.store(twice(t) + square(t) * 2)

    explained, remarks = of_products(monkeypatch, powers)
    inner, outer, called = (line_of(powers, "y.store") + offset for offset in (-8, -5, 0))
    assert [tuple(place.line for place in remark.stack) for remark in remarks] == [
        (inner, outer, called), (inner, outer, called), (inner, called),
    ]  # fmt: skip
    assert [remark.stack[1].column for remark in remarks] == [15, 27, 27]
    assert {(remark.filename, remark.line, remark.column) for remark in remarks} == {(__file__, inner, 15)}
    text = str(explained)
    for one in remarks:
        assert ", called in ".join(f"{__file__}:{line}:{column + 1}" for _, line, column in one.stack) in text


def test_copies_of_one_operation_are_one_place(monkeypatch):
    @tk.kernel
    def once(y: tk.Out, x: tk.In):
        t = tk.load(x, (0, 0), (16, 16))
        y.store(t @ t)

    monkeypatch.setattr(optimize, "PASSES", (count_products, count_products))
    explained = once(meta(16, 16).partition((16, 16)), meta(16, 16)).explain("sm_90a")
    (seen,) = (one for one in explained.remarks if one.transformation == "products")
    assert seen.stack == ((__file__, line_of(once, "t @ t"), 16),)
    assert re.search(rf"^{seen.line}:17 +products +- +one$", str(explained), re.M), "of the kernel's own file the line is enough"


def test_a_helper_of_another_module_is_named_by_its_file(monkeypatch, tmp_path):
    file = tmp_path / "helpers.py"
    file.write_text("def square(t):\n    return t @ t\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    square = importlib.import_module("helpers").square
    monkeypatch.delitem(sys.modules, "helpers")

    @tk.kernel
    def powers(y: tk.Out, x: tk.In):
        y.store(square(tk.load(x, (0, 0), (16, 16))))

    explained, (remark,) = of_products(monkeypatch, powers)
    line = line_of(powers, "y.store")
    assert remark.stack == ((str(file), 2, 11), (__file__, line, 16))
    shown = f"{file}:2:12, called in {__file__}:{line}:17"
    assert re.search(rf"^{re.escape(shown)} +products +- +one$", str(explained), re.M)
    assert f"<td>{shown}</td>" in explained._repr_mimebundle_()["text/html"]


def test_a_closure_stands_in_the_kernel_and_where_it_is_called(monkeypatch):
    @tk.kernel
    def powers(y: tk.Out, x: tk.In):
        def square(t):
            return t @ t

        t = tk.load(x, (0, 0), (16, 16))
        y.store(square(t) + square(t))

    _, remarks = of_products(monkeypatch, powers)
    assert [[place.line for place in remark.stack] for remark in remarks] == [
        [line_of(powers, "t @ t"), line_of(powers, "store")]
    ] * 2
    assert [remark.stack[1].column for remark in remarks] == [16, 28]
