"""A program has one supervised job, on every rank and at any time after its end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from mpips.rundir.directory import RunFolder, replace_json
from mpips.rundir.files import Lease

# Other ranks may return from their job before the scheduler has marked the run as finished.
PROGRAM = """
import os, pathlib, mpips

def main(worker):
    worker.table("w").push([1.0, 1.0])

tables = [mpips.DenseTable("w", (2,))]
for options in ({"staleness_bound": 1}, {}, {}):
    try:
        print(mpips.run(main, tables, **options).role)
        pathlib.Path(os.environ["MPIPS_RUN_DIR"], "finished.json").unlink()
    except mpips.ConfigError as error:
        print(error)
"""


def test_a_second_job_is_refused_before_the_run_is_marked_as_finished(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "w")
    (run.path / "logs" / "attempt-0").mkdir(parents=True)
    lease = Lease(generation=0, host="here", pid=os.getpid(), time_s=time.time())
    replace_json(run.lease_file, lease)
    env = {**os.environ, "MPIPS_RUN_DIR": str(run.path), "MPIPS_GENERATION": "0"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    refused, role, second = done.stdout.splitlines()
    assert "unknown option 'staleness_bound'" in refused
    assert "worker" in role
    assert "mpips.run was called a second time" in second
