"""The conversion of files into a cache, in steps between which the workers exchange what they have found.

1. `draft`, on one worker: find the files and their sizes, decide whether they are streamed at all, divide
   them into spans. All workers use this plan.
2. `survey`, on all workers: each finds out about the quotes in its spans; only for CSV.
3. `convert`, on all workers: each converts its spans and writes their pieces.
4. `index`, on all workers: the same index from the pieces of all; one worker writes it.

If the cache is there already, step 4 reads it, and 2 and 3 are left out. The key of a cache is a hash of what
its content depends on: the files with their sizes and times of change, and the options of the readers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from mpips.data.arrays import check_crcs
from mpips.data.bad_lines import BadLines
from mpips.data.columns import KEY_BITS, TableColumns, exactly
from mpips.data.csv_table import CsvSource
from mpips.data.info import check_class_count
from mpips.data.libsvm import is_of_array
from mpips.data.npy import label_files
from mpips.data.options import ReadOptions
from mpips.data.readers import READERS, TEXT_FORMATS
from mpips.data.sources import BlockSize, SampleSource, Span
from mpips.data.stream.cache import VERSION, CachePiece, Index, read_index, write_piece
from mpips.data.stream.files import File
from mpips.data.words import TEXTS
from mpips.errors import CapabilityError, DataError

_LEAST_PIECE, _MOST_PIECE = 1 << 14, 32 << 20  # bytes of a file that are converted at once


class Draft(msgspec.Struct, frozen=True):
    """The settings that are equal on all workers.

    Attributes:
        source: The files, as the job names them.
        files: The files in order.
        spans: Their spans, in the order of the samples.
        piece_bytes: Bytes of a file that are converted at once.
        key: Name of the cache.
        is_there: The cache exists.
    """

    source: str
    files: tuple[File, ...]
    spans: tuple[Span, ...]
    piece_bytes: int
    key: str
    is_there: bool = False


def draft(
    source: str, files: Sequence[File], options: ReadOptions, memory: int, cache: Path
) -> Draft:
    """Return the plan of a conversion. Reads the beginning of each file; not collective.

    Args:
        source: The files, as the job names them.
        files: The files.
        options: Options of the readers.
        memory: Bytes that a worker may use for samples.
        cache: Folder of caches.

    Raises:
        DataError: A file is malformed.
        OSError: It cannot be read.
    """
    piece_bytes = min(max(memory // 16, _LEAST_PIECE), _MOST_PIECE)
    spans = [
        span
        for place, file in enumerate(files)
        for span in _spans(place, file, options, piece_bytes)
    ]
    places = [
        _identity(path)
        for file in files
        for path in (file.path, *(label_files(file.path, options) if file.format == "npy" else ()))
    ]
    asked = msgspec.json.encode([VERSION, source, list(files), places, options, piece_bytes])
    key = blake2b(asked, digest_size=8).hexdigest()
    there = read_index(cache / key) is not None
    return Draft(source, tuple(files), tuple(spans), piece_bytes, key, there)


class Conversion:
    """The part of one worker in a conversion.

    Attributes:
        bad: Bad lines that were left out, by the place of the file.
    """

    def __init__(self, plan: Draft, options: ReadOptions, worker: int, n_workers: int) -> None:
        """Take a part in a plan.

        Args:
            plan: The plan, equal on all workers.
            options: Options of the readers.
            worker: Index of this worker.
            n_workers: Number of workers.
        """
        self._plan = plan
        self._options = options
        self.bad: dict[int, BadLines] = {}
        self._own = range(worker, len(plan.spans), n_workers)
        self._first: tuple[TableColumns | None, tuple[str, ...]] | None = None
        self._open: tuple[int, SampleSource] | None = None

    @property
    def needs_survey(self) -> bool:
        """True if quotes may matter."""
        return any(file.format in ("csv", "criteo") for file in self._plan.files)

    def survey(self) -> dict[int, tuple[bool, bool]]:
        """Return what `CsvSource.survey` returns for each of this worker's spans of CSV, by place. Blocks."""
        found = {}
        for place in self._own:
            span = self._plan.spans[place]
            source = self._source(span)
            if isinstance(source, CsvSource):
                found[place] = source.survey(span)
        return found

    def convert(
        self,
        surveys: Mapping[int, Sequence[bool]],
        folder: Path,
        note: Callable[[float], object] = lambda share: None,
    ) -> dict[int, list[CachePiece]]:
        """Convert this worker's spans; return the pieces of each by its place. Blocks.

        Args:
            surveys: The results of `survey` on all workers; {} if the survey was left out.
            folder: The cache; it exists.
            note: Called after each piece with the share of this worker's spans that is converted.

        Raises:
            DataError: A file is malformed, or has changed.
            CapabilityError: The cache cannot be written.
            OSError: A file cannot be read.
        """
        inside = _composed(self._plan.spans, surveys)
        found: dict[int, list[CachePiece]] = {}
        before, weights = 0.0, self._weights()
        for place in self._own:
            span = self._plan.spans[place]
            self._plan.files[span.file].check()
            found[place] = []
            source = self._source(span)
            for raw in source.blocks(span, inside[place]):
                if raw is None or not raw.data.n:
                    continue
                name = f"{place:06}-{len(found[place]):04}.npz"
                try:
                    piece = write_piece(folder, name, raw, self._wants)
                except OSError as error:
                    raise CapabilityError(
                        f"{folder}: cannot write the cache of the data: {error.strerror or error}; set "
                        "data.cache to a folder with more room, or raise data.memory_mib"
                    ) from None
                found[place].append(piece)
                note(before + weights[place] * source.done)
            self._plan.files[span.file].check()
            before += weights[place]
            note(min(before, 1.0))
        note(1.0)
        return found

    def _weights(self) -> dict[int, float]:
        """Return the share of each span in the bytes of this worker's spans, by its place."""
        extents = [0] * len(self._plan.files)
        for span in self._plan.spans:
            extents[span.file] += span.stop - span.start

        def n_bytes(span: Span) -> float:
            # A compressed file is one span, without an extent.
            part = (span.stop - span.start) / extents[span.file] if extents[span.file] else 1.0
            return self._plan.files[span.file].size * part

        sizes = {place: n_bytes(self._plan.spans[place]) for place in self._own}
        whole = sum(sizes.values()) or 1.0
        return {place: size / whole for place, size in sizes.items()}

    def index(
        self, pieces: Mapping[int, Sequence[CachePiece]], bad: Mapping[int, BadLines] | None = None
    ) -> Index:
        """Return the description of the cache from the pieces of all workers.

        Args:
            pieces: The pieces of each span.
            bad: Bad lines that all workers have left out, by the place of the file.

        Raises:
            DataError: There are no samples, or the pieces do not fit together, or a file is damaged.
        """
        plan = self._plan
        ordered = tuple(piece for place in sorted(pieces) for piece in pieces[place])
        owned = [(p, plan.spans[place].file) for place in sorted(pieces) for p in pieces[place]]
        filled = {plan.spans[place].file for place, found in pieces.items() if found}
        for place, file in enumerate(plan.files):
            if place not in filled:
                left_out = f"; {bad[place].text(file.path)}" if bad and place in bad else ""
                raise DataError(f"{file.path}: contains no samples{left_out}")
            check_crcs(
                file.path, self._options, [(p.crcs, p.n) for p, own in owned if own == place]
            )
        _check_labels(plan.source, ordered)
        widths = {piece.n_columns for piece in ordered}
        if len({(piece.is_dense, piece.has_fields) for piece in ordered}) > 1:
            raise DataError(
                f"{plan.source}: some of its files have rows or columns, others lists of features; use one "
                "format"
            )
        if len(widths) > 1:
            raise DataError(
                f"{plan.source}: its files have different numbers of features: {sorted(widths)}; use files "
                "with the same columns"
            )
        columns = self._columns()
        base = self._base(ordered)
        is_dense = ordered[0].is_dense
        n_features = max(max(piece.max_index for piece in ordered) + 1 - base, 0)
        if is_dense:
            n_features = widths.pop()
        elif columns is not None:
            n_features = 1 << KEY_BITS
        label = columns.label if columns is not None else None
        return Index(
            version=VERSION,
            source=plan.source,
            kind="dense" if is_dense else "sparse",
            wants=self._wants,
            index_base=base,
            of_array=self._of_array,
            n_features=n_features,
            columns=tuple(c.name for c in columns.features) if columns is not None else (),
            label_column=label.name if label is not None else "",
            categorical=tuple(c.name for c in columns.features if c.categorical)
            if columns is not None
            else (),
            words=self._options.words if columns is not None else TEXTS,
            notes=self._notes(bad or {}),
            n_skipped=sum(lines.n for lines in (bad or {}).values()),
            pieces=ordered,
        )

    def _notes(self, bad: Mapping[int, BadLines]) -> tuple[str, ...]:
        """Return sentences for the user."""
        paths = [file.path for file in self._plan.files]
        several = f"{self._plan.source}: {len(paths)} files, {paths[0]} to {paths[-1]}"
        notes = (several,) if len(paths) > 1 else ()
        skipped = (bad[place].text(paths[place]) for place in sorted(bad) if bad[place].n)
        self._columns()
        return (*notes, *(self._first[1] if self._first is not None else ()), *skipped)

    @property
    def _wants(self) -> Any:
        return self._options.wants if self._options.labelled else "targets"

    @property
    def _of_array(self) -> bool:
        """True if the first file is LIBSVM text with the columns of an array."""
        first = self._plan.files[0]
        return first.format == "libsvm" and is_of_array(first.path)

    def _base(self, pieces: Sequence[CachePiece]) -> int:
        """Return the number of the first feature of LIBSVM text."""
        if self._plan.files[0].format != "libsvm":
            return 0
        if self._of_array:
            return 0
        if self._options.index_base != "auto":
            return int(self._options.index_base)
        return 0 if any(piece.min_index == 0 for piece in pieces) else 1

    def _columns(self) -> TableColumns | None:
        """Return the columns, which the first file decides about."""
        if self._first is None:
            source = self._made(0, self._options)
            self._first = source.columns, source.notes
        return self._first[0]

    def _source(self, span: Span) -> SampleSource:
        """Return the source of a span; that of the last file is kept."""
        if self._open is None or self._open[0] != span.file:
            options = self._options
            columns = self._columns() if span.file else None
            if columns is not None:
                options = _like_first(options, columns)
            self._open = span.file, self._made(span.file, options)
        return self._open[1]

    def _made(self, place: int, options: ReadOptions) -> SampleSource:
        file, piece_bytes = self._plan.files[place], self._plan.piece_bytes
        skips = options.on_bad == "skip" and file.format in TEXT_FORMATS
        bad = self.bad.setdefault(place, BadLines()) if skips else None
        size = BlockSize.of_bytes(piece_bytes)
        return READERS[file.format].source(file.path, options, size, bad)


def _like_first(options: ReadOptions, columns: TableColumns) -> ReadOptions:
    """Return the options for files behind the first one: the same columns."""
    return msgspec.structs.replace(
        options,
        label=columns.label.name if columns.label is not None else options.label,
        columns=tuple(column.name for column in columns.features),
        categorical=tuple(exactly(c.name) for c in columns.features if c.categorical),
        finds_text=False,
    )


def _identity(path: str) -> tuple[str, int, int]:
    """Return what distinguishes a file from another one of the same name, size and time of change.

    Only worker 0 looks at it, since inodes may differ between nodes.
    """
    found = os.stat(path)
    return os.path.realpath(path), found.st_ino, found.st_ctime_ns


def _spans(place: int, file: File, options: ReadOptions, piece_bytes: int) -> list[Span]:
    """Return the spans of a file."""
    ends = READERS[file.format].source(file.path, options, BlockSize.of_bytes(piece_bytes)).ends()
    n = len(ends) - 1
    return [Span(place, ends[i], ends[i + 1], i == n - 1) for i in range(n)]


def _composed(
    spans: Sequence[Span], surveys: Mapping[int, Sequence[bool]]
) -> list[tuple[bool, bool]]:
    """Return for each span whether its beginning and its end are within quotes."""
    found = []
    inside = False
    for place, span in enumerate(spans):
        before = inside if place and spans[place - 1].file == span.file else False
        inside = bool(surveys[place][before]) if place in surveys else False
        found.append((before, inside))
    return found


def _check_labels(source: str, pieces: Sequence[CachePiece]) -> None:
    """Raise DataError if there are too many labels, or some are text and others numbers."""
    names = {name for piece in pieces for name in piece.label_names}
    check_class_count(max(len(names), len({x for p in pieces for x in p.labels})), source)
    text = next((piece for piece in pieces if piece.label_names), None)
    if text is not None and any(piece.labels and not piece.label_names for piece in pieces):
        raise DataError(
            f"{source}: some labels are numbers, others text ('{text.label_names[0]}'): labels are finite "
            "numbers, or all of them are text; set data.label to their column"
        )
