"""What the workers of a job do, and what must be in its tables: computed from the seed alone.

A program does not depend on the order of events: which pushes a worker makes in a clock is a function of the
seed, the era, the worker and the clock. So what a table holds after given clocks of all workers is known
without mpips, and in whole numbers, which float32 adds exactly.

Every element belongs to one worker, which adds positive numbers to it, and only to it. The elements of one
worker are of two kinds: to the one kind each push adds 1, to the other a number that depends on the push.
So a push that is lost shows in the first kind, and one that is lost while another is doubled in the second.

An era is the time from one start without memory to the next: a job begins, continues in memory, and ends or
loses its memory. The next era starts from a checkpoint, possibly with other options, servers and workers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from mpips import ASP, BSP, SGD, SSP, DenseTable, DiLoCo, EmbeddingTable, LocalSGD, Reject
from mpips.model.codec import RandomK, TopK
from mpips.model.consistency import Switch
from mpips.model.grouping import grouped_rows, grouped_tables, listed_groups
from mpips.model.served import is_local, local_tables, times_of
from mpips.model.table import Table, feedback_tables
from simulation.backups import backup_model
from simulation.plateau import check_start, end_of_bsp
from simulation.row_limits import LimitedRows, Present, whole
from simulation.stages import n_pushing, takes_part

KEYS = 6  # keys of an embedding table
# Where servers may drop pushes, each element has a digit to this base for each clock of its worker: the
# number of times that the push of this clock is in it.
MARK = 4
MOST_MARKS = (
    10  # clocks of such an era; all its sums and those of a few eras before are exact in float32
)


class Push(NamedTuple):
    """A push: index of the table, keys (None: dense), the number that elements of the second kind get."""

    table: int
    keys: tuple[int, ...] | None
    number: int


class Pull(NamedTuple):
    """A pull: index of the table, keys (None: dense); `is_begun`: by prefetch."""

    table: int
    keys: tuple[int, ...] | None
    is_begun: bool = False


class Pace(NamedTuple):
    """A wait until no worker is more than so many clocks behind."""

    bound: int


class Gather(NamedTuple):
    """A collective operation of all workers: one of `GATHERS`; `everyone`: all receive its result."""

    kind: str
    everyone: bool


Op = Push | Pull | Pace | Gather
GATHERS = ("gather", "barrier", "sum", "max", "joined")


class Shape(NamedTuple):
    """What may differ from era to era.

    Attributes:
        tables: The tables.
        n_servers, n_workers: Numbers of ranks.
        clocks: Number of clocks of each worker.
        n_slots: Slots of a ring.
        every_steps: Steps between checkpoints; 0: none.
        asks: Workers ask for a checkpoint from time to time.
        has_partners: Servers have copies on other nodes.
        topology: Groups of workers that sum their updates; see cluster.topology.
        depth: Clocks of which look-aheads of workers know the keys; 0: there are no look-aheads.
        fails: Chance that an attempt to write a checkpoint fails.
        patience_s: Timeout of the coordinator.
        drops: Servers may drop pushes: "backup" workers, or the policy "reject"; "": they do not.
        gathers: Share of the clocks with a collective operation of all workers.
        pulls_first: A worker pulls before it pushes, and the collective operation is between the two.
    """

    tables: tuple[Table, ...]
    n_servers: int
    n_workers: int
    clocks: tuple[int, ...]
    n_slots: int
    every_steps: int
    asks: bool
    has_partners: bool
    topology: Any
    depth: int
    fails: float
    patience_s: float
    drops: str = ""
    gathers: float = 0.0
    pulls_first: bool = False


def lengths(draws: random.Random) -> dict[str, int]:
    """Draw the sizes of a run's tables, which all eras have; 0: an embedding table."""
    n = draws.choice((1, 1, 2, 3))
    return {f"t{i}": draws.choice((0, 1, 7, 16, 40)) for i in range(n)}


def draw_shape(
    draws: random.Random, sizes: dict[str, int], clocks: int, may_keep_residuals: bool
) -> Shape:
    """Draw the shape of an era."""
    n_workers, n_servers = draws.choice((1, 2, 2, 3, 3, 3, 4)), draws.choice((1, 2, 2, 2, 3))
    common = draws.choice((None, BSP("sum"), ASP()))
    tables: list[Table] = []
    for name, size in sizes.items():
        consistency = common or draws.choice((BSP("sum"), SSP(1), SSP(3), ASP()))
        if not size:
            # One column for each worker there may ever be, for each kind.
            tables.append(EmbeddingTable(name, 8, consistency=consistency, optimizer=SGD(1.0)))
            continue
        codec = None
        if may_keep_residuals and draws.random() < 0.6:
            codec = draws.choice((TopK(0.2), RandomK(0.4)))
        is_replicated = codec is None and isinstance(consistency, BSP) and draws.random() < 0.25
        tables.append(
            DenseTable(
                name,
                (size,),
                consistency=consistency,
                optimizer=SGD(1.0),
                compression=codec,
                placement="replicated" if is_replicated else "servers",
            )
        )
    has_partners = n_servers > 1 and draws.random() < 0.5
    topology: Any = "flat"
    if n_workers > 1 and may_group(tables) and draws.random() < 0.4:
        topology = _groups(draws, n_workers)
    uneven = draws.random() < (0.3 if topology == "flat" else 0.5)
    mine = tuple(draws.randrange(1, clocks + 1) if uneven else clocks for _ in range(n_workers))
    return Shape(
        tables=tuple(tables),
        n_servers=n_servers,
        n_workers=n_workers,
        clocks=mine,
        n_slots=draws.choice((4, 4, 4, 16, 64)),
        every_steps=draws.choice((0, 2, 4, 9)),
        asks=draws.random() < 0.5,
        has_partners=has_partners,
        topology=topology,
        depth=draws.choice((0, 0, 1, 3)),
        fails=draws.choice((0.0, 0.0, 0.4)),
        patience_s=draws.choice((1e6, 1e6, 0.2)),
    )


def with_a_worker_less(shape: Shape, draws: random.Random) -> Shape:
    """Return a shape with one worker less, whose groups are of single workers."""
    n, most = shape.n_workers - 1, max(shape.clocks)
    clocks = tuple(draws.randrange(1, most + 1) for _ in range(n))
    return shape._replace(n_workers=n, clocks=clocks, topology="flat", has_partners=False)


def with_gathers(shape: Shape, draws: random.Random) -> Shape:
    """Return a shape with collective operations, which may be between the pulls and the pushes of BSP."""
    shape = shape._replace(gathers=draws.choice((0.2, 0.6)))
    if shape.drops or draws.random() < 0.5:
        return shape
    tables: list[Table] = []
    for table in shape.tables:
        codec: dict[str, Any] = {"compression": None} if isinstance(table, DenseTable) else {}
        tables.append(replace(table, consistency=BSP("sum"), **codec))
    return shape._replace(tables=tuple(tables), gathers=0.8, pulls_first=True)


def with_drops(shape: Shape, draws: random.Random, kind: str) -> Shape:
    """Return a shape in which servers may drop pushes, for "backup" workers or with the policy "reject"."""
    tables: list[Table] = []
    backup = draws.choice((1, 1, 2))
    for table in shape.tables:
        consistency: Any = backup_model(backup, shape.clocks, shape.n_workers)
        if kind == "reject":
            policy = Reject(draws.choice((0, 1, 2, 5)))
            consistency = draws.choice((ASP(policy), ASP(policy), SSP(1, policy)))
        codec: dict[str, Any] = {}
        if isinstance(table, DenseTable):
            codec = {"compression": None, "placement": "servers"}
        tables.append(replace(table, consistency=consistency, **codec))
    return shape._replace(
        tables=tuple(tables),
        clocks=tuple(min(n, MOST_MARKS) for n in shape.clocks),
        has_partners=False,
        topology="flat",
        depth=0,
        # A cut at a clock that a worker skips is given up when it takes too long.
        patience_s=draws.choice((0.2, 2.0)) if kind == "backup" else shape.patience_s,
        drops=kind,
    )


def may_group(tables: Sequence[Table]) -> bool:
    """Return whether there is a table whose updates groups can sum."""
    return bool(grouped_tables(tables) or grouped_rows(tables, True))


def _groups(draws: random.Random, n_workers: int) -> Any:
    """Draw groups of workers, some with subgroups."""
    workers = list(range(n_workers))
    draws.shuffle(workers)
    how = draws.choice(("all", "pair", "split"))
    if how == "pair":
        return (tuple(sorted(workers[:2])),)
    if how == "split" and n_workers > 2:
        return ((tuple(sorted(workers[:2])), *workers[2:]),)
    return (tuple(sorted(workers)),)


class Contents:
    """The values of all tables: dense ones by index, rows by index and key. Not found: zeros.

    `limited` has the rows of tables with limits as well, where these are values at the end of a clock.
    """

    def __init__(self, dense: dict[int, np.ndarray], rows: dict[int, np.ndarray]) -> None:
        self.dense, self.rows = dense, rows
        self.limited: dict[int, Present] = {}

    def add(self, other: Contents) -> Contents:
        """Return the sum."""
        return Contents(
            {i: a + other.dense[i] for i, a in self.dense.items()},
            {i: a + other.rows[i] for i, a in self.rows.items()},
        )

    def of(self, table: int) -> np.ndarray:
        """Return the values of a dense table, (n,), or all rows of an embedding table, (KEYS, dim)."""
        return self.dense[table] if table in self.dense else self.rows[table]


class Era:
    """The programs of all workers of an era, and what the tables must hold.

    Attributes:
        shape: Its shape.
        number: Its number, from 0.
        base: What the tables held at its start.
        has_residuals: A table has a codec with error feedback.
        groups: Workers of each group.
        applied: What servers have applied, where they may drop pushes; else None.
        rounds: The values of tables with synchronous outer steps, where there are any; else None.
        bounds: The bound of SSP("auto") in force at each clock of this launch; None: the greatest one is.
        limited: The rows of tables with limits, by index.
        clocks_before: Clocks of the run before this era.
    """

    applied: Any = None
    rounds: Any = None
    bounds: Any = None
    clocks_before = 0

    def __init__(self, seed: int, number: int, shape: Shape, base: Contents | None) -> None:
        self.shape, self.number, self._seed = shape, number, seed
        self.has_residuals = any(
            isinstance(t, DenseTable) and t.compression is not None for t in shape.tables
        )
        self._updates: dict[tuple[int, Push], np.ndarray] = {}
        self._ops = [
            [self._draw(w, clock) for clock in range(shape.clocks[w])]
            for w in range(shape.n_workers)
        ]
        self.base = base if base is not None else self._zeros()
        groups: Any = ()
        if shape.topology != "flat":
            groups, _ = listed_groups(shape.topology, shape.n_workers)
        self.groups = groups
        self._in_groups = {worker for group in groups for worker in group}
        self._summed = grouped_tables(shape.tables).keys()
        self._prefix = [self._sums(w) for w in range(shape.n_workers)]
        self.limited = {
            i: LimitedRows(self, i, self.base.limited.get(i))
            for i, t in enumerate(shape.tables)
            if isinstance(t, EmbeddingTable) and (t.admit is not None or t.evict is not None)
        }

    def begin_launch(self, is_warm: bool, clocks_before: int) -> None:
        """Take what is different in each launch; `is_warm`: it continues in memory."""
        self.bounds, self.clocks_before = None, clocks_before
        check_start(self.shape.tables[0].consistency, is_warm, clocks_before)

    def is_summed(self, worker: int, table: int) -> bool:
        """Return whether a group sends a worker's updates of a dense table, at the end of the clock."""
        return worker in self._in_groups and table in self._summed

    def keys(self, worker: int, clock: int) -> dict[str, np.ndarray]:
        """Return the keys of all pulls of a clock, by table."""
        found: dict[str, set[int]] = {}
        for op in self._ops[worker][clock]:
            if isinstance(op, Pull) and op.keys is not None:
                found.setdefault(self.shape.tables[op.table].name, set()).update(op.keys)
        return {name: np.array(sorted(keys), np.int64) for name, keys in found.items()}

    def ops(self, worker: int, clock: int) -> Sequence[Op]:
        """What a worker does in a clock, in its order."""
        return self._ops[worker][clock]

    def _draw(self, worker: int, clock: int) -> list[Op]:
        draws = random.Random(f"{self._seed}/{self.number}/{worker}/{clock}")
        ops: list[Op] = []
        if draws.random() < 0.1:
            ops.append(Pace(draws.choice((0, 1, 4))))
        for i, table in enumerate(self.shape.tables):
            if not takes_part(self.shape, i, worker):
                continue
            is_rows = isinstance(table, EmbeddingTable)
            for _ in range(draws.choice((0, 1, 1, 1, 2))):
                keys = self._some_keys(draws) if is_rows else None
                ops.append(Push(i, keys, draws.randrange(1, 30)))
            if draws.random() < 0.5:
                keys = self._some_keys(draws) if is_rows else None
                ops.append(Pull(i, keys, draws.random() < 0.3))
        draws.shuffle(ops)
        if self.shape.pulls_first:
            ops.sort(key=lambda op: isinstance(op, Push))
        ops = self._marked(ops, clock) if self.shape.drops else ops
        return self._with_gather(ops, worker, clock) if self.shape.gathers else ops

    def _with_gather(self, ops: list[Op], worker: int, clock: int) -> list[Op]:
        """Insert the collective operation of a clock that all workers have, if there is one."""
        draws = random.Random(f"{self._seed}/{self.number}/{clock}/gather")
        if clock >= min(self.shape.clocks) or draws.random() >= self.shape.gathers:
            return ops
        holds_rows = self._holds_rows()
        if holds_rows and self._outer_steps_wait():
            return ops
        op = Gather(draws.choice(GATHERS), draws.random() < 0.6)
        # Under BSP pushes, and what follows them in a ring, wait for the clocks of others, who may wait here.
        is_free = all(
            not isinstance(table.consistency, BSP | Switch) for table in self.shape.tables
        )
        first = next((n for n, each in enumerate(ops) if isinstance(each, Push)), len(ops))
        most = len(ops) if is_free else 0 if holds_rows else first
        at = random.Random(f"{self._seed}/{worker}/{clock}").randrange(most + 1)
        at = most if self.shape.pulls_first else at
        return [*ops[:at], op, *ops[at:]]

    def _holds_rows(self) -> bool:
        """Return True if a worker that repeats a clock may pull rows behind its pushes of the first time.

        A server drops such pushes where they wait for others, but not those with a residual.
        """
        tables = self.shape.tables
        return bool(feedback_tables(tables)) and any(isinstance(t, EmbeddingTable) for t in tables)

    def _outer_steps_wait(self) -> bool:
        """Return True if outer steps wait for those of workers with lower indices."""
        local = local_tables(self.shape.tables).values()
        return any(not times_of(table).asynchronous for table in local)

    @staticmethod
    def _marked(ops: Sequence[Op], clock: int) -> list[Op]:
        """Leave one push to each table, whose number is a digit of its own in the sums of the clocks."""
        found: list[Op] = []
        for op in ops:
            if isinstance(op, Push):
                if any(isinstance(each, Push) and each.table == op.table for each in found):
                    continue
                op = op._replace(number=MARK**clock)
            found.append(op)
        return found

    @staticmethod
    def _some_keys(draws: random.Random) -> tuple[int, ...]:
        return tuple(draws.sample(range(KEYS), draws.randrange(1, KEYS + 1)))

    def update(self, worker: int, push: Push) -> np.ndarray:
        """Return what a push adds: (n,) for a dense table, (number of keys, dim) for rows. Read-only."""
        found = self._updates.get((worker, push))
        if found is None:
            found = self._updates[worker, push] = self._update(worker, push)
        return found

    def pushed(self, worker: int, push: Push, clock: int) -> np.ndarray:
        """Return the update of a push, which SGD subtracts from the values."""
        return -self.update(worker, push) * n_pushing(self.shape, push.table, clock)

    def _update(self, worker: int, push: Push) -> np.ndarray:
        table = self.shape.tables[push.table]
        if push.keys is None:
            assert isinstance(table, DenseTable)
            found = np.zeros(table.n_elements, np.float32)
            own = np.arange(worker, table.n_elements, self.shape.n_workers)
            is_count = (own // self.shape.n_workers) % 2 == 0
            found[own] = np.where(is_count & (not self.shape.drops), 1, push.number)
            return found
        rows = np.zeros((len(push.keys), 8), np.float32)
        rows[:, worker], rows[:, 4 + worker] = 1, push.number
        return rows

    def _zeros(self) -> Contents:
        tables = list(enumerate(self.shape.tables))
        return Contents(
            {i: np.zeros(t.n_elements, np.float32) for i, t in tables if isinstance(t, DenseTable)},
            {
                i: np.zeros((KEYS, 8), np.float32)
                for i, t in tables
                if isinstance(t, EmbeddingTable)
            },
        )

    def sums_of(self, worker: int, ops: Sequence[Op]) -> Contents:
        """Return what some pushes add together."""
        found = self._zeros()
        for op in ops:
            if not isinstance(op, Push):
                continue
            if op.keys is None:
                found.dense[op.table] += self.update(worker, op)
            else:
                found.rows[op.table][list(op.keys)] += self.update(worker, op)
        return found

    def _sums(self, worker: int) -> list[Contents]:
        """What a worker has added before each of its clocks, and at its end."""
        found = [self._zeros()]
        for ops in self._ops[worker]:
            found.append(found[-1].add(self.sums_of(worker, ops)))
        return found

    def added(self, table: int, worker: int, clock: int) -> np.ndarray:
        """Return what a worker has added to a table before a clock, as `Contents.of` has it."""
        prefix = self._prefix[worker]
        return prefix[max(0, min(clock, len(prefix) - 1))].of(table)

    def values(self, table: int, clocks: Sequence[int]) -> np.ndarray:
        """Return what a table holds after all clocks of the workers before these ones."""
        if table in self.limited:
            return whole(self.limited[table].at(clocks), KEYS)
        found = self.base.of(table).copy()
        for worker, clock in enumerate(clocks):
            found += self.added(table, worker, clock)
        return found

    def contents(self, clocks: Sequence[int]) -> Contents:
        """Return what all tables hold after all clocks of the workers before these ones."""
        found = self._zeros()
        for i in found.dense:
            found.dense[i] = self.values(i, clocks)
        for i in found.rows:
            found.rows[i] = self.values(i, clocks)
        found.limited = {i: rows.at(clocks) for i, rows in self.limited.items()}
        return found


class Watch:
    """What a worker has seen and done in an era; it checks every pull. It lives over restarts in memory.

    Attributes:
        begun: Clocks that it has begun.
    """

    def __init__(self, era: Era, worker: int) -> None:
        self.era, self.worker = era, worker
        # Least values that it sees from the start on, by table, where they are not those of the servers.
        self.floor: dict[int, np.ndarray] = {}
        self._seen: dict[int, np.ndarray] = {}
        self._again: int | None = None
        self.begun = set[int]()
        self.begin(0)
        # The most that it has ever sent: a restart repeats a part of it.
        self._most = (0, 0)

    def begin_launch(self, again: int | None) -> None:
        """Note that a launch begins: a worker may repeat inner steps under LocalSGD and DiLoCo.

        `again`: First clock that it may repeat, from values of servers that may have its outer step already.
        """
        tables = self.era.shape.tables
        self._seen = {i: a for i, a in self._seen.items() if not is_local(tables[i])}
        self._again = again

    def begin(self, clock: int) -> None:
        """Note that a clock begins."""
        self.clock, self._done = clock, 0
        self.begun.add(clock)

    def note(self) -> None:
        """Note that the next operation of the clock begins."""
        self._done += 1
        self._most = max(self._most, (self.clock, self._done))

    def sent(self, table: int) -> np.ndarray:
        """Return what it may have added to a table."""
        clock, done = self._most
        era = self.era
        if clock >= era.shape.clocks[self.worker]:
            return era.added(table, self.worker, clock)
        partly = era.sums_of(self.worker, era.ops(self.worker, clock)[:done])
        return era.added(table, self.worker, clock) + partly.of(table)

    def check(self, table: int, found: np.ndarray, watches: Sequence[Watch], keys: object) -> None:
        """Check what a pull has returned, as `Contents.of`, only the rows of `keys`."""
        era, consistency = self.era, self.era.shape.tables[table].consistency
        where = f"table {table} at clock {self.clock} of worker {self.worker}"
        is_own = isinstance(consistency, LocalSGD | DiLoCo)
        is_switch = isinstance(consistency, Switch)
        if is_own and era.rounds is not None:
            era.rounds.check_pull(self.worker, self.clock, table, found)
            return
        until = end_of_bsp(consistency, era.clocks_before) if is_switch else 0
        if isinstance(consistency, BSP) or self.clock < until:
            expected = era.values(table, [self.clock] * era.shape.n_workers)
            if keys is not None:
                expected = expected[keys]  # type: ignore[index]
            assert np.array_equal(found, expected), f"{where}: {found} is not {expected}"
            return
        most = era.base.of(table).copy()
        least = self.floor.get(table, most).copy()
        bound = self.clock - until
        if isinstance(consistency, SSP):
            is_decided = consistency.is_adaptive and era.bounds is not None
            bound = era.bounds.at(self.clock) if is_decided else consistency.most_bound
        for watch in watches:
            w = watch.worker
            most += watch.sent(table)
            if w != self.worker:
                least += era.added(table, w, self.clock - bound)
        if era.shape.depth and keys is not None:
            # Rows of a look-ahead may lack this worker's updates of its clocks, and pulls between are newer.
            least += era.added(table, self.worker, self.clock - era.shape.depth)
            least, most = least[keys], most[keys]  # type: ignore[index]
            assert (found >= least).all(), f"{where}: {found} is less than {least}"
            assert (found <= most).all(), f"{where}: {found} is more than {most}"
            return
        least += era.added(table, self.worker, self.clock)
        # A worker that repeats its inner steps up to an outer step may begin with values that have it: a
        # server applies an asynchronous one when it comes, before the worker's image of it is complete.
        again = self._again
        has_own = is_own and again is not None and self.clock < again + consistency.steps
        if has_own:
            most += era.added(table, self.worker, again + consistency.steps)
            most -= era.added(table, self.worker, again)
        if not is_own and not era.is_summed(self.worker, table):
            own = era.ops(self.worker, self.clock)[: self._done]
            least += era.sums_of(self.worker, own).of(table)
        if table in self._seen:
            least = np.maximum(least, self._seen[table])
        seen = least.copy()
        if keys is None:
            seen[:] = found
        else:
            least, most = least[keys], most[keys]  # type: ignore[index]
            seen[keys] = found  # type: ignore[index]
        assert (found >= least).all(), f"{where}: {found} is less than {least}"
        assert (found <= most).all(), f"{where}: {found} is more than {most}"
        if not has_own:
            self._seen[table] = seen
