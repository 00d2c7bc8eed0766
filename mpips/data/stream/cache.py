"""The cache: a folder with one npz file for each piece of the data, and an index of them, `index.json`.

A piece has the arrays of a `SparseData` (indptr, indices, values, labels; fields for CSV and Parquet) or a
`DenseData` (x, labels). `numpy.load` reads it. Indices have 32 bits if that is enough. Labels that
are text are places in the piece's own `label_names`, since a worker that converts a piece does not know the
others.

Files appear under their names when they are complete, and the index after all pieces. Two jobs that write the
same cache at the same time write the same files.
"""

from __future__ import annotations

import os
import uuid
import zipfile
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from mpips.data.dataset import N_FIELDS, DenseData, SparseData, all_labels
from mpips.data.info import DataInfo, check_class_count, needs_float64
from mpips.data.label_sets import numbered
from mpips.data.options import Wants
from mpips.data.sources import Converted
from mpips.model.distinct import distinct_counts

INDEX = "index.json"
VERSION = 5


class CachePiece(msgspec.Struct, frozen=True):
    """One file of the cache.

    Attributes:
        file: Its name.
        file_bytes: Its size.
        n: Samples, at least 1.
        n_entries: Sparse samples: number of all entries.
        is_dense: Samples are rows; else they are lists of entries.
        n_columns: Dense samples: number of columns.
        has_fields: Entries know their columns.
        wide: See `DataInfo.wide`, for the samples of this piece.
        labels, counts: The distinct labels, ascending, and the samples of each; () for targets.
        label_names: Labels that are text; then `labels` are places here.
        target_range: The least and the greatest target; () for classes.
        min_index, max_index, crcs: See `Converted`.
    """

    file: str
    file_bytes: int
    n: int
    n_entries: int
    is_dense: bool
    n_columns: int
    has_fields: bool
    wide: bool
    labels: tuple[float, ...]
    counts: tuple[int, ...]
    label_names: tuple[str, ...]
    target_range: tuple[float, ...]
    min_index: int
    max_index: int
    crcs: tuple[int, ...]

    @property
    def memory_bytes(self) -> int:
        """Bytes of the samples in memory."""
        if self.is_dense:
            return self.n * (8 + self.n_columns * (8 if self.wide else 4))
        return self.n * 16 + self.n_entries * (16 if self.has_fields else 12)


class Index(msgspec.Struct, frozen=True):
    """Description of a cache.

    Attributes:
        version: Version of the format.
        source: The files, as the job names them.
        kind: See `DataInfo`.
        wants: See `DataInfo`.
        index_base: LIBSVM: number that is subtracted from the stored indices.
        of_array: See `DataInfo`.
        n_features: One more than the greatest possible key, or the number of columns.
        columns, label_column, categorical, words: See `DataInfo`.
        notes: Sentences for the user.
        n_skipped: Bad lines that were left out.
        pieces: The pieces, in the order of the samples.
        checksum: BLAKE2b of all other attributes as JSON, in hexadecimal digits; "": not yet written.
    """

    version: int
    source: str
    kind: Literal["sparse", "dense"]
    wants: Wants
    index_base: int
    of_array: bool
    n_features: int
    columns: tuple[str, ...]
    label_column: str
    categorical: tuple[str, ...]
    words: int
    notes: tuple[str, ...]
    n_skipped: int
    pieces: tuple[CachePiece, ...]
    checksum: str = ""

    @property
    def n(self) -> int:
        """Number of samples."""
        return sum(piece.n for piece in self.pieces)

    @property
    def has_label_sets(self) -> bool:
        """True if labels are entries; see `mpips.data.label_sets`."""
        return self.wants == "several"

    @property
    def n_fields(self) -> int:
        """Number of fields of entries; 0: they have none."""
        return N_FIELDS if self.has_label_sets else len(self.columns)

    @property
    def memory_bytes(self) -> int:
        """Bytes of all samples in memory."""
        n_bytes = sum(piece.memory_bytes for piece in self.pieces)
        if self.has_label_sets:
            n_bytes += 8 * self.n * len({label for piece in self.pieces for label in piece.labels})
        return n_bytes

    @property
    def label_names(self) -> tuple[str, ...]:
        """The labels that are text, sorted; (): numbers."""
        return tuple(sorted({name for piece in self.pieces for name in piece.label_names}))

    def info(self) -> DataInfo:
        """Return the description of the whole data, as `combine` would of all workers' parts.

        Raises:
            DataError: There are too many distinct labels to be classes.
        """
        names = self.label_names
        place = {name: float(i) for i, name in enumerate(names)}
        # Classes that are text may be those of the training data, and not occur here.
        counts = dict.fromkeys(place.values(), 0) if self.wants == "classes" else {}
        for piece in self.pieces:
            for label, count in zip(piece.labels, piece.counts, strict=True):
                own = place[piece.label_names[int(label)]] if names else label
                counts[own] = counts.get(own, 0) + count
        check_class_count(len(counts), self.source)
        labels = tuple(sorted(counts))
        ends = [end for piece in self.pieces for end in piece.target_range]
        return DataInfo(
            self.n,
            self.n,
            self.n_features,
            labels,
            self.kind,
            self.index_base,
            self.wants,
            tuple(counts[label] for label in labels),
            (min(ends), max(ends)) if ends else (),
            self.columns,
            self.label_column,
            any(piece.wide for piece in self.pieces),
            names,
            self.categorical,
            words=self.words,
            of_array=self.of_array,
        )


def write_piece(folder: Path, name: str, raw: Converted, wants: Wants) -> CachePiece:
    """Write samples into a new file of the cache. Blocks until they are on the disk.

    Args:
        folder: The cache.
        name: Name of the file.
        raw: The samples, at least one.
        wants: See `DataInfo`; "targets" for labels that are not read.

    Raises:
        OSError: The file cannot be written.
    """
    data = raw.data
    if isinstance(data, SparseData):
        # The base may be found in another piece, so indices are stored as they are written.
        written = numbered(data.indices, data.fields, raw.base)
        arrays: dict[str, Any] = {
            "indptr": data.indptr,
            "indices": _narrow(written),
            "values": data.values,
            "labels": data.labels,
        }
        if data.fields is not None:
            arrays["fields"] = data.fields.astype(
                np.uint16 if data.n_fields < 1 << 16 else np.int32
            )
    else:
        arrays = {"x": data.x, "labels": data.labels}
    new = folder / f".{name}-{uuid.uuid4().hex[:8]}"
    try:
        with open(new, "xb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        os.replace(new, folder / name)
    finally:
        new.unlink(missing_ok=True)
    targets = wants == "targets"
    labels, counts = distinct_counts(data.labels[:0] if targets else all_labels(data, wants))
    return CachePiece(
        name,
        size,
        data.n,
        len(data.indices) if isinstance(data, SparseData) else 0,
        isinstance(data, DenseData),
        data.n_features if isinstance(data, DenseData) else 0,
        isinstance(data, SparseData) and data.fields is not None,
        isinstance(data, DenseData) and needs_float64(data.x),
        tuple(labels.astype(float).tolist()),
        tuple(map(int, counts)),
        raw.label_names,
        (float(data.labels.min()), float(data.labels.max())) if targets else (),
        raw.min_index,
        raw.max_index,
        raw.crcs,
    )


def _narrow(array: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return indices, none of them negative, in 32 bits if that is enough."""
    return array.astype(np.uint32) if len(array) == 0 or array.max() < 1 << 32 else array


def write_index(folder: Path, index: Index) -> None:
    """Write the index with its checksum, which makes the cache valid. Raises OSError."""
    new = folder / f".{INDEX}-{uuid.uuid4().hex[:8]}"
    try:
        new.write_bytes(msgspec.json.encode(replace(index, checksum=_checksum(index))))
        os.replace(new, folder / INDEX)
    finally:
        new.unlink(missing_ok=True)


def read_index(folder: Path) -> Index | None:
    """Return the index of a cache; None unless it exists, is of this version, and all of its pieces exist.

    An index whose checksum is wrong counts as missing. The content of the pieces is not read; see
    `is_piece_whole`.
    """
    try:
        index = msgspec.json.decode((folder / INDEX).read_bytes(), type=Index)
        whole = all((folder / p.file).stat().st_size == p.file_bytes for p in index.pieces)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not whole or index.version != VERSION or index.checksum != _checksum(index):
        return None
    return replace(index, checksum="")


def _checksum(index: Index) -> str:
    text = msgspec.json.encode(replace(index, checksum=""))
    return blake2b(text, digest_size=16).hexdigest()


def is_piece_whole(folder: Path, piece: CachePiece) -> bool:
    """Return True if the arrays of a piece have the CRCs stored with them. Blocks, reads all of it."""
    try:
        with zipfile.ZipFile(folder / piece.file) as archive:
            return archive.testzip() is None
    except (OSError, ValueError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile):
        return False
