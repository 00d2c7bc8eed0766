"""The records of one run at one moment, for those who show the run, and the one judgement of its state."""

from __future__ import annotations

import time
from typing import NamedTuple

import msgspec

from mpips.rundir.directory import STALE_S, RunFolder
from mpips.rundir.files import Lease, Ranks, Status
from mpips.terminal.units import age_text

OVER = ("done", "failed", "stalled", "preempted", "interrupted")  # states at the end of a run


class RunState(NamedTuple):
    """The state of a run according to its records.

    Attributes:
        state: State in status.json, or "not started", "done", "ended", "dead".
        alive: A supervisor runs it.
        note: A sentence on the state, or "".
    """

    state: str
    alive: bool
    note: str


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one run at one moment.

    Attributes:
        name: Name of the run.
        status: Progress, and the state as the job itself reports it.
        state: State of the run; see `RunState`. "": that of `status`.
        ranks: Activity of every rank of the attempt that `status` is about; None: not known.
        failures: Number of failed attempts.
    """

    name: str
    status: Status
    state: str = ""
    ranks: Ranks | None = None
    failures: int = 0


def view_of(run: RunFolder, now: float | None = None) -> RunView | None:
    """Return the records of a run directory; None if no attempt has started.

    Args:
        run: The run.
        now: Unix time; None: the current time.

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
        status=status,
        state=judge(run, status, lease, time.time() if now is None else now).state,
        ranks=ranks,
        failures=sum(event.event == "failed" for event in run.events()),
    )


def judge(run: RunFolder, status: Status | None, lease: Lease | None, now: float) -> RunState:
    """Return the state of a run, whether a supervisor runs it, and a sentence on the state.

    A supervisor renews its lease every two seconds. After its death the lease becomes old, and the state in
    status.json stays as it was.

    Args:
        run: The run.
        status: Content of status.json.
        lease: Content of lease.json; None: no supervisor has taken the run.
        now: Unix time of this machine's clock.
    """
    finished = run.finished()
    if lease is None or status is None:
        if lease is None and status is not None and finished is not None:
            return RunState("done", False, f"finished {clock_text(finished.time_s)}")
        return RunState("not started", lease is not None and not lease.released, "")
    if finished is not None and (lease.released or status.state == "done"):
        return RunState("done", False, f"finished {clock_text(finished.time_s)}")
    if lease.released:
        state = status.state if status.state in OVER else "ended"
        return RunState(state, False, status.message or f"continue with: mpips run {run.path}")
    age = now - lease.time_s
    if age > STALE_S:
        note = (
            f"its supervisor (pid {lease.pid} on {lease.host}) last renewed its lease {age_text(age)} ago: "
            f"it was killed or suspended, or that host is down; continue with: mpips run {run.path}"
        )
        return RunState("dead", False, note)
    silence = now - status.time_s
    if status.state == "running" and silence > STALE_S:
        note = f"the scheduler has written nothing for {age_text(silence)}"
        return RunState(status.state, True, note)
    return RunState(status.state, True, status.message)


def clock_text(time_s: float) -> str:
    """Return a Unix time as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))
