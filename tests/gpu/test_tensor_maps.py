"""Tensor maps on a GPU: a kernel copies one box by the TMA, and finds in shared memory what NumPy says is there."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, dtypes
from tilekit._driver.nodes import Parameters
from tilekit._driver.tensormaps import TensorMap

# One box, at the coordinates, to shared memory by the TMA, and from there to `out` as it lies.
SOURCE = """
struct alignas(64) Map { char bytes[128]; };

extern "C" __global__ void
copy_box(unsigned char* out, int nbytes, int rank, int x, int y, int z, const __grid_constant__ Map map) {
    extern __shared__ unsigned char dynamic[];
    __shared__ alignas(8) unsigned long long barrier;
    unsigned char* box = dynamic + (-(unsigned)__cvta_generic_to_shared(dynamic) & 1023);
    unsigned to = __cvta_generic_to_shared(box), bar = __cvta_generic_to_shared(&barrier);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(bar) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(nbytes) : "memory");
#define LOAD(RANK, AT, ...) asm volatile("cp.async.bulk.tensor." RANK ".shared::cluster.global.mbarrier::complete_tx::bytes" \\
            "[%0], [%1, " AT "], [%2];" :: "r"(to), "l"(&map), "r"(bar), __VA_ARGS__ : "memory")
        if (rank == 1) LOAD("1d", "{%3}", "r"(x));
        if (rank == 2) LOAD("2d", "{%3, %4}", "r"(x), "r"(y));
        if (rank == 3) LOAD("3d", "{%3, %4, %5}", "r"(x), "r"(y), "r"(z));
    }
    __syncthreads();
    asm volatile("{ .reg .pred P; W: mbarrier.try_wait.parity.shared::cta.b64 P, [%0], 0; @!P bra W; }" :: "r"(bar) : "memory");
    for (int i = threadIdx.x; i < nbytes; i += blockDim.x) out[i] = box[i];
}
"""


@pytest.fixture(scope="module")
def cubins():
    return {}


@pytest.fixture
def copy_box(device, cubins):
    """Copies a box of a tensor, from the given first element on, and gives it as it lies in shared memory."""
    if device.compute_capability < (9, 0):
        pytest.skip("the TMA is there from sm_90 on")
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="the kernel of these tests is compiled by NVRTC")
    if device.target not in cubins:
        cubins[device.target] = compiled(nvrtc, device.target)
    function = device.driver.load(cubins[device.target], "copy_box")

    def copy(known, tensor, first):
        nbytes = int(np.prod(known.box)) * known.itemsize
        out = api.zeros(nbytes, tk.uint8).sync()
        parameters = Parameters(6, 1)
        place = [first[dim] for dim in known.order] + [0, 0]
        for at, value in enumerate((out.address, nbytes, len(known.box), *place[:3])):
            ctypes.c_int64.from_buffer(parameters.values, 8 * at).value = value
        parameters.put_map(0, device.driver.tensor_map(known, tensor.address, tensor.shape, tensor.strides))
        with device.stream() as stream:
            device.driver.launch(function, (1, 1, 1), (128, 1, 1), nbytes + 1024, stream.handle, parameters.address)
            stream.synchronize()
        lying = out.to_host().sync().view(tensor.dtype)
        return lying.reshape([known.box[dim] for dim in reversed(known.order)])

    return copy


def compiled(nvrtc, target):
    _, program = nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"copy_box.cu", 0, [], [])
    options = [f"--gpu-architecture={target}".encode()]
    code, *_ = nvrtc.nvrtcCompileProgram(program, len(options), options)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * (size + 1)  # it is written to; of one byte there is one object for all of Python
    nvrtc.nvrtcGetProgramLog(program, log)
    assert code == 0, log.decode()
    _, size = nvrtc.nvrtcGetCUBINSize(program)
    cubin = b" " * size
    nvrtc.nvrtcGetCUBIN(program, cubin)
    return cubin


def boxed(array, known, first):
    """The box, with zeros outside of the array, its dimensions from the slowest to the fastest."""
    part = np.zeros(known.box, array.dtype)
    ranges = [(max(at, 0), min(at + n, end)) for at, n, end in zip(first, known.box, array.shape, strict=True)]
    if all(start < stop for start, stop in ranges):
        inside = tuple(slice(start - at, stop - at) for (start, stop), at in zip(ranges, first, strict=True))
        part[inside] = array[tuple(slice(*ends) for ends in ranges)]
    return part.transpose(known.order[::-1])


def swizzled(lying, swizzle):
    """Rows of bytes, with their 16-byte pieces exchanged as the TMA does it."""
    pieces = np.ascontiguousarray(lying).view(np.uint8).reshape(-1, 16)
    at = np.arange(len(pieces))
    mask = swizzle // 16 - 1
    return pieces[at ^ ((at >> 3) & mask)].reshape(-1).view(lying.dtype).reshape(lying.shape)


def numbers(shape, dtype="float16"):
    return np.random.default_rng(0).integers(0, 100, shape).astype(dtype)


def test_a_box_within(device, copy_box):
    array, known = numbers((100, 200)), TensorMap(0, "float16", (16, 64), (1, 0), 0)
    tensor = api.from_host(array).sync()
    np.testing.assert_array_equal(copy_box(known, tensor, (10, 24)), boxed(array, known, (10, 24)))


@pytest.mark.parametrize("first", [(-8, 24), (90, 160), (96, -16), (200, 304)])
def test_a_box_over_the_edge_has_zeros(device, copy_box, first):
    array, known = numbers((100, 200)), TensorMap(0, "float16", (16, 64), (1, 0), 0)
    np.testing.assert_array_equal(copy_box(known, api.from_host(array).sync(), first), boxed(array, known, first))


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_swizzles(device, copy_box, swizzle):
    array, known = numbers((64, 64)), TensorMap(0, "float16", (32, swizzle // 2), (1, 0), swizzle)
    found = copy_box(known, api.from_host(array).sync(), (16, 0))
    np.testing.assert_array_equal(found, swizzled(boxed(array, known, (16, 0)), swizzle))


def test_column_major(device, copy_box):
    array, known = numbers((64, 96)), TensorMap(0, "float16", (32, 8), (0, 1), 0)
    tensor = api.from_host(np.ascontiguousarray(array.T)).sync().T
    np.testing.assert_array_equal(copy_box(known, tensor, (32, 40)), boxed(array, known, (32, 40)))


@pytest.mark.parametrize("order", [(2, 1, 0), (2, 0, 1)])
def test_three_dimensions_in_any_order(device, copy_box, order):
    array, known = numbers((6, 20, 32), "float32"), TensorMap(0, "float32", (2, 8, 16), order, 0)
    np.testing.assert_array_equal(copy_box(known, api.from_host(array).sync(), (3, 5, 8)), boxed(array, known, (3, 5, 8)))


def test_one_dimension(device, copy_box):
    array, known = numbers(1000, "int32"), TensorMap(0, "int32", (256,), (0,), 0)
    np.testing.assert_array_equal(copy_box(known, api.from_host(array).sync(), (800,)), boxed(array, known, (800,)))


def test_dimensions_of_one_element_have_any_stride(device, copy_box):
    array, known = numbers((1, 5, 64)), TensorMap(0, "float16", (2, 8, 64), (2, 1, 0), 0)
    whole = api.from_host(array).sync()
    odd = tk.Tensor(whole.storage, whole.shape, whole.dtype, (7, 64, 1), 0)
    np.testing.assert_array_equal(copy_box(known, odd, (0, 0, 0)), boxed(array, known, (0, 0, 0)))


def test_a_broadcast_dimension(device, copy_box):
    row, known = numbers(64), TensorMap(0, "float16", (8, 64), (1, 0), 0)
    whole = api.from_host(row).sync()
    tensor = tk.Tensor(whole.storage, (16, 64), whole.dtype, (0, 1), 0)
    np.testing.assert_array_equal(copy_box(known, tensor, (4, 0)), np.broadcast_to(row, (8, 64)))


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "bfloat16", "float8_e5m2", "uint32", "float64"])
def test_dtypes(device, copy_box, dtype):
    array = numbers((40, 64)).astype(dtypes.as_dtype(dtype))
    known = TensorMap(0, dtype, (8, 16), (1, 0), 0)
    found, expected = copy_box(known, api.from_host(array).sync(), (4, 32)), boxed(array, known, (4, 32))
    np.testing.assert_array_equal(found.view(np.uint8), np.ascontiguousarray(expected).view(np.uint8))


def test_an_empty_tensor_has_a_map(device):
    if device.compute_capability < (9, 0):
        pytest.skip("the TMA is there from sm_90 on")
    made = device.driver.tensor_map(TensorMap(0, "float16", (16, 64), (1, 0), 128), 0, (0, 64), (64, 1))
    assert len(made) == 128
