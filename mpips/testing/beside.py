"""What goes on beside a run that is killed at: a disk that is full for a while, a wall clock that jumps."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mpips.testing.errors import BenchError

Steps = Callable[[], Mapping[int, int]]

_JUMP_S = 100_000
_STEPS = 30  # of each worker, while it goes on: more than between two checkpoints
_LIMIT_S = 10.0
_MOUNT = 'mount -t tmpfs -o size=64m tmpfs "$0" && echo ready && exec sleep 600'
_MOUNTS = ("unshare", "--mount", "--propagation", "private")

# CLOCK_REALTIME of a process that has it loaded is ahead by the seconds that a file says.
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
    """Nothing.

    Attributes:
        wrapper: Words before the command of the run.
        environment: Added to the run's.
    """

    wrapper: Sequence[str] = ()
    environment: Mapping[str, str] = {}

    def path(self, folder: Path) -> Path:
        """Where this process finds what is a path for the run."""
        return folder

    def begin(self, steps: Steps) -> None:
        """Let it come, the run being at work; blocks while it lasts.

        `steps` tells how far the workers are.
        """

    def end(self) -> None:
        """Undo all of it; the run is over."""


class FullDisk(Beside):
    """The run directory lies on a small disk, which is full for a while."""

    def __init__(self, folder: Path) -> None:
        """Mount it at `folder`, for the run alone."""
        command = [*_MOUNTS, "sh", "-c", _MOUNT, str(folder)]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            self.end()
            raise BenchError(f"cannot mount a small disk at {folder}")
        self.wrapper = ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--"]
        self._folder = folder

    def path(self, folder: Path) -> Path:
        """See Beside."""
        return Path(f"/proc/{self._holder.pid}/root") / folder.relative_to("/")

    def begin(self, steps: Steps) -> None:
        """See Beside."""
        _await_first(steps)  # its count needs a file
        filler = self.path(self._folder) / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                pass
        _watch(steps)
        filler.unlink()

    def end(self) -> None:
        """See Beside."""
        self._holder.kill()
        self._holder.communicate()


class WallClock(Beside):
    """The wall clock of all processes of the run jumps."""

    def __init__(self, by_s: int) -> None:
        """Build what lets it jump."""
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
        """See Beside."""
        with self._ahead.open("r+b", buffering=0) as file:
            file.write(self._by_s.to_bytes(8, "little", signed=True))
        _watch(steps)

    def end(self) -> None:
        """See Beside."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _await_first(steps: Steps) -> None:
    """Wait for the first step of a worker, or for some seconds."""
    deadline = time.monotonic() + _LIMIT_S
    while not steps() and time.monotonic() < deadline:
        time.sleep(0.02)


def _watch(steps: Steps) -> None:
    """Wait until all workers have gone on for a while, or for some seconds."""
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
    """What keeps an event from happening here; "": nothing."""
    if event in ("forward", "back") and not _compiler():
        return "a wall clock that jumps needs a C compiler"
    if event == "disk":
        command = [*_MOUNTS, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=10, check=False)
        except OSError:
            return "there is no unshare"
        if done.returncode != 0:
            return "a small disk needs a mount of one's own"
    return ""


def make(event: str, folder: Path) -> Beside:
    """What an event of the matrix is, for a run in `folder`.

    Raises:
        BenchError: It cannot be had here.
    """
    if event == "disk":
        return FullDisk(folder)
    if event in ("forward", "back"):
        return WallClock(_JUMP_S if event == "forward" else -_JUMP_S)
    return Beside()
