"""The right to run a run directory: one supervisor at a time, and the generation that may publish.

The kernel's lock on `lease.lock` keeps a second supervisor of the same machine out, and of other machines
where the file system's locks reach them; it ends with its holder. Where they do not reach, a lease that
another host renewed a moment ago does it. Before a server publishes a checkpoint it looks whether the lease
still names its generation; between that look and the rename a new supervisor would have to reap, probe
and write a lease, and would still find the old checkpoint whole.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time

from mpips.errors import ConfigError, MpipsError
from mpips.rundir import STALE_S, Lease, RunFolder, replace_json

RENEW_S = 2.0
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class LeaseLostError(MpipsError):
    """Another supervisor has taken the run over."""


class LeaseHolder:
    """A supervisor's hold on a run directory. Use it in a `with` block."""

    def __init__(self, run: RunFolder) -> None:
        """Take the run.

        Raises:
            ConfigError: Another supervisor has it.
        """
        self._run = run
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._fd = os.open(run.path / "lease.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock()
            before = run.lease()
            self._check_fresh(before)
        except BaseException:
            os.close(self._fd)
            raise
        self.generation = before.generation if before is not None else -1
        self._written = False
        self._next = 0.0

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            if error.errno != errno.EWOULDBLOCK:
                raise
            lease = self._run.lease()
            who = f"process {lease.pid} on {lease.host}" if lease else "another process"
            raise ConfigError(f"{self._run.path}: is being run by {who}") from None

    def _check_fresh(self, lease: Lease | None) -> None:
        """Refuse what a living supervisor on another host renews."""
        if lease is None or lease.released or lease.host == self._host:
            return
        age = time.time() - lease.time_s
        if age < STALE_S:
            raise ConfigError(
                f"{self._run.path}: is being run by process {lease.pid} on {lease.host}, heard of "
                f"{max(age, 0):.0f} s ago; if that host is down, try again in {STALE_S - age:.0f} s"
            )

    def advance(self) -> int:
        """Give the right to publish to a new generation; its number. Durable.

        Raises:
            LeaseLostError: Another supervisor has taken over.
        """
        self.check()
        self.generation += 1
        self._write(durable=True)
        return self.generation

    def renew(self) -> str:
        """Show that this supervisor lives. Cheap; call it often.

        Returns:
            Why that could not be shown this time, say because the disk is full, or "". The lease stays as
            it was; who takes it over all the same is noticed.

        Raises:
            LeaseLostError: Another supervisor has taken over.
        """
        if time.monotonic() < self._next:
            return ""
        self.check()
        try:
            self._write()
        except OSError as error:
            return str(error)
        return ""

    def check(self) -> None:
        """Look whether the run is still this supervisor's: it may have been frozen for any time.

        Raises:
            LeaseLostError: Another supervisor has taken over.
        """
        lease = self._run.lease()
        if not self._written or self._names_me(lease):
            return
        who = f"process {lease.pid} on {lease.host}" if lease else "somebody who removed its lease"
        raise LeaseLostError(f"{self._run.path} has been taken over by {who}")

    @property
    def is_held(self) -> bool:
        """Whether the run is still this supervisor's."""
        return self._written and self._names_me(self._run.lease())

    def _names_me(self, lease: Lease | None) -> bool:
        mine = (self._host, self._pid, self.generation)
        return lease is not None and (lease.host, lease.pid, lease.generation) == mine

    def _write(self, durable: bool = False, released: bool = False) -> None:
        self._next = time.monotonic() + RENEW_S
        self._written = True
        lease = Lease(
            generation=self.generation,
            host=self._host,
            pid=self._pid,
            time_s=time.time(),
            released=released,
        )
        replace_json(self._run.lease_file, lease, durable)

    def __enter__(self) -> LeaseHolder:
        """Hold it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Give it back, unless it was lost."""
        try:
            if self.is_held:
                self._write(released=True)
        finally:
            os.close(self._fd)
