"""The counting task, whose steps take half a second until a file is there."""

from __future__ import annotations

import time
from pathlib import Path

from mpips.testing import counted


class Options(counted.Counting, frozen=True, forbid_unknown_fields=True):
    """`gate`: the file."""

    gate: str = ""


class Slow(counted.Counted):
    name = "slow"
    Options = Options

    def __init__(self, info, options, seed):
        super().__init__(info, options, seed)
        self.gate = Path(options.gate)

    def step(self, worker, batch):
        deadline = time.monotonic() + 0.5
        while not self.gate.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return super().step(worker, batch)
