"""A whole job that is stopped for longer than its timeout and continued, as by gang scheduling."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from supervised import alive, check_counts, counting, start

TIMEOUT_S = 2.0


def test_a_suspended_job_goes_on(tmp_path: Path) -> None:
    sets = (
        f"cluster.timeout_s={TIMEOUT_S:g}",
        "table.reduce=sum",
        "options.copies=1",
        "options.pause_s=0.02",
        "checkpoint.every_steps=20",
    )
    run = start(tmp_path, "-n", "4", "--servers", "1", *counting(tmp_path, *sets))
    with run.launched:
        status = run.until(lambda status: bool(status["ranks"] and status["checkpoint"]))
        # Workers are stopped last and continue first: they wait for the others before and after.
        workers = [p["pid"] for p in status["ranks"] if p["role"].startswith("worker")]
        others = [run.launched.pid, *(p for p in alive(run) if p not in workers)]
        assert len(workers) == 2
        assert len(others) >= 4
        for pids, pause_s in ((others, TIMEOUT_S / 4), (workers, 2 * TIMEOUT_S)):
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(pause_s)  # the length of the suspension
        for pids, pause_s in ((workers, TIMEOUT_S / 8), (others, 0.0)):
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            time.sleep(pause_s)
        assert run.launched.wait(60) == 0, run.launched.tail(80)
        assert run.attempts == 1, run.launched.stderr()
    check_counts(run, tmp_path)
