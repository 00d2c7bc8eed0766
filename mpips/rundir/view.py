"""The records of one run at one moment, for those who show the run."""

from __future__ import annotations

import msgspec

from mpips.rundir.directory import RunFolder
from mpips.rundir.files import Lease, Ranks, Status


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one run at one moment.

    Attributes:
        name: Name of the run.
        status: State and progress.
        ranks: Activity of every rank of the attempt that `status` is about; None: not known.
        failures: Number of failed attempts.
    """

    name: str
    status: Status
    ranks: Ranks | None = None
    failures: int = 0


def view_of(run: RunFolder) -> RunView | None:
    """Return the records of a run directory; None if no attempt has started.

    Raises:
        ConfigError: A file is damaged or cannot be read.
    """
    status = run.status()
    if status is None:
        return None
    ranks, lease = run.ranks(), run.lease()
    if ranks is not None and ranks.generation != status.generation:
        ranks = None
    return RunView(
        name=run.info().run_id,
        status=_settled(run, status, lease),
        ranks=ranks,
        failures=sum(event.event == "failed" for event in run.events()),
    )


def _settled(run: RunFolder, status: Status, lease: Lease | None) -> Status:
    """Return the status with the state "done" if the finished mark is there and nothing runs any more."""
    over = lease is None or lease.released
    if over and status.state == "running" and run.finished() is not None:
        return msgspec.structs.replace(status, state="done")
    return status
