"""The task of `seen`, in a module that takes until a file is there to be imported.

LATE names the file; once it waits, each process has made another beside it, LATE-PID.
"""

import os
import pathlib
import time

from seen import Seen

_go = pathlib.Path(os.environ["LATE"])
_go.with_name(f"{_go.name}-{os.getpid()}").touch()
_deadline = time.monotonic() + 60
while not _go.exists() and time.monotonic() < _deadline:
    time.sleep(0.005)


class Late(Seen):
    """See above; the first step makes a file `step` beside the other."""

    name = "late"

    def step(self, worker, batch):
        _go.with_name("step").touch()
        return super().step(worker, batch)
