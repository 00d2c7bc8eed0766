"""The history check over restarts: nothing is missing between two attempts, and nothing is counted twice.

Versions, clocks and numbers of records begin anew in each attempt, so `history.py` checks it by itself. Two
rules concern the attempt whose checkpoint another one began from:

restart     an attempt began from a checkpoint that an attempt before it has written, at clocks that the
            attempt had; and its records begin there
cut         no server consumed a record behind the cut of that checkpoint before it had all records in
            front of the cut

A file may end before the cut, because of monitor.record_mib or because it was cut off. What it lacks proves
nothing: it is a note, and no break.
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


class CheckedRestarts(msgspec.Struct):
    """The result of a check over restarts.

    Attributes:
        breaks: Sentences on rules that are broken, with the name of the rule at the beginning.
        notes: Sentences on what could not be checked.
        n_checked: Restarts that were checked in the record of the attempt that wrote the checkpoint.
    """

    breaks: list[str] = []
    notes: list[str] = []
    n_checked: int = 0


def check_restarts(attempts: Sequence[RecordedAttempt]) -> CheckedRestarts:
    """Check the starts from checkpoints. `attempts`: all attempts of a run with a record, in order.

    Raises:
        ConfigError: An entry is damaged.
    """
    found = CheckedRestarts(breaks=[], notes=[])
    for i, attempt in enumerate(attempts):
        head = attempt.head
        if head.origin < 0:
            continue
        writers = [a for a in attempts[:i] if a.head.writes == head.origin]
        began = f"attempt {attempt.attempt} began from {head.start}"
        if not writers:
            found.notes.append(
                f"restart: {began}, and the attempt that wrote it has no record here: the restart is not "
                "checked"
            )
        elif not _has_shape_of(writers[-1], attempt):
            found.notes.append(
                f"restart: {began} with other numbers of ranks than attempt {writers[-1].attempt} had, which "
                "wrote it: the restart is not checked"
            )
        else:
            found.n_checked += 1
            _check_cut(writers[-1], attempt, found)
    return found


def _has_shape_of(a: RecordedAttempt, b: RecordedAttempt) -> bool:
    return (a.head.n_workers, a.head.n_servers) == (b.head.n_workers, b.head.n_servers)


def _check_cut(before: RecordedAttempt, after: RecordedAttempt, found: CheckedRestarts) -> None:
    """Add the rules that a restart from a checkpoint breaks, and what the record lacks before its cut."""
    pairs = zip(after.head.begin, before.head.begin, strict=True)
    clocks = [a - b for a, b in pairs]
    where = f"of attempt {after.attempt}, which began from {after.head.start}"
    for file in before.servers:
        order = read_order(file)
        name = f"server {file.head.index} of attempt {before.attempt}"
        short: list[int] = []  # workers of which the file may lack records before the cut
        for worker, clock in enumerate(clocks):
            if clock < 0:
                found.breaks.append(
                    f"restart: worker {worker} {where}, begins at clock {after.head.begin[worker]}, "
                    f"before attempt {before.attempt} began"
                )
            elif clock and not _has_ended(order, worker, clock - 1):
                if _ends_before(file, order, worker, clock):
                    short.append(worker)
                    continue
                found.breaks.append(
                    f"restart: {name} has not consumed the tick of clock {clock - 1} of worker {worker}, "
                    f"which is before the start {where}"
                )
        if short:
            why = "has no end" if file.end is None else "ends because of monitor.record_mib"
            found.notes.append(
                f"restart: the record of {name} {why}, and lacks the tick of clock {clocks[short[0]] - 1} of "
                f"worker {short[0]}, which is before the start {where}: what it does not contain is not "
                "checked"
            )
        found.breaks += _check_order(order, clocks, name, where)


def _ends_before(file: RecordContent, order: Sequence[Consumed], worker: int, clock: int) -> bool:
    """Return True if a server's file is not complete, and has nothing of a worker from a clock on."""
    return not file.is_complete and all(r.clock < clock for r in order if r.worker == worker)


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
