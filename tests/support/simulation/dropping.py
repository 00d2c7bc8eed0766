"""What servers have applied in an era in which they may drop pushes, read from their values.

Each push of such an era adds a power of `MARK` that belongs to the clock (`program.py`). So the values of a
server tell which pushes are in them, and how often. `Applied` reads them whenever a server has consumed
records, and checks the rules:

backup workers   A server closes a clock when all working workers but so many have ended it. It applies all
                 pushes of these workers and none of the others. A worker whose end of the clock it had
                 before is among them. A pull returns the values after as many clocks as the worker has
                 ended, or more.
reject           A push is applied once or not at all by each server, and a pull sees no other values. A
                 server drops a push if and only if it is staler than the bound; staleness counts from the
                 worker's newest pull.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpips import BSP, DenseTable
from simulation.backups import Backups
from simulation.program import KEYS, MARK, MOST_MARKS, Contents, Era, Pull, Push, Watch

if TYPE_CHECKING:
    from mpips.model.placement import Placement
    from mpips.server.server import Server


class _Seen(NamedTuple):
    """A pull: where it was, and what it has returned."""

    launch: int
    worker: int
    clock: int
    pull: Pull
    found: np.ndarray


def _are_digits(*numbers: np.ndarray) -> bool:
    """Return True if each number has only the digits 0 and 1 to the base `MARK`."""
    return all(
        n >= 0 and all(n // MARK**c % MARK < 2 for c in range(MOST_MARKS + 1))
        for n in set(np.concatenate(numbers).tolist())
    )


class _OfServer:
    """What one server has applied.

    Attributes:
        version: Number of clocks that it has closed.
        clocks: Clock of each worker at its last look.
        ended: Workers that had finished by then.
        taken: By table and worker, the clocks whose pushes it has applied.
    """

    def __init__(self, n_tables: int, n_workers: int) -> None:
        self.version, self.clocks, self.ended = 0, [0] * n_workers, set[int]()
        self.taken = [[set[int]() for _ in range(n_workers)] for _ in range(n_tables)]


class Applied:
    """What all servers have applied in an era; it lives over restarts in memory.

    Attributes:
        backups: The number of backup workers at each clock.
    """

    def __init__(self, era: Era, watches: Sequence[Watch], placement: Placement) -> None:
        shape = era.shape
        self.era, self._watches, self._placement = era, watches, placement
        self._n = shape.n_workers
        self._servers = [_OfServer(len(shape.tables), self._n) for _ in range(shape.n_servers)]
        self.backups = Backups()
        self._pulls: list[_Seen] = []
        self._versions: dict[tuple[int, int, int], np.ndarray] = {}

    # What a server's values say.

    def look(self, server: Server) -> None:
        """Read which pushes a server has applied since the last look, and check them."""
        s, before = server.index, self._servers[server.index]
        after = _OfServer(len(self.era.shape.tables), self._n)
        core = server.core
        after.clocks = [core.clock(w) for w in range(self._n)]
        after.ended = {w for w in range(self._n) if core.finished(w)}
        for i, table in enumerate(self.era.shape.tables):
            if isinstance(table, DenseTable):
                part = self._part(i, s)
                if part is None:
                    continue
                found = core.dense_values(i)
                after.taken[i] = self._marks(i, found, part)
            else:
                keys, rows = core.embedding_content(i)
                found = np.zeros((KEYS, 8), np.float32)
                found[keys] = rows
                after.taken[i] = self._marks(i, found, self._keys(i, s))
        for i, of_table in enumerate(after.taken):
            for w, clocks in enumerate(of_table):
                where = f"table {i} of server {s}: pushes of worker {w}"
                lost = before.taken[i][w] - clocks
                assert not lost, f"{where} of clocks {lost} are there no more"
                assert clocks <= self._watches[w].begun, f"{where} were not sent: {clocks}"
        if self.era.shape.drops == "backup":
            after.version = core.version(0)
            self._check_clocks(s, before, after)
        self._servers[s] = after

    def _part(self, table: int, server: int) -> slice | None:
        """Return the elements of a dense table that a server has."""
        name = self.era.shape.tables[table].name
        parts = [p for p in self._placement.dense[name] if p.server == server]
        return slice(parts[0].start, parts[0].stop) if parts else None

    def _keys(self, table: int, server: int) -> list[int]:
        """Return the keys of an embedding table whose rows a server has."""
        partitioner = self._placement.partitioners[self.era.shape.tables[table].name]
        return [key for key in range(KEYS) if partitioner.owner(key) == server]

    def _marks(self, table: int, found: np.ndarray, part: Any) -> list[set[int]]:
        """Return the clocks of each worker whose pushes are in a server's values, and check all values."""
        base = self.era.base.of(table)[part]
        values = found if isinstance(part, slice) else found[part]
        sums = (values - base).astype(np.int64)
        taken = []
        for w in range(self._n):
            if isinstance(part, slice):
                own = sums[(np.arange(part.start, part.stop) % self._n) == w]
            else:
                own = sums[:, 4 + w]
            marks = 0
            for number in set(own.tolist()):
                assert number >= 0, f"table {table} has {found}"
                marks |= number
            taken.append({c for c in range(MOST_MARKS + 1) if marks // MARK**c % MARK})
        expected = self.contents(table, taken)[part]
        assert np.array_equal(values, expected), (
            f"table {table} has {values} and not {expected}, after the pushes of the clocks {taken}"
        )
        return taken

    def contents(self, table: int, taken: Sequence[set[int]], before: int = 1 << 30) -> np.ndarray:
        """Return the values of a table with the pushes of these clocks, by worker, before a clock."""
        found = self.era.base.of(table).copy()
        for w, clocks in enumerate(taken):
            for clock in clocks:
                for push in self._pushes(w, clock) if clock < before else ():
                    if push.table != table:
                        continue
                    if push.keys is None:
                        found += self.era.update(w, push)
                    else:
                        found[list(push.keys)] += self.era.update(w, push)
        return found

    def _pushes(self, worker: int, clock: int) -> Iterator[Push]:
        if clock >= self.era.shape.clocks[worker]:
            return iter(())
        return (op for op in self.era.ops(worker, clock) if isinstance(op, Push))

    def _reaches(self, worker: int, push: Push, server: int) -> bool:
        """Return True if a part of a push goes to a server."""
        if push.keys is None:
            return self._part(push.table, server) is not None
        return bool(set(push.keys) & set(self._keys(push.table, server)))

    def _shows(self, worker: int, push: Push, server: int) -> bool:
        """Return True if a server's values show whether they contain a push."""
        if push.keys is not None:
            return self._reaches(worker, push, server)
        part = self._part(push.table, server)
        return part is not None and bool(self.era.update(worker, push)[part].any())

    # Backup workers.

    def _check_clocks(self, s: int, before: _OfServer, after: _OfServer) -> None:
        """Check which workers are in the clocks that a server has closed since the last look."""
        consistency = self.era.shape.tables[0].consistency
        assert isinstance(consistency, BSP)
        for w in range(self._n):
            late = {c for of_table in after.taken for c in of_table[w] if c >= after.version}
            assert not late, f"server {s} has pushes of worker {w} of the open clocks {late}"
        for i, of_table in enumerate(before.taken):
            for w, clocks in enumerate(of_table):
                new = after.taken[i][w] - clocks
                assert all(c >= before.version for c in new), (
                    f"server {s} has pushes of worker {w} of clocks {new} that were closed without it"
                )
        for clock in range(before.version, after.version):
            here, unknown, where = set(), set(), f"clock {clock} of server {s}"
            for w in range(self._n):
                shown = [push for push in self._pushes(w, clock) if self._shows(w, push, s)]
                seen = {clock in after.taken[push.table][w] for push in shown}
                assert len(seen) < 2, f"{where} has a part of the pushes of worker {w}"
                if seen == {True}:
                    here.add(w)
                elif not shown and after.clocks[w] > clock:
                    unknown.add(w)
                had = before.clocks[w] > clock
                assert not (had and shown) or w in here, (
                    f"{where} lacks worker {w}, which was in time"
                )
                assert w not in here or after.clocks[w] > clock, f"{where} has too early worker {w}"
            # A worker that has finished without this clock does not count. When it has finished is not known
            # exactly if that was after the last look.
            gone = {w for w in before.ended if before.clocks[w] <= clock}
            maybe_gone = {w for w in after.ended if w not in here}
            backup = self.backups.at(s, clock, consistency)
            most, least = (max(1, self._n - len(each) - backup) for each in (gone, maybe_gone))
            assert len(here) <= most, f"{where} has the workers {here}, more than {most}"
            assert len(here | unknown) >= least, (
                f"{where} has the workers {here}, less than {least}"
            )

    # Pulls.

    def begin_pull(self) -> list[list[list[set[int]]]]:
        """Return what each server has applied by now, by table and worker: the pull that begins sees it."""
        return [server.taken for server in self._servers]

    def saw(
        self,
        launch: int,
        watch: Watch,
        pull: Pull,
        found: np.ndarray,
        since: Sequence[Sequence[Sequence[set[int]]]],
    ) -> None:
        """Check what a pull has returned; with backup workers only when servers have been looked at.

        Args:
            launch: Number of the launch.
            watch: What its worker has seen.
            pull: The pull.
            found: Its values.
            since: What `begin_pull` has returned.
        """
        seen = _Seen(launch, watch.worker, watch.clock, pull, found)
        if self.era.shape.drops == "backup":
            self._pulls.append(seen)
            return
        for s in range(self.era.shape.n_servers):
            here, part = self._places(pull, s)
            if here is None:
                continue
            sums = (found[here] - self.era.base.of(pull.table)[part]).astype(np.int64)
            for w, watched in enumerate(self._watches):
                must = self._sums(pull.table, [since[s][pull.table][w]], w)[part]
                may = self._sums(pull.table, [watched.begun], w)[part]
                # In no digit it has less than the one or more than the other: then no digit borrows.
                own = slice(None) if pull.keys is None else 4 + w
                at = (np.arange(part.start, part.stop) % self._n) == w if pull.keys is None else own
                n, low, high = (
                    a[at] if pull.keys is None else a[:, own] for a in (sums, must, may)
                )
                assert _are_digits(n - low, high - n), (
                    f"table {pull.table} at clock {watch.clock} of worker {watch.worker}: {found[here]} does "
                    f"not contain {must} or is not in {may}, of worker {w}, on server {s}"
                )

    def _sums(self, table: int, taken: Sequence[set[int]], worker: int) -> np.ndarray:
        """Return what pushes of a worker in these clocks add to a table, whole numbers."""
        every = [taken[0] if w == worker else set[int]() for w in range(self._n)]
        return (self.contents(table, every) - self.era.base.of(table)).astype(np.int64)

    def _places(self, pull: Pull, s: int) -> tuple[Any, Any]:
        """Return where a server's part of a pull is in its values, and in the table; None: it has none."""
        if pull.keys is None:
            part = self._part(pull.table, s)
            return part, part
        mine = set(self._keys(pull.table, s))
        here = np.array([i for i, key in enumerate(pull.keys) if key in mine], np.int64)
        return (here, np.array(pull.keys)[here]) if len(here) else (None, None)

    def check_pulls(self) -> None:
        """Check the pulls so far: each part is that of a server after a number of clocks. It only grows."""
        last: dict[tuple[int, int, int, int], int] = {}
        for pull in self._pulls:
            for s in range(self.era.shape.n_servers):
                self._check_pull(pull, s, last)
        self._pulls.clear()

    def _check_pull(self, seen: _Seen, s: int, last: dict[tuple[int, int, int, int], int]) -> None:
        table, server = seen.pull.table, self._servers[s]
        at = seen.launch, seen.worker, table, s
        here, part = self._places(seen.pull, s)
        if here is None:
            return
        first = max(seen.clock, last.get(at, 0))
        for version in range(first, server.version + 1):
            if np.array_equal(seen.found[here], self._closed(s, table, version)[part]):
                last[at] = version
                return
        raise AssertionError(
            f"table {table} at clock {seen.clock} of worker {seen.worker}: {seen.found[here]} is what "
            f"server {s} had after none of the clocks {first} to {server.version}"
        )

    def _closed(self, s: int, table: int, version: int) -> np.ndarray:
        """Return a server's values after so many closed clocks."""
        key = s, table, version
        if key not in self._versions:
            self._versions[key] = self.contents(table, self._servers[s].taken[table], version)
        return self._versions[key]

    # The end, and checkpoints.

    def check_skip(self, worker: int, before: int, now: int, versions: Sequence[int]) -> None:
        """Check that a worker has ended one clock, or skipped those that all servers have closed."""
        assert now == before + 1 or before < now <= min(versions), (
            f"worker {worker} goes from clock {before} to {now}, and servers have closed {versions}"
        )

    def check_counts(self, worker: int, counts: dict[str, int], sent: set[int]) -> None:
        """Check a worker's numbers of pushes at the end of a launch that has made all of them.

        Args:
            worker: Its index.
            counts: As of Worker.counters.
            sent: The clocks in which it has pushed.
        """
        n_pushes = n_dropped = n_unknown = 0
        for s, server in enumerate(self._servers):
            for clock in sent:
                for push in self._pushes(worker, clock):
                    reaches = self._reaches(worker, push, s)
                    n_pushes += reaches
                    if not reaches or clock in server.taken[push.table][worker]:
                        continue
                    if self._shows(worker, push, s):
                        n_dropped += 1
                    else:
                        n_unknown += 1
        dropped = counts["late"] + counts["rejected"]
        assert n_dropped <= dropped <= n_dropped + n_unknown, (
            f"worker {worker} counts {dropped} dropped pushes of {n_dropped} and {n_unknown} unknown ones: "
            f"{counts}"
        )
        assert counts["applied"] + dropped == n_pushes, (
            f"worker {worker} counts {counts} of {n_pushes} pushes"
        )

    def final(self) -> Contents:
        """Return what all tables hold by the last looks."""
        return self._joined([[s.taken[i] for s in self._servers] for i in range(self._n_tables)])

    @property
    def _n_tables(self) -> int:
        return len(self.era.shape.tables)

    def _joined(
        self, taken: Sequence[Sequence[Sequence[set[int]]]], before: int = 1 << 30
    ) -> Contents:
        """Return all tables, from what each server has of each; only clocks before this one."""
        found = Contents(
            {i: a.copy() for i, a in self.era.base.dense.items()},
            {i: a.copy() for i, a in self.era.base.rows.items()},
        )
        for i in range(self._n_tables):
            for s in range(self.era.shape.n_servers):
                part: Any = self._part(i, s) if i in found.dense else self._keys(i, s)
                if part is not None:
                    found.of(i)[part] = self.contents(i, taken[i][s], before)[part]
        return found

    def check_cut(self, clocks: Sequence[int], found: Contents) -> None:
        """Check that a checkpoint is a consistent cut.

        Args:
            clocks: The workers' clocks in it, as their programs count them.
            found: The values in it.
        """
        if self.era.shape.drops == "backup":
            self._check_cut(clocks, found)
            return
        # With the policy reject a cut has some pushes of the clocks before it, and none of later ones.
        for i in range(self._n_tables):
            for s, server in enumerate(self._servers):
                part: Any = self._part(i, s) if i in found.dense else self._keys(i, s)
                if part is None:
                    continue
                taken = [
                    {c for c in of_worker if c < clocks[w]}
                    for w, of_worker in enumerate(server.taken[i])
                ]
                expected = self.contents(i, taken)[part]
                assert np.array_equal(found.of(i)[part], expected), (
                    f"the checkpoint at clocks {clocks} has {found.of(i)[part]} in table {i} on server {s}, "
                    f"not {expected}"
                )

    def _check_cut(self, clocks: Sequence[int], found: Contents) -> None:
        """Check that the values are those of all servers after the same number of clocks."""
        every = [[s.taken[i] for s in self._servers] for i in range(self._n_tables)]
        # A worker that skips clocks has its cursor from before them.
        for version in range(max(clocks), 1 + max(s.version for s in self._servers)):
            expected = self._joined(every, version)
            if all(np.array_equal(found.of(i), expected.of(i)) for i in range(self._n_tables)):
                return
        raise AssertionError(
            f"the checkpoint at clocks {clocks} has values that servers never had together: "
            f"{found.dense}, {found.rows}"
        )


class JudgedPushes:
    """The pushes of one worker in one launch with the policy reject, and the bounds of their staleness.

    A push's staleness is the version of the table at the server, which counts its pushes, less that which the
    worker's newest pull has seen. Both are known within bounds: versions only grow.
    """

    def __init__(
        self, applied: Applied, servers: Sequence[Server], worker: int, draws: Any
    ) -> None:
        self._applied, self._servers, self._worker, self._draws = applied, servers, worker, draws
        # By table and server: the least and greatest version that the newest pull may have seen.
        self._base: dict[tuple[int, int], tuple[int, int]] = {}
        self._before: dict[int, int] = {}
        self._open: list[tuple[Push, Any, dict[int, tuple[int, int, int]]]] = []

    def begin_pull(self, pull: Pull) -> None:
        """Note that a pull begins."""
        self._before = {
            s: server.core.version(pull.table) for s, server in enumerate(self._servers)
        }

    def end_pull(self, pull: Pull) -> None:
        """Note that a pull has ended."""
        for s, server in enumerate(self._servers):
            if self._applied._places(pull, s)[0] is not None:
                version = server.core.version(pull.table)
                self._base[pull.table, s] = self._before[s], version

    def begin(self, push: Push) -> None:
        """Note that a push begins."""
        self._before = {
            s: server.core.version(push.table) for s, server in enumerate(self._servers)
        }

    def take(self, push: Push, request: Any) -> None:
        """Note a push."""
        bounds = {}
        for s, before in self._before.items():
            if self._applied._reaches(self._worker, push, s):
                bounds[s] = before, *self._base.get((push.table, s), (0, before))
        self._open.append((push, request, bounds))

    def settle(self, repeats: bool) -> None:
        """Check the results of the pushes so far, or not yet.

        `repeats`: The clock may have begun in an earlier launch, whose pushes are not sent again.
        """
        if repeats:
            self._open.clear()
        if self._draws.random() < 0.5:
            return
        for push, request, bounds in self._open:
            found = request.wait()
            policy = self._applied.era.shape.tables[push.table].consistency.policy
            where = f"a push of worker {self._worker} to table {push.table} has {found}"
            n_unknown = found.unknown
            assert found.applied + found.rejected + n_unknown == len(bounds), where
            if n_unknown:
                continue
            assert (found.staleness > policy.max_staleness) == (found.rejected > 0), (
                f"{where} with the bound {policy.max_staleness}"
            )
            least = max(before - high for before, _, high in bounds.values())
            most = max(
                self._servers[s].core.version(push.table) - low for s, (_, low, _) in bounds.items()
            )
            assert max(0, least) <= found.staleness <= most, (
                f"{where}, and its staleness is from {least} to {most}"
            )
        self._open.clear()
