"""history.jsonl as the scheduler writes it; see `mpips.rundir.history` for its lines."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mpips.model.table import DenseTable, Table
from mpips.rundir.directory import Supervised, version_of
from mpips.rundir.history import (
    MOST_LINKS,
    AttemptHead,
    Checkpointed,
    Counts,
    HistoryLine,
    interval_s,
    thin_history,
)
from mpips.rundir.thinning import thin_file
from mpips.scheduler.load import hottest_rows

if TYPE_CHECKING:
    from mpips.model.placement import Placement
    from mpips.mpi.messages import Figures
    from mpips.rundir.files import RankPlace

_THIN_S = 600.0  # s between two rewrites of the file with old lines left out
_MOST_BYTES = (
    64 << 20
)  # bytes; a longer file is not rewritten, because that would stop the scheduler


class JobTables(msgspec.Struct, frozen=True):
    """The facts that stay the same during an attempt, for its head.

    Attributes:
        tables: Name of each table.
        transports: For each worker the name of the transport to each server; empty: there are too many.
        placement: As in `mpips.rundir.history.AttemptHead`.
    """

    tables: tuple[str, ...] = ()
    transports: tuple[tuple[str, ...], ...] = ()
    placement: tuple[tuple[int, ...], ...] = ()


def job_tables(
    tables: Sequence[Table],
    placement: Placement,
    transports: Sequence[Sequence[str]] = (),
) -> JobTables:
    """Return names and places of the tables of a job.

    Args:
        tables: All tables.
        placement: Their shards on each server.
        transports: For each worker the name of the transport to each server.
    """
    pairs = sum(len(row) for row in transports)
    return JobTables(
        tuple(table.name for table in tables),
        tuple(map(tuple, transports)) if pairs <= MOST_LINKS else (),
        tuple(_bytes_of(table, placement) for table in tables),
    )


def _bytes_of(table: Table, placement: Placement) -> tuple[int, ...]:
    """Return the bytes of a table's values on each server; see `AttemptHead.placement`."""
    if not isinstance(table, DenseTable):
        return (-1,) * placement.n_servers
    found = [0] * placement.n_servers
    for part in placement.dense.get(table.name, ()):
        found[part.server] += 4 * (part.stop - part.start)
    return tuple(found)


class HistoryFile:
    """The writer of one attempt's history.jsonl. One per job, on the scheduler's rank.

    The attempt holds the lease whenever a line is added.
    """

    def __init__(self, run: Supervised, places: Sequence[RankPlace], tables: JobTables) -> None:
        """Write nothing yet.

        Args:
            run: The run and this attempt of it.
            places: Role and host of every rank.
            tables: Names and places of the tables.
        """
        self._run = run
        self._places = places
        self._tables = tables
        self._every_s = interval_s(len(places))
        self._next = -1.0  # monotonic s of the next line of counts; below 0: there is no head yet
        self._next_thinning = 0.0  # Unix time from which the file is to be rewritten
        self._checkpoint = ""

    def is_due(self, now: float) -> bool:
        """Return True if it is time for a line of counts. `now`: monotonic time of the recorder, seconds."""
        return now >= self._next

    def hurry(self) -> None:
        """Make the next line due at once: the end of the run."""
        self._next = min(self._next, 0.0)

    def add(self, now: float, counts: Counts) -> None:
        """Add a line of counts, and the head before the first one.

        Args:
            now: Monotonic time of the recorder, seconds.
            counts: The line.

        Raises:
            OSError: The file cannot be written, as on a full disk.
        """
        if self._next < 0:
            head = AttemptHead(
                time_s=_now(),
                generation=self._run.generation,
                roles=tuple(place.role for place in self._places),
                hosts=tuple(place.host for place in self._places),
                tables=self._tables.tables,
                transports=self._tables.transports,
                placement=self._tables.placement,
            )
            self._append(head)
        self._next = now + self._every_s
        self._append(counts)

    def note_checkpoint(self, path: str, step: int) -> None:
        """Add a line for the newest checkpoint, once. `path`: its folder, "": none; `step`: of the run.

        Raises:
            OSError: The file cannot be written.
        """
        if path in ("", self._checkpoint):
            return
        self._append(
            Checkpointed(
                time_s=_now(), generation=self._run.generation, step=step, name=Path(path).name
            )
        )
        self._checkpoint = path

    def _append(self, line: HistoryLine) -> None:
        """Add a line in one write, so that a killed rank leaves no part of it."""
        with self._run.folder.history_file.open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(line) + b"\n")

    def thin_if_due(self) -> None:
        """Leave out old lines if it is time, and if this attempt still holds the lease at the end.

        Raises:
            OSError: The new file cannot be written; the old one is unchanged.
            ConfigError: The lease cannot be read; the old file is unchanged.
        """
        now = time.time()
        if self._next_thinning - _THIN_S <= now < self._next_thinning:
            return
        self._next_thinning = now + _THIN_S
        path = self._run.folder.history_file
        if version_of(path)[1] <= _MOST_BYTES:
            thin_file(path, now, self._run.holds_lease, thin_history)


def _now() -> float:
    return round(time.time(), 3)


def counts_of(
    figures: Sequence[Figures],
    clocks: Sequence[int],
    places: Sequence[RankPlace],
    generation: int,
    step: int,
    folder: Path,
) -> Counts:
    """Return a line of counts.

    Args:
        figures: Last counts of each rank.
        clocks: Clock of each rank.
        places: Host of each rank.
        generation: Generation number of the attempt.
        step: Step of the run.
        folder: A folder of the file system whose free space the line has.
    """
    updates: Counter[int] = Counter()
    used, total = dict[str, int](), dict[str, int]()
    for f, place in zip(figures, places, strict=True):
        updates.update(f.tables)
        if f.shm_total_bytes:
            used[place.host], total[place.host] = f.shm_used_bytes, f.shm_total_bytes
    disk_free, disk_total = _disk(folder)

    def each(name: str) -> tuple[int, ...]:
        return tuple(getattr(f, name) for f in figures)

    def seconds(name: str) -> tuple[float, ...]:
        return tuple(round(getattr(f, name), 4) for f in figures)

    return Counts(
        time_s=_now(),
        generation=generation,
        step=step,
        clock=tuple(clocks),
        samples=each("samples"),
        records=each("records"),
        pushed=each("pushed_bytes"),
        pulled=each("pulled_bytes"),
        push_saved=each("push_saved_bytes"),
        pull_saved=each("pull_saved_bytes"),
        judged=each("judged"),
        staleness=each("staleness_sum"),
        queue=each("queue"),
        memory=each("memory_bytes"),
        heap=each("heap_bytes"),
        elapsed=seconds("elapsed_s"),
        wait=seconds("wait_s"),
        push=seconds("push_s"),
        pull=seconds("pull_s"),
        snapshot=seconds("snapshot_s"),
        updates=dict(updates),
        rows={table: tuple(rows) for table, rows in hottest_rows(figures).items()},
        shm_used=used,
        shm_total=total,
        disk_free=disk_free,
        disk_total=disk_total,
    )


def _disk(folder: Path) -> tuple[int, int]:
    """Return free bytes and size of a file system; (-1, -1): unknown."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return -1, -1
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
