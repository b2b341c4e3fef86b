"""Attention: `forward` and `backward`, of packed sequences `varlen` and `varlen_backward`, of a few queries `decode`.

Where warpgroups multiply (sm_90), the gradients' kernels are those of the files named after wgmma. `mask` says what a query sees,
`varlen_schedule` which tiles packed sequences have, `online_softmax` how rows are kept up to date.
"""
