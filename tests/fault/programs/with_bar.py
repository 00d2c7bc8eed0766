"""A script whose workers draw progress bars on stderr. Worker 0 stops at one half until a file is there.

usage: with_bar.py FILE
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import mpips


def main(worker: mpips.Worker) -> None:
    """Draw a bar in place."""
    worker.table("w").pull()
    sys.stderr.write(f"isatty {sys.stderr.isatty()}\n")
    deadline = time.monotonic() + 60
    for percent in (0, 50, 100):
        sys.stderr.write(f"\r{percent:3}%|bar of worker {worker.index}|")
        sys.stderr.flush()
        while percent == 50 and not Path(sys.argv[1]).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    sys.stderr.write("\n")


if __name__ == "__main__":
    mpips.run(main, [mpips.DenseTable("w", (4,), mpips.SGD(0.1))])
