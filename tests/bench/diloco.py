"""The suite `diloco`: a small character language model under DiLoCo, LocalSGD and BSP, after as many samples.

`tests.bench.language_model` has the model. All jobs have one server and two workers, the same samples,
initial values and inner rule, so they differ in communication alone. BSP is data-parallel training: its
workers push and pull at every step.
"""

from __future__ import annotations

import importlib.util

from mpips.bench.launching import Options, on_ranks
from mpips.bench.measure import Findings

VARIANTS = ("diloco", "diloco_int8", "diloco_overlap", "diloco_async", "local_sgd")
RATIOS = tuple(f"{name}_{what}" for name in VARIANTS for what in ("bytes", "loss"))
_TIMEOUT_S = 1800.0


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure bytes and validation loss. `nodes` has no effect.

    Raises:
        BenchError: The launch failed.
    """
    if importlib.util.find_spec("torch") is None:
        return Findings(skipped=dict.fromkeys(RATIOS, "torch is not installed"))
    return on_ranks("tests.bench.language_model:train", 4, options, _TIMEOUT_S)
