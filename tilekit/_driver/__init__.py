"""The drivers: the one protocol through which everything else reaches a device, and its two implementations.

`protocol` says what a device can be asked to do; `cuda` and `cpu` do it; `signal` tells the host when it is done.
"""

from __future__ import annotations
