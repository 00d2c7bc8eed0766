"""Run a script of which a worker is killed at a chosen place in each of the first launches.

argv: DEATHS SCRIPT [ARGUMENT ...]. DEATHS are separated by commas, one for each launch: WORKER:PLACE:NUMBER.
That worker kills itself when it comes to the place for the NUMBER-th time in this launch, from 1 on:

    backward    the backward pass of a step has ended: its gradients are with the servers, the step is not
    open NAME   the script is about to open a file of this name
    anything    another module has called `come_to` with it
"""

from __future__ import annotations

import builtins
import os
import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

DEATHS = "MPIPS_TEST_DEATHS"
seen: Counter[str] = Counter()


def come_to(place: str) -> None:
    """Count a place; kill this process if its death is due."""
    import mpips

    deaths = [death for death in os.environ[DEATHS].split(",") if death]
    launch = int(os.environ.get("MPIPS_GENERATION", "0"))
    seen[place] += 1
    if launch < len(deaths) and deaths[launch] == f"{mpips.rank()}:{place}:{seen[place]}":
        os.kill(os.getpid(), signal.SIGKILL)


def watch() -> None:
    """Count backward passes and opened files from now on; the job has begun, so that torch may be loaded."""
    import torch

    backward, plain_open = torch.Tensor.backward, builtins.open

    def counted_backward(self: Any, *arguments: Any, **named: Any) -> None:
        backward(self, *arguments, **named)
        come_to("backward")

    def counted_open(file: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(file, str):
            come_to(f"open {Path(file).name}")
        return plain_open(file, *arguments, **named)

    torch.Tensor.backward = counted_backward  # type: ignore[method-assign]
    builtins.open = counted_open


def main() -> None:
    """Run the script as the main program."""
    import mpips

    os.environ[DEATHS] = sys.argv[1]
    sys.argv[:] = sys.argv[2:]
    begin = mpips.init

    def init(*arguments: Any, **named: Any) -> None:
        begin(*arguments, **named)
        watch()

    mpips.init = init
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
