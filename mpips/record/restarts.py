"""The history check over restarts: nothing is missing between two attempts, and nothing is counted twice.

restart     an attempt began from a checkpoint that an attempt before it has written, at clocks that the
            attempt had; and its records begin there
cut         no server consumed a record behind the cut of that checkpoint before it had all records in
            front of the cut
twice       a record that was consumed in an attempt is not consumed again by one that continues in its
            memory
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from mpips.record.files import RecordContent, RecordHead
from mpips.record.reading import FINISH, PULL_ROWS, TICK, Consumed, read_order


class RecordedAttempt(msgspec.Struct, frozen=True):
    """The record of an attempt.

    Attributes:
        attempt: Its generation number.
        servers, workers: Its files, by index.
    """

    attempt: int
    servers: list[RecordContent]
    workers: list[RecordContent]

    @property
    def head(self) -> RecordHead:
        """The head of its files."""
        return self.servers[0].head


def check_restarts(attempts: Sequence[RecordedAttempt]) -> list[str]:
    """Return sentences on rules that are broken between attempts. `attempts`: in order.

    Raises:
        ConfigError: An entry is damaged.
    """
    found: list[str] = []
    for i, attempt in enumerate(attempts):
        head = attempt.head
        if head.origin < 0:
            continue
        writers = [a for a in attempts[:i] if a.head.writes == head.origin]
        if writers and _has_shape_of(writers[-1], attempt):
            found += _check_cut(writers[-1], attempt)
    return found


def _has_shape_of(a: RecordedAttempt, b: RecordedAttempt) -> bool:
    return (a.head.n_workers, a.head.n_servers) == (b.head.n_workers, b.head.n_servers)


def _check_cut(before: RecordedAttempt, after: RecordedAttempt) -> Iterator[str]:
    """Return the rules that a restart from a checkpoint breaks."""
    pairs = zip(after.head.begin, before.head.begin, strict=True)
    clocks = [a - b for a, b in pairs]
    where = f"of attempt {after.attempt}, which began from {after.head.start}"
    for file in before.servers:
        order = read_order(file)
        name = f"server {file.head.index} of attempt {before.attempt}"
        for worker, clock in enumerate(clocks):
            if clock < 0:
                yield (
                    f"restart: worker {worker} {where}, begins at clock {after.head.begin[worker]}, "
                    f"before attempt {before.attempt} began"
                )
            elif clock and not _has_ended(order, worker, clock - 1):
                yield (
                    f"restart: {name} has not consumed the tick of clock {clock - 1} of worker {worker}, "
                    f"which is before the start {where}"
                )
        yield from _check_order(order, clocks, name, where)


def _has_ended(order: Sequence[Consumed], worker: int, clock: int) -> bool:
    return any(r.worker == worker and r.kind == TICK and r.clock == clock for r in order)


def _check_order(
    order: Sequence[Consumed], clocks: Sequence[int], name: str, where: str
) -> Iterator[str]:
    """Return a sentence if a server consumed something behind a cut too early."""
    behind: Consumed | None = None
    for record in order:
        # A pull of rows may stand between the tick and the record of the cut; an end needs none.
        if record.clock >= clocks[record.worker]:
            if record.table >= 0 and record.kind != PULL_ROWS and behind is None:
                behind = record
        elif behind is not None and record.kind not in (FINISH, PULL_ROWS):
            yield (
                f"cut: {name} consumed record {behind.sequence} of worker {behind.worker} (clock "
                f"{behind.clock}), which is behind the cut {where}, before record {record.sequence} of "
                f"worker {record.worker} (clock {record.clock}), which is in front of it"
            )
            return
