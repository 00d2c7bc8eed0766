"""What ranks.json and events.jsonl of a run directory hold; see `mpips.rundir.directory`."""

from __future__ import annotations

import msgspec


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank does; rates are of the last few seconds.

    Attributes:
        rank, role, host, pid: As in RankPlace.
        state: "computing", "pulling 'w'", "serving", ...
        clock: Of a worker, since this launch began (or the one whose memory it took over).
        samples_per_s: That a worker trains on.
        records_per_s: Written to rings by a worker, taken from rings by a server.
        push_bytes_per_s, pull_bytes_per_s: Sent and fetched by a worker; taken and answered by a server,
            which does not see pulls of dense tables.
        staleness: Mean of the updates judged lately, or None.
        max_staleness: Since the start.
        queue: Records in rings that were not consumed when it was last heard of.
        memory_bytes: Of a server's shards and rings.
        heard_s: Unix time of its last heartbeat, 0: none yet.
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
    """ranks.json."""

    generation: int
    time_s: float
    ranks: tuple[RankRow, ...] = ()


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of events.jsonl.

    Attributes:
        event: "failed" (an attempt ended and another may follow) or "began" (an attempt is at work).
        step: Of the run: where the attempt that failed had come to, or where this one begins.
        source: What an attempt began from, see StartPoint.
        cause: Of a failure, one sentence.
    """

    time_s: float
    generation: int
    event: str
    step: int = 0
    source: str = ""
    cause: str = ""
