"""Events during a run whose launches are killed: a disk that is full for some time, a wall clock that jumps.

Both need special rights or tools: `why_not` returns what is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mpips.chaos.storage import DiskFiller
from mpips.testing.errors import BenchError

Steps = Callable[[], Mapping[int, int]]  # returns the steps of each worker so far, by index

_JUMP_S = 100_000  # seconds by which the clock jumps
_STEPS = 30  # steps of each worker while the event lasts: more than between two checkpoints
_LIMIT_S = 10.0  # seconds; the longest wait for steps
_MOUNT = 'mount -t tmpfs -o size=64m tmpfs "$0" && echo ready && exec sleep 600'
_MOUNTS = ("unshare", "--mount", "--propagation", "private")

# A library for LD_PRELOAD: it adds the seconds in a file to CLOCK_REALTIME of the process.
_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *ahead;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void set_up(void) {
  real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int fd = open(getenv("MPIPS_BENCH_CLOCK"), O_RDONLY);
  if (fd < 0) return;
  void *at = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
  if (at != MAP_FAILED) ahead = at;
  close(fd);
}

int clock_gettime(clockid_t id, struct timespec *t) {
  if (!real) set_up();
  int code = real(id, t);
  if (code == 0 && ahead && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) t->tv_sec += *ahead;
  return code;
}

time_t time(time_t *out) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  if (out) *out = t.tv_sec;
  return t.tv_sec;
}

int gettimeofday(struct timeval *out, void *zone) {
  struct timespec t;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &t);
  out->tv_sec = t.tv_sec;
  out->tv_usec = t.tv_nsec / 1000;
  return 0;
}
"""


class Beside:
    """No event; subclasses add one.

    Attributes:
        wrapper: Words in front of the command of the run.
        environment: Environment variables added to those of the run.
    """

    wrapper: Sequence[str] = ()
    environment: Mapping[str, str] = {}

    def path(self, folder: Path) -> Path:
        """Return the path, valid in this process, of a path that is valid in the run."""
        return folder

    def begin(self, steps: Steps) -> None:
        """Start the event in a run that makes steps. Blocks while the event lasts.

        Args:
            steps: Returns the steps of the workers so far.
        """

    def end(self) -> None:
        """Undo the event after the end of the run."""


class FullDisk(Beside):
    """A run directory on a small disk that is full for some time."""

    def __init__(self, folder: Path) -> None:
        """Mount a tmpfs at `folder` in a mount namespace that only the run enters.

        Raises:
            BenchError: The kernel refuses the mount.
        """
        command = [*_MOUNTS, "sh", "-c", _MOUNT, str(folder)]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            self.end()
            raise BenchError(f"cannot mount a tmpfs at {folder}: this needs root or CAP_SYS_ADMIN")
        self.wrapper = ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--"]
        self._folder = folder

    def path(self, folder: Path) -> Path:
        """Return the path through /proc, since this process is in another mount namespace."""
        return Path(f"/proc/{self._holder.pid}/root") / folder.relative_to("/")

    def begin(self, steps: Steps) -> None:
        """Fill the disk, wait until all workers have made steps, and free it again."""
        # Wait for the files in which the workers count their steps.
        _await_first(steps)
        filler = DiskFiller(self.path(self._folder))
        filler.fill()
        _watch(steps)
        filler.close()

    def end(self) -> None:
        """Kill the process that owns the mount."""
        self._holder.kill()
        self._holder.communicate()


class WallClock(Beside):
    """A wall clock that jumps for all processes of the run."""

    def __init__(self, by_s: int) -> None:
        """Compile the library for LD_PRELOAD.

        Args:
            by_s: Seconds by which the clock jumps; may be negative.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="mpips-bench-clock-"))
        source, library = self._folder / "clock.c", self._folder / "clock.so"
        source.write_text(_CLOCK)
        command = [*_compiler(), "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
        self._ahead = self._folder / "ahead"
        self._ahead.write_bytes(bytes(8))
        self._by_s = by_s
        self.environment = {"LD_PRELOAD": str(library), "MPIPS_BENCH_CLOCK": str(self._ahead)}

    def begin(self, steps: Steps) -> None:
        """Let the clock jump and wait until all workers have made steps."""
        with self._ahead.open("r+b", buffering=0) as file:
            file.write(self._by_s.to_bytes(8, "little", signed=True))
        _watch(steps)

    def end(self) -> None:
        """Remove the library."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _await_first(steps: Steps) -> None:
    """Wait for the first step of a worker, at most `_LIMIT_S`."""
    deadline = time.monotonic() + _LIMIT_S
    while not steps() and time.monotonic() < deadline:
        time.sleep(0.02)


def _watch(steps: Steps) -> None:
    """Wait until all workers have made `_STEPS` more steps, at most `_LIMIT_S`."""
    deadline = time.monotonic() + _LIMIT_S
    before = dict(steps())
    while time.monotonic() < deadline:
        now = steps()
        if now and all(now[w] >= before.get(w, 0) + _STEPS for w in now):
            return
        time.sleep(0.02)


def _compiler() -> list[str]:
    found = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    return found.split() if found else []


def why_not(event: str) -> str:
    """Return why an event is impossible on this machine, or "" if it is possible."""
    if event in ("forward", "back") and not _compiler():
        return "a wall clock that jumps needs a C compiler: install gcc or set CC"
    if event == "disk":
        command = [*_MOUNTS, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=10, check=False)
        except OSError:
            return "a small disk needs the program unshare (package util-linux)"
        if done.returncode != 0:
            return "a small disk needs the right to mount: run it as root"
    return ""


def make(event: str, folder: Path) -> Beside:
    """Make the event with this name of the matrix ("": none) for a run in `folder`.

    Raises:
        BenchError: The event is impossible on this machine.
    """
    if event == "disk":
        return FullDisk(folder)
    if event in ("forward", "back"):
        return WallClock(_JUMP_S if event == "forward" else -_JUMP_S)
    return Beside()
