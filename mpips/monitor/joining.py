"""`mpips join`: lend hosts to an elastic run until the run ends or the hosts must leave.

    record     written at once and renewed every `RENEW_S` seconds, more often until the supervisor has seen
               it
    leaving    on a signal, or `leave_s` before the time limit: the record has the request, and the process
               waits until the supervisor has freed them
    end        the hosts are free, the run has ended, or its supervisor is gone

Everything goes through the run directory. The supervisor is judged by changes of its lease in this process's
running time, not by its clock.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Sequence

from mpips.config.schema import load_config
from mpips.errors import ConfigError, MpipsError
from mpips.mpi.signals import ONE_SIGNAL_S, name_of
from mpips.process.patience import is_over, running_s
from mpips.rundir.directory import STALE_S, RunFolder, version_of
from mpips.rundir.members import RENEW_S, JoinFolder, JoinRecord, MemberRow, read_members
from mpips.rundir.view import view_of

_LOOK_S = 0.2  # seconds between two looks at the run directory
_FIRST_S = 0.3  # seconds between two renewals until the supervisor has seen the record
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU)


class JoinError(MpipsError):
    """The supervisor of the run is gone, so the hosts will not be freed."""


def check_elastic(run: RunFolder) -> None:
    """Refuse a run that takes no hosts.

    Raises:
        ConfigError: The run is not elastic, or not running.
    """
    lease = run.lease()
    # The clocks of two hosts may differ: whether an unreleased lease is renewed shows later.
    if lease is None or lease.released or run.finished() is not None:
        view = view_of(run)
        note = f": {view.note}" if view.note else ""
        raise ConfigError(f"{run.path.name} is not running ({view.state}){note}")
    if not load_config(str(run.config_file), []).run.is_elastic:
        raise ConfigError(
            f"{run.path.name} is not elastic, so it takes no further hosts: start it with mpips run --elastic"
        )


class Join:
    """Hosts that this process lends. Main thread only."""

    def __init__(
        self,
        run: RunFolder,
        hosts: Sequence[tuple[str, int]],
        job: str,
        limit_s: float | None,
        leave_s: float,
        tell: Callable[[str], None],
    ) -> None:
        """Prepare the record; nothing is written yet.

        Args:
            run: The run.
            hosts: The hosts with their slots.
            job: Number of the Slurm job that has them; "": none.
            limit_s: Seconds from now on for which they are there; None: no limit is known.
            leave_s: Seconds before the limit at which they leave.
            tell: Prints a line for people.

        Raises:
            ConfigError: The limit is too short.
        """
        if limit_s is not None and limit_s <= leave_s:
            raise ConfigError(
                f"the hosts are there for {limit_s:.0f} s more and would leave {leave_s:g} s before that: "
                "join with more time, or give a smaller --leave-before"
            )
        self._run, self._hosts, self._job, self._tell = run, tuple(hosts), job, tell
        self._leave_s = leave_s
        self._ends_at = None if limit_s is None else time.monotonic() + limit_s
        self._folder = JoinFolder(run)
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._renewals = 0
        self._renewed_at = float("-inf")
        self._leaving = ""  # why; "": it does not
        self._signals: list[int] = []
        self._state = ""
        self._lease: object = None
        self._lease_at = running_s()

    def lend(self) -> None:
        """Lend the hosts until the end. Blocks.

        Raises:
            ConfigError: The hosts are refused, or the run directory cannot be written to.
            JoinError: The supervisor is gone.
            SystemExit: A second signal ends this process at once.
        """
        before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        try:
            while not self._is_over():
                time.sleep(_LOOK_S)
        finally:
            self._folder.remove(self.name)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        self._signals.append(number)

    def _is_over(self) -> bool:
        """Renew the record and read what the supervisor has written; return True at the end."""
        self._take_signals()
        left_s = None if self._ends_at is None else self._ends_at - time.monotonic()
        if left_s is not None and left_s <= self._leave_s:
            self._leave(f"the time limit comes in {max(left_s, 0.0):.0f} s")
        row = self._row()
        pause_s = RENEW_S if row is not None else _FIRST_S
        if time.monotonic() - self._renewed_at >= pause_s:
            self._renew(left_s)
        if row is not None and self._is_settled(row):
            return True
        return self._has_run_ended()

    def _take_signals(self) -> None:
        taken, self._signals = self._signals, []
        for number in taken:
            if not self._leaving:
                self._leave(name_of(number))
                self._left_at = time.monotonic()
            elif time.monotonic() - self._left_at > ONE_SIGNAL_S:
                self._tell(f"mpips join: a second {name_of(number)}: the hosts leave at once")
                raise SystemExit(128 + number)

    def _leave(self, why: str) -> None:
        if self._leaving:
            return
        self._leaving, self._left_at = why, time.monotonic()
        self._renewed_at = float("-inf")
        self._tell(f"mpips join: {why}: waiting until {self._run.path.name} has left the hosts")

    def _renew(self, left_s: float | None) -> None:
        self._renewals += 1
        self._renewed_at = time.monotonic()
        record = JoinRecord(
            hosts=self._hosts,
            host=socket.gethostname(),
            pid=os.getpid(),
            job=self._job,
            left_s=left_s,
            leaving=bool(self._leaving),
            renewals=self._renewals,
        )
        try:
            self._folder.write(self.name, record)
        except ConfigError:
            # A full disk later on must not take the hosts away.
            if self._renewals == 1:
                raise

    def _row(self) -> MemberRow | None:
        """Return what the supervisor has written about this join; None: nothing yet."""
        try:
            members = read_members(self._run)
        except ConfigError:
            return None
        rows = members.rows if members is not None else ()
        return next((row for row in rows if row.source == self.name), None)

    def _is_settled(self, row: MemberRow) -> bool:
        """Print a new state; return True if the hosts are free.

        Raises:
            ConfigError: They are refused.
        """
        if row.state == "refused":
            raise ConfigError(f"{self._run.path.name} refuses the hosts: {row.cause}")
        if row.state != self._state:
            self._state = row.state
            cause = f": {row.cause}" if row.cause else ""
            self._tell(f"mpips join: {', '.join(row.hosts)}: {row.state}{cause}")
        return bool(self._leaving) and row.state == "left"

    def _has_run_ended(self) -> bool:
        """Return True if the supervisor has released its lease.

        Raises:
            JoinError: It has not renewed the lease for `STALE_S` seconds.
        """
        now, version = running_s(), version_of(self._run.lease_file)
        if version != self._lease:
            self._lease, self._lease_at = version, now
            lease = self._run.lease()
            if lease is not None and lease.released:
                view = view_of(self._run)
                self._tell(f"mpips join: {self._run.path.name} has ended ({view.state})")
                return True
        elif is_over(self._lease_at, STALE_S):
            raise JoinError(
                f"{self._run.path.name}: its supervisor has not renewed its lease for {STALE_S:.0f} s: it "
                "was killed, or its host is down; processes of the run may be left on these hosts"
            )
        return False
