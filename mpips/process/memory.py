"""The memory of this process and of its node, as /proc and /dev/shm show it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")  # bytes


def heap_bytes() -> int:
    """Return the memory of this process that lies in RAM and is shared with no other; 0: unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            _, resident, shared = file.read().split()[:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * _PAGE


def shared_memory_bytes(folder: str = "/dev/shm") -> tuple[int, int]:
    """Return the bytes in use in the file system of shared memory, and its size; (0, 0): unknown."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0, 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_blocks * found.f_frsize


def own_bytes(pid: int) -> int:
    """Return the memory of a process that no file and no other process has; 0: unknown."""
    return _kib(f"/proc/{pid}/status").get("RssAnon", 0) * 1024


class Group(NamedTuple):
    """A control group with a limit of memory below that of the node.

    Attributes:
        folder: Its files.
        limit: Bytes that its processes may use together.
        used: Bytes that they use, pages of files included.
    """

    folder: Path
    limit: int
    used: int


def limited_groups(proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> Iterator[Group]:
    """Yield the control groups of this process that limit its memory: its own, then those above it.

    A batch system has such a group for each job. The arguments are those of `free_bytes`.
    """
    on_node = _kib(f"{proc}/meminfo").get("MemTotal", 0) * 1024
    try:
        lines = Path(f"{proc}/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        names = ("max", "current") if not controllers else ("limit_in_bytes", "usage_in_bytes")
        root = Path(groups, controllers)
        inside = Path(path.strip("/"))
        for folder in (root / part for part in (inside, *inside.parents)):
            limit, used = (_number(folder / f"memory.{name}") for name in names)
            if 0 < limit < on_node:
                yield Group(folder, limit, used)


def group_limit(proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> int:
    """Return the bytes that the control groups of this process let it use; 0: there is no such limit.

    The arguments are those of `free_bytes`.
    """
    return min((group.limit for group in limited_groups(proc, groups)), default=0)


def memory_kills(proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> int:
    """Return how many processes the kernel has killed for lack of memory: of this job, else of this node.

    Those of a job are counted by the highest control group with a limit, in version 2 of control groups.
    The number counts from the start of the group or of the node. The arguments are those of `free_bytes`.
    """
    for group in reversed([*limited_groups(proc, groups)]):
        events = _fields(group.folder / "memory.events")
        if "oom_kill" in events:
            return events["oom_kill"]
    return _fields(Path(proc, "vmstat")).get("oom_kill", 0)


def free_bytes(proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> tuple[int, int]:
    """Return the memory that this process may still use on this node, and the most it may use; in bytes.

    It is that of the node, or less where the control group of the process or one above it has a limit.
    (0, 0): unknown.

    Args:
        proc: Folder of the kernel's files about processes.
        groups: Folder of the control groups, of version 2, or of version 1 with a folder for memory.
    """
    node = _kib(f"{proc}/meminfo")
    free, total = node.get("MemAvailable", 0) * 1024, node.get("MemTotal", 0) * 1024
    # A group above with a higher limit may have less left: other processes use it, too.
    for group in limited_groups(proc, groups):
        # Pages of files count as used, and the kernel gives them back when it needs them.
        pages = _fields(group.folder / "memory.stat")
        given_back = pages.get("inactive_file", 0) + pages.get("active_file", 0)
        free, total = (
            min(free, group.limit - group.used + given_back),
            min(total, group.limit),
        )
    return max(free, 0), total


def _kib(path: str) -> dict[str, int]:
    """Return the numbers of a file of lines like `MemTotal: 1024 kB`; without the file, none."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return {}
    fields = (line.partition(":") for line in lines)
    return {
        name: int(rest.split()[0])
        for name, _, rest in fields
        if rest.split()[:1] and rest.split()[0].isdigit()
    }


def _number(path: Path) -> int:
    """Return the number in a file; 0: none, no limit, or no such file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0


def _fields(path: Path) -> dict[str, int]:
    """Return the numbers of a file of lines like `name 1024`; without the file, none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {
        words[0]: int(words[1])
        for words in map(str.split, lines)
        if len(words) == 2 and words[1].isdigit()
    }
