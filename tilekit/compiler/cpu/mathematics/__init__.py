"""Mathematical functions as formulas over vectors: of float32 and float64, for CPUs with and without fused multiply-adds.

How far each may be off is what its operation says (tilekit.lang.exponential, trigonometry and calculation).
"""
