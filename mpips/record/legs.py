"""The legs of a recorded run: the parts of its attempts that count.

A run that restarts from a checkpoint continues at the cut of that checkpoint: what the attempt before did
behind the cut is lost, and the next attempt repeats it. So the values at the end follow from one leg of each
attempt in a chain: from its start as far as the cut of the checkpoint from which the next one began, and
from the last attempt all of it. Every checkpoint has a generation number that no other attempt of the run
gives, which names the attempt that wrote it.

A cut holds the same prefix of each worker's program at all servers: the records before the worker's clock in
the checkpoint. Records of later clocks were consumed after the copy; pulls of rows may stand before it, and
change nothing. A worker that had finished before the copy takes no part in the cut. It is one whose end lies
before another record of the leg at some server; where nothing follows, both readings give the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from mpips.errors import ConfigError
from mpips.record.files import (
    NO_STOP,
    RecordContent,
    RecordedAttempts,
    RecordHead,
    read_all,
    record_folder,
    recorded_attempts,
    why_not_whole,
)
from mpips.record.reading import FINISH, TICK, Consumed, Tick, read_order, read_steps
from mpips.rundir.directory import RunFolder


class AttemptLeg(msgspec.Struct, frozen=True):
    """A part of an attempt that is repeated in one launch.

    Attributes:
        attempt: Generation number of the attempt.
        folder: Folder of its record.
        head: Head of its files.
        stops: Clock of each worker at which the leg ends, from the start of the attempt, NO_STOP: the worker
            has ended before; empty: it ends with the attempt.
        servers: The files of the servers.
    """

    attempt: int
    folder: Path
    head: RecordHead
    stops: tuple[int, ...]
    servers: list[RecordContent]


def legs_of(run: RunFolder, attempt: int | None = None) -> list[AttemptLeg]:
    """Return the legs of a recorded run, in order.

    Args:
        run: The run.
        attempt: Generation number of the last attempt; None: the last one with a record.

    Raises:
        ConfigError: The record cannot be repeated; the message gives the reason.
    """
    recorded = recorded_attempts(run)
    attempts = recorded.numbers
    if attempt is not None and attempt not in attempts:
        why = recorded.left_out.get(attempt)
        raise ConfigError(
            (why or f"{record_folder(run, attempt)}: contains no record")
            + f"; there are records of the attempts {', '.join(map(str, attempts))}"
        )
    last = attempts[-1] if attempt is None else attempt
    folder = record_folder(run, last)
    servers, workers = read_all(folder)
    if why := why_not_whole([*servers, *workers]):
        raise ConfigError("; ".join([f"{folder}: {why}", *recorded.notes()]))
    legs = [AttemptLeg(last, folder, servers[0].head, (), servers)]
    while legs[0].head.start != "new":
        legs.insert(0, _leg_before(run, legs[0], recorded))
    return legs


def _leg_before(run: RunFolder, leg: AttemptLeg, recorded: RecordedAttempts) -> AttemptLeg:
    """Return the leg that ends with the checkpoint from which another one begins."""
    for attempt in reversed([n for n in recorded.numbers if n < leg.attempt]):
        folder = record_folder(run, attempt)
        servers, workers = read_all(folder)
        head = servers[0].head
        if head.writes != leg.head.origin:
            continue
        if (head.n_workers, head.n_servers) != (leg.head.n_workers, leg.head.n_servers):
            raise ConfigError(
                f"{leg.folder}: attempt {leg.attempt} has {leg.head.n_workers} workers and "
                f"{leg.head.n_servers} servers, attempt {attempt} had {head.n_workers} and "
                f"{head.n_servers}: a run that changes its size is not repeated"
            )
        orders = [read_order(file) for file in servers]
        clocks = [e - b for e, b in zip(leg.head.begin, head.begin, strict=True)]
        _require_whole(servers, orders, workers, clocks, leg)
        return AttemptLeg(attempt, folder, head, stops_at(orders, clocks), servers)
    raise ConfigError(
        "; ".join(
            [
                f"{leg.folder}: attempt {leg.attempt} began from {leg.head.start}, which no recorded attempt "
                f"of {run.path.name} has written",
                *recorded.notes(),
            ]
        )
    )


def stops_at(orders: Sequence[Sequence[Consumed]], clocks: Sequence[int]) -> tuple[int, ...]:
    """Return the stops of a leg that ends with a checkpoint.

    Args:
        orders: The records that each server consumed.
        clocks: Clock of each worker in the checkpoint, from the start of the attempt.
    """
    stops = list(clocks)
    for order in orders:
        ended: set[int] = set()
        for record in order:
            if record.kind == FINISH:
                ended.add(record.worker)
            elif record.clock < clocks[record.worker]:
                for worker in ended:
                    stops[worker] = NO_STOP
    return tuple(stops)


def _require_whole(
    servers: Sequence[RecordContent],
    orders: Sequence[Sequence[Consumed]],
    workers: Sequence[RecordContent],
    clocks: Sequence[int],
    leg: AttemptLeg,
) -> None:
    """Raise ConfigError if a file lacks something before the checkpoint from which `leg` begins."""
    for file, order in zip(servers, orders, strict=True):
        ended = {(r.worker, r.clock) for r in order if r.kind == TICK}
        for worker, clock in enumerate(clocks):
            if clock < 0 or (clock and (worker, clock - 1) not in ended):
                raise _lacks(file, worker, clock, leg)
    for worker, file in enumerate(workers):
        ticks = {step.clock for step in read_steps(file) if isinstance(step, Tick)}
        if clocks[worker] and clocks[worker] - 1 not in ticks:
            raise _lacks(file, worker, clocks[worker], leg)


def _lacks(file: RecordContent, worker: int, clock: int, leg: AttemptLeg) -> ConfigError:
    why = "because of monitor.record_mib" if file.end is not None else "or is damaged"
    return ConfigError(
        f"{file.path}: ends before clock {clock} of worker {worker}, {why}: {leg.head.start}, from which "
        f"attempt {leg.attempt} began, has that clock"
    )
