"""Tensors and partitions: views of device memory, with shapes, strides and dtypes."""
