"""Attention: `forward` and `backward`, of packed sequences `varlen` and `varlen_backward`, of a few queries `decode`.

Where warpgroups multiply (sm_90), packed sequences have their gradients by `varlen_backward_wgmma`. `mask` says what a query
sees, `varlen_schedule` which tiles packed sequences have, `online_softmax` how rows are kept up to date.
"""
