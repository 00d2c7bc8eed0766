"""Finding and ending processes, and the shared memory they leave, by a mark in their environment.

Ranks are neither children of whoever called mpirun nor in its process group, and one whose parent
was killed is nobody's child any more. What all of them share is the environment.
"""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

from patience import PATIENCE

SHM = Path("/dev/shm")


def marked(mark: str) -> list[int]:
    """Pids of living processes, except this one, whose environment holds `mark` (NAME=value)."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if mark.encode() in environment and state not in "ZX" and pid != os.getpid():
            found.append(pid)
    return found


def _birth(pid: int) -> str:
    """Start time of a process that is not dead, or ""."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Poll `condition` until it holds; return whether it does at the end."""
    deadline = time.monotonic() + PATIENCE * timeout_s
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds


def describe(pids: list[int]) -> str:
    """One line per process: pid and command line."""
    lines = []
    for pid in pids:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        lines.append(f"{pid} {command.strip()}")
    return "\n".join(lines)


def end(mark: str, timeout_s: float = 10.0) -> None:
    """Kill every process with `mark` and wait until none is left.

    Raises:
        TimeoutError: Some are left: they hang in the kernel.
    """
    deadline = time.monotonic() + timeout_s
    killed: dict[int, str] = {}
    # A launcher may start more between look and kill: look again. A killed process loses its
    # environment some time before it is dead.
    while pids := sorted({*marked(mark), *(pid for pid in killed if _birth(pid) == killed[pid])}):
        for pid in pids:
            if birth := _birth(pid):
                killed[pid] = birth
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes cannot be killed:\n{describe(pids)}")
        time.sleep(0.01)


def segments() -> set[str]:
    """Names of the shared-memory segments of mpips on this machine."""
    return {path.name for path in SHM.glob("mpips*")}


def left_segments(before: set[str]) -> set[str]:
    """Segments that are new since `before` and that no other living process has mapped.

    Call it when one's own processes have ended: other jobs may run on this machine at the same
    time, and theirs are none of our business.
    """
    left = segments() - before
    for maps in Path("/proc").glob("[0-9]*/maps"):
        if not left:
            break
        if maps.parent.name == str(os.getpid()):
            continue
        try:
            text = maps.read_text()
        except OSError:
            continue
        left -= {name for name in left if f"{SHM}/{name}" in text}
    # What was unlinked meanwhile belonged to somebody who still lives.
    return left & segments()


def main() -> None:
    """`processes.py segments`, or `processes.py left NAME=VALUE SEGMENT...`.

    The second ends the processes that are marked so, and prints a line for each of them and for
    each new segment.
    """
    if sys.argv[1] == "segments":
        print("\n".join(sorted(segments())))
        return
    _, _, mark, *before = sys.argv
    # What is about to end needs a moment on a loaded machine.
    until(lambda: not marked(mark), 2.0)
    if left := marked(mark):
        print(textwrap.indent(describe(left), "process "))
        end(mark)
    for name in sorted(left_segments(set(before))):
        print(f"shared memory {SHM / name}")


if __name__ == "__main__":
    main()
