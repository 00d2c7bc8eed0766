"""The suite `checkpoint`: compare checkpoints of two servers with plain files on the same disk.

A second part measures what a checkpoint costs a worker that trains while it is written. Checkpoints are
written to the folder for temporary files; set TMPDIR to measure another disk.
"""

from __future__ import annotations

import os
import tempfile

from mpips.bench.launching import Options, on_ranks
from mpips.bench.measure import Findings


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure two ranks on this machine. `nodes` above 1 skips the suite.

    Raises:
        BenchError: A launch failed.
    """
    if nodes > 1:
        return Findings(skipped={"write_vs_raw": "needs only one node: run it without --nodes"})
    folder = tempfile.gettempdir()
    found = on_ranks("mpips.bench.rank.checkpoint:run", 2, options)
    found.add(on_ranks("mpips.bench.rank.cut:run", 2, options))
    system = os.statvfs(folder)
    free = system.f_bavail * system.f_frsize >> 30
    found.notes.append(f"checkpoints were written in {folder}, which has {free} GiB free")
    return found
