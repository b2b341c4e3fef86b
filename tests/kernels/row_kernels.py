"""Kernels on rows that need nothing but these and a weight for each column."""

from tilekit import kernels

CALLS = {
    "softmax": lambda x, w: kernels.softmax(x),
    "log_softmax": lambda x, w: kernels.log_softmax(x),
    "softmax_backward": lambda x, w: kernels.softmax_backward(x, x),
    "log_softmax_backward": lambda x, w: kernels.log_softmax_backward(x, x),
    "layer_norm": lambda x, w: kernels.layer_norm(x, w, w),
    "rms_norm": lambda x, w: kernels.rms_norm(x, w),
    "l2_norm": lambda x, w: kernels.l2_norm(x),
}
BACKWARD = {
    "layer_norm_backward": lambda x, w: kernels.layer_norm_backward(x, x, w),
    "rms_norm_backward": lambda x, w: kernels.rms_norm_backward(x, x, w),
    "add_rms_norm_backward": lambda x, w: kernels.add_rms_norm_backward(x, x, x, w),
    "l2_norm_backward": lambda x, w: kernels.l2_norm_backward(x, x),
}
