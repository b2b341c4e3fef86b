"""The peers' code in numba: a small kernel, a native loop of launches, a stream that can be awaited."""

# mypy: ignore-errors
# numba's decorators have no types.

from __future__ import annotations

import asyncio
import ctypes
import functools

import numba

LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, *(7 * [ctypes.c_uint]), *(3 * [ctypes.c_size_t]))
"""cuLaunchKernel: function, grid, block, shared bytes, stream, parameters, extra; handles and pointers as integers."""


def scale():
    """`y = x * g`, a thread for each element: `kernel[blocks, threads, stream](y, x, g)`."""
    from numba import cuda

    @cuda.jit
    def scale(y, x, g):
        i = cuda.grid(1)
        if i < y.size:
            y[i] = x[i] * g

    return scale


@functools.cache
def native_loop(address):
    """A compiled function `loop(count, function, grid, block, stream, params)` that calls cuLaunchKernel, which is at `address`.

    It returns the first code that is not 0.
    """
    launch = LAUNCH(address)

    @numba.njit
    def loop(count, function, grid, block, stream, params):
        for _ in range(count):
            code = launch(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], 0, stream, params, 0)
            if code != 0:
                return code
        return 0

    return loop


def async_done(stream):
    """`stream.async_done()` of numba-cuda as it is meant: a future that resolves to the stream once its work is done.

    As shipped, in 0.30.4, `add_callback` asks the stream's handle for an attribute that it does not have. This is the method
    with that one line repaired, on the same driver function and the same callback; the class stays as it is.
    """
    from numba.cuda.cudadrv import driver as numba_driver

    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def resolve(future, status):
        if future.done():
            return
        if status == 0:
            future.set_result(stream)
        else:
            future.set_exception(RuntimeError(f"stream error {status}"))

    def callback(stream, status, future):
        loop.call_soon_threadsafe(resolve, future, status)

    data = (stream, callback, future)
    numba_driver._py_incref(data)  # numba's callback gives it back
    function = numba_driver.binding.CUstreamCallback(int.from_bytes(stream._stream_callback, byteorder="little"))
    numba_driver.driver.cuStreamAddCallback(int(stream.handle), function, id(data), 0)
    return future


@functools.cache
def launches():
    """The kernels of `_tilekit_host.LAUNCHES`, a thread for each element: `kernel[blocks, threads, stream](*tensors)`."""
    from numba import cuda

    @cuda.jit
    def nothing():
        pass

    @cuda.jit
    def of_1(y):
        at = cuda.grid(1)
        if at < y.size:
            y[at] = 1

    @cuda.jit
    def of_3(y, a, b):
        at = cuda.grid(1)
        if at < y.size:
            y[at] = a[at] + b[at]

    @cuda.jit
    def of_8(y, a, b, c, d, e, f, g):
        at = cuda.grid(1)
        if at < y.size:
            y[at] = a[at] + b[at] + c[at] + d[at] + e[at] + f[at] + g[at]

    @cuda.jit
    def of_16(y, a, b, c, d, e, f, g, h, i, j, k, p, m, n, o):
        at = cuda.grid(1)
        if at < y.size:
            y[at] = (
                a[at]
                + b[at]
                + c[at]
                + d[at]
                + e[at]
                + f[at]
                + g[at]
                + h[at]
                + i[at]
                + j[at]
                + k[at]
                + p[at]
                + m[at]
                + n[at]
                + o[at]
            )

    return {0: nothing, 1: of_1, 3: of_3, 8: of_8, 16: of_16}
