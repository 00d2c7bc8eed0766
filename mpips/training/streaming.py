"""Data that is too large for the workers' memory: all ranks agree on its conversion into a cache.

The decision to stream data depends on an estimate from the sizes of its files, the option data.memory_mib and
the number of workers, so it is made before anything is read. `mpips.data.stream.conversion` has the steps.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mpips.data import DataInfo, Dataset, ReadOptions, files_of
from mpips.data.bad_lines import BadLines
from mpips.data.holdout import Holdout, HoldoutSide
from mpips.data.readers import TEXT_FORMATS, as_in_training, check_form, reader_of
from mpips.data.shares import numbers
from mpips.data.stream import Conversion, Index, StreamedData
from mpips.data.stream.cache import INDEX, CachePiece, is_piece_whole, read_index, write_index
from mpips.data.stream.conversion import Draft, draft
from mpips.data.stream.files import File, is_streamed
from mpips.errors import CapabilityError, ConfigError, DataError
from mpips.monitor.progress import duration
from mpips.mpi.one_rank import Ranks
from mpips.training.cache_folder import CacheFolder, remove_orphans

Value = TypeVar("Value")

_FIRST_SAID_S, _SAID_EVERY_S = 2.0, 10.0  # s, between lines about a conversion
_PREFIX = "mpips-data-"  # of temporary folders
_LOCK = "lock"  # file in a temporary folder on which its owner has a lock


class Streaming(msgspec.Struct, frozen=True):
    """Where and how data is streamed.

    Attributes:
        memory: Bytes for samples in each worker.
        cache: Folder of caches; None: a temporary one, which this job removes.
        say: Called on worker 0 with the progress of a conversion, a few times a minute.
    """

    memory: int
    cache: Path | None = None
    say: Callable[[str], object] = lambda _: None


class Streamed(msgspec.Struct, frozen=True):
    """Data that is streamed.

    Attributes:
        info: Description of the whole data.
        notes: Sentences for the user.
        data: The samples of this worker; None on ranks that are not workers.
        block, window: See `mpips.data.Shape`; 0: the samples are in memory.
        n_skipped: Bad lines of the files that were left out.
        validation: The samples that are held out; None: none are.
    """

    info: DataInfo
    notes: tuple[str, ...]
    data: StreamedData | Dataset | None
    block: int
    window: int
    n_skipped: int = 0
    validation: Streamed | None = None


def stream(
    ranks: Ranks,
    n_workers: int,
    source: str,
    options: ReadOptions,
    like: DataInfo | None,
    how: Streaming,
    holdout: Holdout | None = None,
) -> Streamed | None:
    """Convert data into a cache if it is too large for the memory; None: it is not. Collective, blocking.

    Data of which samples are held out or bad lines are left out is converted in any case, so that each line
    is read by one worker. Data that fits into the memory is then read from the cache into it.

    Args:
        ranks: Ranks of the job.
        n_workers: Number of workers.
        source: The files.
        options: Options of the readers.
        like: Description of the training data, for test data.
        how: Where and how.
        holdout: Samples that are held out; None: none are.

    Raises:
        DataError, ConfigError, CapabilityError: On all ranks.
    """
    if like is not None:
        options = as_in_training(options, like)
    begun, skips = time.monotonic(), options.on_bad == "skip"

    def find() -> dict[str, Any] | None:
        if ranks.worker != 0:
            return None
        return _found(source, options, n_workers, how, holdout is not None or skips)

    row = _only(ranks.agree(f"finding the files of {source}", find, True))
    if row is None:
        return None
    plan, folder = msgspec.convert(row["plan"], Draft), Path(row["folder"])
    worker = ranks.worker
    own = Conversion(plan, options, worker, n_workers) if worker is not None else None
    if plan.is_there and (damaged := _damaged(ranks, plan, folder, n_workers)):
        plan = msgspec.structs.replace(plan, is_there=False)
        if worker == 0:
            how.say(f"{folder / damaged[0]}: is damaged; {source} is converted again")
    if not plan.is_there:
        with _locked(ranks, folder):
            _convert(ranks, own, folder, source, how)
    index = _index(ranks, own, plan, folder)
    info = index.info()
    if like is not None:
        check_form(source, info.kind, bool(info.columns), like)
    if like is not None and options.labelled and info.label_names != like.label_names:
        raise DataError(
            f"{source}: its labels are {', '.join(info.class_names[:10])}, those of the training data "
            f"{', '.join(like.class_names[:10])}; use files with the same labels"
        )
    size = sum(piece.file_bytes for piece in index.pieces)
    made = "found there" if plan.is_there else f"converted in {time.monotonic() - begun:.1f} s"
    if row["fits"]:
        note = f"{source}: read from {folder} ({_mib(size)}, {made})"
    else:
        note = (
            f"{source}: larger than data.memory_mib = {how.memory / (1 << 20):g} in each worker, so it is "
            f"read in windows from {folder} ({_mib(size)}, {made})"
        )
    notes = (*index.notes, note)
    if holdout is None:
        some = StreamedData(folder, index, worker or 0, n_workers, how.memory)
        if row["fits"]:
            return Streamed(info, notes, _in_memory(some, worker), 0, 0, index.n_skipped)
        data = some if worker is not None else None
        return Streamed(info, notes, data, some.blocks.block, some.window, index.n_skipped)

    def side(held: bool) -> Streamed:
        chosen = HoldoutSide(holdout, index.n, held)
        n = chosen.n
        if not n:
            other = f"use at most {index.n} folds" if holdout.folds else "choose another part"
            raise DataError(
                f"{source}: {holdout.option} of {index.n:,} samples leaves none for "
                f"{'validation' if held else 'training'}; {other}, or name a file in data.validation"
            )
        some = StreamedData(folder, index, worker or 0, n_workers, how.memory, side=chosen)
        own = replace(info, n_samples_total=n, n_local=n, counts=())
        if not row["fits"]:
            data = some if worker is not None else None
            return Streamed(own, () if held else notes, data, some.blocks.block, some.window)
        return Streamed(own, () if held else notes, _in_memory(some, worker), 0, 0)

    def sides() -> tuple[Streamed, Streamed]:
        return side(False), side(True)

    # Each rank needs its own samples, so they are no part of what the ranks send each other.
    found: list[tuple[Streamed, Streamed]] = []
    ranks.agree(f"dividing {source}", lambda: found.append(sides()), True)
    train, validation = found[0]
    return msgspec.structs.replace(train, n_skipped=index.n_skipped, validation=validation)


def _in_memory(data: StreamedData, worker: int | None) -> Dataset | None:
    """Read a worker's share into memory, by the rule of data in memory; None: this rank is not a worker."""
    if worker is None:
        return None
    blocks = data.blocks
    return data.in_memory(numbers(blocks.n_total, blocks.n_workers, worker, "mixed"))


def _found(
    source: str, options: ReadOptions, n_workers: int, how: Streaming, always: bool
) -> dict[str, Any] | None:
    """Return the plan of the conversion, the folder of the cache, and whether all fits in memory.

    None: all fits and is not converted `always`, or the data is in no files.
    """
    files = []
    for path in files_of(source):
        reader = reader_of(path, options)
        if not reader.in_windows:
            return None
        try:
            found = os.stat(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
        if options.on_bad == "skip" and reader.name not in TEXT_FORMATS:
            raise ConfigError(
                f"data.on_bad = 'skip': {path} is {reader.name}, which has no lines that could be left out; "
                "the option is for LIBSVM, CSV and Criteo"
            )
        files.append(File(path, found.st_size, found.st_mtime_ns, reader.name))
    fits = not is_streamed(files, options, n_workers, how.memory)
    if fits and not always:
        return None
    root = how.cache if how.cache is not None else _temporary()
    plan = draft(str(source), files, options, how.memory, root)
    for orphan in remove_orphans(root):
        how.say(f"{orphan}: removed, a killed job had left it")
    return {"plan": msgspec.to_builtins(plan), "folder": str(root / plan.key), "fits": fits}


@contextlib.contextmanager
def _locked(ranks: Ranks, folder: Path) -> Iterator[None]:
    """Let worker 0 make the folder of the cache and hold its lock in the block. Collective."""
    made: list[CacheFolder] = []

    def make() -> None:
        if ranks.worker != 0:
            return
        try:
            made.append(CacheFolder(folder))
        except OSError as error:
            raise ConfigError(
                f"{folder}: cannot make the cache of the data: {error.strerror or error}; set data.cache to "
                "a folder that can be written"
            ) from None

    ranks.agree("making the cache of the data", make, True)
    try:
        yield
    finally:
        for one in made:
            one.release()


def _damaged(ranks: Ranks, plan: Draft, folder: Path, n_workers: int) -> list[str]:
    """Let the workers read all of a cache that an earlier job has written. Collective.

    Returns:
        Names of the pieces whose content has changed since then, or "index.json".
    """

    def check() -> list[str]:
        if ranks.worker is None:
            return []
        index = read_index(folder)
        if index is None:
            # On another node the folder may not be shared; `_index` raises the error.
            return [INDEX] if ranks.worker == 0 else []
        mine = index.pieces[ranks.worker :: n_workers]
        return [piece.file for piece in mine if not is_piece_whole(folder, piece)]

    found = ranks.agree(f"checking the cache of {plan.source}", check, True)
    return sorted(name for row in found for name in row)


def _convert(
    ranks: Ranks, own: Conversion | None, folder: Path, source: str, how: Streaming
) -> None:
    """Let all workers convert their spans, and write the index. Collective."""
    surveys: dict[int, Sequence[bool]] = {}
    for row in ranks.agree(
        f"finding records in {source}",
        lambda: _pairs(own.survey()) if own is not None and own.needs_survey else [],
        True,
    ):
        surveys |= dict(row)

    def convert() -> list[Any]:
        if own is None:
            return []
        if not folder.is_dir():
            raise ConfigError(
                f"{folder}: the cache of the data, which worker 0 has made, is not there on this node; set "
                "data.cache to a folder that all nodes share"
            )
        shown = ConversionProgress(source, how.say if ranks.worker == 0 else lambda _: None)
        pieces = _pairs(own.convert(surveys, folder, shown.note))
        found: list[Any] = msgspec.to_builtins([pieces, _pairs(own.bad)])
        return found

    rows = [row for row in ranks.agree(f"converting {source}", convert, True) if row]
    pieces = {
        place: [msgspec.convert(piece, CachePiece) for piece in found]
        for row in rows
        for place, found in row[0]
    }
    bad: dict[int, BadLines] = {}
    for row in rows:
        for place, lines in row[1]:
            bad.setdefault(place, BadLines()).merge(msgspec.convert(lines, BadLines))

    def write() -> None:
        if ranks.worker == 0 and own is not None:
            try:
                write_index(folder, own.index(pieces, bad))
            except OSError as error:
                raise CapabilityError(
                    f"{folder}: cannot write the cache of the data: {error.strerror or error}"
                ) from None

    ranks.agree(f"describing {source}", write, True)


def _index(ranks: Ranks, own: Conversion | None, plan: Draft, folder: Path) -> Index:
    """Return the index of the cache, as worker 0 reads it. Collective."""

    def read() -> dict[str, Any] | None:
        if ranks.worker == 0:
            index = read_index(folder)
            if index is None:
                raise DataError(
                    f"{folder}: the cache of {plan.source} was removed or damaged while the job started; "
                    "start the job again"
                )
            found: dict[str, Any] = msgspec.to_builtins(index)
            return found
        if own is not None and read_index(folder) is None:
            raise ConfigError(
                f"{folder}: the cache of the data is not there on this node; set data.cache to a folder that "
                "all nodes share"
            )
        return None

    return msgspec.convert(_only(ranks.agree("reading the cache of the data", read, True)), Index)


def _temporary() -> Path:
    """Return a new temporary folder, removed when this process ends, or by the next job if it is killed."""
    base = Path(tempfile.gettempdir())
    for old in base.glob(f"{_PREFIX}*"):
        _remove_if_free(old)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Another job may have had the lock first, and removed the folder as one without an owner.
        if (folder / _LOCK).exists():
            atexit.register(_remove, folder, os.getpid())
            return folder
        os.close(lock)


def _remove(folder: Path, owner: int) -> None:
    """Remove a folder at the end of the process that made it, and not at that of a forked child."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_if_free(folder: Path) -> None:
    """Remove a temporary folder of an ended job of this user; the owner of one in use has its lock."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return  # of another user, or being made
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass
    finally:
        os.close(lock)


class ConversionProgress:
    """Says how far a worker has converted its part, first after two seconds, then every ten."""

    def __init__(self, source: str, say: Callable[[str], object]) -> None:
        """Begin now.

        Args:
            source: The files, for people.
            say: Called with each line.
        """
        self._source = source
        self._say = say
        self._begun = time.monotonic()
        self._next = self._begun + _FIRST_SAID_S

    def note(self, share: float) -> None:
        """Note the share of the part that is converted, 0 to 1."""
        now = time.monotonic()
        if now < self._next or not 0 < share < 1:
            return
        self._next = now + _SAID_EVERY_S
        left = duration((now - self._begun) * (1 - share) / share)
        self._say(f"converting {self._source}: {share:.0%}, {left} left")


def _only(rows: Sequence[Value | None]) -> Value | None:
    """Return the value of the one rank that has one; None: no rank has."""
    return next((row for row in rows if row is not None), None)


def _pairs(found: dict[int, Any]) -> list[Any]:
    """Return the entries of a dict with numbers as keys, which messages cannot have."""
    return [[key, value] for key, value in found.items()]


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 20):,.1f} MiB"
