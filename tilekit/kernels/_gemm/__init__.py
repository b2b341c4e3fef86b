"""Products of matrices: `products` of two, `grouped` of groups of rows; how they are dealt out to blocks is in `schedules`, by `model`."""
