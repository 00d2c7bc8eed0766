"""The lease of a run directory: one supervisor at a time, and one generation that may publish checkpoints.

Two things exclude a second supervisor:

* The kernel's lock on `lease.lock` excludes one on the same machine, and on other machines if the locks of
  the file system reach them. The lock ends with the process that holds it.
* `lease.json` names the host, the process and the generation number of the supervisor, which rewrites it
  every `RENEW_S` seconds. A new supervisor that finds an unreleased lease of another host watches it for
  `STALE_S` seconds of its own running time (clocks of two hosts cannot be compared). While the lease changes,
  the other supervisor runs, and the new one is refused.

Each attempt has a new generation number, which the supervisor writes to the lease before the attempt starts.
Before a server publishes a checkpoint, it reads the lease and checks that it still names the server's
generation. Between this check and the rename of the checkpoint, a new supervisor would have to end the old
processes, ask the hosts and write a lease; even then it would find the checkpoint complete, either old or
new.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable

from mpips.errors import ConfigError, MpipsError
from mpips.process.patience import Patience
from mpips.rundir.directory import STALE_S, RunFolder, replace_json, version_of
from mpips.rundir.files import Lease

RENEW_S = 2.0  # seconds between two renewals
_WATCH_S = 0.2  # seconds between two checks of the lease of another host
# Errors of a file system that has no locks.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class LeaseLostError(MpipsError):
    """Another supervisor has taken over the run."""


class LeaseHolder:
    """A supervisor's lease of a run directory. Use it in a `with` block.

    Attributes:
        generation: Generation number of the last attempt; -1: no attempt yet.
    """

    def __init__(self, run: RunFolder, tell: Callable[[str], None] = lambda text: None) -> None:
        """Take the run. Blocks for `STALE_S` if a supervisor on another host has not released it.

        Args:
            run: The run directory.
            tell: Receives a line for people before such a wait.

        Raises:
            ConfigError: Another supervisor has the run, or the run directory cannot be written to.
        """
        self._run = run
        self._host, self._pid = socket.gethostname(), os.getpid()
        try:
            self._fd = os.open(
                run.path / "lease.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise ConfigError(
                f"{run.path}/lease.lock: cannot be written: {error.strerror}; make the run directory writable"
            ) from None
        try:
            self._lock()
            before = _lease_of(run)
            self._check_silent(before, tell)
        except BaseException:
            os.close(self._fd)
            raise
        self.generation = before.generation if before is not None else -1
        self._written = False
        self._renewals = 0
        self._next = 0.0

    def _lock(self) -> None:
        """Take the kernel's lock, if the file system has locks.

        Raises:
            ConfigError: Another process holds it.
        """
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            if error.errno != errno.EWOULDBLOCK:
                raise ConfigError(f"{self._run.path}: cannot be locked: {error.strerror}") from None
            lease = self._run.lease()
            who = f"process {lease.pid} on {lease.host}" if lease else "another process"
            raise ConfigError(
                f"{self._run.path}: is being run by {who}; end it first, or let it continue"
            ) from None

    def _check_silent(self, lease: Lease | None, tell: Callable[[str], None]) -> None:
        """Watch an unreleased lease of another host for `STALE_S` seconds. Blocks.

        Raises:
            ConfigError: The lease changes, so that supervisor runs.
        """
        if lease is None or lease.released or lease.host == self._host:
            return
        first, watch = version_of(self._run.lease_file), Patience(STALE_S)
        tell(
            f"mpips run: {self._run.path} was not released by process {lease.pid} on {lease.host}: "
            f"waiting {STALE_S:.0f} s to see whether it still runs"
        )
        while not watch.is_over:
            time.sleep(_WATCH_S)
            if version_of(self._run.lease_file) != first:
                raise ConfigError(
                    f"{self._run.path}: is being run by process {lease.pid} on {lease.host}, which has "
                    "just renewed its lease; end it there first"
                )

    def advance(self) -> int:
        """Give the right to publish to a new generation, durably; return its number.

        Raises:
            LeaseLostError: Another supervisor has taken over.
            OSError: The lease cannot be written; its content did not change.
        """
        self.check()
        self._write(self.generation + 1, durable=True)
        self.generation += 1
        return self.generation

    def renew(self) -> str:
        """Rewrite the lease if `RENEW_S` has passed. Cheap: call it often.

        Returns:
            Why the lease could not be written this time, for example because the disk is full, or "". Its
            content does not change then, but its modification time does, which other hosts observe.

        Raises:
            LeaseLostError: Another supervisor has taken over.
        """
        if not self._written or time.monotonic() < self._next:
            return ""
        self.check()
        try:
            self._write(self.generation)
        except OSError as error:
            self._next = time.monotonic() + RENEW_S
            with contextlib.suppress(OSError):
                os.utime(self._run.lease_file)
            return str(error)
        return ""

    def check(self) -> None:
        """Check that this supervisor still has the lease: it may have been suspended for any time.

        Raises:
            LeaseLostError: Another supervisor has taken over, or the run directory was removed.
        """
        if not self._written:
            return
        lease = self._run.lease()
        if self._names_me(lease):
            return
        if self.is_removed:
            raise LeaseLostError(
                f"{self._run.path} was removed while the run was at work: this supervisor ends the ranks, "
                "removes their memory on this host, and stops; start the job again"
            )
        who = (
            f"process {lease.pid} on {lease.host}" if lease else "a process that removed lease.json"
        )
        raise LeaseLostError(
            f"{self._run.path} has been taken over by {who}; this supervisor stops, start only one for a run"
        )

    @property
    def is_removed(self) -> bool:
        """True if the run directory was removed, and not only moved: no launch can continue the run."""
        return os.fstat(self._fd).st_nlink == 0

    @property
    def is_held(self) -> bool:
        """True while this supervisor has the lease."""
        return self._written and self._names_me(self._run.lease())

    def _names_me(self, lease: Lease | None) -> bool:
        """Return True if `lease` was written by this supervisor."""
        if lease is None or (lease.host, lease.pid) != (self._host, self._pid):
            return False
        # The number may be greater by one: `advance` replaced the file, but failed to make that durable.
        return lease.generation in (self.generation, self.generation + 1)

    def _write(self, generation: int, durable: bool = False, released: bool = False) -> None:
        self._renewals += 1
        lease = Lease(
            generation=generation,
            host=self._host,
            pid=self._pid,
            time_s=time.time(),
            released=released,
            renewals=self._renewals,
        )
        replace_json(self._run.lease_file, lease, durable)
        self._written = True
        self._next = time.monotonic() + RENEW_S

    def __enter__(self) -> LeaseHolder:
        """Return this lease, which the constructor has taken."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Release the lease, unless it was lost."""
        try:
            # On a full disk the lease stays unreleased: a supervisor on another host then waits `STALE_S`.
            with contextlib.suppress(OSError, ConfigError):
                if self.is_held:
                    self._write(self.generation, released=True)
        finally:
            os.close(self._fd)


def _lease_of(run: RunFolder) -> Lease | None:
    """Return the lease of a run; None before its first attempt.

    Renewals are not durable, so a host that loses power may leave an empty file. It counts as a lease that an
    unknown host has not released, with the number of the last attempt.
    """
    try:
        return run.lease()
    except ConfigError:
        names = [path.name.partition("-")[2] for path in run.logs.glob("attempt-*")]
        last = max((int(name) for name in names if name.isdecimal()), default=-1)
        return Lease(generation=last, host="an unknown host", pid=0, time_s=0.0)
