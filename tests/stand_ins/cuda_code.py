"""CUDA code that several tests compile, and whether they can."""

import pytest

import tilekit as tk

CODE = """
extern "C" __global__ void saxpy(float* y, float a, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}

// __global__ void commented_out(int) {}
template <class T> __global__ void scale(T* y, T a) { y[threadIdx.x] *= a; }

__global__ void __launch_bounds__(256) copy(float* y, const float* x) { y[threadIdx.x] = x[threadIdx.x]; }

__device__ float helper(float x) { return x; }
"""
EVERY_CODE = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void every(bool a, signed char b, short c, int d, long long e, unsigned char f, unsigned short g,
                                 unsigned h, unsigned long long i, __half j, __nv_bfloat16 k, float l, double m, float* y) {
    y[0] = a + b + c + d + e + f + g + h + i + (float)j + (float)k + l + m;
}
"""
SAXPY = "y: InOut[f32], a: f32, x: In[f32], n: i32"
EVERY = "bool, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, Out[f32]"
CONFIG = tk.LaunchConfig(grid=4, block=256)

PTX = """//
// made by hand
/* .entry nothing */
.version 7.0
.target sm_80
.address_size 64
.visible .entry fill(.param .u64 y, .param .f32 a) { ret; }
.entry _Z4other1Pf(.param .u64 y) { ret; }
"""


def has_nvrtc():
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError):
        return False
    return True


needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="compiles CUDA C++, and NVRTC is not installed")


def has_headers():
    if not has_nvrtc():
        return False
    from tilekit.compiler.foreign.nvrtc import _include_folders

    return bool(_include_folders())


needs_headers = pytest.mark.skipif(
    not has_headers(), reason="compiles CUDA C++ with headers of the toolkit, which are not installed"
)


def saxpy(config=CONFIG):
    return tk.cuda_source(CODE, "saxpy", SAXPY)[config]
