"""From a kernel and facts about its arguments to something that runs: specialised, then compiled, or interpreted on a CPU.

    frontend    the kernel's text: parsed, checked, generics and constants become numbers (`specialise`)
    facts       what may be assumed about the arguments
    ir          the kernel as operations on values, each with its type; `passes` rewrite it, in the order of `optimize`
    layouts     which thread holds which element of a tile
    build       numba types and lowers it (`codegen`, `lower`, `nvidia`), NVVM and nvJitLink make a cubin for a `target`
    kernel      the result; `cache` keeps it on disk, `explain` and `cubin` say what it is
    dispatcher  the same as a `numba.cuda.jit` function
    cpu         the same for CPU devices, by LLVM, from the IR; and kernels interpreted, block by block in NumPy
    foreign     kernels that tilekit did not write

Importing this package does not import numba; `build`, `codegen`, `lower`, `nvidia` and `dispatcher` do. Most of `cpu` imports
llvmlite.
"""
