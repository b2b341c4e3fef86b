"""The tuner: which configuration a kernel is fastest with.

`configs` has what there is to choose from, `search` all decisions, `workbench` and `compiling` the work, `timing` the stopwatch,
`records` what is kept on disk, `autotuned` kernels that choose by themselves.
"""

from __future__ import annotations

from tilekit.tuning.autotuned import Autotuned, TunedLaunch, autotune
from tilekit.tuning.configs import Config, Space
from tilekit.tuning.search import Candidate, Tuning
from tilekit.tuning.timing import Timing, do_bench
from tilekit.tuning.workbench import tune

__all__ = ["Autotuned", "Candidate", "Config", "Space", "Timing", "TunedLaunch", "Tuning", "autotune", "do_bench", "tune"]
