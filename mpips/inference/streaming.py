"""Predict a file of any size in bounded memory, in this process or on all ranks of a launch.

The file is read in blocks (`mpips.data.file_blocks`). With P ranks, rank r predicts the blocks r, r + P, ...;
in each round rank 0 gets the predictions of P blocks and writes them in the order of the file. The blocks do
not depend on the number of ranks, so the output has the same bytes for any number. A file that the task reads
itself is predicted by rank 0 alone.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from mpips.data import Dataset, files_of
from mpips.errors import ConfigError, DataError
from mpips.inference.model import Model, load_model
from mpips.inference.stored_tables import OnMissing
from mpips.inference.writing import ColumnsOf, OwnColumns, Writer, new_file, writer_of
from mpips.mpi import launch
from mpips.mpi.rounds import Rounds
from mpips.process.terminating import terminating

T = TypeVar("T")
TIMEOUT_S = 300.0  # of a wait for a rank that neither computes nor answers


class Written(msgspec.Struct, frozen=True):
    """The result of `predict_file`, equal on all ranks.

    Attributes:
        n: Number of predictions.
        model: The checkpoint.
    """

    n: int
    model: Path


def predict_file(
    model: Path,
    data: str,
    out: Path | None,
    say: Callable[[str], None] = lambda note: None,
    timeout_s: float = TIMEOUT_S,
    best: bool = False,
    options: Mapping[str, Any] | None = None,
    on_missing: OnMissing = "initial",
) -> Written:
    """Predict the samples of a file. Collective over the ranks of a launch; blocks.

    Args:
        model: A checkpoint, a folder of checkpoints, or a run directory; rank 0 chooses the checkpoint.
        data: A path or a pattern of files, which all ranks can read.
        out: File to write, on rank 0, which appears when it is complete; None: stdout.
        say: Called with sentences for the user on rank 0.
        timeout_s: Time limit of a wait for a rank that does nothing, seconds.
        best: Take the best checkpoint of the run; see `mpips.load`.
        options: Options of the task for prediction; see `mpips.load`.
        on_missing: Values of keys without a row; see `mpips.load`.

    Raises:
        ConfigError: There is no model, or `out` cannot be written or is a file of the data.
        DataError: The data does not fit the training data.
        CheckpointError: The model is damaged.
    """
    kind = writer_of(out)
    places = () if out is None else map(os.path.realpath, files_of(data))
    if out is not None and os.path.realpath(out) in places:
        raise ConfigError(
            f"--out {out}: is a file of --data, and would be replaced by its predictions; use another name"
        )
    launch.refuse_lonely_tasks()
    comm = launch.load_mpi() if launch.launched_size() > 1 else None
    ranks = Rounds(comm, timeout_s, "mpips predict")
    with terminating():
        loaded = _load(ranks, model, best, options, on_missing)
        return _predicted(ranks, loaded, data, out, kind, say)


def _predicted(
    ranks: Rounds,
    loaded: Model,
    data: str,
    out: Path | None,
    kind: type[Writer],
    say: Callable[[str], None],
) -> Written:
    """See `predict_file`."""
    first = ranks.rank == 0
    for note in loaded.refused if first else ():
        say(note)
    if loaded.reads_itself:
        return Written(_predict_own(ranks, loaded, data, out, kind, say), loaded.path)
    own = loaded.blocks_of(data, ranks.rank, ranks.size, say if first else lambda note: None)
    counts = loaded.word_counts()
    if counts is not None:
        own = counts.counted(own)
    with contextlib.ExitStack() as opened:
        file, error = _attempt(lambda: opened.enter_context(_file(out, first)))
        if file is not None and out is not None:
            ranks.clean = Path(file.name).unlink
        ranks.meet(error, 0)
        n = _predict(ranks, loaded, own, kind, file)
        if not n:
            raise DataError(f"{data}: contains no samples")
    if counts is not None:
        found = ranks.meet(None, counts.counts)
        for other in found[1:] if first else ():
            counts.add_counts(other)
        for note in counts.notes(data) if first else ():
            say(note)
    return Written(n, loaded.path)


def _load(
    ranks: Rounds,
    path: Path,
    best: bool,
    options: Mapping[str, Any] | None,
    on_missing: OnMissing,
) -> Model:
    """Load the same checkpoint on all ranks."""
    model, error = None, None
    if ranks.rank == 0:
        with ranks.working():
            model, error = _attempt(
                lambda: load_model(path, best=best, options=options, on_missing=on_missing)
            )
    chosen = ranks.meet(error, str(model.path) if model is not None else "")[0]
    error = None
    if model is None:
        with ranks.working():
            model, error = _attempt(
                lambda: load_model(Path(chosen), options=options, on_missing=on_missing)
            )
    ranks.meet(error, 0)
    assert model is not None
    return model


def _attempt(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return the result of local work, or its error, which all ranks raise when they meet."""
    try:
        return work(), None
    except Exception as error:
        return None, error


@contextlib.contextmanager
def _file(out: Path | None, first: bool) -> Iterator[IO[bytes] | None]:
    """Open the output on rank 0 for the block; None on other ranks."""
    if not first:
        yield None
    elif out is None:
        # With PYTHONUNBUFFERED, stdout is a raw file, which may write a part of the bytes without an error.
        stdout = sys.stdout.buffer
        raw: Any = stdout if isinstance(stdout, io.RawIOBase) else None
        buffered = io.BufferedWriter(raw) if raw is not None else None
        file: IO[bytes] = buffered if buffered is not None else stdout
        try:
            yield file
            file.flush()
        except OSError as error:
            raise ConfigError(f"stdout cannot be written: {error.strerror}") from None
        finally:
            # Stdout stays open.
            if buffered is not None:
                with contextlib.suppress(OSError, ValueError):
                    buffered.detach()
    else:
        with new_file(out) as file:
            yield file


def _predict(
    ranks: Rounds,
    model: Model,
    own: Iterator[Dataset],
    kind: type[Writer],
    file: IO[bytes] | None,
) -> int:
    """Predict all blocks in rounds; return the number of samples. Collective."""
    to_columns = ColumnsOf(model)
    writer, error = _attempt(lambda: kind(to_columns, file) if file is not None else None)
    n = 0
    while True:
        block: Dataset | None = None
        encoded = b""
        with ranks.working():
            if error is None:
                block, error = _attempt(lambda: next(own, None))
            if block is not None:
                encode = functools.partial(_encoded, model, to_columns, kind, block)
                found, error = _attempt(encode)
                encoded = found or b""
        counts = ranks.meet(error, -1 if block is None else block.n)
        if max(counts) < 0:
            break
        n += sum(max(count, 0) for count in counts)
        parts = ranks.collect(encoded)
        if writer is not None:
            with ranks.working():
                _, error = _attempt(functools.partial(_add, writer, parts))
    if writer is not None and n:
        with ranks.working():
            _, error = _attempt(writer.close)
    ranks.meet(error, 0)
    return n


def _predict_own(
    ranks: Rounds,
    model: Model,
    data: str,
    out: Path | None,
    kind: type[Writer],
    say: Callable[[str], None],
) -> int:
    """Predict a file that the task reads itself, on rank 0; return the number of rows. Collective."""

    def work() -> int:
        n = 0
        with _file(out, True) as file:
            assert file is not None
            blocks = model.column_blocks(data)
            # The first block tells the columns, also if it has no rows.
            block = next(blocks)
            to_columns = OwnColumns(block)
            writer = kind(to_columns, file)
            for columns in itertools.chain([block], blocks):
                rows = to_columns.joined(columns)
                writer.add(kind.encode(to_columns, rows))
                n += len(rows)
            writer.close()
        for note in model.notes:
            say(note)
        return n

    with ranks.working():
        n, error = _attempt(work) if ranks.rank == 0 else (0, None)
    counts: list[int] = ranks.meet(error, n or 0)
    return max(counts)


def _encoded(model: Model, to_columns: ColumnsOf, kind: type[Writer], block: Dataset) -> bytes:
    """Return the predictions of a block as the writer takes them."""
    return kind.encode(to_columns, model.scores(block)) if block.n else b""


def _add(writer: Writer, parts: list[bytes]) -> None:
    """Write the predictions of all blocks of a round."""
    for part in filter(None, parts):
        writer.add(part)
