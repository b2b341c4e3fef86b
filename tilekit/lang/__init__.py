"""The tile language: what the body of a kernel is written in.

One file a family of operations. Run by Python, each operation is its own NumPy reference.
"""

from __future__ import annotations
