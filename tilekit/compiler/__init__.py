"""From a kernel and facts about its arguments to something that runs: specialised, then compiled by numba-cuda, or interpreted.

    source      the kernel's text, and errors that point into it
    specialise  generics and constants become numbers
    facts       what may be assumed about the arguments
    layout      which thread holds which element of a tile
    build       numba types and lowers it (`types`, `ops`, `lower`), NVVM and nvJitLink make a cubin
    kernel      the result, and what it can be compiled for; `cache` keeps it on disk
    dispatcher  the same as a `numba.cuda.jit` function
    interpret   the CPU device: block by block in NumPy
    load        one specialisation, on the devices where it runs

Importing this package does not import numba; `build`, `types`, `ops`, `lower`, `diagnose` and `dispatcher` do.
"""
