"""What tests of checkpoints share: tables of every kind, their contents, and a server's part of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import mpips
from mpips.checkpoint import (
    CheckpointInfo,
    DenseShardData,
    EmbeddingShardData,
    ManifestHead,
    ServerState,
    WorkerState,
    write_checkpoint,
)
from mpips.checkpoint.manifest import FORMAT, MANIFEST
from mpips.checkpoint.shards import ShardData, counts_steps, notes_uses
from mpips.data import Sampling, Shape
from mpips.model.common_copy import stored_states
from mpips.model.row_values import bf16_bits
from mpips.model.table import DenseTable, EmbeddingTable, Table

TABLES: list[Table] = [
    DenseTable("weight", (7, 13, 5), mpips.Adam(0.1)),
    DenseTable("bias", (), mpips.SGD(0.5)),
    DenseTable("vector", (33,), mpips.Momentum()),
    EmbeddingTable("users", 3, mpips.Adam(), consistency=mpips.SSP(2, mpips.Reject(4))),
    EmbeddingTable("linear", 1, mpips.FTRL(l1=0.1), consistency=mpips.ASP()),
    EmbeddingTable("empty", 2, mpips.Adagrad()),
]
# Rows of other formats: one state for a whole row, values of bf16, and buckets in place of keys.
ROW_TABLES: list[Table] = [
    EmbeddingTable("users", 3, mpips.RowAdagrad(0.1), row_dtype="bf16"),
    EmbeddingTable("linear", 5, mpips.RowAdagrad(0.1)),
    EmbeddingTable("empty", 2, mpips.Adam(), row_dtype="bf16", hash_buckets=10),
]
INT64 = np.iinfo(np.int64)
KEYS: dict[str, Sequence[int]] = {
    "users": [INT64.min, INT64.max, -1, 0, 1, *range(1000, 1100)],
    "linear": [int(k) for k in np.random.default_rng(3).integers(INT64.min, INT64.max, 200)],
    "empty": [],
    "recent": range(40),
}


@dataclass
class Contents:
    """All tables as one server would hold them: columns by table and role, keys ascending."""

    tables: Sequence[Table] = field(default_factory=lambda: TABLES)
    seed: int = 0
    keys: dict[str, Iterable[int]] = field(default_factory=lambda: {**KEYS})

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        self.columns = {t.name: self._fill(t, random) for t in self.tables}

    def _fill(self, table: Table, random: np.random.Generator) -> dict[str, np.ndarray]:
        columns: dict[str, np.ndarray] = {}
        shape: tuple[int, ...] = (table.n_elements,) if isinstance(table, DenseTable) else ()
        if isinstance(table, EmbeddingTable):
            keys = np.unique(np.array(list(self.keys.get(table.name, [])), np.int64))
            columns["keys"] = keys
            shape = (len(keys), table.dim)
        for role in ("values", *(f"state/{name}" for name in table.optimizer.state_names)):
            columns[role] = random.normal(size=shape).astype(np.float32)
        if isinstance(table, EmbeddingTable) and table.row_dtype == "bf16":
            columns["values"] = bf16_bits(columns["values"])
        for name in table.optimizer.row_state_names:
            columns[f"state/{name}"] = random.random(shape[0]).astype(np.float32)
        if counts_steps(table):
            columns["steps"] = random.integers(0, 99, shape[0]).astype(np.uint32)
        if notes_uses(table):
            columns["uses"] = random.integers(1, 99, (shape[0], 2)).astype(np.uint32)
        return columns

    def shards(self, server: int, n_servers: int) -> list[ShardData]:
        """What one server of so many holds, rows in no order."""
        shards: list[ShardData] = []
        for t in self.tables:
            columns = self.columns[t.name]
            if isinstance(t, DenseTable):
                cut = [t.n_elements * s // n_servers for s in (server, server + 1)]
                own = {role: column[slice(*cut)] for role, column in columns.items()}
                states = {name: own[f"state/{name}"] for name in t.optimizer.state_names}
                if cut[0] < cut[1]:
                    shards.append(DenseShardData(t.name, cut[0], own["values"], states, 5))
                continue
            mine = mpips.HashPartition().owners(columns["keys"], n_servers) == server
            rows = np.random.default_rng(server).permutation(np.flatnonzero(mine))
            own = {role: column[rows] for role, column in columns.items()}
            states = {name: own[f"state/{name}"] for name in stored_states(t)}
            parts = (own["keys"], own["values"], states, own.get("steps"))
            shards.append(EmbeddingShardData(t.name, *parts, 7, own.get("uses")))
        return shards

    def head(self, step: int = 1234, generation: int = 1) -> ManifestHead:
        """What the job knows."""
        random = {"loader": {"bit_generator": "PCG64"}}
        workers = [
            WorkerState(
                worker=w,
                clock=9 + w,
                epoch=2,
                step=w,
                random=random,
                cursor={"epoch": 2, "step": w, "loss": 0.5},
            )
            for w in (0, 1)
        ]
        config = {"train": {"epochs": 3}}
        sampling = Sampling(Shape(100, 4, 5, 7)).after([(2, 3)] * 4, Shape(100, 2, 8, 7))
        return ManifestHead(
            "a-run",
            generation,
            step,
            1.7e9,
            self.tables,
            workers,
            config,
            sampling.to_config(),
        )

    def write(
        self, folder: Path, step: int = 1234, generation: int = 1, comm: Any = None, **options: Any
    ) -> CheckpointInfo:
        """Write everything, from this process or from all servers of `comm`."""
        server, n_servers = (0, 1) if comm is None else (comm.Get_rank(), comm.Get_size())
        options.setdefault("timeout_s", 60.0)
        return write_checkpoint(
            comm,
            folder,
            self.head(step, generation),
            self.shards(server, n_servers),
            ServerState([10 + server, 20 + server]),
            **options,
        )


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Turn one bit of a file round."""
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))


def names(folder: Path) -> list[str]:
    """What is in a folder of checkpoints, but for the lock and the link."""
    return sorted(p.name for p in folder.iterdir() if p.name not in (".lock", "latest"))


def make_newer(path: Path) -> None:
    """Make a checkpoint look like one of a later mpips, whose manifest says little that is known."""
    manifest = json.loads((path / MANIFEST).read_text())
    fields = {"format": FORMAT + 1, "mpips": "9.1.0", "everything": "else"}
    (path / MANIFEST).write_text(json.dumps({**fields, "content": [manifest["content"]]}))
