"""history.jsonl: counts of every rank at intervals, which the page of a run and exporters read.

The scheduler adds a head when an attempt begins, a line of counts every few seconds, and a line for each
checkpoint. Counts begin with 0 at the start of their rank, so the rate of any interval is the difference of
two lines, and a line that is missing makes the others no less exact. Thus the scheduler thins the file by
leaving out lines:

    age             one line of counts per
    to 10 minutes   line as written, 2 s or more, see `interval_s`
    to 1 hour       12 s
    to 6 hours      72 s
    to 36 hours     7.2 min       and so on: six times the interval for six times the age

A reader may meet a last line that is not complete, and lines of a later version: `read_line` returns None for
both. Heads and lines of checkpoints stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from mpips.rundir.reading import DAMAGED
from mpips.rundir.thinning import gathered, interval_of

_FULL_S = 600.0  # s, age to which lines stay as they are
_FIRST_S = 12.0  # s, shortest interval of lines that are left out
_LEAST_S = 2.0  # s, least time between two lines
_RANKS_PER_S = 20.0  # ranks of which the file gets counts per second, if _LEAST_S is not longer
MOST_LINKS = 4096  # pairs of worker and server up to which bytes of each pair are recorded


def interval_s(n_ranks: int) -> float:
    """Return the seconds between two lines of counts of a job with this number of ranks."""
    return max(_LEAST_S, n_ranks / _RANKS_PER_S)


class AttemptHead(msgspec.Struct, frozen=True, kw_only=True, tag="head"):
    """The first line of an attempt.

    Attributes:
        time_s: Unix time.
        generation: Generation number of the attempt.
        roles: Roles of each rank as text, such as "worker 2" or "scheduler + server 0".
        hosts: Name of the host of each rank.
        tables: Name of each table.
        transports: For each worker the name of the transport to each server; empty: there are too many.
        placement: For each table the bytes of its values on each server, or -1 for an embedding, whose rows
            are spread over all servers; empty for a replicated table.
    """

    time_s: float
    generation: int
    roles: tuple[str, ...]
    hosts: tuple[str, ...]
    tables: tuple[str, ...] = ()
    transports: tuple[tuple[str, ...], ...] = ()
    placement: tuple[tuple[int, ...], ...] = ()


class Counts(msgspec.Struct, frozen=True, kw_only=True, tag="counts"):
    """Counts of all ranks at one moment. Lists have a value for each rank, from the start of that rank.

    Attributes:
        time_s: Unix time.
        generation: Generation number of the attempt.
        step: Step of the run.
        clock: Clock of a worker.
        samples: Samples that a worker has trained on.
        records: Records that a worker has written to rings, or that a server has consumed.
        pushed, pulled: Bytes that a worker has pushed and pulled, or a server has taken and answered.
        push_saved, pull_saved: Bytes by which codecs have made them shorter (workers).
        judged: Updates that have been applied, rejected or discarded as late.
        staleness: Sum of the staleness of these updates, in updates.
        queue: Records that are not consumed at this moment.
        memory: Bytes of shards and rings of a server at this moment.
        heap: Bytes of memory of the process that it shares with none, at this moment.
        elapsed, wait, push, pull, snapshot: Seconds since a worker began, and those of them in which it
            waited for others, pushed, pulled, and took part in a checkpoint. The rest is computation.
        updates: Updates of each table that servers have applied, by its index; those with the most.
        rows: The hottest rows of embedding tables over about the last minute, by the index of their table:
            key, pulls per second, pushes per second, part of all accesses to rows of the table, 0 to 1.
        shm_used, shm_total: Bytes of /dev/shm in use, and its size, by host, at this moment.
        disk_free: Free bytes of the file system of the run directory; -1: unknown.
        disk_total: Size of the file system of the run directory, bytes; -1: unknown.
    """

    time_s: float
    generation: int
    step: int = 0
    clock: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()
    records: tuple[int, ...] = ()
    pushed: tuple[int, ...] = ()
    pulled: tuple[int, ...] = ()
    push_saved: tuple[int, ...] = ()
    pull_saved: tuple[int, ...] = ()
    judged: tuple[int, ...] = ()
    staleness: tuple[int, ...] = ()
    queue: tuple[int, ...] = ()
    memory: tuple[int, ...] = ()
    heap: tuple[int, ...] = ()
    elapsed: tuple[float, ...] = ()
    wait: tuple[float, ...] = ()
    push: tuple[float, ...] = ()
    pull: tuple[float, ...] = ()
    snapshot: tuple[float, ...] = ()
    updates: dict[int, int] = {}
    rows: dict[int, tuple[tuple[int, float, float, float], ...]] = {}
    shm_used: dict[str, int] = {}
    shm_total: dict[str, int] = {}
    disk_free: int = -1
    disk_total: int = -1


class Checkpointed(msgspec.Struct, frozen=True, kw_only=True, tag="checkpoint"):
    """A checkpoint that has become complete.

    Attributes:
        time_s: Unix time at which the scheduler has noted it.
        generation: Generation number of the attempt.
        step: Step of the run at this time.
        name: Name of its folder.
    """

    time_s: float
    generation: int
    step: int
    name: str


HistoryLine = AttemptHead | Counts | Checkpointed
_decode = msgspec.json.Decoder(HistoryLine).decode


def read_line(line: bytes) -> HistoryLine | None:
    """Return a line of history.jsonl; None if it is damaged, not complete, or of an unknown form."""
    try:
        found: HistoryLine = _decode(line)
        return found
    except DAMAGED:
        return None


def thin_history(lines: Iterable[bytes], now: float) -> Iterator[bytes]:
    """Yield the lines of history.jsonl without old lines of counts that are too close to each other.

    The last line of each interval stays.

    Args:
        lines: Lines in the order in which they were written, with or without newlines.
        now: Unix time, seconds.
    """

    def interval(line: bytes) -> tuple[int, float, float] | None:
        found = read_line(line)
        if not isinstance(found, Counts):
            return None
        found_in = interval_of(found.time_s, now, _FULL_S, _FIRST_S)
        return (found.generation, *found_in) if found_in is not None else None

    stripped = (line.rstrip(b"\n") for line in lines if line.strip())
    for together in gathered((line, interval(line)) for line in stripped):
        yield together[-1]
