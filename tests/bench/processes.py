"""CPU time, memory and open files of processes of this node, as the kernel reports them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from mpips.transport.region import PREFIX, SHM


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of all threads of a process, with a resolution of a nanosecond."""
    # Compute the clock id as clock_getcpuclockid(3) does on Linux.
    return time.clock_gettime((~pid << 3) | 2)


def memory(pid: int) -> dict[str, int]:
    """Return the resident bytes of a process: "VmRSS", and its parts "RssAnon", "RssFile" and "RssShmem"."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "VmRSS" or name.startswith("Rss"):
            found[name] = 1024 * int(value.split()[0])
    return found


def proportional(pid: int) -> int:
    """Return the resident bytes of a process; a page that k processes map counts as 1/k ("Pss").

    Raises:
        OSError: The process has ended, or the kernel reports no such value.
    """
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/{pid}/smaps_rollup has no line 'Pss:'")


def open_files(pid: int) -> int:
    """Return the number of open file descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def shared_memory(token: str) -> tuple[int, int]:
    """Return (number of shared-memory files, bytes allocated) of a job in /dev/shm of this node."""
    sizes = [p.stat().st_blocks * 512 for p in SHM.glob(f"{PREFIX}-{os.geteuid()}-{token}-*")]
    return len(sizes), sum(sizes)
