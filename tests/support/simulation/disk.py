"""Checkpoints of the simulation: what servers write together, or fail to write."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpips import DenseTable
from mpips.checkpoint import CheckpointInfo, DenseShardData, ManifestHead, worker_files
from mpips.checkpoint.changes import Increment
from mpips.checkpoint.residuals import read_residuals
from mpips.checkpoint.shards import ServerState, ShardData
from mpips.errors import DiskFullError, MpipsError
from mpips.model.table import Table
from mpips.server.server import Server
from mpips.snapshot.server_part import ServerPart
from simulation.chains import Part, check_link, end_of, place_of
from simulation.world import World


class Checkpoint(NamedTuple):
    """A checkpoint.

    Attributes:
        head: Its description of the job, with the states of the workers.
        dense: Values of dense tables, by name, flat.
        rows: Rows of embedding tables, by name and key.
        uses: Uses of the rows of tables that evict rows, by name and key: last clock, and number of clocks.
        versions: Number of updates of each table, by name.
        era: Number of the era in which it was written.
        path: Its folder.
        switch: The clock that was decided on for a switch at a plateau; -1: none.
    """

    head: ManifestHead
    dense: dict[str, np.ndarray]
    rows: dict[str, dict[int, np.ndarray]]
    uses: dict[str, dict[int, tuple[int, int]]]
    versions: dict[str, int]
    era: int
    path: Path
    switch: int = -1

    def unsent(self, table: Table) -> np.ndarray:
        """Return the sum of the residuals of all workers of a table."""
        found = np.float32(0)
        for worker in range(len(self.head.workers)):
            found = found + read_residuals(self.path, self.head, worker).get(table.name, 0)
        return found


class Disk:
    """The checkpoints of a run, oldest first, and the one that is being written.

    All of them have whole tables. Those that mpips would write as links are compared with what the links
    would have.

    Attributes:
        folder: Where the workers of mpips write their own files of checkpoints.
        longest: checkpoint.incremental of the job.
        n_links: Number of checkpoints that would be links.
    """

    def __init__(self, world: World, folder: Path, longest: int = 0) -> None:
        self.world, self.folder, self.longest = world, folder, longest
        self.n_links = 0
        self.written: list[Checkpoint] = []
        # The exchange that was written last, and the same with a path that no launch removes.
        self.exchanged: Checkpoint | None = None
        self.copied: Checkpoint | None = None
        self.failures = self.era = self.n_exchanges = 0
        self.fails = 0.0  # chance that an attempt to write fails
        self._parts: dict[tuple[int, int], dict[int, Part]] = {}
        self._ends: dict[tuple[int, int], CheckpointInfo | MpipsError] = {}

    @property
    def newest(self) -> Checkpoint | None:
        """The newest checkpoint."""
        return self.written[-1] if self.written else None

    def restore(self, server: Server, placement: Any, tables: Sequence[Any], path: Path) -> None:
        """Fill a server's shards, as mpips.recovery.restore does from HDF5."""
        start = next(each for each in (*self.written, self.exchanged) if each and each.path == path)
        if server.switch_control is not None and start.switch > 0:
            server.switch_control.set(start.switch)
        for i, table in enumerate(tables):
            server.core.set_steps_before(i, start.versions[table.name])
            if isinstance(table, DenseTable):
                for part in placement.dense[table.name]:
                    if part.server == server.index:
                        values = start.dense[table.name][part.start : part.stop]
                        server.core.set_dense(i, np.ascontiguousarray(values))
                continue
            partitioner = placement.partitioners[table.name]
            rows = start.rows.get(table.name, {})
            keys = np.array([k for k in rows if partitioner.owner(k) == server.index], np.int64)
            if len(keys):
                server.core.load_rows(i, keys, np.stack([rows[int(k)] for k in keys]))
                if table.evict is not None and table.name in start.uses:
                    uses = [start.uses[table.name][int(k)] for k in keys]
                    last, count = np.ascontiguousarray(np.array(uses, np.uint32).T)
                    server.core.set_uses(i, keys, last, count)

    def forget(self) -> None:
        """Drop what was not published when the launch ended."""
        self._parts, self._ends = {}, {}

    def write(
        self,
        attempt: tuple[int, int],
        server: int,
        n_servers: int,
        head: ManifestHead,
        shards: Sequence[ShardData],
        state: ServerState,
        exchange: Path | None = None,
        increment: Increment | None = None,
    ) -> Iterator[CheckpointInfo | None]:
        """Write a server's part in steps; yield None until all parts are there, then what was written.

        `exchange`: the folder of the exchange that is written; None: it is a checkpoint.
        """
        parts = self._parts.setdefault(attempt, {})
        for _ in range(self.world.random.randrange(3)):
            yield None
        parts[server] = Part(head, shards, state.switch, increment)
        while len(parts) < n_servers:
            yield None
        if attempt not in self._ends:
            # The last one publishes, or all of them find the same failure.
            try:
                self._ends[attempt] = self._publish(parts, exchange)
            except MpipsError as error:
                self._ends[attempt] = error
        yield None
        found = self._ends[attempt]
        if isinstance(found, MpipsError):
            raise found
        yield found

    def _publish(self, parts: dict[int, Part], exchange: Path | None) -> CheckpointInfo:
        if self.world.random.random() < self.fails:
            self.failures += 1
            raise DiskFullError("the disk is full")
        head = parts[0].head
        folder = exchange or self.folder
        path = folder / f"step-{head.step}-{len(self.written)}"
        # The folder of an exchange is there: the coordinator has made it.
        path.mkdir(parents=exchange is None, exist_ok=exchange is None)
        workers = worker_files.adopt(folder, path, head.workers, self.folder)
        worker_files.remove(folder, head.workers)
        head = replace(head, workers=workers)
        found = joined(self.era, head, [part.shards for part in parts.values()], path)
        found = found._replace(switch=max(part.switch for part in parts.values()))
        place = place_of(parts.values(), self.written, self.longest)
        if place is not None:
            assert exchange is None, "an exchange is a link"
            check_link(self.written[-1], found, parts.values())
            self.n_links += 1
        if exchange is None:
            self.written.append(found)
        else:
            self.n_exchanges += 1
            copy = self.folder / f"copy-{self.n_exchanges}"
            shutil.copytree(path, copy)
            self.exchanged, self.copied = found, found._replace(path=copy)
        end = end_of(place, path.name, head.step, len(self.written))
        return CheckpointInfo(path, head.step, 0, 0.0, (), (), end)

    def newer(self, exchange: Path | None) -> Checkpoint | None:
        """Return the exchange if it is in this folder, and complete, and no checkpoint is newer."""
        found, file = self.exchanged, self.newest
        if exchange is None or found is None or found.path.parent != exchange:
            return None
        assert found.path.exists(), "a part of the exchange is removed"
        if file is None:
            return found
        is_newer = (found.head.generation, found.head.step) >= (
            file.head.generation,
            file.head.step,
        )
        return found if is_newer else None


def joined(
    era: int,
    head: ManifestHead,
    parts: Sequence[Sequence[ShardData]],
    path: Path,
) -> Checkpoint:
    """Return a checkpoint with copies of all shards."""
    found = Checkpoint(head, {}, {}, {}, {}, era, path)
    for shard in (each for part in parts for each in part):
        before = found.versions.setdefault(shard.table, shard.version)
        found.versions[shard.table] = max(before, shard.version)
        if isinstance(shard, DenseShardData):
            size = next(t.n_elements for t in head.tables if t.name == shard.table)
            whole = found.dense.setdefault(shard.table, np.full(size, np.nan, np.float32))
            whole[shard.start : shard.start + shard.values.size] = shard.values
            continue
        rows = found.rows.setdefault(shard.table, {})
        for key, row in zip(shard.keys.tolist(), shard.values, strict=True):
            assert key not in rows, f"two servers have the row {key}"
            rows[key] = np.array(row)
        if shard.uses is not None:
            pairs = (tuple(pair) for pair in shard.uses.tolist())
            found.uses.setdefault(shard.table, {}).update(
                zip(shard.keys.tolist(), pairs, strict=True)
            )
    return found


class DiskWriter:
    """The writer of a server's part, as mpips.checkpoint.CheckpointWriter."""

    info: CheckpointInfo

    def __init__(self, disk: Disk, *rest: Any) -> None:
        self._disk, self._rest = disk, rest

    def steps(self) -> Iterator[object]:
        """Write in steps."""
        for info in self._disk.write(*self._rest):
            if info is not None:
                self.info = info
            yield True


class DiskServerPart(ServerPart):
    """A server's part in snapshots that writes to the disk of the simulation."""

    def __init__(self, disk: Disk, n_servers: int, *rest: Any) -> None:
        super().__init__(*rest)
        self._disk, self._n_servers = disk, n_servers
        self._tries: Counter[int] = Counter()

    def _make_writer(
        self,
        shards: list[ShardData],
        number: int,
        block_bytes: int = 0,
        increment: Increment | None = None,
    ) -> Any:
        # Only the last checkpoint is tried again, by all servers.
        self._tries[number] += 1
        return DiskWriter(
            self._disk,
            (number, self._tries[number]),
            self._server.index,
            self._n_servers,
            self._head(),
            shards,
            self._state(),
            self._exchange,
            increment,
        )

    def _retain(self, written: Path) -> str:
        return ""
