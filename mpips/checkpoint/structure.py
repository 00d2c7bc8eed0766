"""The structure of the HDF5 file: one process makes all of it before any server writes data.

Server 0 makes the groups, the attributes and the contiguous datasets with serial HDF5 in memory. The datasets
are allocated at once and not filled, so that the file in memory has holes where the data will be. Server 0
then copies what HDF5 has written to the disk, before any server opens the file in parallel. This has three
consequences:

* No metadata is ever written collectively.
* HDF5 never has unwritten metadata when the disk is full; it may crash when it cannot write metadata.
* A checkpoint of the same tables has the same bytes for any number of servers.

The bytes outside the datasets have a checksum of their own in the manifest.
"""

from __future__ import annotations

import datetime
import io
import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from mpips import _native
from mpips.checkpoint.manifest import FORMAT, DatasetEntry, TableEntry
from mpips.checkpoint.shards import ManifestHead
from mpips.data.hdf5 import load_hdf5
from mpips.errors import CapabilityError, CheckpointError

if TYPE_CHECKING:
    from mpips.checkpoint.plan import ChainEnd

# Bytes. Datasets of at least a page start at a page: they can be mapped, and two tables never share a page.
ALIGNMENT = 4096

_CHUNK = 8 << 20  # bytes that are read at once
# Meaning and units of a dataset by its role, for the attributes in the file.
_MEANINGS = {
    "keys": ("keys of the rows, ascending", "1"),
    "values": ("parameters", "1"),
    "steps": ("updates that each row has taken", "updates"),
    "uses": (
        "last clock of the run in which each row was pushed, and number of such clocks since it was made",
        "clocks",
    ),
    "state/momentum": ("velocity: decayed sum of gradients", "gradient"),
    "state/accumulator": ("sum of squared gradients", "gradient^2"),
    "state/row_accumulator": ("mean of squared gradients of a row, summed", "gradient^2"),
    "state/mean_square": ("decayed mean of squared gradients", "gradient^2"),
    "state/m": ("first moment: decayed mean of gradients", "gradient"),
    "state/v": ("second moment: decayed mean of squared gradients", "gradient^2"),
    "state/z": ("FTRL: sum of gradients less the proximal terms", "gradient"),
    "state/n": ("FTRL: sum of squared gradients", "gradient^2"),
}
# Meaning of the keys of tables that only links have, by the kind of the table.
_KEYS_OF = {
    "pieces": "first elements of the pieces that have changed, ascending",
    "removed": "keys of rows that have been removed, ascending",
}
# Meaning of the attributes of the file and of those of a table, for the attribute `meaning` of each.
_OF_FILE = {
    "mpips_format": "version of this format; readers of an older mpips refuse a newer one",
    "mpips_version": "mpips that wrote the file",
    "run_id": "name of the run",
    "generation": "number of the attempt of the run, from 0",
    "step": "clocks that all workers have completed",
    "time": "time of the cut, ISO 8601, UTC",
    "workers": "number of workers",
    "least_clock": "clock of the slowest worker at the cut, in clocks",
    "greatest_clock": "clock of the fastest worker at the cut, in clocks",
    "link": "number of this link, from 1",
    "base": "folder of the whole checkpoint with which the chain begins",
    "previous": "folder of the checkpoint that this link continues",
}
_OF_TABLE = {
    "kind": "dense (a tensor) or embedding (rows by key; the dimension scale of their first axis is keys); "
    "in a link also pieces (of a dense table, by their first element) and removed (keys of rows)",
    "updates": "updates that the table has taken",
    "optimizer": "rule by which servers apply an update; optimizer.NAME is an option of it",
    "consistency": "which updates a pull may see, and when an update is applied",
    "partition": "how keys or elements were spread over the servers; a restart may have others",
    "init": "initial values",
    "row_dtype": "type of the stored values: float32 or bf16",
    "hash_buckets": "number of buckets to which keys are hashed; the keys here are buckets",
}

# Meaning and units of the arrays beside the tables, by path in the file: `mpips.data.Moments` of the training
# data, from which tasks compute the scale of the features; and the example, a few samples of the training
# data in the form in which the task takes them (`mpips.training.example`).
ATTACHED = {
    "features/count": ("samples of the training data", "samples"),
    "features/present": ("samples that contain each feature", "samples"),
    "features/mean": ("mean of each feature over the samples that contain it", "feature"),
    "features/squares": ("sum of squared deviations from that mean", "feature^2"),
    "columns/present": ("samples that have a value in each column", "samples"),
    "columns/mean": ("mean of each column over these values", "column"),
    "columns/squares": ("sum of squared deviations from that mean", "column^2"),
    "columns/words": ("record of the words of the training data, a Bloom filter of keys", "bits"),
    "targets/present": ("samples that have a target", "samples"),
    "targets/mean": ("mean of the targets", "target"),
    "targets/squares": ("sum of squared deviations from that mean", "target^2"),
    "example/x": ("features of the example, a row for each sample", "feature"),
    "example/indptr": (
        "first entry of each sample of the example, and the end of the last one",
        "1",
    ),
    "example/keys": ("key of each entry of the example", "1"),
    "example/values": ("value of each entry of the example", "feature"),
    "example/fields": ("column of each entry of the example", "1"),
}


def meaning_of(name: str) -> tuple[str, str]:
    """Return meaning and units of an array beside the tables.

    Args:
        name: Its path in the file: one of `ATTACHED`, or that of an array of a task that reads its files
            itself (`mpips.data.rows.Arrays`).
    """
    if name in ATTACHED:
        return ATTACHED[name]
    if name.startswith("vocabulary/"):
        return "names in the order of their keys: UTF-8, a line break behind each name", "bytes"
    return "array of the task", "unknown"


def load_writer() -> Any:
    """Import and return h5py.

    Raises:
        CapabilityError: h5py cannot be imported.
    """
    return load_hdf5("writing checkpoints")


def hdf5_kind() -> str:
    """Return the kind of the installed h5py: "parallel" (with MPI), "serial" or "none"."""
    try:
        return "parallel" if load_writer().get_config().mpi else "serial"
    except CapabilityError:
        return "none"


class Made(msgspec.Struct, frozen=True):
    """A file with its structure and without its data.

    Attributes:
        n_bytes: Final size, bytes.
        structure_xxh3: Checksum of the bytes outside datasets; see `structure_sum`.
        offsets: For each table, the offset of each dataset in the file; 0 for an empty dataset.
    """

    n_bytes: int
    structure_xxh3: str
    offsets: list[list[int]]


def create_file(
    path: Path,
    head: ManifestHead,
    tables: Sequence[TableEntry],
    version: str,
    place: ChainEnd | None = None,
) -> Made:
    """Make the file with its structure and its final size, without data. Local, blocking.

    Args:
        path: Path of the new file.
        head: Description of the job, for the attributes of the file.
        tables: Manifest entries, without offsets.
        version: Version of mpips.
        place: Last checkpoint of the chain that the file continues; None: the file is whole.

    Raises:
        OSError: The file cannot be written.
        CheckpointError: The process may not write files of this size (ulimit -f).
    """
    image = os.memfd_create("mpips-checkpoint", os.MFD_CLOEXEC)
    try:
        offsets = _draw(image, head, tables, version, place)
        n_bytes = os.fstat(image).st_size
        extents = [
            (offset, offset + entry.n_bytes)
            for table, mine in zip(tables, offsets, strict=True)
            for entry, offset in zip(table.datasets, mine, strict=True)
        ]
        # Copy the bytes outside the datasets to the disk, and leave holes for the data.
        total = _native.Xxh3()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, n_bytes)
            for at, block in outside(image, n_bytes, extents):
                write_all(fd, block, at)
                total.update(block)
        finally:
            os.close(fd)
    finally:
        os.close(image)
    return Made(n_bytes, f"{total.digest():016x}", offsets)


class _Image(io.FileIO):
    """The file in memory while HDF5 draws the structure into it.

    HDF5 may crash when it cannot write metadata, and the limit of the size of files (ulimit -f) also
    holds for memory. So writes beyond the limit are left out here, and `check` raises the error
    afterwards.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "r+b", closefd=False)
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        self._limit = None if limit == resource.RLIM_INFINITY else limit
        self._needed = 0  # bytes of the file

    def write(self, data: Any) -> int:
        """Write at the position; beyond the limit only advance it."""
        n_bytes = memoryview(data).nbytes
        end = self.tell() + n_bytes
        self._needed = max(self._needed, end)
        if self._limit is not None and end > self._limit:
            self.seek(end)
            return n_bytes
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        """Set the size, to the limit at most."""
        size = self.tell() if size is None else size
        self._needed = max(self._needed, size)
        super().truncate(size if self._limit is None else min(size, self._limit))
        return size

    def check(self) -> None:
        """Raise CheckpointError if the process may not write files of the size of this one."""
        if self._limit is not None and self._needed > self._limit:
            raise CheckpointError(
                f"a file of {self._needed:,} bytes is needed, but files of this process may have "
                f"{self._limit:,}; raise the limit (ulimit -f unlimited)"
            )


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all bytes at an offset; a partial write is continued, so that the next call raises its error."""
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view, offset)
        view, offset = view[n:], offset + n


def _draw(
    image: int,
    head: ManifestHead,
    tables: Sequence[TableEntry],
    version: str,
    place: ChainEnd | None,
) -> list[list[int]]:
    h5py = load_writer()
    # Pass a Python file object, because HDF5's own drivers need a real path.
    with _Image(image) as memory:
        with h5py.File(
            memory,
            "w",
            libver=("earliest", "v110"),
            alignment_threshold=ALIGNMENT,
            alignment_interval=ALIGNMENT,
        ) as file:
            what, attributes = "checkpoint of mpips", _file_attributes(head, version)
            if place is not None:
                what = "link of a chain of checkpoints of mpips: what differs from the previous one"
                attributes |= _chain_attributes(place)
            _set_attributes(file, _explained(what, attributes, _OF_FILE))
            _put_text(file, "config", head.config, "resolved configuration of the job, JSON")
            clocks = np.array([worker.clock for worker in head.workers], np.int64)
            file["clocks"] = clocks
            _set_attributes(file["clocks"], {"meaning": "clock of each worker", "units": "clocks"})
            if head.data:
                _put_text(file, "data", head.data, "description of the training data, JSON")
            for name, array in sorted(head.attachments.items()):
                file[name] = array
                meaning, units = meaning_of(name)
                _set_attributes(file[name], {"meaning": meaning, "units": units})
            offsets = [_create_table(h5py, file, table) for table in tables]
        memory.check()
    return offsets


def _create_table(h5py: Any, file: Any, table: TableEntry) -> list[int]:
    group = file.create_group(table.group)
    optimizer = {f"optimizer.{k}": v for k, v in table.optimizer.items() if k != "name"}
    attributes = {
        "kind": table.kind,
        "updates": table.version,
        "optimizer": table.optimizer["name"],
        **optimizer,
        "consistency": table.consistency["name"],
        "partition": table.partition["name"],
        "init": table.init,
    }
    if table.dtype != "float32":
        attributes["row_dtype"] = "bf16"
    if table.hash_buckets:
        attributes["hash_buckets"] = table.hash_buckets
    _set_attributes(group, _explained("table", attributes, _OF_TABLE))
    if table.state:
        _set_attributes(
            group.create_group("state"),
            {"meaning": "state of the optimizer, by the name of its part"},
        )
    made = [_create_dataset(h5py, file, entry, table.kind) for entry in table.datasets]
    if table.kind == "embedding":
        _attach_keys(h5py, dict(zip([e.role for e in table.datasets], made, strict=True)))
    return [
        int(dataset.get_offset() or 0) if entry.n_bytes else 0
        for dataset, entry in zip(made, table.datasets, strict=True)
    ]


def _explained(
    what: str, attributes: Mapping[str, Any], meanings: Mapping[str, str]
) -> dict[str, Any]:
    """Return attributes with `meaning`, a text with a line for each of them."""
    lines = [f"{name}: {meanings[name]}" for name in attributes if name in meanings]
    return {"meaning": "\n".join([what, *lines]), **attributes}


def _attach_keys(h5py: Any, datasets: Mapping[str, Any]) -> None:
    """Make the keys the dimension scale of the first axis of the other datasets of an embedding table.

    The axis gets no label: labels are texts of variable length, behind which HDF5 leaves bytes that it has
    not set, so files would differ.
    """
    keys = datasets["keys"]
    h5py.h5ds.set_scale(keys, b"key")
    for role, dataset in datasets.items():
        if role != "keys":
            h5py.h5ds.attach_scale(dataset, keys, 0)


def _create_dataset(h5py: Any, file: Any, entry: DatasetEntry, kind: str) -> Any:
    """Make a dataset without data; return its identifier of HDF5."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)
    dtype = {
        "float32": h5py.h5t.IEEE_F32LE,
        "int64": h5py.h5t.STD_I64LE,
        "uint32": h5py.h5t.STD_U32LE,
        "bfloat16": _bfloat16(h5py),
    }
    shape = entry.shape
    space = h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
    made = h5py.h5d.create(file.id, entry.path.encode(), dtype[entry.dtype], space, dcpl=properties)
    meaning, units = _MEANINGS.get(entry.role, ("state of a rule of the user's own", "unknown"))
    if entry.role == "keys" and kind in _KEYS_OF:
        meaning = _KEYS_OF[kind]
    _set_attributes(h5py.Dataset(made), {"meaning": meaning, "units": units})
    return made


def _bfloat16(h5py: Any) -> Any:
    """Return the type of HDF5 with the bits of bfloat16; HDF5 and h5py convert it to float32 in reads."""
    dtype = h5py.h5t.IEEE_F32LE.copy()
    dtype.set_fields(15, 7, 8, 0, 7)
    dtype.set_precision(16)
    dtype.set_size(2)
    return dtype


def _file_attributes(head: ManifestHead, version: str) -> dict[str, Any]:
    moment = datetime.datetime.fromtimestamp(head.wall_time_s, datetime.timezone.utc)
    clocks = [worker.clock for worker in head.workers]
    return {
        "mpips_format": FORMAT,
        "mpips_version": version,
        "run_id": head.run_id,
        "generation": head.generation,
        "step": head.step,
        "time": moment.isoformat(timespec="seconds"),
        "workers": len(clocks),
        "least_clock": min(clocks, default=0),
        "greatest_clock": max(clocks, default=0),
    }


def _chain_attributes(place: ChainEnd) -> dict[str, Any]:
    return {"link": place.index + 1, "base": place.base.name, "previous": place.last.name}


def _set_attributes(target: Any, values: Mapping[str, Any]) -> None:
    """Set attributes: numbers as int64 or float64, all else as text of fixed length, without holes."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            target.attrs[name] = _text(value if isinstance(value, str) else repr(value))
        else:
            target.attrs[name] = np.int64(value) if isinstance(value, int) else np.float64(value)


def _text(value: str) -> Any:
    h5py = load_writer()
    data = value.encode() or b" "
    return np.array(data, h5py.string_dtype("utf-8", len(data)))


def _put_text(file: Any, name: str, values: Mapping[str, Any], meaning: str) -> None:
    """Write plain values as a text of JSON."""
    file[name] = _text(msgspec.json.format(msgspec.json.encode(values), indent=1).decode())
    _set_attributes(file[name], {"meaning": meaning})


def structure_sum(fd: int, n_bytes: int, datasets: Sequence[DatasetEntry]) -> str:
    """Return the XXH3-64, as 16 hexadecimal digits, of the file's bytes outside all datasets, in order.

    Raises:
        OSError: The file cannot be read, or ends early.
    """
    total = _native.Xxh3()
    extents = [(entry.offset, entry.offset + entry.n_bytes) for entry in datasets]
    for _, block in outside(fd, n_bytes, extents):
        total.update(block)
    return f"{total.digest():016x}"


def outside(
    fd: int, n_bytes: int, extents: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes of a file outside the ranges [start, stop), in order, in blocks with their offsets."""
    at = 0
    for start, stop in [*sorted(e for e in extents if e[0] < e[1]), (n_bytes, n_bytes)]:
        while at < start:
            block = os.pread(fd, min(_CHUNK, start - at), at)
            if not block:
                raise OSError(f"the file ends at byte {at}, before byte {start}")
            yield at, block
            at += len(block)
        at = stop
