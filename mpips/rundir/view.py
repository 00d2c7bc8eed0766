"""The one judgement of the state of a run, and the view of a run that all who show it use.

`mpips ls`, `top`, `logs`, `stop`, `sweep`, `web`, `report` and `plot` read a view with `view_of` or
`view_or_damage`. /metrics of `mpips web` shows the same views, and /metrics of a job that of its scheduler,
judged by the same function. So no two of them disagree about a run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import msgspec

from mpips.errors import ConfigError
from mpips.rundir.directory import STALE_S, RunFolder
from mpips.rundir.files import Event, Lease, Load, RankRow, Ranks, Status
from mpips.rundir.members import MemberRow, read_members
from mpips.rundir.producers import MemberRecord, read_producers
from mpips.terminal.units import age_text

StateName = Literal[
    "not started",  # no attempt has begun
    "starting",  # an attempt begins
    "running",
    "restarting",  # an attempt failed, and another one follows
    "done",
    "preempted",  # ended by a signal, after a checkpoint
    "failed",
    "stalled",  # ended because it made no progress
    "interrupted",  # ended by a signal, without a checkpoint
    "ended",  # its supervisor has released it in another way
    "dead",  # its supervisor no longer renews the lease
    "damaged",  # a file of the run cannot be read
]
STATES: tuple[StateName, ...] = get_args(StateName)
# States that status.json has at the end of a run.
_OVER: tuple[StateName, ...] = ("done", "failed", "stalled", "preempted", "interrupted")
_LATE_S = 3.0  # seconds by which a heartbeat may be later than expected before its rank is marked


class RunState(NamedTuple):
    """The state of a run according to its records.

    Attributes:
        state: The state.
        alive: A supervisor runs it, so the state will change.
        note: A sentence on the state, or "".
    """

    state: StateName
    alive: bool
    note: str


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one run at one moment.

    Attributes:
        name: Name of the run.
        state: State of the run; `alive` and `note` are those of the `RunState`.
        alive: A supervisor runs it, so the view will change.
        note: A sentence on the state, or "".
        status: Content of status.json; None: no attempt has written one.
        ranks: Activity of every rank of the present attempt; None: not known.
        events: Content of events.jsonl; the scheduler's own view has none.
        failures: Number of failed attempts.
        members: Sources of hosts of an elastic run that is alive; empty for others.
        producers: Programs of [producers] of a run that is alive; empty for others.
        now: Unix time of the view.
    """

    name: str
    state: StateName
    alive: bool = True
    note: str = ""
    status: Status | None = None
    ranks: Ranks | None = None
    events: tuple[Event, ...] = ()
    failures: int = 0
    members: tuple[MemberRow, ...] = ()
    producers: tuple[MemberRecord, ...] = ()
    now: float = 0.0

    @property
    def rows(self) -> tuple[RankRow, ...]:
        """Activity of every rank; empty: not known."""
        return self.ranks.ranks if self.ranks is not None else ()

    @property
    def load(self) -> Load:
        """Load by table and by link; empty: not known."""
        return self.ranks.load if self.ranks is not None else Load()

    @property
    def quiet_s(self) -> float:
        """Seconds after the last heartbeat from which a rank is marked."""
        table = self.ranks or Ranks(generation=0, time_s=0.0)
        return table.heartbeat_s + table.interval_s + _LATE_S


def view_of(run: RunFolder, now: float | None = None) -> RunView:
    """Read the records of a run directory.

    Args:
        run: The run.
        now: Unix time; None: the current time.

    Raises:
        ConfigError: A file is damaged or cannot be read.
    """
    now = time.time() if now is None else now
    status, lease, ranks = run.status(), run.lease(), run.ranks()
    state, alive, note = judge(run, status, lease, now)
    if ranks is not None and (lease is None or ranks.generation != lease.generation):
        ranks = None
    events = tuple(run.events())
    members = read_members(run) if alive else None
    producers = read_producers(run) if alive else None
    return RunView(
        name=run.info().run_id,
        state=state,
        alive=alive,
        note=note,
        status=status,
        ranks=ranks,
        events=events,
        failures=failures_in(events),
        members=members.rows if members is not None else (),
        producers=producers.members if producers is not None else (),
        now=now,
    )


def view_or_damage(run: RunFolder, now: float | None = None) -> RunView:
    """Return the same as `view_of`; a run that cannot be read is "damaged", with the error as its note.

    One run must not take the others off a list, whatever is wrong with its files.
    """
    try:
        return view_of(run, now)
    except Exception as error:
        return damaged(run, error, now)


def damaged(run: RunFolder, error: Exception, now: float | None = None) -> RunView:
    """Return the view of a run that cannot be read because of `error`. `now`: as in `view_of`."""
    note = str(error)
    if not isinstance(error, ConfigError):
        note = f"its files cannot be read: {type(error).__name__}: {error}"
    now = time.time() if now is None else now
    return RunView(name=run.path.name, state="damaged", alive=False, note=note, now=now)


def running(run: RunFolder) -> RunView:
    """Return the view of a run that a supervisor runs.

    Raises:
        ConfigError: No supervisor runs it, or a file is damaged.
    """
    view = view_of(run)
    if not view.alive:
        note = f": {view.note}" if view.note else ""
        raise ConfigError(f"{run.path.name} is not running ({view.state}){note}")
    return view


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
    held = lease if lease is not None and not lease.released else None
    age = now - held.time_s if held is not None else math.inf
    state = status.state if status is not None else ""
    finished = run.finished()
    if finished is not None and (age > STALE_S or state == "done"):
        return RunState("done", False, f"finished {clock_text(finished.time_s)}")
    if held is None:
        if lease is None or status is None:
            return RunState("not started", False, "")
        note = status.message or f"continue with: {run.again}"
        return RunState(_named(state, _OVER, "ended"), False, note)

    if age > STALE_S:
        note = (
            f"its supervisor (pid {held.pid} on {held.host}) last renewed its lease {age_text(age)} ago: "
            f"it was killed or suspended, or that host is down; continue with: {run.again}"
        )
        return RunState("dead", False, note)
    if status is None:
        return RunState("not started", True, "")
    silence = now - status.time_s
    note = status.message
    if state == "running" and silence > STALE_S:
        note = f"the scheduler has written nothing for {age_text(silence)}"
    # A later version may have further states.
    return RunState(_named(state, STATES, "running"), True, note)


def _named(state: str, among: tuple[StateName, ...], other: StateName) -> StateName:
    """Return the name of a state; `other` if it is not among these."""
    return next((name for name in among if name == state), other)


def failures_in(events: Sequence[Event]) -> int:
    """Return the number of failed attempts that events tell of."""
    return sum(event.event == "failed" for event in events)


def clock_text(time_s: float) -> str:
    """Return a Unix time as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))
