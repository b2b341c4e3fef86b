"""The CUDA driver, through cuda.bindings: what works on GPUs, and the only such code outside the compiler."""
