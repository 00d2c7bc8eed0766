"""Find how many rows the embedding tables of a job will have, by its data and by the steps of its task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips.data import Dataset, SparseData
from mpips.data.stream import StreamedData
from mpips.model.placement import Placement
from mpips.model.table import EmbeddingTable, Table
from mpips.plan.rehearsal import Rehearsal

Int64 = NDArray[np.int64]


class Rows(msgspec.Struct, frozen=True):
    """The number of rows of one embedding table.

    Attributes:
        per_server: Rows of each server.
        source: Where the number comes from, in words.
    """

    per_server: tuple[int, ...]
    source: str

    @property
    def total(self) -> int:
        """Rows on all servers."""
        return sum(self.per_server)


def expected_rows(
    tables: Sequence[Table],
    placement: Placement,
    data: Dataset | StreamedData | None,
    rehearsal: Rehearsal | None,
    given: Mapping[str, int],
) -> dict[str, Rows]:
    """Return the rows of each embedding table on each server after one epoch.

    Args:
        tables: Tables of the job.
        placement: Their placement on the servers.
        data: The training data of all workers.
        rehearsal: Steps of the task; None: only tables in `given` have a known number of rows.
        given: Numbers of rows that the user has given, by table.
    """
    found = {}
    n = placement.n_servers
    for table in tables:
        if not isinstance(table, EmbeddingTable):
            continue
        name = table.name
        if name in given:
            most = min(given[name], table.hash_buckets or given[name])
            shares = tuple((most + s) // n for s in range(n))[::-1]
            found[name] = Rows(shares, "as given, in equal shares")
            continue
        if table.expected_rows:
            shares = tuple((table.expected_rows + s) // n for s in range(n))[::-1]
            found[name] = Rows(shares, "as declared, in equal shares")
            continue
        keys, source = _keys(name, data, rehearsal)
        owners = placement.partitioners[name].owners(np.unique(table.stored_keys(keys)))
        found[name] = Rows(tuple(np.bincount(owners, minlength=n).tolist()), source)
    return found


def _keys(
    name: str, data: Dataset | StreamedData | None, rehearsal: Rehearsal | None
) -> tuple[Int64, str]:
    """Return the keys that a table will have, and where they come from in words."""
    if rehearsal is None or name not in rehearsal.keys:
        return np.empty(0, np.int64), f"unknown; give --rows {name}=N"
    if name in rehearsal.from_data and isinstance(data, SparseData | StreamedData):
        keys = rehearsal.extra[name]
        for part in data.parts() if isinstance(data, StreamedData) else (data,):
            assert isinstance(part, SparseData)
            keys = np.union1d(_used(part, rehearsal.unused[name]), keys)
        return keys, "keys of the training data"
    seen = f"seen in {len(rehearsal.steps)} steps: there will be more; give --rows {name}=N"
    return rehearsal.keys[name], seen


def _used(data: SparseData, unused: Int64) -> Int64:
    """Return the keys of the data without `unused`, and without all others of the same columns."""
    if not len(unused):
        return data.indices
    is_unused = np.isin(data.indices, unused)
    if data.fields is not None:
        # Few keys of a column were seen in the steps.
        is_unused = np.isin(data.fields, np.unique(data.fields[is_unused]))
    return data.indices[~is_unused]
