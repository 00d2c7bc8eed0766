"""Suite `checkpoint`: how fast two servers write a checkpoint, beside plain files on the same disk,
and what one costs a worker that goes on meanwhile.

In the folder for temporary files: set TMPDIR to measure another disk.
"""

from __future__ import annotations

import os
import tempfile

from mpips.bench.launching import Options, on_ranks
from mpips.bench.measure import Findings


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Two servers on this machine."""
    if nodes > 1:
        return Findings(skipped={"write_vs_raw": "the disk is the same: run it without --nodes"})
    folder = tempfile.gettempdir()
    found = on_ranks("checkpoint", 2, options)
    found.add(on_ranks("cut", 2, options))
    system = os.statvfs(folder)
    free = system.f_bavail * system.f_frsize >> 30
    found.notes.append(f"checkpoints were written in {folder}, which has {free} GiB free")
    return found
