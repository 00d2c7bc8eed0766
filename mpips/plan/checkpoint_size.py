"""Compute the size of a job's checkpoint by the functions that write it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpips.checkpoint.manifest import ShardEntry, WorkerState
from mpips.checkpoint.plan import Hello, plan_tables
from mpips.checkpoint.record import mpips_version
from mpips.checkpoint.shards import ManifestHead
from mpips.checkpoint.structure import create_file, hdf5_kind
from mpips.data import DataInfo, Dataset, Moments
from mpips.data.known_words import PATH, has_words, words_in
from mpips.data.rows import Arrays
from mpips.data.stream import StreamedData
from mpips.model.placement import Placement
from mpips.model.table import EmbeddingTable, Table
from mpips.plan.rows import Rows
from mpips.training.example import arrays_of
from mpips.transport.region import new_token


def checkpoint_bytes(
    tables: Sequence[Table],
    placement: Placement,
    rows: Mapping[str, Rows],
    n_workers: int,
    config: Mapping[str, Any],
    info: DataInfo,
    arrays: Arrays,
    train: Dataset | StreamedData | None,
) -> int:
    """Return the size of `state.h5` in bytes: exact if h5py is installed, else only that of its datasets.

    With several workers the example of sparse data can have a few entries more or less.

    Makes the file without its data, in a temporary folder.
    """
    workers = [WorkerState(worker=w, clock=0) for w in range(n_workers)]
    data = info.to_config()
    moments = Moments.empty(info.n_features, info.n_fields, info.n_targets)
    attached = {**moments.to_arrays(), **arrays}
    attached |= arrays_of(train, info) if train is not None else {}
    if train is not None and has_words(info):
        parts = train.parts() if isinstance(train, StreamedData) else (train,)
        attached[PATH] = words_in(parts).bits
    head = ManifestHead(new_token(), 0, 0, 0.0, list(tables), workers, config, {}, data, attached)
    hellos = [
        Hello(
            (head.run_id, 0, 0), "none", _shards(tables, placement, rows, server), [0] * n_workers
        )
        for server in range(placement.n_servers)
    ]
    entries = [plan.entry for plan in plan_tables(head, hellos)]
    if hdf5_kind() == "none":
        return sum(dataset.n_bytes for entry in entries for dataset in entry.datasets)
    with tempfile.TemporaryDirectory(prefix="mpips-plan-") as folder:
        # The file is sparse: its datasets are never written, so they take no space on the disk.
        return create_file(Path(folder) / "state.h5", head, entries, mpips_version()).n_bytes


def _shards(
    tables: Sequence[Table], placement: Placement, rows: Mapping[str, Rows], server: int
) -> dict[str, list[ShardEntry]]:
    """Return the shards of one server, by table."""
    found: dict[str, list[ShardEntry]] = {}
    for table in tables:
        if isinstance(table, EmbeddingTable):
            n = rows[table.name].per_server[server]
            found[table.name] = [ShardEntry(server=server, version=0, rows=n)]
            continue
        parts = [p for p in placement.dense[table.name] if p.server == server]
        found[table.name] = [
            ShardEntry(server=server, version=0, start=p.start, stop=p.stop) for p in parts
        ]
    return found
