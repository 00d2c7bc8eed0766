"""Remove the shared memory of a Slurm job from a node when Slurm has cancelled the job.

    python -m mpips.supervisor.cancelled RUN_FOLDER

jobs/watch.sh starts this program once on each node of the job, as a step beside the ranks. It waits for the
first of

    SIGTERM                 Slurm sends it to all processes of a job that it ends
    a line on stdin         the command of the batch script has ended by itself: this program ends
    the end of stdin        the batch script has ended without that line

After SIGTERM or the end of stdin it reads the state of the job. If the job was cancelled, it removes the
memory of the runs in RUN_FOLDER, and memory of this user that no process uses, as every session does at its
start. Checkpoints stay. In every other case the memory stays: a job that is requeued may get the same nodes
and continue from it. The line on stdin is needed because Slurm describes a job whose batch script has ended
like a cancelled one.

Slurm starts no step of a cancelled job, so nothing else can reach its nodes then. This program is running
already, and Slurm leaves it `KillWait` (30 s by default) until SIGKILL.

A process that maps shared memory holds a lock on its file, and `remove_unused` removes a file only if it
gets that lock. So the memory of a rank is removed after the end of the rank, however the rank ends, and
memory of other jobs stays. Memory that a process makes later, while it ends, is found by the next round.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from mpips.errors import MpipsError
from mpips.rundir.directory import RunFolder
from mpips.transport.region import (
    PREFIX,
    SHM,
    own_folders,
    own_segments,
    persistent,
    remove_unused,
    sweep,
)

# Environment variable that jobs/watch.sh sets for `mpips run`: this program runs on all nodes.
WATCHED = "MPIPS_NODES_WATCHED"
_CANCELLED = (
    "COMPLETING None"  # state and reason of a job that `scancel` is ending, as squeue prints them
)
_ANSWER_S = 20.0  # seconds in which squeue must answer
_PAUSE_S = 0.05  # seconds between two rounds
_QUIET_S = 3.0  # seconds without memory of the job after which nothing more is expected
_LONGEST_S = 600.0  # seconds after which this program ends in any case; KillWait is shorter


def is_cancelled(env: Mapping[str, str] = os.environ) -> bool:
    """Return True if Slurm is ending the job of this process because it was cancelled. Blocks up to 20 s.

    False without a job of Slurm, and if squeue does not answer.
    """
    if not (job := env.get("SLURM_JOB_ID")):
        return False
    command = ("squeue", "--noheader", f"--job={job}", "--format=%T %r")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER_S, env={**env}
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.strip() == _CANCELLED


def is_removed_elsewhere(env: Mapping[str, str] = os.environ) -> bool:
    """Return True if this program is removing the memory of this process's job from all of its nodes."""
    return env.get(WATCHED) == "1" and is_cancelled(env)


def tokens(folder: Path) -> Iterator[str]:
    """Yield the tokens of the runs in a folder; a run that cannot be read is left out."""
    for path in (folder, *sorted(folder.glob("*/"))):
        try:
            yield RunFolder(path).info().token
        except (MpipsError, OSError):
            continue


def left(folder: Path) -> list[Path]:
    """Return the shared memory of the runs in a folder that is on this node."""
    return [
        path
        for token in tokens(folder)
        for find in (own_segments, own_folders)
        for _, path in find(persistent(token))
    ]


def remove_all(folder: Path) -> None:
    """Remove memory of the runs in a folder, and unused memory, until there has been none for 3 s. Blocks.

    Memory that processes use counts: ranks may take most of `KillWait` to end.

    Args:
        folder: Folder of the runs of a job.
    """
    began = seen = time.monotonic()
    while (now := time.monotonic()) - seen < _QUIET_S and now - began < _LONGEST_S:
        sweep()
        found = left(folder)
        for path in found:
            remove_unused(path)
        if found or any(SHM.glob(f"{PREFIX}-{os.geteuid()}-*")):
            seen = now
        time.sleep(_PAUSE_S)


def may_be_cancelled() -> bool:
    """Wait for a signal or for stdin; return False if the command of the batch script has ended by itself."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    # Warnings are for the ranks.
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    stdin = sys.stdin.fileno()
    ready, _, _ = select.select([reading, stdin], [], [])
    return reading in ready or not os.read(stdin, 1)


def main() -> int:
    """Wait for the end of the job, then remove what it has left on this node if it was cancelled."""
    if may_be_cancelled() and is_cancelled():
        remove_all(Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
