"""Kernels compiled for GPUs that are not here: what the machine code must, and must not, contain."""

import re

import pytest

import tilekit as tk
from tilekit import api

TARGETS = ["sm_80", "sm_90a"]


@tk.kernel
def saxpy(y: tk.InOut, a, x: tk.In):
    y.store(a * tk.load_tile_like(x, y) + y.load())


def accesses(sass):
    """Every access to global memory, and to local memory."""
    return re.findall(r"\b((?:LDG|STG|LD|ST|LDL|STL)\b[.\w]*)", sass)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [tk.float32, tk.float16], ids=str)
def test_saxpy_moves_16_bytes_at_a_time(dtype, target):
    n = 1 << 20
    kernel = saxpy(api.meta(n, dtype).partition(1024), 2.0, api.meta(n, dtype)).compile(target=target)
    found = accesses(kernel.sass)
    assert len([a for a in found if a.startswith("LDG")]) == 4
    assert all(a.startswith(("LDG", "STG")) and ".128" in a for a in found), found
    assert kernel.local_bytes == 0
    assert kernel.shared_bytes == 0
    assert kernel.registers <= 40
    assert f".target {target}" in kernel.ptx
    assert kernel.cubin[:4] == b"\x7fELF"


@pytest.mark.parametrize("target", TARGETS)
def test_a_ragged_saxpy_is_wide_away_from_the_edge(target):
    n = (1 << 20) + 3
    kernel = saxpy(api.meta(n).partition(1024), 2.0, api.meta(n)).compile(target=target)
    found = accesses(kernel.sass)
    assert sum(".128" in a for a in found if a.startswith("LDG")) == 4
    assert kernel.local_bytes == 0


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"])
def test_every_target(target):
    kernel = saxpy(api.meta(4096).partition(1024), 2.0, api.meta(4096)).compile(target=target)
    assert kernel.target == target
    assert kernel.registers > 0
    assert kernel.entry in kernel.ptx


def test_targets_that_do_not_exist():
    with pytest.raises(ValueError, match="sm_75.*sm_80"):
        saxpy(api.meta(4).partition(4), 2.0, api.meta(4)).compile(target="sm_75")


def test_without_a_target_there_must_be_a_gpu():
    with pytest.raises(ValueError, match=r"no GPU to compile for; name a target, such as \.compile\(target='sm_90a'\)"):
        saxpy(api.meta(4).partition(4), 2.0, api.meta(4)).compile()


def test_lazy_arguments_have_no_facts_yet():
    op = api.ones(4)
    with pytest.raises(TypeError, match=r"compile\(\) needs tensors, not ops, for x; api\.meta\(shape, dtype\) stands for one"):
        saxpy(api.meta(4).partition(4), 2.0, op).compile(target="sm_90a")


def test_equal_facts_share_a_compilation():
    x = api.meta(8192)
    launches = [saxpy(api.meta(n).partition(1024), a, x) for n, a in ((8192, 2.0), (8192, 3.0))]
    first, second = (launch.compile(target="sm_90a") for launch in launches)
    assert first is second


def test_large_tensors_count_in_64_bits():
    n = 2**33
    kernel = saxpy(api.meta(n).partition(1024), 2.0, api.meta(n)).compile(target="sm_90a")
    assert kernel.param_format.count("q") >= 2
    assert all(".128" in a for a in accesses(kernel.sass))


@pytest.mark.parametrize("warps", [1, 4, 16])
def test_warps_decide_the_threads_of_a_block(warps):
    kernel = saxpy(api.meta(4096).partition(1024), 2.0, api.meta(4096)).num_warps(warps).compile(target="sm_90a")
    assert kernel.block == (32 * warps, 1, 1)
    assert kernel.local_bytes == 0


def test_occupancy_leaves_room_for_as_many_blocks():
    @tk.kernel(occupancy=4)
    def softmax(y: tk.Out, x: tk.In):
        e = tk.exp(tk.load_tile_like(x, y))
        y.store(e * (1.0 / tk.sum(e)))

    def registers(occupancy=None):
        launch = softmax(api.meta((8, 8192)).partition((1, 8192)), api.meta((8, 8192))).num_warps(4)
        return (launch.occupancy(occupancy) if occupancy else launch).compile(target="sm_90a").registers

    assert 65536 // (2 * 128) >= registers(2) > 65536 // (8 * 128) >= registers(8)
    assert registers() <= 65536 // (4 * 128), "the decorator's, where the launch says nothing"


@pytest.mark.parametrize("use", ["compile", "explain"])
def test_compiling_an_op_does_not_use_it_up(cpu, use):
    y = api.zeros(8).sync()
    op = saxpy(y.partition(8), 2.0, api.ones(8).sync())
    for target in TARGETS:
        getattr(op, use)(target)
    op.sync()
    assert y.to_host().sync().tolist() == [2.0] * 8
    with pytest.raises(ValueError, match="has already run"):
        op.sync()
    assert op.compile("sm_90a").target == "sm_90a", "one that has run can be compiled too"
