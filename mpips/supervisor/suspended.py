"""Finds suspended processes of this host: stopped by a signal, or frozen with their control group."""

from __future__ import annotations

import contextlib
from pathlib import Path

from mpips.supervisor.reap import state_of

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def is_suspended(pid: int) -> bool:
    """Return True if a process cannot run until it is continued; False if that is not known."""
    return state_of(pid) in ("t", "T") or _is_frozen(pid)


def _is_frozen(pid: int) -> bool:
    """Return True if the kernel's freezer holds the process's control group or one above it."""
    with contextlib.suppress(OSError):
        for line in (PROC / f"{pid}/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                events = CGROUPS / path.lstrip("/") / "cgroup.events"
                with contextlib.suppress(OSError):
                    if "frozen 1" in events.read_text().splitlines():
                        return True
            elif "freezer" in controllers.split(","):
                state = CGROUPS / "freezer" / path.lstrip("/") / "freezer.state"
                with contextlib.suppress(OSError):
                    if state.read_text().strip() != "THAWED":
                        return True
    return False
