"""What is found out about a bound kernel, and what it is rewritten to, before numba sees it. One file a pass."""
