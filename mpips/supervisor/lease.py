"""The right to run a run directory: one supervisor at a time, and the generation that may publish.

The kernel's lock on `lease.lock` keeps a second supervisor of the same machine out, and of other machines
where the file system's locks reach them; it ends with its holder. Where they do not reach, a new
supervisor watches the lease of another host for `STALE_S` seconds of its own monotonic clock: while that
lease changes, it is in use. Before a server publishes a checkpoint it looks whether the lease
still names its generation; between that look and the rename a new supervisor would have to reap, probe
and write a lease, and would still find the old checkpoint whole.
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
from mpips.rundir.directory import STALE_S, Lease, RunFolder, replace_json, version_of

RENEW_S = 2.0
_WATCH_S = 0.2  # between two looks at the lease of another host
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class LeaseLostError(MpipsError):
    """Another supervisor has taken the run over."""


class LeaseHolder:
    """A supervisor's hold on a run directory. Use it in a `with` block."""

    def __init__(self, run: RunFolder, tell: Callable[[str], None] = lambda text: None) -> None:
        """Take the run. Blocks for `STALE_S` where another host has left it without giving it back.

        Args:
            run: The run directory.
            tell: Receives one line for people if the other host must be waited for.

        Raises:
            ConfigError: Another supervisor has it, or the run directory cannot be written to.
        """
        self._run = run
        self._host, self._pid = socket.gethostname(), os.getpid()
        try:
            self._fd = os.open(
                run.path / "lease.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise ConfigError(
                f"{run.path}/lease.lock: cannot be written: {error.strerror}"
            ) from None
        try:
            self._lock()
            before = run.lease()
            self._check_silent(before, tell)
        except BaseException:
            os.close(self._fd)
            raise
        self.generation = before.generation if before is not None else -1
        self._written = False
        self._renewals = 0
        self._next = 0.0

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            if error.errno != errno.EWOULDBLOCK:
                raise ConfigError(f"{self._run.path}: cannot be locked: {error.strerror}") from None
            lease = self._run.lease()
            who = f"process {lease.pid} on {lease.host}" if lease else "another process"
            raise ConfigError(f"{self._run.path}: is being run by {who}") from None

    def _check_silent(self, lease: Lease | None, tell: Callable[[str], None]) -> None:
        """Refuse a lease that a supervisor on another host renews."""
        if lease is None or lease.released or lease.host == self._host:
            return
        first, deadline = version_of(self._run.lease_file), time.monotonic() + STALE_S
        tell(
            f"mpips run: {self._run.path} was not given back by process {lease.pid} on {lease.host}: "
            f"waiting {STALE_S:.0f} s for a sign that it still runs"
        )
        while time.monotonic() < deadline:
            time.sleep(_WATCH_S)
            if version_of(self._run.lease_file) != first:
                raise ConfigError(
                    f"{self._run.path}: is being run by process {lease.pid} on {lease.host}, which has "
                    "just renewed its lease; end it there first"
                )

    def advance(self) -> int:
        """Give the right to publish to a new generation; its number. Durable.

        Raises:
            LeaseLostError: Another supervisor has taken over.
            OSError: The lease cannot be written; it is as before.
        """
        self.check()
        self._write(self.generation + 1, durable=True)
        self.generation += 1
        return self.generation

    def renew(self) -> str:
        """Show that this supervisor lives. Cheap; call it often.

        Returns:
            Why the lease could not be written this time, say because the disk is full, or "". Its content
            stays as it was, but its modification time changes, which other hosts observe.

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
        if lease is None or (lease.host, lease.pid) != (self._host, self._pid):
            return False
        # One more: the last `advance` has replaced the file, but could not make that durable.
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
        """Hold it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Give it back, unless it was lost."""
        try:
            # On a full disk it stays as it is: then another host waits until it is stale.
            with contextlib.suppress(OSError, ConfigError):
                if self.is_held:
                    self._write(self.generation, released=True)
        finally:
            os.close(self._fd)
