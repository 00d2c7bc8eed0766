"""What the kernel says of processes of this node: CPU, memory, open files."""

from __future__ import annotations

import os
import time
from pathlib import Path

from mpips.transport.region import PREFIX, SHM


def cpu_seconds(pid: int) -> float:
    """CPU seconds that a process has used, all threads together, to the nanosecond."""
    # What clock_getcpuclockid(3) returns on Linux: the scheduler's clock of that process.
    return time.clock_gettime((~pid << 3) | 2)


def memory(pid: int) -> dict[str, int]:
    """Resident bytes of a process: "VmRSS", and its parts "RssAnon", "RssFile" and "RssShmem"."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "VmRSS" or name.startswith("Rss"):
            found[name] = 1024 * int(value.split()[0])
    return found


def proportional(pid: int) -> int:
    """Resident bytes of a process where a page that k processes map counts as 1/k ("Pss")."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/{pid}/smaps_rollup has no line Pss")


def open_files(pid: int) -> int:
    """Number of file descriptors that a process holds."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def shared_memory(token: str) -> tuple[int, int]:
    """(segments, bytes taken) of a job in /dev/shm of this node."""
    sizes = [p.stat().st_blocks * 512 for p in SHM.glob(f"{PREFIX}-{os.geteuid()}-{token}-*")]
    return len(sizes), sum(sizes)
