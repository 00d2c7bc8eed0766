"""The tables of a job that has ended, from its last checkpoint, or from the memory of its only process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpips.checkpoint import DenseShardData, open_checkpoint
from mpips.errors import CheckpointError, ConfigError
from mpips.model.table import DenseTable, Table

if TYPE_CHECKING:
    from mpips.checkpoint.shards import ShardData

Float32: TypeAlias = NDArray[np.float32]
Content: TypeAlias = Float32 | tuple[NDArray[np.int64], Float32]


class FinalTables(Mapping[str, Content]):
    """Values of the tables by name, read when they are asked for; not collective.

    A dense table is an array, float32, of its shape. An embedding table is its keys, int64, shape (n,),
    ascending, and their rows, float32, shape (n, dim). Each access returns new arrays.

    They come from the last checkpoint of the job, on every rank that sees its folder. A job of one process
    without a folder for checkpoints leaves them in the memory of its server, as long as this object exists.
    """

    def __init__(
        self,
        tables: Sequence[Table] = (),
        path: Path | None = None,
        shards: Callable[[], list[ShardData]] | None = None,
        why: str = "the job has not ended",
    ) -> None:
        """Read nothing yet.

        Args:
            tables: Tables of the job.
            path: Last checkpoint of the job; None: it has no checkpoint.
            shards: Returns the shards of the only server, if they are still in memory.
            why: The reason for which there is nothing to read, if there is neither.
        """
        self._tables = {table.name: table for table in tables}
        self._path = path
        self._shards = shards
        self._why = why

    @classmethod
    def of(
        cls,
        tables: Sequence[Table],
        statistics: Mapping[str, Any],
        shards: Callable[[], list[ShardData]] | None,
    ) -> FinalTables:
        """Return the tables of a job from its statistics; `shards`: see the constructor."""
        saved = statistics.get("totals", {}).get("servers", {}).get("checkpoint") or {}
        if "path" in saved:
            return cls(tables, Path(saved["path"]))
        failed = saved.get("error")
        why = (
            f"the last checkpoint could not be written: {failed}"
            if failed
            else "the servers have ended, and the job had no folder for checkpoints: give it one "
            "(mpips.run(..., save=FOLDER))"
        )
        return cls(tables, None, shards, why)

    def __getitem__(self, name: str) -> Content:
        """Return the values of a table.

        Raises:
            KeyError: The job had no such table.
            ConfigError: The values are not available on this rank; the message gives the reason.
        """
        if name not in self._tables:
            raise KeyError(name)
        table = self._tables[name]
        if self._path is not None:
            return self._of_file(self._path, table)
        if self._shards is not None:
            return _of_memory(self._shards(), table)
        raise ConfigError(f"table '{name}' cannot be read: {self._why}")

    def _of_file(self, path: Path, table: Table) -> Content:
        try:
            with open_checkpoint(path) as checkpoint:
                entry = checkpoint.manifest.table(table.name)
                values = entry.dataset("values")
                found: Float32 = checkpoint.read(values, 0, values.n_units).reshape(entry.shape)
                if isinstance(table, DenseTable):
                    return found
                return checkpoint.read(entry.dataset("keys"), 0, entry.shape[0]), found
        except CheckpointError as error:
            raise ConfigError(
                f"table '{table.name}' cannot be read: its checkpoint is not there, or this host does not "
                f"see it: {error}"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def __repr__(self) -> str:
        """Return the names."""
        return f"<tables of a job: {', '.join(self._tables) or self._why}>"


def _of_memory(shards: Sequence[ShardData], table: Table) -> Content:
    """Return the values of a table, all of whose shards are those of one server."""
    own = next(shard for shard in shards if shard.table == table.name)
    if isinstance(own, DenseShardData):
        assert isinstance(table, DenseTable)
        return own.values.reshape(table.shape).copy()
    order = np.argsort(own.keys)
    return own.keys[order], own.float_values(order)
