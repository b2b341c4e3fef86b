"""What the lowerings of several op families share: numba's types of tiles, LLVM and PTX for elements, memory and layouts."""
