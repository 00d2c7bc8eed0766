"""The HDF5 file: made whole by one process, so that it is the same whoever writes the data later.

Groups, attributes and contiguous datasets, allocated at once and not filled, are made by server 0 with
serial HDF5 in memory, in a file with holes where the data will be; what HDF5 wrote is then copied to
the disk, before anybody opens the file in parallel. So no metadata is ever written collectively, HDF5
(which may crash when it cannot write metadata) never meets a full disk with any in hand, and a
checkpoint of the same tables has the same bytes for any number of servers. What lies outside the
datasets has a checksum of its own in the manifest.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mpips import _native
from mpips.checkpoint.manifest import FORMAT, DatasetEntry, TableEntry
from mpips.checkpoint.shards import ManifestHead
from mpips.data.hdf5 import load_hdf5
from mpips.errors import CapabilityError

# Datasets of at least a page begin at one: they can be mapped, and no page is written by two tables.
ALIGNMENT = 4096

_CHUNK = 8 << 20
_MEANINGS = {
    "keys": ("keys of the rows, ascending", "1"),
    "values": ("parameters", "1"),
    "steps": ("updates that each row has taken", "updates"),
    "state/momentum": ("velocity: decayed sum of gradients", "gradient"),
    "state/accumulator": ("sum of squared gradients", "gradient^2"),
    "state/mean_square": ("decayed mean of squared gradients", "gradient^2"),
    "state/m": ("first moment: decayed mean of gradients", "gradient"),
    "state/v": ("second moment: decayed mean of squared gradients", "gradient^2"),
    "state/z": ("FTRL: sum of gradients less the proximal terms", "gradient"),
    "state/n": ("FTRL: sum of squared gradients", "gradient^2"),
}


def load_writer() -> Any:
    """The module h5py.

    Raises:
        CapabilityError: It cannot be imported.
    """
    return load_hdf5("writing checkpoints")


def hdf5_kind() -> str:
    """Which h5py is at hand: "parallel", "serial" or "none"."""
    try:
        return "parallel" if load_writer().get_config().mpi else "serial"
    except CapabilityError:
        return "none"


@dataclass(frozen=True)
class Made:
    """A file without its data.

    Attributes:
        n_bytes: Its final size.
        structure_xxh3: See `structure_sum`.
        offsets: For each table the offset of every dataset in the file, 0 for an empty one.
    """

    n_bytes: int
    structure_xxh3: str
    offsets: list[list[int]]


def create_file(path: Path, head: ManifestHead, tables: Sequence[TableEntry], version: str) -> Made:
    """Make the file with its structure and its final size, but no data yet. Blocking, local.

    Args:
        path: Of the new file.
        head: For the attributes of the file.
        tables: Without offsets.
        version: Of mpips.

    Raises:
        OSError: The file cannot be written.
    """
    image = os.memfd_create("mpips-checkpoint", os.MFD_CLOEXEC)
    try:
        offsets = _draw(image, head, tables, version)
        n_bytes = os.fstat(image).st_size
        extents = [
            (offset, offset + entry.n_bytes)
            for table, mine in zip(tables, offsets, strict=True)
            for entry, offset in zip(table.datasets, mine, strict=True)
        ]
        total = _native.Xxh3()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, n_bytes)
            for at, block in _outside(image, n_bytes, extents):
                write_all(fd, block, at)
                total.update(block)
        finally:
            os.close(fd)
    finally:
        os.close(image)
    return Made(n_bytes, f"{total.digest():016x}", offsets)


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all bytes at an offset; a partial write goes on until the error shows."""
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view, offset)
        view, offset = view[n:], offset + n


def _draw(
    image: int, head: ManifestHead, tables: Sequence[TableEntry], version: str
) -> list[list[int]]:
    h5py = load_writer()
    # A Python file, because HDF5 wants a real path for any of its own.
    with (
        open(image, "r+b", buffering=0, closefd=False) as memory,
        h5py.File(
            memory,
            "w",
            libver=("earliest", "v110"),
            alignment_threshold=ALIGNMENT,
            alignment_interval=ALIGNMENT,
        ) as file,
    ):
        _set_attributes(file, _file_attributes(head, version))
        _put_text(file, "config", msgspec.json.format(msgspec.json.encode(head.config), indent=1))
        clocks = np.array([worker.clock for worker in head.workers], np.int64)
        file["clocks"] = clocks
        _set_attributes(file["clocks"], {"meaning": "clock of each worker", "units": "clocks"})
        return [_create_table(h5py, file, table) for table in tables]


def _create_table(h5py: Any, file: Any, table: TableEntry) -> list[int]:
    group = file.create_group(table.group)
    optimizer = {f"optimizer.{k}": v for k, v in table.optimizer.items() if k != "name"}
    _set_attributes(
        group,
        {
            "kind": table.kind,
            "updates": table.version,
            "optimizer": table.optimizer["name"],
            **optimizer,
            "consistency": table.consistency["name"],
            "partition": table.partition["name"],
            "init": table.init,
        },
    )
    if table.state:
        group.create_group("state")
    return [_create_dataset(h5py, file, entry) for entry in table.datasets]


def _create_dataset(h5py: Any, file: Any, entry: DatasetEntry) -> int:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)
    dtype = {
        "float32": h5py.h5t.IEEE_F32LE,
        "int64": h5py.h5t.STD_I64LE,
        "uint32": h5py.h5t.STD_U32LE,
    }
    shape = entry.shape
    space = h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
    made = h5py.h5d.create(file.id, entry.path.encode(), dtype[entry.dtype], space, dcpl=properties)
    meaning, units = _MEANINGS.get(entry.role, ("state of a rule of the user's own", "unknown"))
    _set_attributes(h5py.Dataset(made), {"meaning": meaning, "units": units})
    return int(made.get_offset() or 0) if entry.n_bytes else 0


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


def _set_attributes(target: Any, values: Mapping[str, Any]) -> None:
    """Numbers as int64 and float64, all else as text of fixed length, which leaves no holes."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            target.attrs[name] = _text(value if isinstance(value, str) else repr(value))
        else:
            target.attrs[name] = np.int64(value) if isinstance(value, int) else np.float64(value)


def _text(value: str) -> Any:
    h5py = load_writer()
    data = value.encode() or b" "
    return np.array(data, h5py.string_dtype("utf-8", len(data)))


def _put_text(file: Any, name: str, text: bytes) -> None:
    file[name] = _text(text.decode())
    _set_attributes(file[name], {"meaning": "resolved configuration of the job, JSON"})


def structure_sum(fd: int, n_bytes: int, datasets: Sequence[DatasetEntry]) -> str:
    """XXH3-64, as 16 hexadecimal digits, of the file's bytes outside all datasets, in order.

    Raises:
        OSError: The file cannot be read, or ends early.
    """
    total = _native.Xxh3()
    extents = [(entry.offset, entry.offset + entry.n_bytes) for entry in datasets]
    for _, block in _outside(fd, n_bytes, extents):
        total.update(block)
    return f"{total.digest():016x}"


def _outside(
    fd: int, n_bytes: int, extents: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, bytes]]:
    """The bytes of a file outside these [start, stop), in order, in blocks with their offsets."""
    at = 0
    for start, stop in [*sorted(e for e in extents if e[0] < e[1]), (n_bytes, n_bytes)]:
        while at < start:
            block = os.pread(fd, min(_CHUNK, start - at), at)
            if not block:
                raise OSError(f"the file ends at byte {at}, before byte {start}")
            yield at, block
            at += len(block)
        at = stop
