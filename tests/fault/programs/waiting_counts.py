"""The counting task, which waits in its middle until a file is there."""

from __future__ import annotations

import time
from pathlib import Path

from mpips.testing import counted


class Options(counted.Counting, frozen=True, forbid_unknown_fields=True):
    """`gate`: the file; without it each process waits before its fourth step."""

    gate: str = ""


class Waiting(counted.Counted):
    name = "waiting"
    Options = Options

    def __init__(self, info, options, seed):
        super().__init__(info, options, seed)
        self.gate = Path(options.gate)

    def step(self, worker, batch):
        deadline = time.monotonic() + 100
        while self._steps >= 3 and not self.gate.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return super().step(worker, batch)
