"""The CPU device: NumPy buffers, and a worker thread for each stream."""
