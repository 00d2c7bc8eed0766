"""The entries of a record, decoded for checks: from docs/reference/record.md, not from the servers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mpips.errors import ConfigError
from mpips.record.files import RecordContent

# Kinds of records at a server.
PUSH_DENSE, PUSH_ROWS, PULL_ROWS, TICK, FINISH, CUT, CONFIGURE, STORE = range(1, 9)
KIND_NAMES = {
    PUSH_DENSE: "push",
    PUSH_ROWS: "push",
    PULL_ROWS: "pull of rows",
    TICK: "tick",
    FINISH: "end",
    CUT: "cut",
    CONFIGURE: "change of the optimizer",
    STORE: "store",
}
_JUMP = 15
# Outcomes of records.
APPLIED, SCALED, COMPENSATED, REJECTED = range(1, 5)
CHANGING = (APPLIED, SCALED, COMPENSATED)
_MOST_OUTCOME = 8
# Kinds of a worker's entries.
_WHOLE, _MIXED, _TICK, _ROWS, _END = range(1, 6)


class Consumed(msgspec.Struct):
    """A record that a server consumed.

    Attributes:
        worker: The worker that sent it.
        sequence: Its number among the worker's records to this server.
        clock: Clock of the worker.
        kind: PUSH_DENSE, ...
        outcome: Decision of the server; 0: a segment of a push that is not complete.
        table: Index of the table; -1: the kind has none.
        staleness: Staleness of a judged push; -1: of another record.
        digest: Low byte of the digest of the worker's payloads; -1: no push.
    """

    worker: int
    sequence: int
    clock: int
    kind: int
    outcome: int
    table: int = -1
    staleness: int = -1
    digest: int = -1

    @property
    def changes(self) -> bool:
        """True if the record changed its table under SSP or ASP when it was consumed."""
        return self.staleness >= 0 and self.outcome in CHANGING


class DensePull(msgspec.Struct):
    """A pull of a server's part of a dense table under SSP or ASP.

    Attributes:
        table, server: The part.
        own: Records that the worker had written to the server before.
        version: Version of the table's head before the pull.
        runs: Numbers of neighbouring blocks, and the updates that they had.
        clock: Clock of the worker.
    """

    table: int
    server: int
    own: int
    version: int
    runs: list[tuple[int, int]]
    clock: int


class RowPull(msgspec.Struct):
    """The first reply of a pull of rows: the record `sequence` at the server, and the table's version."""

    table: int
    server: int
    sequence: int
    version: int


class Tick(msgspec.Struct):
    """The end of a worker's clock, or of the worker.

    Attributes:
        clock: Number of the clock.
        own: Records that the worker had written to each server before that of the tick.
        is_end: The worker has no more clocks.
    """

    clock: int
    own: list[int]
    is_end: bool


Step = DensePull | RowPull | Tick


class _Bytes:
    """Reads numbers from entries."""

    def __init__(self, file: RecordContent) -> None:
        self._file, self._data, self._at = file, file.data, 0

    @property
    def is_over(self) -> bool:
        return self._at == len(self._data)

    def byte(self) -> int:
        if self.is_over:
            raise self.damage("ends inside an entry")
        self._at += 1
        return self._data[self._at - 1]

    def number(self) -> int:
        found = 0
        for shift in range(0, 70, 7):
            byte = self.byte()
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found & 0xFFFFFFFFFFFFFFFF
        raise self.damage("has a number of more than 64 bits")

    def difference(self) -> int:
        coded = self.number()
        return -((coded + 1) >> 1) if coded & 1 else coded >> 1

    def index(self, limit: int, what: str) -> int:
        found = self.number()
        if found >= limit:
            raise self.damage(f"has the {what} {found} of {limit}")
        return found

    def damage(self, what: str) -> ConfigError:
        return ConfigError(f"{self._file.path}: {what} (byte {self._at} of its entries)")


def read_order(file: RecordContent) -> list[Consumed]:
    """Return the records that a server consumed, in order.

    Raises:
        ConfigError: An entry is damaged.
    """
    head, data = file.head, _Bytes(file)
    following = [(0, 0)] * head.n_workers  # sequence and clock
    found = []
    while not data.is_over:
        code = data.byte()
        worker = data.index(head.n_workers, "worker")
        if code == _JUMP:
            following[worker] = data.number(), data.number()
            continue
        kind, outcome = code & 15, code >> 4
        if kind not in KIND_NAMES or outcome > _MOST_OUTCOME:
            raise data.damage(f"has an entry of the unknown kind {code}")
        sequence, clock = following[worker]
        record = Consumed(worker, sequence, clock, kind, outcome)
        if kind not in (TICK, FINISH, CUT):
            record.table = data.index(len(head.tables), "table")
        if kind in (PUSH_DENSE, PUSH_ROWS):
            if outcome in (*CHANGING, REJECTED):
                record.staleness = data.number()
            record.digest = data.byte()
        following[worker] = sequence + 1, clock + (kind == TICK)
        found.append(record)
    return found


def read_steps(file: RecordContent) -> list[Step]:
    """Return what a worker noted, in order.

    Raises:
        ConfigError: An entry is damaged.
    """
    head, data = file.head, _Bytes(file)
    own, rows = [0] * head.n_servers, [0] * head.n_servers
    versions = [[0] * len(head.tables) for _ in range(head.n_servers)]
    clock = 0
    found: list[Step] = []
    while not data.is_over:
        code = data.byte()
        if code in (_TICK, _END):
            at = clock + data.difference()
            own = [n + data.number() for n in own]
            found.append(Tick(at, own, code == _END))
            clock = at + 1
            continue
        if code not in (_WHOLE, _MIXED, _ROWS):
            raise data.damage(f"has an entry of the unknown kind {code}")
        table = data.index(len(head.tables), "table")
        server = data.index(head.n_servers, "server")
        if code == _ROWS:
            rows[server] += data.difference()
        else:
            own = [n + (data.number() if s == server else 0) for s, n in enumerate(own)]
        version = versions[server][table] = versions[server][table] + data.difference()
        if code == _ROWS:
            found.append(RowPull(table, server, rows[server], version))
            continue
        runs = [(0, version)]
        if code == _MIXED:
            runs = [(data.number(), version + data.difference()) for _ in range(data.number())]
        found.append(DensePull(table, server, own[server], version, runs, clock))
    return found


def count(steps: Sequence[Step], kind: type[Step]) -> int:
    """Return the number of steps of a kind."""
    return sum(isinstance(step, kind) for step in steps)
