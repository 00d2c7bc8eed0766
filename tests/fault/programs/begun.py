"""A script for `mpips run`: every worker finds the start of its attempt recorded when its main begins.

Writing the status takes long. Worker 0 dies at once in the first attempt.
"""

import os
import signal
import time
from pathlib import Path

import msgspec

import mpips
from mpips.rundir.directory import RunFolder

write_status = RunFolder.write_status


def write_late(folder, status):
    """Write the status as to a slow disk."""
    time.sleep(0.5)
    write_status(folder, status)


def main(worker):
    """Look at the files of the run."""
    folder, generation = Path(os.environ["MPIPS_RUN_DIR"]), int(os.environ["MPIPS_GENERATION"])
    events = (folder / "events.jsonl").read_bytes().splitlines()
    last = msgspec.json.decode(events[-1]) if events else {}
    status = msgspec.json.decode((folder / "status.json").read_bytes())
    assert (status["state"], status["generation"]) == ("running", generation), status
    assert (last["event"], last["generation"]) == ("began", generation), last
    if worker.index == 0 and generation == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    worker.table("w").pull()


RunFolder.write_status = write_late
mpips.run(main, [mpips.DenseTable("w", (4,))], verbose=False)
