"""The kernel as structured SSA: what a kernel computes, after binding and inlining, whatever its spelling."""
