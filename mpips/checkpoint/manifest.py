"""The manifest: the content of a checkpoint, with the offsets and checksums of its bytes.

`manifest.json` is {"format": FORMAT, "mpips": VERSION, "xxh3": SUM, "content": {...}}. The sum is XXH3-64, as
16 hexadecimal digits, over format and version as text and over the bytes of `content` as they are in the
file. So a flipped bit in the manifest is detected like any other damage. `format` and `mpips` are decoded
alone first: a newer format is refused before anything else in the file is interpreted.

Formats. Format 6 may be a link of a chain (`Link`). Format 4 may have tables with values of bf16, with
buckets of keys, and with the uses of rows. Format 3 lacks them; it has one file of each worker, its image
(`mpips.checkpoint.worker_files`). Format 2 has files of residuals and files of local training in its place.
Format 1 lacks `data`, the description of the training data, and in `sampling` the rule that divides samples
among workers (`mpips.data.shares`), without which cursors have no meaning. All can still be read.

Datasets are contiguous in the HDF5 file, so a reader needs only offset, shape and dtype. Checkpoints are
verified, shown, compared, exported and restored without an HDF5 library.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mpips import _native
from mpips.errors import CheckpointError, NewerFormatError
from mpips.model.best_value import BestValue
from mpips.model.row_values import RowDtype
from mpips.model.table import EmbeddingTable
from mpips.model.table_options import is_table_name

FORMAT = 6
MANIFEST = "manifest.json"
STATE = "state.h5"
CHANGES = "changes.h5"  # the file of a link of a chain; other checkpoints have STATE
REMOVED = "/removed"  # suffix: the entry TABLE/removed of a link has the keys of removed rows
PIECE = 256  # elements of a dense table that are compared together
# Types of datasets, and the arrays that have their bytes. bfloat16 is read as float32.
DTYPES = {"float32": "<f4", "int64": "<i8", "uint32": "<u4", "bfloat16": "<u2"}
DATASET_DTYPES = {"float32": "float32", "bf16": "bfloat16"}  # by row_dtype


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Elements (dense) or rows (embedding) [start, stop) of a dataset, with their XXH3-64 in hexadecimal."""

    start: int
    stop: int
    xxh3: str


class DatasetEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One HDF5 dataset.

    Attributes:
        path: Path in the HDF5 file.
        role: "keys", "values", "steps", "uses" or "state/NAME".
        dtype: A key of DTYPES; little-endian in the file.
        shape: Shape of the dataset.
        unit: Number of elements that pieces count as one: 1 in dense tables, a row in embedding tables.
        offset: Offset of the first byte in the file.
        pieces: Checksums of consecutive parts; they cover the dataset in order, without gaps.
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
        """Number of elements (dense) or of rows (embedding)."""
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
    """The shard of a table on one server, when the checkpoint was taken.

    Attributes:
        server: Index of the server.
        version: Number of updates that the shard had applied.
        start: Dense: first element of the flattened tensor.
        stop: Dense: one past the last element.
        rows: Embedding: number of rows.
        low: Embedding: smallest key; None without rows.
        high: Embedding: greatest key; None without rows.
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
        name: Name of the table.
        group: Path of the table's group in the HDF5 file.
        kind: "dense" or "embedding".
        shape: Dense: shape of the tensor. Embedding: (rows, dim).
        dtype: Type of the values: "float32" or "bfloat16".
        optimizer: Optimizer as a configuration mapping with "name".
        consistency: Consistency model as a configuration mapping with "name". With SSP("auto") it
            also has "bound_in_force", the bound that was decided on last, with which a restart begins; with
            Reject("auto") in the same way "threshold_in_force", with a Switch that is decided on
            "switch_in_force".
        partition: Partition as a configuration mapping with "name".
        init: Initializer as text; "array" if the initial values were given.
        state: Names of the optimizer's states, in its order.
        counts_steps: Embedding: True if each row counts its own updates.
        shards: Shards of all servers.
        datasets: Datasets of the table, in the file's order.
        hash_buckets: Embedding: number of buckets; 0: keys are those of the program.
        admit: Embedding: limit on keys that get a row, as a mapping with "name"; None: each key gets one, or
            an earlier version has written the checkpoint.
        evict: Embedding: limit on rows that stay, in the same way. It was there if the table `notes_uses`.
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
    hash_buckets: int = 0
    admit: dict[str, Any] | None = None
    evict: dict[str, Any] | None = None

    @property
    def notes_uses(self) -> bool:
        """True if the file has the use of each row: the table evicted rows."""
        return any(entry.role == "uses" for entry in self.datasets)

    @property
    def version(self) -> int:
        """Number of updates that the table had applied: the greatest number of any shard."""
        return max((shard.version for shard in self.shards), default=0)

    def stored(self, table: EmbeddingTable) -> EmbeddingTable:
        """Return a task's table with the initial values, the dtype and the buckets that the job gave it."""
        dtype: RowDtype = "bf16" if self.dtype == "bfloat16" else "float32"
        return dataclasses.replace(
            table, init=self.init, row_dtype=dtype, hash_buckets=self.hash_buckets
        )

    def dataset(self, role: str) -> DatasetEntry:
        """Return the dataset with this role.

        Raises:
            KeyError: The table has no such dataset.
        """
        for entry in self.datasets:
            if entry.role == role:
                return entry
        raise KeyError(f"table {self.name!r} has no dataset {role!r}")


class ImageFile(msgspec.Struct, frozen=True):
    """A file with the image of one worker, as a cut record and a manifest describe it.

    Attributes:
        name: Name in the folder.
        n_bytes: Size.
        xxh3: Checksum of all bytes, XXH3-64 in hexadecimal.
        error: Reason for which the worker could not write it at first; "": it is there.
        is_full: That reason is a full disk or quota.
        without: Names of tables whose residuals in it do not count: another worker has them.
        tables: Format 2: names and lengths of the tables whose residuals are in it; else empty.
    """

    name: str = ""
    n_bytes: int = 0
    xxh3: str = ""
    error: str = ""
    is_full: bool = False
    without: tuple[str, ...] = ()
    tables: tuple[tuple[str, int], ...] = ()


class WorkerState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a worker at the cut.

    Attributes:
        worker: Index of the worker.
        clock: Clock of the worker.
        epoch: Data cursor: epoch in which the worker continues to read.
        step: Data cursor: step at which it continues.
        random: States of its random generators by name; see mpips.checkpoint.random_state.
        cursor: Argument of the worker's last `set_cursor`, with `epoch` and `step` if it has them.
        files: The file with the worker's image; empty if the job has no tables with residuals or under
            LocalSGD or DiLoCo. Format 2: the files in its place.
    """

    worker: int
    clock: int = 0
    epoch: int = 0
    step: int = 0
    random: dict[str, Any] = {}
    cursor: dict[str, Any] = {}
    files: tuple[ImageFile, ...] = ()

    @property
    def counts_epochs(self) -> bool:
        """True if the program has set an epoch."""
        return self.epoch > 0 or "epoch" in self.cursor


# Pairs of worker and server whose sequence numbers a manifest contains: about a megabyte of text.
MOST_APPLIED = 100_000


class ServerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A server at the cut: `applied[w]` is the sequence number of the last applied record of worker w.

    `applied` is empty in a job of more than MOST_APPLIED pairs of worker and server. Nothing reads it back: a
    restart numbers records anew.
    """

    server: int
    applied: tuple[int, ...] = ()


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The HDF5 file: name, size in bytes, and XXH3-64 of all bytes outside datasets, in order."""

    name: str
    n_bytes: int
    structure_xxh3: str


class LinkRef(msgspec.Struct, frozen=True):
    """Another checkpoint in the same folder: its name, its step, and the XXH3-64 of its manifest.json."""

    name: str
    step: int
    xxh3: str


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a checkpoint in a chain, and the datasets that its own file has.

    Attributes:
        index: Number of links behind the base; 1 for the first one.
        base: The first checkpoint of the chain, which is whole.
        previous: The checkpoint whose differences from this one the file has.
        piece: Number of elements of a piece of a dense table.
        tables: Datasets in the file. An embedding table has the rows that are new or have changed, and a
            second entry, with REMOVED behind its name, with the keys of rows that have been removed. A dense
            table has kind "pieces": its keys are the first elements of the pieces that have changed, and each
            row has the elements of one piece, the last one of a shard with zeros behind them.
    """

    index: int
    base: LinkRef
    previous: LinkRef
    piece: int
    tables: tuple[TableEntry, ...]

    def table(self, name: str) -> TableEntry:
        """Return the entry with this name.

        Raises:
            KeyError: The link has no such entry. The manifest of a link has one of each of its tables.
        """
        return {entry.name: entry for entry in self.tables}[name]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a checkpoint.

    Attributes:
        run_id: Id of the run.
        generation: Generation number of the checkpoint; it grows with each launch of the run.
        step: Global step.
        wall_time_s: Unix time of the cut, seconds.
        note: Way in which mpips 0.3 or older wrote it, if not in parallel; newer ones leave it empty.
        servers: Servers, by index.
        workers: States of the workers, by index.
        tables: Tables, in the job's order.
        file: The HDF5 file.
        versions: Versions of mpips and of libraries, by name.
        config: Resolved configuration.
        sampling: Meaning of the cursors: which worker reads which samples in which order (`mpips train`).
        data: Description of the training data, `DataInfo.to_config`: columns, label column, classes and
            their frequencies (`mpips train`); {} in format 1.
        example: Predictions of the samples in "example/..." of the HDF5 file (`mpips.training.example`):
            {"predictions": [[...], ...]}, or {"absent": REASON}; {} if the job makes none.
        best: The value for which it was written as the best one of the run; None: for another reason.
        link: Its place in a chain; None: the file is whole. `tables` of a link describe the whole tables,
            with offset 0 and without pieces.
        replaces: Checksum of the manifest of the link that was compacted into this checkpoint; "": none.
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
    example: dict[str, Any] = {}
    best: BestValue | None = None
    link: Link | None = None
    replaces: str = ""

    @property
    def stored(self) -> tuple[TableEntry, ...]:
        """The tables of the file: those of the checkpoint, or those that a link has."""
        return self.tables if self.link is None else self.link.tables

    def table(self, name: str) -> TableEntry:
        """Return a table by name.

        Raises:
            CheckpointError: There is no such table; the error lists the existing ones.
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
    """Return the XXH3-64 of contiguous buffers, one after the other, as 16 hexadecimal digits."""
    total = _native.Xxh3()
    for part in parts:
        total.update(part)
    return f"{total.digest():016x}"


def _own_sum(number: int, version: str, content: bytes) -> str:
    return hexsum(f"{number} {version} ".encode(), content)


def encode(manifest: Manifest, version: str) -> bytes:
    """Return the bytes of manifest.json; `version` is the version of mpips."""
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    envelope = _Envelope(FORMAT, version, _own_sum(FORMAT, version, content), msgspec.Raw(content))
    return msgspec.json.encode(envelope) + b"\n"


def decode(data: bytes, where: Path) -> Manifest:
    """Decode manifest.json and check that it is consistent.

    Args:
        data: Bytes of the file.
        where: Path of the file, for errors.

    Raises:
        NewerFormatError: The format is newer than FORMAT.
        CheckpointError: The data is not a manifest, or it is damaged or inconsistent.
    """
    # Decode the version of the format alone.
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{where}: is not the manifest of a checkpoint: {error}") from None
    if head.format > FORMAT:
        raise NewerFormatError(
            f"{where}: format {head.format}, written by mpips {head.mpips}, is newer than this "
            f"mpips, which reads up to format {FORMAT}: install a newer mpips to use it"
        )
    # Compare the checksum before the content is decoded.
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        content = bytes(envelope.content)
        if _own_sum(envelope.format, envelope.mpips, content) != envelope.xxh3:
            raise CheckpointError(
                f"{where}: the manifest's own checksum does not match: the file is damaged"
            )
        if head.format < 3:
            content = msgspec.json.encode(_with_files(msgspec.json.decode(content)))
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, IndexError) as error:
        raise CheckpointError(f"{where}: the manifest cannot be read: {error}") from None
    _check(manifest, where)
    return manifest


def _with_files(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a manifest of format 1 or 2 with the workers' files where format 3 has them."""
    residuals = content.pop("residuals", None)
    for index, worker in enumerate(content["workers"]):
        local = worker.pop("local", None)
        worker["files"] = [] if local is None else [local]
        if residuals is not None:
            worker["files"].append({**residuals["files"][index], "tables": residuals["tables"]})
    return content


def _check(manifest: Manifest, where: Path) -> None:
    """Raise CheckpointError for values that no writer writes, so that readers need not check them."""
    name = manifest.file.name
    if name in ("", ".", "..") or name != Path(name).name:
        raise CheckpointError(f"{where}: names a file in another folder: {name}")
    if manifest.link is not None:
        _check_link(manifest, manifest.link, where)
    for table in manifest.stored:
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
                raise CheckpointError(f"{where}: {entry.path} lies outside the file")


def _check_link(manifest: Manifest, link: Link, where: Path) -> None:
    """Raise CheckpointError if a link names other places, or lacks a dataset of a table."""
    for ref in (link.base, link.previous):
        if ref.name in ("", ".", "..") or ref.name != Path(ref.name).name:
            raise CheckpointError(f"{where}: names a checkpoint in another folder: {ref.name}")
    found = {table.name: table for table in link.tables}
    whole = link.index >= 1 and link.piece >= 1 and len(found) == len(link.tables)
    for table in manifest.tables:
        _check_names(table, where)
        roles = {"keys", *(entry.role for entry in table.datasets)}
        entry = found.get(table.name)
        whole = whole and entry is not None and {d.role for d in entry.datasets} == roles
        for dataset in table.datasets:
            known = dataset.dtype in DTYPES and dataset.unit >= 1
            whole = whole and known and min(dataset.shape, default=0) >= 0
        if table.kind == "embedding":
            removed = found.get(table.name + REMOVED)
            whole = whole and removed is not None and len(removed.datasets) == 1
    if not whole:
        raise CheckpointError(f"{where}: the link lacks datasets of its tables: it is damaged")


def _check_names(table: TableEntry, where: Path) -> None:
    """Raise CheckpointError for names that could lead to other files, for example in an export."""
    for name in (table.name.removesuffix(REMOVED), *table.state):
        if not is_table_name(name):
            raise CheckpointError(
                f"{where}: {name!r} is no name of a table or of a state; do not use this checkpoint"
            )
    roles = {"keys", "values", "steps", "uses", *(f"state/{name}" for name in table.state)}
    for entry in table.datasets:
        if entry.role not in roles:
            raise CheckpointError(
                f"{where}: {entry.role!r} is no dataset of a table; do not use this checkpoint"
            )
