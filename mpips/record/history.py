"""The history check: whether a recorded run kept the promises of its servers. It reads only the record.

For each server it walks the records in the order in which they were consumed, and counts the versions of
tables and the clocks of workers itself. Then it compares what workers noted with that.

    once        every record of a worker was consumed exactly once, in the worker's order
    clocks      a worker's clocks follow each other at every server
    reject      a push was rejected if and only if it was staler than the policy allows
    bsp         no push of a clock before all workers have ended the clock before
    ssp         no value for a worker that is more than the bound ahead of the slowest one
    own pushes  a pull has seen the worker's pushes before it
    monotonic   a pull has not seen less than one before it
    future      a pull has seen nothing that was applied after the worker's next record
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterator, Sequence

import msgspec

from mpips.record.files import ESTIMATED, RecordContent, RecordedTable, RecordHead
from mpips.record.reading import (
    FINISH,
    KIND_NAMES,
    PULL_ROWS,
    PUSH_DENSE,
    PUSH_ROWS,
    REJECTED,
    TICK,
    Consumed,
    DensePull,
    RowPull,
    Step,
    Tick,
    read_order,
    read_steps,
)


class Checked(msgspec.Struct):
    """The result of a check.

    Attributes:
        breaks: Sentences on rules that are broken, with the name of the rule at the beginning.
        notes: Sentences on the parts of the run that the record lacks.
        n_records: Records that were checked.
        n_pulls: Pulls of parts of dense tables that were checked.
    """

    breaks: list[str] = []
    notes: list[str] = []
    n_records: int = 0
    n_pulls: int = 0


def check_history(servers: Sequence[RecordContent], workers: Sequence[RecordContent]) -> Checked:
    """Check a recorded run.

    Args:
        servers: The files of the servers, by index.
        workers: The files of the workers, by index.

    Raises:
        ConfigError: An entry is damaged.
    """
    found = Checked(breaks=[], notes=[])
    histories = []
    end = servers[0].end if servers else None
    bounds = end.bounds if end is not None else None
    for file in servers:
        history = ServerHistory(file.head, read_order(file), bounds)
        histories.append(history)
        found.breaks += history.breaks
        found.n_records += len(history.records)
    for w, file in enumerate(workers):
        steps = read_steps(file)
        found.n_pulls += sum(isinstance(step, DensePull) for step in steps)
        # A rank that was killed may lack its last entries, and a server's file ends when it is full.
        ended = [file.end is not None and server.is_complete for server in servers]
        found.breaks += _check_worker(file.head, w, steps, histories, ended)
    for file in (*servers, *workers):
        if file.end is None:
            found.notes.append(
                f"{file.path.name} has no end: what it does not contain is not checked"
            )
        elif file.end.limited_at >= 0:
            found.notes.append(f"{file.path.name} ends early because of monitor.record_mib")
    return found


class ServerHistory:
    """The records of one server, with versions and clocks.

    Attributes:
        records: The records in the order in which they were consumed.
        breaks: Broken rules.
        place: By worker, the position in `records` of each of its records, by sequence.
        versions: By table, the positions of records that changed it.
        least: Lowest clock of the workers that have not finished, before each record; infinite: all have.
    """

    def __init__(
        self,
        head: RecordHead,
        records: list[Consumed],
        bounds: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        """Walk the records and check the rules that concern the server alone.

        Args:
            head: Head of its file.
            records: Its records, in the order in which they were consumed.
            bounds: See End.
        """
        self._head = head
        self._bounds = bounds
        self.records = records
        self.breaks: list[str] = []
        self.place: list[dict[int, int]] = [{} for _ in range(head.n_workers)]
        self.versions: list[list[int]] = [[] for _ in head.tables]
        self.least: list[float] = []
        # By worker and table: sequence and version of each of its records that changed the table.
        self._pushes: dict[tuple[int, int], list[tuple[int, int]]] = {}
        clocks: list[float] = [0.0] * head.n_workers
        next_sequence = [0] * head.n_workers
        for at, record in enumerate(records):
            w = record.worker
            self.least.append(min(clocks))
            self._check_once(record, next_sequence[w], clocks[w])
            self._check_rules(record, min(clocks))
            self.place[w][record.sequence] = at
            next_sequence[w] = record.sequence + 1
            if record.changes:
                self.versions[record.table].append(at)
                pushes = self._pushes.setdefault((w, record.table), [])
                version = self._closed(record.table, at) + len(self.versions[record.table])
                pushes.append((record.sequence, version))
            if record.kind == TICK:
                clocks[w] = record.clock + 1
            elif record.kind == FINISH:
                clocks[w] = float("inf")

    def _note(self, rule: str, record: Consumed, what: str) -> None:
        self.breaks.append(
            f"{rule}: server {self._head.index}: record {record.sequence} of worker {record.worker} "
            f"({KIND_NAMES[record.kind]}, clock {record.clock}) {what}"
        )

    def _check_once(self, record: Consumed, expected: int, clock: float) -> None:
        if record.sequence != expected:
            what = "again" if record.sequence < expected else f"without record {expected} before it"
            self._note("once", record, f"was consumed {what}")
        if record.clock != clock:
            self._note(
                "clocks", record, f"is at another clock than the worker, which is at {clock:g}"
            )

    def _check_rules(self, record: Consumed, least: float) -> None:
        if record.table < 0:
            return
        table = self._head.tables[record.table]
        is_push = record.kind in (PUSH_DENSE, PUSH_ROWS)
        under_bsp = table.consistency == "bsp" or table.switch_at >= 0
        if is_push and under_bsp and self._needed(table, record.clock) > least:
            self._note("bsp", record, f"was consumed while a worker was at clock {least:g}")
        if record.kind == PULL_ROWS and self.is_ahead(table, record.clock, least):
            rule = "ssp" if table.switch_at < 0 else "bsp"
            self._note(rule, record, f"was answered while a worker was at clock {least:g}")
        if record.staleness < 0 or table.max_staleness == ESTIMATED:
            return
        is_stale = 0 <= table.max_staleness < record.staleness
        if is_stale != (record.outcome == REJECTED):
            done = "rejected" if record.outcome == REJECTED else "applied"
            self._note(
                "reject",
                record,
                f"was {done} with staleness {record.staleness}, the greatest allowed is "
                f"{table.max_staleness}",
            )

    def version_before(self, table: int, at: int) -> int:
        """Return the version of a table after the records before position `at`.

        That is the number of these records that changed it; under Switch also of clocks under BSP.
        """
        return self._closed(table, at) + bisect.bisect_left(self.versions[table], at)

    def _closed(self, table: int, at: int) -> int:
        """Return the number of clocks under BSP before position `at` of a table under Switch, else 0."""
        return int(min(self.least[at], max(0, self._head.tables[table].switch_at)))

    @staticmethod
    def _needed(table: RecordedTable, clock: int) -> int:
        """Return the clock that all workers must have reached, under BSP or Switch."""
        return min(clock, table.switch_at) if table.switch_at >= 0 else clock

    def is_ahead(self, table: RecordedTable, clock: int, least: float) -> bool:
        """Return True if a pull at this clock breaks the bound of SSP in force, or the rule of Switch.

        Args:
            table: The table.
            clock: Clock of the worker.
            least: Lowest clock of all workers.
        """
        if table.switch_at >= 0:
            return self._needed(table, clock) > least
        bound = table.bound
        if table.is_adaptive and self._bounds is not None:
            i = bisect.bisect_right(self._bounds, clock, key=operator.itemgetter(0))
            bound = self._bounds[i - 1][1] if i else 0
        return table.consistency == "ssp" and clock - least > bound

    def own_version(self, table: int, worker: int, own: int) -> int:
        """Return the version of a table with the newest of a worker's first `own` records that changed it."""
        pushes = self._pushes.get((worker, table), [])
        i = bisect.bisect_left(pushes, (own, 0))
        return pushes[i - 1][1] if i else 0


def _check_worker(
    head: RecordHead,
    worker: int,
    steps: Sequence[Step],
    servers: Sequence[ServerHistory],
    ended: Sequence[bool],
) -> Iterator[str]:
    """Return the rules that a worker's pulls and ticks break.

    `ended`: for each server, whether its record is complete and that of the worker has its end.
    """
    seen: dict[tuple[int, int], tuple[int, int]] = {}  # version, and updates of the oldest block
    newest_own: dict[tuple[int, int], tuple[int, int]] = {}  # records looked at, version
    for step in steps:
        if isinstance(step, Tick):
            yield from _check_tick(worker, step, servers, ended)
        elif isinstance(step, RowPull):
            yield from _check_rows(head, worker, step, servers[step.server])
        else:
            yield from _check_pull(head, worker, step, servers[step.server], seen, newest_own)


def _check_tick(
    worker: int, tick: Tick, servers: Sequence[ServerHistory], ended: Sequence[bool]
) -> Iterator[str]:
    what = "end" if tick.is_end else "tick"
    for s, server in enumerate(servers):
        at = server.place[worker].get(tick.own[s])
        if at is None:
            if ended[s]:
                yield (
                    f"once: server {s} has not consumed record {tick.own[s]} of worker {worker}, its {what} "
                    f"of clock {tick.clock}"
                )
            continue
        record = server.records[at]
        kind = FINISH if tick.is_end else TICK
        if record.kind != kind or record.clock != tick.clock:
            yield (
                f"once: server {s} has consumed a {KIND_NAMES[record.kind]} of clock {record.clock} "
                f"as record {tick.own[s]} of worker {worker}, the worker has sent its {what} of clock "
                f"{tick.clock}"
            )


def _check_rows(
    head: RecordHead, worker: int, pull: RowPull, server: ServerHistory
) -> Iterator[str]:
    where = f"pull {pull.sequence} of worker {worker} from table {head.tables[pull.table].name!r}"
    at = server.place[worker].get(pull.sequence)
    if at is None:
        return
    record = server.records[at]
    if record.kind != PULL_ROWS or record.table != pull.table:
        yield f"once: {where} is a {KIND_NAMES[record.kind]} at the server"
    elif head.tables[pull.table].consistency != "bsp":
        expected = server.version_before(pull.table, at)
        if pull.version != expected:
            rule = "future" if pull.version > expected else "own pushes"
            yield f"{rule}: {where} has seen version {pull.version}, at its place it is {expected}"


def _check_pull(
    head: RecordHead,
    worker: int,
    pull: DensePull,
    server: ServerHistory,
    seen: dict[tuple[int, int], tuple[int, int]],
    newest_own: dict[tuple[int, int], tuple[int, int]],
) -> Iterator[str]:
    table = head.tables[pull.table]
    where = f"pull of table {table.name!r} from server {pull.server} at clock {pull.clock} of worker {worker}"
    least, most = (f(updates for _, updates in pull.runs) for f in (min, max))
    if table.switch_at >= 0:
        # Clocks without a push change no block, so blocks may have fewer updates than the head.
        least = most = pull.version
        whole = min(pull.clock, table.switch_at)
        if pull.version < whole or pull.version > whole == pull.clock < table.switch_at:
            yield f"bsp: the {where} has seen version {pull.version}, it needs that of {whole} clocks"
    key = pull.table, pull.server
    version_before, least_before = seen.get(key, (0, 0))
    if pull.version < version_before or least < least_before:
        yield (
            f"monotonic: the {where} has seen version {min(pull.version, least)} after version "
            f"{max(version_before, least_before)}"
        )
    seen[key] = pull.version, least
    if least < pull.version:
        yield f"monotonic: the {where} has a block of version {least} and the head of {pull.version}"
    if newest_own.get(key, (-1, 0))[0] != pull.own:
        newest_own[key] = pull.own, server.own_version(pull.table, worker, pull.own)
    if least < (own := newest_own[key][1]):
        yield f"own pushes: the {where} has seen version {least}, an own push before it made version {own}"
    at = server.place[worker].get(pull.own)
    if at is None:
        return
    if most > (newest := server.version_before(pull.table, at)):
        yield f"future: the {where} has seen version {most}, its next record came at version {newest}"
    if server.is_ahead(table, pull.clock, server.least[at]):
        rule = "ssp" if table.switch_at < 0 else "bsp"
        yield f"{rule}: the {where} had values while a worker was at clock {server.least[at]:g}"
