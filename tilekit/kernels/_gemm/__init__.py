"""Products of matrices: `products` of two, `grouped` of groups of rows; `schedules` deals them out to blocks, by `model`."""
