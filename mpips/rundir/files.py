"""Records of ranks.json and events.jsonl in a run directory; see `mpips.rundir.directory`."""

from __future__ import annotations

import msgspec


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """The activity of a rank. Rates are means over the last few seconds.

    Attributes:
        rank, role, host, pid: As in RankPlace.
        state: "computing", "pulling 'w'", "serving", ...
        clock: Clock of a worker, counted from the start of this launch, or of the launch whose memory it
            took over.
        clocks_per_s: Clocks of a worker per second.
        samples_per_s: Samples per second that a worker trains on.
        records_per_s: Records per second that a worker writes to rings, or that a server takes from rings.
        push_bytes_per_s: Bytes per second that a worker pushes, or that a server takes.
        pull_bytes_per_s: Bytes per second that a worker pulls, or with which a server answers. A server takes
            no part in pulls of dense tables, so these are not counted.
        staleness: Mean staleness, in updates, of the updates judged lately; None: there were none.
        max_staleness: Greatest staleness since the start, in updates.
        queue: Records in rings that were not consumed at the last heartbeat.
        memory_bytes: Bytes of shards and rings of a server.
        heard_s: Unix time of the last heartbeat; 0: none yet.
    """

    rank: int
    role: str
    host: str
    pid: int
    state: str = "starting"
    clock: int = 0
    clocks_per_s: float = 0.0
    samples_per_s: float = 0.0
    records_per_s: float = 0.0
    push_bytes_per_s: float = 0.0
    pull_bytes_per_s: float = 0.0
    staleness: float | None = None
    max_staleness: int = 0
    queue: int = 0
    memory_bytes: int = 0
    heard_s: float = 0.0


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """ranks.json.

    Attributes:
        generation: Generation number of the attempt.
        time_s: Unix time of this content.
        ranks: One row for each rank.
        interval_s: Seconds between two writes of this file; more for many ranks.
        heartbeat_s: Seconds between two heartbeats of a rank; more for many ranks.
    """

    generation: int
    time_s: float
    ranks: tuple[RankRow, ...] = ()
    interval_s: float = 1.0
    heartbeat_s: float = 1.0


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of events.jsonl.

    Attributes:
        time_s: Unix time of the event.
        generation: Generation number of the attempt.
        event: "failed" (an attempt ended and another can follow) or "began" (an attempt has started to
            train).
        step: Step of the run that the failed attempt had reached, or with which this attempt begins.
        source: Source that an attempt began from; see StartPoint.
        cause: One sentence on the cause of a failure.
    """

    time_s: float
    generation: int
    event: str
    step: int = 0
    source: str = ""
    cause: str = ""
