"""Read a checkpoint: any range of a tensor, all rows of a table or one server's rows, and verification.

Neither MPI nor HDF5 is used, because the manifest contains the offset of every dataset in the file. The file
is opened once, so a checkpoint that is removed meanwhile can still be read to the end. A link of a chain is
opened together with all checkpoints that it continues, and read as whole tables (`mpips.checkpoint.chain`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.checkpoint import worker_files
from mpips.checkpoint.folder import parse_name
from mpips.checkpoint.manifest import (
    DTYPES,
    MANIFEST,
    DatasetEntry,
    Link,
    Manifest,
    TableEntry,
    decode,
    hexsum,
)
from mpips.checkpoint.shards import Float32, Keys
from mpips.checkpoint.structure import structure_sum
from mpips.errors import CheckpointError, NewerFormatError
from mpips.model.row_values import bf16_values

if TYPE_CHECKING:
    from mpips.checkpoint.chain import Chain

BLOCK_BYTES = 8 << 20  # bytes that are read at once


class RowBlock(msgspec.Struct, frozen=True):
    """Some rows of an embedding table, ascending by key.

    Attributes:
        keys: int64, (n,).
        values: float32, (n, dim).
        state: float32, (n, dim), or (n,) for a state of whole rows, by state name.
        steps: uint32, (n,): number of updates of each row; None if they are not counted.
        uses: uint32, (n, 2): last clock and number of clocks with a push of each row; None if the table
            evicts no rows.
    """

    keys: Keys
    values: Float32
    state: dict[str, Float32]
    steps: NDArray[np.uint32] | None
    uses: NDArray[np.uint32] | None = None

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays by their role in the file."""
        arrays: dict[str, NDArray[Any]] = {"keys": self.keys, "values": self.values}
        arrays |= {f"state/{name}": array for name, array in self.state.items()}
        more = {"steps": self.steps, "uses": self.uses}
        return arrays | {role: array for role, array in more.items() if array is not None}


class Checkpoint:
    """An open checkpoint; close it, or use it in a `with` block. Not thread-safe.

    Attributes:
        path: Folder of the checkpoint.
        manifest: Description of its content.
        manifest_xxh3: XXH3-64 of manifest.json, 16 hexadecimal digits; "": it was not read from the folder.
        chain: The checkpoints that a link continues; None: the file is whole.
    """

    def __init__(self, path: Path, manifest: Manifest, fd: int, xxh3: str = "") -> None:
        """Take over the file descriptor of the HDF5 file; `open_checkpoint` calls this."""
        self.path = path
        self.manifest = manifest
        self.manifest_xxh3 = xxh3
        self.chain: Chain | None = None
        self._fd = fd

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, and those of the chain; no effect when repeated."""
        if self.chain is not None:
            self.chain.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def opened(self) -> BinaryIO:
        """Return the HDF5 file as a file object of its own, even if the checkpoint has been removed."""
        return os.fdopen(os.dup(self._fd), "rb")

    def read_dense(
        self, table: str, start: int = 0, stop: int | None = None
    ) -> tuple[Float32, dict[str, Float32]]:
        """Read elements [start, stop) of a flattened tensor, and of the optimizer's states. Blocking.

        Args:
            table: Name of a dense table.
            start: First element.
            stop: One past the last element; None: to the end.

        Returns:
            The values, float32, (stop - start,), and each state by its name, of the same shape.

        Raises:
            CheckpointError: There is no such table or range, or the file cannot be read.
        """
        entry = self._table(table, "dense")
        values = entry.dataset("values")
        stop = values.n_units if stop is None else stop
        state = {
            name: self.read(entry.dataset(f"state/{name}"), start, stop).reshape(-1)
            for name in entry.state
        }
        return self.read(values, start, stop).reshape(-1), state

    def iter_rows(
        self,
        table: str,
        partitioner: _native.Partitioner | None = None,
        server: int = 0,
        block_rows: int = 0,
    ) -> Iterator[RowBlock]:
        """Iterate over the rows of an embedding table, ascending by key, in blocks of bounded size.

        Args:
            table: Name of an embedding table.
            partitioner: If given, only rows are returned that it maps to `server`.
            server: Index of the server, with `partitioner`.
            block_rows: Number of rows that are read at once; 0: about 8 MiB.

        Raises:
            CheckpointError: There is no such table, or the file cannot be read.
            KeyError: A key lies outside the partition.
        """
        entry = self._table(table, "embedding")
        row_bytes = sum(dataset.unit_bytes for dataset in entry.datasets)
        size = block_rows or max(1, BLOCK_BYTES // row_bytes)
        for start in range(0, entry.shape[0], size):
            stop = min(start + size, entry.shape[0])
            keys: Keys = self.read(entry.dataset("keys"), start, stop)
            mine: Any = slice(None)
            if partitioner is not None:
                mine = np.flatnonzero(partitioner.owners(keys) == server)
                # Skip blocks without rows of this server, which are most blocks under a range partition.
                if len(mine) == 0:
                    continue
            yield self._rows(entry, keys, mine, start, stop)

    def _rows(self, entry: TableEntry, keys: Keys, mine: Any, start: int, stop: int) -> RowBlock:
        def column(role: str) -> NDArray[Any]:
            chosen: NDArray[Any] = self.read(entry.dataset(role), start, stop)[mine]
            return chosen

        return RowBlock(
            keys[mine],
            column("values"),
            {name: column(f"state/{name}") for name in entry.state},
            column("steps") if entry.counts_steps else None,
            column("uses") if entry.notes_uses else None,
        )

    def find_rows(self, table: str, keys: Keys) -> tuple[NDArray[np.bool_], Float32]:
        """Search for rows of an embedding table in the file. Blocking; reads about log2(rows) numbers a key.

        Args:
            table: Name of an embedding table.
            keys: int64, shape (n,), in any order.

        Returns:
            For each key whether the table has it, shape (n,), and the rows of those that it has, float32,
            shape (number of True, dim), in the order of `keys`.

        Raises:
            CheckpointError: There is no such table, or the file cannot be read.
        """
        entry = self._table(table, "embedding")
        if self.chain is not None:
            return self.chain.find_rows(self, entry, keys)
        stored, values = entry.dataset("keys"), entry.dataset("values")
        found, rows = np.zeros(len(keys), np.bool_), []
        for i, key in enumerate(keys.tolist()):
            low, high = 0, stored.n_units
            while low < high:
                middle = (low + high) // 2
                if self.read(stored, middle, middle + 1)[0] < key:
                    low = middle + 1
                else:
                    high = middle
            if low < stored.n_units and self.read(stored, low, low + 1)[0] == key:
                found[i] = True
                rows.append(self.read(values, low, low + 1))
        dim = entry.shape[1]
        return found, np.concatenate(rows) if rows else np.zeros((0, dim), np.float32)

    def read(self, entry: DatasetEntry, start: int, stop: int) -> NDArray[Any]:
        """Read units [start, stop) of a dataset. Blocking.

        Args:
            entry: Manifest entry of the dataset.
            start: First unit: element (dense) or row (embedding).
            stop: One past the last unit.

        Returns:
            Array of the dataset's dtype, float32 for bfloat16, in native byte order: (n, ...) if a unit is a
            row of the dataset,
            else (n,).

        Raises:
            CheckpointError: The range is outside the dataset, or the file cannot be read.
        """
        array = self.read_stored(entry, start, stop)
        return bf16_values(array) if entry.dtype == "bfloat16" else array

    def read_stored(self, entry: DatasetEntry, start: int, stop: int) -> NDArray[Any]:
        """As `read`, with the bits of bfloat16, uint16, in place of their values."""
        if not 0 <= start <= stop <= entry.n_units:
            raise CheckpointError(
                f"{self.path}: {entry.path} has {entry.n_units} entries, not {start} to {stop}"
            )
        if self.chain is not None:
            return self.chain.read(self, entry, start, stop)
        return self.read_file(entry, start, stop)

    def read_file(self, entry: DatasetEntry, start: int, stop: int) -> NDArray[Any]:
        """Read units of a dataset in this file, one of `manifest.stored`; otherwise as `read_stored`."""
        by_rows = bool(entry.shape) and entry.n_units == entry.shape[0]
        rest = entry.shape[1:] if by_rows else ()
        array: NDArray[Any] = np.empty((stop - start, *rest), DTYPES[entry.dtype])
        self._fill(array, entry.offset + start * entry.unit_bytes)
        # Convert to native byte order; on little-endian machines no copy is made.
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    def _fill(self, array: NDArray[Any], offset: int) -> None:
        view = array.reshape(-1).view(np.uint8).data
        done = 0
        while done < len(view):
            try:
                n = os.preadv(self._fd, [view[done:]], offset + done)
            except OSError as error:
                raise CheckpointError(f"{self.path}: cannot be read: {error.strerror}") from None
            if n == 0:
                raise CheckpointError(f"{self.path}: its file ends early")
            done += n

    def _table(self, name: str, kind: str) -> TableEntry:
        entry = self.manifest.table(name)
        if entry.kind != kind:
            raise CheckpointError(f"{self.path}: table {name!r} is {entry.kind}, not {kind}")
        return entry

    def damage(self, part: int = 0, parts: int = 1) -> list[str]:
        """Compare data with the checksums, and return what is damaged. Blocking.

        Several readers can verify a checkpoint together: each reads one of `parts` shares, and all shares
        together contain every byte once.

        Args:
            part: Index of the share to read.
            parts: Number of shares.

        Returns:
            One sentence for each damaged place; empty if the file is good.

        Raises:
            CheckpointError: A dataset cannot be read.
        """
        found = []
        files = [*(self.chain.parts if self.chain is not None else ()), self]
        pieces = [
            (file, table, entry, piece)
            for file in files
            for table in file.manifest.stored
            for entry in table.datasets
            for piece in entry.pieces
        ]
        for file, table, entry, piece in pieces[part::parts]:
            if file.sum_of(entry, piece.start, piece.stop) != piece.xxh3:
                what = {"dense": "elements", "embedding": "rows"}.get(table.kind, table.kind)
                found.append(
                    f"{self._place_of(file)}{entry.role} of table {table.name!r}, {what} {piece.start:,} to "
                    f"{piece.stop:,}: the checksum does not match"
                )
        if part == 0:
            for file in files:
                found += [f"{self._place_of(file)}{text}" for text in file.structure_damage()]
            found += worker_files.damage(self.path, self.manifest.workers)
            if self.chain is not None and not found:
                found += self.chain.mismatches(self)
        return found

    def _place_of(self, file: Checkpoint) -> str:
        """Return the beginning of a sentence about damage in a file of the chain."""
        return "" if file is self else f"the chain's checkpoint {file.path.name}: "

    def structure_damage(self) -> list[str]:
        """Return one sentence if the bytes of this file outside its datasets are damaged. Blocking."""
        file = self.manifest.file
        datasets = [entry for table in self.manifest.stored for entry in table.datasets]
        try:
            if structure_sum(self._fd, file.n_bytes, datasets) == file.structure_xxh3:
                return []
        except OSError as error:
            return [f"{file.name} cannot be read: {error}"]
        return [f"the HDF5 structure of {file.name}: the checksum does not match"]

    def sum_of(self, entry: DatasetEntry, start: int, stop: int) -> str:
        """Return the XXH3-64 of units of a dataset of this file, 16 hexadecimal digits. Blocking."""
        total = _native.Xxh3()
        offset = entry.offset + start * entry.unit_bytes
        end = entry.offset + stop * entry.unit_bytes
        block = np.empty(min(BLOCK_BYTES, end - offset), np.uint8)
        while offset < end:
            view = block[: min(len(block), end - offset)]
            self._fill(view, offset)
            total.update(view)
            offset += len(view)
        return f"{total.digest():016x}"

    def verify(self) -> None:
        """Read the whole checkpoint and compare it with its checksums. Blocking.

        Raises:
            CheckpointError: The checkpoint is damaged; the error names the first damaged place.
        """
        damage = self.damage()
        if damage:
            more = f" (and {len(damage) - 1} more)" if len(damage) > 1 else ""
            raise CheckpointError(f"{self.path}: {damage[0]}{more}")


# Predicts the example of a checkpoint whose data is written: takes the checkpoint and the arrays beside the
# tables, and returns `Manifest.example`. Raises nothing.
Example: TypeAlias = Callable[[Checkpoint, Mapping[str, NDArray[Any]]], dict[str, Any]]


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Open a checkpoint and check its manifest and its size, without reading data. Blocking.

    A link of a chain is opened with all that it continues, which lie in the same folder.

    Args:
        path: Folder of the checkpoint, or a symbolic link to it such as `latest`.

    Returns:
        The open checkpoint, owned by the caller.

    Raises:
        NewerFormatError: This mpips is too old for the format.
        CheckpointError: The folder is not a checkpoint, or it is damaged, or a checkpoint that it continues
            is missing or is another one.
    """
    path = Path(path)
    try:
        return _open(path)
    except NewerFormatError:
        raise
    except CheckpointError:
        # A compaction may have replaced the manifest, and removed the file that the former one names.
        return _open(path)


def _open(path: Path) -> Checkpoint:
    # Follow `latest` once: it may lead to another checkpoint before all files are open.
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    manifest, xxh3 = _read_manifest(path)
    # Refuse a folder that has been renamed, or that has the manifest of another checkpoint.
    named = parse_name(path)
    if named is not None and named.step != manifest.step:
        raise CheckpointError(
            f"{path}: its name has step {named.step}, its {MANIFEST} has step {manifest.step}; if it was "
            "renamed, rename it to its step"
        )
    return open_data(path, manifest, xxh3)


def _read_manifest(path: Path) -> tuple[Manifest, str]:
    """Return the manifest of a checkpoint, and the checksum of its bytes."""
    try:
        data = (path / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise CheckpointError(
            f"{path}: has no {MANIFEST}, so it is no complete checkpoint"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path / MANIFEST}: cannot be read: {error.strerror}") from None
    return decode(data, path / MANIFEST), hexsum(data)


def open_data(path: Path, manifest: Manifest, xxh3: str = "") -> Checkpoint:
    """Open the HDF5 file that a manifest describes, and those of its chain, without reading data. Blocking.

    Args:
        path: Folder of the checkpoint, which may be one that has no manifest yet.
        manifest: The manifest.
        xxh3: XXH3-64 of the manifest's file.

    Returns:
        The open checkpoint, owned by the caller.

    Raises:
        CheckpointError: There is no such file, or it has another size; or that of a checkpoint which it
            continues.
    """
    checkpoint = _open_file(path, manifest, xxh3)
    parts: list[Checkpoint] = []
    try:
        link, folder = manifest.link, Path(os.path.realpath(path)).parent
        while link is not None:
            parts.append(_open_part(path, folder, link))
            before, link = link, parts[-1].manifest.link
            if link is not None and link.index != before.index - 1:
                raise CheckpointError(f"{path}: the links of its chain have wrong numbers")
    except BaseException:
        for part in (checkpoint, *parts):
            part.close()
        raise
    if parts:
        # Load this module for links only.
        from mpips.checkpoint.chain import Chain

        checkpoint.chain = Chain(parts[::-1])
    return checkpoint


def _open_part(path: Path, folder: Path, link: Link) -> Checkpoint:
    """Open the file of the checkpoint that a link continues."""
    previous = link.previous
    try:
        manifest, xxh3 = _read_manifest(folder / previous.name)
        if previous.xxh3 in (xxh3, manifest.replaces):
            return _open_file(folder / previous.name, manifest, xxh3)
    except CheckpointError as error:
        raise CheckpointError(
            f"{path}: is a link of a chain, and {previous.name}, which the chain needs, cannot be used: "
            f"{error}"
        ) from None
    raise CheckpointError(
        f"{path}: is a link of a chain, and {previous.name}, which the chain needs, has been replaced by "
        "another checkpoint"
    )


def _open_file(path: Path, manifest: Manifest, xxh3: str) -> Checkpoint:
    name = path / manifest.file.name  # checked with the manifest
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointError(f"{name}: cannot be read: {error.strerror}") from None
    checkpoint = Checkpoint(path, manifest, fd, xxh3)
    n_bytes = os.fstat(fd).st_size
    if n_bytes != manifest.file.n_bytes:
        checkpoint.close()
        raise CheckpointError(f"{name}: has {n_bytes:,} bytes instead of {manifest.file.n_bytes:,}")
    return checkpoint
