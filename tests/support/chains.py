"""Random changes of tables, which servers write as chains of checkpoints, and the expected arrays."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import Contents

import mpips
from mpips.checkpoint import CheckpointInfo, DenseShardData, ServerState, write_checkpoint
from mpips.checkpoint.changes import PIECE, Changed, Increment
from mpips.checkpoint.plan import ChainEnd
from mpips.checkpoint.reader import Checkpoint
from mpips.model.table import DenseTable, EmbeddingTable, Table

TABLES: list[Table] = [
    DenseTable("weight", (37, 90), mpips.Adam(0.1)),
    DenseTable("bias", (), mpips.SGD(0.5)),
    EmbeddingTable("users", 3, mpips.Adam(), evict=mpips.Idle(9)),
    EmbeddingTable("half", 5, mpips.RowAdagrad(0.1), row_dtype="bf16"),
    EmbeddingTable("empty", 2, mpips.Adagrad()),
]
KEYS = {"users": range(-300, 700, 2), "half": range(0, 4000, 7), "empty": ()}


class History:
    """The tables of a job, changed at random from one checkpoint to the next.

    Attributes:
        contents: The tables as they are now.
        written: The tables at each checkpoint so far, and its description.
    """

    def __init__(self, seed: int, tables: Sequence[Table] = TABLES) -> None:
        self.random = np.random.default_rng(seed)
        self.contents = Contents(tables, seed, dict(KEYS))
        self.written: list[tuple[dict[str, Any], CheckpointInfo]] = []
        self._changed: dict[str, np.ndarray] = {}
        self._removed: dict[str, np.ndarray] = {}

    def evolve(self, share: float = 0.03) -> None:
        """Change, add and remove some rows, and change elements of dense tables."""
        for table in self.contents.tables:
            columns = self.contents.columns[table.name]
            if isinstance(table, DenseTable):
                n = table.n_elements
                # Include the last element: the last piece of a shard is shorter than the others.
                start = int(self.random.integers(n)) if self.random.random() < 0.7 else n - 1
                places = np.arange(start, min(n, start + max(1, int(share * n))))
                if share == 1:
                    places = np.arange(n)
                self._change(columns, places)
                self._changed[table.name] = places
                continue
            n = len(columns["keys"])
            places = np.flatnonzero(self.random.random(n) < share)
            self._change(columns, places)
            self._changed[table.name] = columns["keys"][places]
            self._add_and_remove(table.name, columns, share)

    def changed(self, units: Mapping[str, np.ndarray]) -> None:
        """Set the changes since the last checkpoint to those that a test has made itself.

        Args:
            units: By name of the table, the keys of rows or the places of elements.
        """
        none = np.empty(0, np.int64)
        self._changed = {t.name: units.get(t.name, none) for t in self.contents.tables}
        self._removed = dict.fromkeys(self._changed, none)

    def _change(self, columns: dict[str, np.ndarray], places: np.ndarray) -> None:
        """Change some units: their values, their states, or both."""
        for role, array in columns.items():
            if role != "keys" and len(places):
                mine = places[self.random.random(len(places)) < 0.7]
                array[mine] = array[mine] + np.array(1, array.dtype)

    def _add_and_remove(self, name: str, columns: dict[str, np.ndarray], share: float) -> None:
        keys = columns["keys"]
        # Remove some rows, and sometimes nearly all. The first and the last row are removed more often.
        gone = self.random.random(len(keys)) < (1.0 if self.random.random() < 0.1 else share)
        if len(gone):
            gone[[0, -1]] = self.random.random(2) < 0.5
        self._removed[name] = keys[gone]
        new = np.setdiff1d(self.random.integers(-1500, 4500, int(300 * share) + 1), keys)
        order = np.argsort(np.concatenate([keys[~gone], new]))
        for role, array in columns.items():
            shape = (len(new), *array.shape[1:])
            made = new if role == "keys" else self.random.integers(1, 99, shape).astype(array.dtype)
            columns[role] = np.concatenate([array[~gone], made])[order]
        self._changed[name] = np.concatenate([self._changed[name], new])

    def increment(self, place: ChainEnd, server: int, n_servers: int) -> Increment:
        """Return the changes in the shards of one server since the last checkpoint."""
        changed = {}
        for shard in self.contents.shards(server, n_servers):
            mine = self._changed[shard.table]
            if isinstance(shard, DenseShardData):
                inside = mine[(mine >= shard.start) & (mine < shard.start + len(shard.values))]
                changed[shard.table] = Changed(np.unique((inside - shard.start) // PIECE))
                continue
            removed = self._removed[shard.table]
            owned = mpips.HashPartition().owners(removed, n_servers) == server
            places = np.flatnonzero(np.isin(shard.keys, mine))
            changed[shard.table] = Changed(places, removed[owned])
        return Increment(place, changed)

    def write(
        self, folder: Path, comm: Any = None, whole: bool = False, **options: Any
    ) -> CheckpointInfo:
        """Write the tables as they are now: as a link if there is a checkpoint, unless `whole`."""
        server, n_servers = (0, 1) if comm is None else (comm.Get_rank(), comm.Get_size())
        if self.written and not whole:
            place = self.written[-1][1].place
            assert place is not None
            options["increment"] = self.increment(place, server, n_servers)
        options.setdefault("timeout_s", 60.0)
        info = write_checkpoint(
            comm,
            folder,
            self.contents.head(100 + 10 * len(self.written)),
            self.contents.shards(server, n_servers),
            ServerState([10 + server, 20 + server]),
            **options,
        )
        self.written.append((copy.deepcopy(self.contents.columns), info))
        return info


def check(
    checkpoint: Checkpoint, columns: dict[str, Any], sizes: tuple[int, ...] = (53, 10**6)
) -> None:
    """Compare all arrays of a checkpoint with those of the model, read in blocks of several sizes."""
    for table in checkpoint.manifest.tables:
        for dataset in table.datasets:
            expected = np.ascontiguousarray(columns[table.name][dataset.role])
            assert dataset.n_bytes == expected.nbytes, dataset.path
            for size in sizes:
                blocks = [
                    checkpoint.read_stored(dataset, at, min(at + size, dataset.n_units)).tobytes()
                    for at in range(0, dataset.n_units, size)
                ]
                assert b"".join(blocks) == expected.tobytes(), dataset.path
        if table.kind == "embedding":
            # Include keys of the base, which links remove and change more than once.
            of_base = np.array(KEYS[table.name], np.int64)[:: 7 if table.name == "users" else 20]
            keys = np.union1d(np.random.default_rng(3).integers(-1600, 4600, 40), of_base)
            has, values = checkpoint.find_rows(table.name, keys)
            assert np.array_equal(keys[has], np.intersect1d(keys, columns[table.name]["keys"]))
            found = checkpoint.read(table.dataset("values"), 0, table.shape[0])
            assert np.array_equal(values, found[np.isin(columns[table.name]["keys"], keys)])
