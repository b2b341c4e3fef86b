"""The cubin reader agrees with cuobjdump, and refuses what is no cubin."""

import re
import shutil
import struct
import subprocess
import sysconfig
from pathlib import Path

import pytest
from numba import cuda
from numba.cuda import types

import tilekit as tk
from tilekit.compiler.cubin import read_kernels, read_resources, target_of


def plain(y, x):
    y.store(tk.load_tile_like(x, y) * 2)


def spilling(y):
    tk.print("value", tk.exp(y.load()))


def shared(y):
    buffer = cuda.shared.array(256, types.float32)
    buffer[cuda.threadIdx.x] = 1.0
    cuda.syncthreads()
    y.store(buffer[0])


def cuobjdump():
    found = shutil.which("cuobjdump")
    if found is None:
        folder = Path(sysconfig.get_path("purelib"), "nvidia")
        found = next(map(str, folder.glob("*/bin/cuobjdump")), None)
    return found


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120"])
def test_it_agrees_with_cuobjdump(compiled, tensor, tmp_path, target):
    program = cuobjdump()
    if program is None:
        pytest.skip("cuobjdump is not installed: pip install 'cuda-toolkit[cuobjdump]==13.*'")
    y = tensor.inout(4096, 1024)
    for kernel in (
        compiled(plain, y, tensor(4096), target=target).kernel,
        *(compiled(f, y, target=target).kernel for f in (spilling, shared)),
    ):
        path = tmp_path / "kernel.cubin"
        path.write_bytes(kernel.cubin)
        text = subprocess.run([program, "-res-usage", str(path)], capture_output=True, text=True, check=True).stdout
        usage = {name: int(n) for name, n in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", text[text.index(kernel.entry) :])}
        found = read_resources(kernel.cubin, kernel.entry)
        assert (found.registers, found.local_bytes) == (usage["REG"], usage["STACK"] + usage["LOCAL"])
        assert found.shared_bytes == usage["SHARED"]
    assert found.shared_bytes >= 1024


def test_what_is_no_cubin_is_refused(compiled, tensor):
    cubin = compiled(plain, tensor.out(4096, 1024), tensor(4096)).kernel.cubin
    for image in (b"", b"not a cubin", cubin[:100], b"\x7fELF\x01" + cubin[5:], cubin[: len(cubin) // 2]):
        with pytest.raises(ValueError, match="not a cubin with a kernel f"):
            read_resources(image, "f")
    with pytest.raises(ValueError, match="not a cubin with a kernel no_such_kernel"):
        read_resources(cubin, "no_such_kernel")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120"])
def test_it_knows_the_kernels_and_the_sizes_of_their_parameters(compiled, tensor, target):
    kernel = compiled(plain, tensor.out((64, 128), (16, 16)), tensor((64, 128)), target=target).kernel
    slots = re.sub(r"\d*x|<", "", kernel.param_format)
    assert read_kernels(kernel.cubin) == {kernel.entry: tuple(struct.calcsize(f"<{slot}") for slot in slots)}
    assert len(set(slots)) > 1
    assert target_of(kernel.cubin) == target.rstrip("a")
    for image in (b"", b"no cubin", kernel.cubin[:100], kernel.cubin[: len(kernel.cubin) // 2]):
        with pytest.raises(ValueError, match="not a cubin, or a damaged one"):
            read_kernels(image)
