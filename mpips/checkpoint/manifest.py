"""The manifest: what a checkpoint holds, where its bytes lie and what their checksums are.

`manifest.json` is {"format": FORMAT, "mpips": VERSION, "xxh3": SUM, "content": {...}}. The sum is XXH3-64, as
16 hexadecimal digits, over format and version as text and the bytes of `content` as they stand in
the file, so that a manifest with a flipped bit is refused like any other damage. `format` and `mpips`
are read alone first: a newer format is refused before anything else of it is looked at.

Formats: 2 has `data`, the description of the training data, and in `sampling` the rule that divides samples
among workers (`mpips.data.shares`), without which cursors cannot be read. 1 has neither; it is still read.

Datasets are contiguous, so (offset, shape, dtype) is all that a reader needs: checkpoints are
verified, shown, compared, exported and restored without any HDF5 library.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mpips import _native
from mpips.errors import CheckpointError, NewerFormatError
from mpips.model.table import is_table_name

FORMAT = 2
MANIFEST = "manifest.json"
STATE = "state.h5"
DTYPES = {"float32": "<f4", "int64": "<i8", "uint32": "<u4"}


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Elements (dense) or rows (embedding) [start, stop) of a dataset, and their XXH3-64."""

    start: int
    stop: int
    xxh3: str


class DatasetEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One HDF5 dataset.

    Attributes:
        path: In the HDF5 file.
        role: "keys", "values", "steps" or "state/NAME".
        dtype: A key of DTYPES; little-endian in the file.
        shape: Of the dataset.
        unit: Elements that pieces count as one: 1 in dense tables, a row in embedding tables.
        offset: Of its first byte in the file.
        pieces: Checksums; they cover the dataset in order, without gaps.
    """

    path: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    unit: int
    offset: int = 0
    pieces: tuple[Piece, ...] = ()

    @property
    def n_units(self) -> int:
        """Elements of a dense table, or rows of an embedding table."""
        return math.prod(self.shape) // self.unit

    @property
    def unit_bytes(self) -> int:
        """Bytes of an element (dense) or of a row (embedding)."""
        return self.unit * np.dtype(DTYPES[self.dtype]).itemsize

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole dataset."""
        return self.unit_bytes * self.n_units


class ShardEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What one server held of a table.

    Attributes:
        server: Its index.
        version: Updates that it had applied to the table.
        start, stop: Dense: its elements of the flattened tensor.
        rows: Embedding: number of its rows.
        low, high: Embedding: its smallest and its greatest key; None without rows.
    """

    server: int
    version: int
    start: int = 0
    stop: int = 0
    rows: int = 0
    low: int | None = None
    high: int | None = None


class TableEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One table.

    Attributes:
        name: Of the table; `group` is where it is in the HDF5 file.
        kind: "dense" or "embedding".
        shape: Dense: of the tensor. Embedding: (rows, dim).
        optimizer, consistency, partition: As configuration mappings, with "name".
        init: How values were initialised; "array" if they were given.
        state: Names of the optimizer's states, in its order.
        counts_steps: Embedding: whether rows count their own updates.
        shards: What each server held.
        datasets: Of the table, in the file's order.
    """

    name: str
    group: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    optimizer: dict[str, Any]
    consistency: dict[str, Any]
    partition: dict[str, Any]
    init: str
    state: tuple[str, ...]
    counts_steps: bool
    shards: tuple[ShardEntry, ...]
    datasets: tuple[DatasetEntry, ...]

    @property
    def version(self) -> int:
        """Updates that the table had taken: the most of any shard."""
        return max((shard.version for shard in self.shards), default=0)

    def dataset(self, role: str) -> DatasetEntry:
        """The dataset with this role.

        Raises:
            KeyError: The table has none.
        """
        for entry in self.datasets:
            if entry.role == role:
                return entry
        raise KeyError(f"table {self.name!r} has no dataset {role!r}")


class WorkerState(msgspec.Struct, frozen=True, kw_only=True):
    """A worker at the cut.

    Attributes:
        worker: Its index.
        clock: Its clock.
        epoch, step: Its data cursor: where it goes on reading.
        random: States of its random generators by name; see `pack_random`.
        cursor: What the worker itself noted of its place, `epoch` and `step` included if it has them.
    """

    worker: int
    clock: int = 0
    epoch: int = 0
    step: int = 0
    random: dict[str, Any] = {}
    cursor: dict[str, Any] = {}


class ServerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A server at the cut: `applied[w]` is the last sequence number it applied of worker w."""

    server: int
    applied: tuple[int, ...] = ()


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The HDF5 file: its size, and XXH3-64 of all bytes outside datasets, in order."""

    name: str
    n_bytes: int
    structure_xxh3: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a checkpoint.

    Attributes:
        run_id: Of the run.
        generation: Launches of this run so far.
        step: Global step.
        wall_time_s: Seconds since 1970 at the cut.
        note: How it was written, if not in parallel.
        servers, workers, tables: By index, by index, in the job's order.
        file: The HDF5 file.
        versions: Of libraries.
        config: The resolved configuration.
        sampling: What the cursors count: who reads which samples in which order (`mpips train`).
        data: The description of the training data, `DataInfo.to_config`: columns, label column, classes
            and how often each occurs (`mpips train`); {} in format 1.
    """

    run_id: str
    generation: int
    step: int
    wall_time_s: float
    note: str = ""
    servers: tuple[ServerEntry, ...]
    workers: tuple[WorkerState, ...]
    tables: tuple[TableEntry, ...]
    file: FileEntry
    versions: dict[str, str]
    config: dict[str, Any]
    sampling: dict[str, Any] = {}
    data: dict[str, Any] = {}

    def table(self, name: str) -> TableEntry:
        """A table by name.

        Raises:
            CheckpointError: There is none; lists those that there are.
        """
        for entry in self.tables:
            if entry.name == name:
                return entry
        names = ", ".join(table.name for table in self.tables) or "none"
        raise CheckpointError(f"the checkpoint has no table {name!r}; it has {names}")


class _Head(msgspec.Struct):
    format: int
    mpips: str = "?"


class _Envelope(msgspec.Struct):
    format: int
    mpips: str
    xxh3: str
    content: msgspec.Raw


def hexsum(*parts: Any) -> str:
    """XXH3-64 of contiguous buffers, one after the other, as 16 hexadecimal digits."""
    total = _native.Xxh3()
    for part in parts:
        total.update(part)
    return f"{total.digest():016x}"


def _own_sum(number: int, version: str, content: bytes) -> str:
    return hexsum(f"{number} {version} ".encode(), content)


def encode(manifest: Manifest, version: str) -> bytes:
    """The bytes of manifest.json; `version` is that of mpips."""
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    envelope = _Envelope(FORMAT, version, _own_sum(FORMAT, version, content), msgspec.Raw(content))
    return msgspec.json.encode(envelope) + b"\n"


def decode(data: bytes, where: Path) -> Manifest:
    """Read manifest.json.

    Args:
        data: Its bytes.
        where: For errors.

    Raises:
        NewerFormatError: It is of a newer format.
        CheckpointError: It is no manifest, or damaged.
    """
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{where}: is not the manifest of a checkpoint: {error}") from None
    if head.format > FORMAT:
        raise NewerFormatError(
            f"{where}: format {head.format}, written by mpips {head.mpips}, is newer than this "
            f"mpips, which reads up to format {FORMAT}: install a newer mpips to use it"
        )
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        content = bytes(envelope.content)
        if _own_sum(envelope.format, envelope.mpips, content) != envelope.xxh3:
            raise CheckpointError(
                f"{where}: the manifest's own checksum does not fit: it is damaged"
            )
        manifest = msgspec.json.decode(envelope.content, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{where}: the manifest cannot be read: {error}") from None
    _check(manifest, where)
    return manifest


def _check(manifest: Manifest, where: Path) -> None:
    """Refuse what no writer writes, so that readers need not look."""
    for table in manifest.tables:
        _check_names(table, where)
        for entry in table.datasets:
            at = 0
            for piece in entry.pieces:
                if piece.start != at or piece.stop < at:
                    raise CheckpointError(f"{where}: the pieces of {entry.path} have gaps")
                at = piece.stop
            known = entry.dtype in DTYPES and entry.unit >= 1 and min(entry.shape, default=0) >= 0
            if not known or at != entry.n_units:
                raise CheckpointError(f"{where}: the pieces of {entry.path} do not cover it")
            if not 0 <= entry.offset <= manifest.file.n_bytes - entry.n_bytes:
                raise CheckpointError(f"{where}: {entry.path} does not fit into its file")


def _check_names(table: TableEntry, where: Path) -> None:
    """Refuse names that lead elsewhere, as in files that tables are exported to."""
    for name in (table.name, *table.state):
        if not is_table_name(name):
            raise CheckpointError(f"{where}: {name!r} is no name of a table or of a state")
    roles = {"keys", "values", "steps", *(f"state/{name}" for name in table.state)}
    for entry in table.datasets:
        if entry.role not in roles:
            raise CheckpointError(f"{where}: {entry.role!r} is no dataset of a table")


def pack_random(state: dict[str, Any]) -> dict[str, Any]:
    """A bit generator's state (`generator.bit_generator.state`) as plain JSON values.

    Whole numbers become text, because JSON readers do not agree on large ones; arrays become lists
    of such text.
    """
    return {key: _pack(value) for key, value in state.items()}


def unpack_random(packed: dict[str, Any]) -> dict[str, Any]:
    """What `pack_random` was given; arrays come back as uint64, which NumPy casts."""
    return {key: _unpack(value) for key, value in packed.items()}


def _pack(value: Any) -> Any:
    if isinstance(value, dict):
        return pack_random(value)
    if isinstance(value, np.ndarray):
        return [_pack(item) for item in value.tolist()]
    if isinstance(value, int | np.integer):
        return f"int:{int(value)}"
    return value


def _unpack(value: Any) -> Any:
    if isinstance(value, dict):
        return unpack_random(value)
    if isinstance(value, list):
        return np.array([_unpack(item) for item in value], np.uint64)
    if isinstance(value, str) and re.fullmatch(r"int:-?\d+", value):
        return int(value[4:])
    return value
