"""The scans for what is overwritten while a product uses it: that they find it, also in kernels compiled without the waits."""

import pytest
from hazards import registers_in_danger, shared_memory_in_danger

import tilekit as tk
from tilekit import api


def sass(*steps):
    """A disassembly of these instructions and labels."""
    return "\n".join(s if s.endswith(":") else f"        /*{16 * n:04x}*/                   {s} ;" for n, s in enumerate(steps))


ASKED = "HGMMA.64x64x16.F32 R24, R88, gdesc[UR12].tnspB, R24, gsb0"
WAIT = "WARPGROUP.DEPBAR.LE gsb0, 0x0"


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ("LDS.128 R88, [R0+UR5]", "first operand"),
        ("LDS.64 R90, [R0]", "first operand"),
        ("IMAD.WIDE.U32 R90, R3, 0x4, R6", "first operand"),
        ("@P0 MOV R91, R3", "first operand"),
        ("SHFL.BFLY P0, R89, R3, 0x1, 0x1f", "first operand"),
        ("CS2R R54, SRZ", "writes the sums"),
        ("FADD R3, R24, R4", "reads the sums"),
        ("STG.E.128 desc[UR4][R2.64], R52", "reads the sums"),
        ("HGMMA.64x64x16.F32 R88, gdesc[UR8], R88, gsb0", "another's operand"),
    ],
)
def test_registers_of_a_product_under_way(step, why):
    found = registers_in_danger(sass(ASKED, step, WAIT, "EXIT"))
    assert len(found) == 1
    assert why in min(found)[2]
    assert not registers_in_danger(sass(ASKED, WAIT, step, "EXIT"))


@pytest.mark.parametrize(
    "step",
    ["LDS.128 R92, [R0]", "STS.128 [R3], R88", "MOV R3, R88", "FADD R3, R56, R57", "ISETP.GE.AND P1, PT, R88, 0x1, PT", ASKED],
)
def test_what_may_be_done_meanwhile(step):
    assert not registers_in_danger(sass(ASKED, step, WAIT, "EXIT"))


def test_products_of_the_turn_before():
    """The operand is written where the loop begins again: by one path, not by the other."""
    turn = (".L_x_1:", "LDS R88, [R0]", ASKED, "WARPGROUP.DEPBAR.LE gsb0, 0x1", "@P1 BRA `(.L_x_1)", WAIT, "EXIT")
    assert [place for place, *_ in registers_in_danger(sass(*turn))] == [0]
    waits = tuple(WAIT if "0x1" in step else step for step in turn)
    assert not registers_in_danger(sass(*waits))


LOOP = """
$L__BB0_1:
    {{ mbarrier.try_wait.parity.shared::cta.b64 P, [%r1], %r2; @!P bra W0; }} // take R0
    {{ wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n64k16; wgmma.commit_group.sync.aligned; }} // reads R0
    wgmma.wait_group.sync.aligned {left};
    {{ @P mbarrier.arrive.shared::cta.b64 _, [%r3]; }} // give R0 {which}
    @%p1 bra $L__BB0_1;
    ret;
"""


@pytest.mark.parametrize(("left", "which", "wrong"), [(0, "now", 0), (1, "now", 1), (1, "before", 0), (2, "before", 1)])
def test_stages_that_are_given_back(left, which, wrong):
    assert len(shared_memory_in_danger(LOOP.format(left=left, which=which))) == wrong


PARKED = """
$L__BB0_1:
    {before}
    // park P0 {how}
    st.shared.b32 [%r1], %r2;
    bar.sync 1, 256;
    {{ wgmma.mma_async.sync.aligned.m64n64k16; wgmma.commit_group.sync.aligned; }} // reads P0 R0
    {after}
    @%p1 bra $L__BB0_1;
    ret;
"""
ONE, NONE, MEET = "wgmma.wait_group.sync.aligned 1;", "wgmma.wait_group.sync.aligned 0;", "bar.sync 1, 256;"


@pytest.mark.parametrize(
    ("how", "before", "after", "wrong"),
    [
        ("turns", NONE, "", 0), ("turns", ONE, "", 1), ("turns", "", ONE, 1), ("turns", "", ONE + MEET, 0),
        ("fixed", NONE + MEET, "", 0), ("fixed", ONE + MEET, "", 1), ("fixed", NONE, "", 1),  # others may not have waited yet
    ],
)  # fmt: skip
def test_operands_put_into_shared_memory(how, before, after, wrong):
    assert len(shared_memory_in_danger(PARKED.format(how=how, before=before, after=after))) == wrong


@tk.kernel(num_warps=8)
def product(y: tk.Out, a: tk.In, b: tk.In, stages: tk.Const):
    acc = tk.zeros((128, 128), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((128, 64))[tk.bid(0), :], b.tiles((64, 128))[:, tk.bid(1)], stages=stages):
        acc = tk.mma(tk.abs(ta), tb, acc)
    y.store(acc)


def compiled(stages):
    """It is compiled for each number of stages once."""
    out, x = api.meta((1024, 1024), tk.float32).partition((128, 128)), api.meta((1024, 1024), tk.float16)
    return product(out, x, x, stages).compile(target="sm_90a")


def test_an_operand_without_registers_of_its_own_is_noticed(monkeypatch, compiled_products):
    from tilekit.compiler.nvidia.wgmma import Computed

    monkeypatch.setattr(Computed, "keep", lambda *_: ("none", 0))
    assert registers_in_danger(compiled(3).sass)
    compiled_products.clear()  # it is as it should not be


def test_a_stage_that_is_given_back_too_early_is_noticed(monkeypatch, compiled_products):
    from tilekit.compiler.lower import pipelines

    give = pipelines._release
    monkeypatch.setattr(pipelines, "_release", lambda *args: give(*args[:-1], "now"))
    compiled(4)  # whose first form ptxas may serialise: then there is a second one, which does not depend on this
    assert any(shared_memory_in_danger(one.ptx) for one in compiled_products)
    compiled_products.clear()
