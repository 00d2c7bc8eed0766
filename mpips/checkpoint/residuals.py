"""The residuals of workers in a checkpoint: one file for each worker beside the HDF5 file.

    residual-00003.f32    residuals of worker 3: float32, little-endian, the flattened tensors of the tables
                          one after the other, in the order of the manifest

A worker writes its file at a cut, before its cut record, as `.residual-LAUNCH-CUT-WORKER` into the folder of
checkpoints. So when all servers have the cut records of all workers, all files are there. Server 0 links them
into the checkpoint before it writes the manifest, which contains their checksums. If one is missing, because
its worker could not write it, the checkpoint is not published. The files keep their first names until a
checkpoint with them is published, so that another try has them. Files of cuts that were given up are removed
with the next checkpoint.

A worker that has finished writes no more cuts. It wrote the file of cut LAST before its finish record, and
its residuals have not changed since, so later checkpoints contain that file. If it could not write it, it
tries again until the job ends (`Connection.poll_workers`).

Restart with another number of workers. Worker w of n takes the sum of the residuals of the workers w, w + n,
w + 2 n, ... of the checkpoint, so the sum over all workers stays. Where servers apply the mean of the
workers' updates, each sum is scaled by n / (number of workers before), so what it contributes to the mean
stays.

Groups of workers. The leader of a group pushes the sums of all of the group, so the residuals of a table that
the group sums belong to the leader. In a job with groups the leader of a group takes those of all workers of
its group, at the start its lowest worker; the others, which push nothing to the table, start with zeros. A
leader that ends before others of its group hands its residuals over to the next leader, from the clock of its
end on (mpips.worker.groups.handover). Its last file still has them. A checkpoint of a later clock has them
in the file of the next leader already, so it has zeros in place of this worker's (`ResidualCut.handed`).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.checkpoint.file_error import FileError
from mpips.checkpoint.local_files import link
from mpips.checkpoint.manifest import Manifest
from mpips.checkpoint.position import PositionPart
from mpips.checkpoint.residual_entry import ResidualEntry, ResidualFile
from mpips.errors import CheckpointError
from mpips.model.consistency import BSP
from mpips.model.grouping import Groups
from mpips.model.table import Table, feedback_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

Float32 = NDArray[np.float32]

Taking = Callable[[str, int], Sequence[int]]

_WAITING = re.compile(r"\.residual-(\d+)-(\d+)-(\d+)(?:\.new)?")
_CHUNK = 8 << 20  # bytes that are read at once
LAST = 0  # number of the cut at the end of a job


class ResidualCut(msgspec.Struct, frozen=True):
    """The files that belong to a checkpoint.

    Attributes:
        launch: Generation number of the launch; 0 without a supervisor.
        number: Number of the cut in the launch; LAST: at its end.
        n_workers: Number of workers, each of which has written a file.
        finished: Workers that had finished before the cut; their files are those of LAST.
        handed: Those of them whose residuals of the tables of `grouped` another worker has.
        grouped: Names of tables whose updates groups of workers sum.
        errors: Why workers could not write their files of LAST at first; they try again.
    """

    launch: int
    number: int
    n_workers: int
    finished: frozenset[int] = frozenset()
    handed: frozenset[int] = frozenset()
    grouped: frozenset[str] = frozenset()
    errors: dict[int, FileError] = {}

    @classmethod
    def of(
        cls,
        launch: int,
        number: int,
        parts: Sequence[PositionPart],
        finished: frozenset[int],
        groups: Groups = (),
        grouped: Collection[str] = (),
    ) -> ResidualCut:
        """Return the files of a cut from the positions of the workers at it, by worker."""
        handed = handed_over(groups, [part.clock for part in parts], finished)
        found = {w: part.no_residuals for w, part in enumerate(parts) if w in finished}
        errors = {w: error for w, error in found.items() if error is not None}
        return cls(launch, number, len(parts), finished, handed, frozenset(grouped), errors)


def handed_over(
    groups: Sequence[Sequence[int]], clocks: Sequence[int], finished: Collection[int]
) -> frozenset[int]:
    """Return the workers that have finished and whose residuals another worker of their group has.

    The worker that leads clock c takes those of the leader before it when it ends c. So those of a worker
    that has finished at clock c are another one's from the first cut on at which one of its group is beyond
    c.

    Args:
        groups: Workers of each group.
        clocks: Clock of each worker at the cut.
        finished: Workers that have finished.
    """
    return frozenset(
        worker
        for group in groups
        for worker in group
        if worker in finished and max(clocks[w] for w in group) > clocks[worker]
    )


class SavedJob(Protocol):
    """The part of ManifestHead on residuals: all tables of the job, and the cut; None: there are no files."""

    @property
    def tables(self) -> Sequence[Table]:
        """All tables of the job."""

    @property
    def residuals(self) -> ResidualCut | None:
        """The files of the checkpoint."""


def _waiting(folder: Path, launch: int, number: int, worker: int) -> Path:
    return folder / f".residual-{launch}-{number}-{worker}"


class ResidualFolder:
    """The folder of checkpoints, as one worker uses it."""

    def __init__(self, folder: Path, launch: int, worker: int) -> None:
        """Write nothing yet; `launch`: as in ResidualCut."""
        self._folder = folder
        self._launch = launch
        self._worker = worker

    def write(self, number: int, values: Mapping[str, Float32]) -> FileError | None:
        """Write the file of a cut. Blocking.

        Args:
            number: Number of the cut, or LAST.
            values: Residuals by table, in the order of the tables; flat.

        Returns:
            The failure if the file system refuses it; there is no file then.
        """
        path = _waiting(self._folder, self._launch, number, self._worker)
        new = path.with_name(f"{path.name}.new")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with new.open("wb") as file:
                for array in values.values():
                    file.write(np.ascontiguousarray(array, "<f4").data)
            os.replace(new, path)
        except OSError as error:
            # A file of an earlier launch would have other residuals.
            for left in (new, path):
                with contextlib.suppress(OSError):
                    left.unlink(missing_ok=True)
            return FileError.of(error)
        return None


def n_bytes(tables: Sequence[Table], cut: ResidualCut | None) -> int:
    """Return the bytes of all files of a checkpoint; `cut`: None, or which files there are."""
    n_workers = cut.n_workers if cut is not None else 0
    return 4 * n_workers * sum(table.n_elements for table in feedback_tables(tables).values())


def collect(folder: Path, target: Path, job: SavedJob) -> ResidualEntry | None:
    """Link the workers' files into a checkpoint, make them durable, and describe them. Blocking; on server 0.

    Args:
        folder: Folder of checkpoints.
        target: Folder of the new checkpoint.
        job: Its tables, and the cut.

    Returns:
        The entry of the manifest; None if no table has residuals.

    Raises:
        CheckpointError: The file of a worker is missing or has the wrong size.
        DiskFullError: A worker could not write its file, because the disk was full.
    """
    cut = job.residuals
    sizes = [(table.name, table.n_elements) for table in feedback_tables(job.tables).values()]
    if not sizes or cut is None:
        return None
    expected = 4 * sum(n for _, n in sizes)
    files = []
    for worker in range(cut.n_workers):
        name = _name(worker)
        number = LAST if worker in cut.finished else cut.number
        source = _waiting(folder, cut.launch, number, worker)
        try:
            if worker in cut.handed:
                _copy_without(source, target / name, sizes, cut.grouped)
            else:
                link(source, target / name)
        except FileNotFoundError:
            raise _missing(folder, worker, cut.errors.get(worker)) from None
        found, size = _sum(target / name, durable=True)
        if size != expected:
            raise CheckpointError(f"{target / name}: has {size} bytes instead of {expected}")
        files.append(ResidualFile(name=name, n_bytes=size, xxh3=found))
    return ResidualEntry(tables=tuple(sizes), files=tuple(files))


def _missing(folder: Path, worker: int, error: FileError | None) -> CheckpointError:
    if error is not None:
        return error.raised(f"worker {worker} could not write its residuals: {error.text}")
    return CheckpointError(
        f"worker {worker} has not written its residuals to {folder}; look for a full disk, or for a worker "
        "that does not see this folder"
    )


def _copy_without(
    source: Path, target: Path, sizes: Sequence[tuple[str, int]], without: Collection[str]
) -> None:
    """Copy a worker's file with zeros for the tables of `without`."""
    values, at = np.fromfile(source, "<f4"), 0
    for name, n in sizes:
        if name in without:
            values[at : at + n] = 0
        at += n
    values.tofile(target)


def remove(folder: Path, cut: ResidualCut | None) -> None:
    """Remove the first names of the files of a published checkpoint, and files that wait for none. Blocking.

    Until the last checkpoint, those that workers have written at their end stay.
    """
    if cut is not None:
        with contextlib.suppress(OSError):
            _remove(folder, cut.launch if cut.number != LAST else None)


def discard(folder: Path) -> None:
    """Remove all files that wait for a checkpoint, after the last one. Blocking; on server 0."""
    with contextlib.suppress(OSError):
        _remove(folder, None)


def _remove(folder: Path, spared: int | None) -> None:
    """Remove files that wait for a checkpoint, but not those of cut LAST of launch `spared`."""
    for path in folder.iterdir():
        match = _WAITING.fullmatch(path.name)
        if match and (int(match[1]), int(match[2])) != (spared, LAST):
            path.unlink(missing_ok=True)


def _sum(path: Path, durable: bool = False) -> tuple[str, int]:
    """Return the XXH3-64 of a file as hexadecimal digits, and its size."""
    total, size = _native.Xxh3(), 0
    with path.open("rb") as file:
        while block := file.read(_CHUNK):
            total.update(np.frombuffer(block, np.uint8))
            size += len(block)
        if durable:
            os.fsync(file.fileno())
    return f"{total.digest():016x}", size


def _file_of(path: Path, entry: ResidualEntry, worker: int) -> Path:
    """Return the file of a worker.

    Raises:
        CheckpointError: The manifest names another file.
    """
    if entry.files[worker].name != _name(worker):
        raise CheckpointError(
            f"{path}: its manifest names {entry.files[worker].name!r} for the residuals of worker {worker}, "
            f"instead of {_name(worker)}"
        )
    return path / _name(worker)


def _name(worker: int) -> str:
    return f"residual-{worker:05d}.f32"


def damage(path: Path, manifest: Manifest) -> Iterator[str]:
    """Yield a sentence for each file of residuals that does not fit to its checksum. Blocking.

    Raises:
        CheckpointError: The manifest names files elsewhere.
    """
    entry = manifest.residuals
    for worker, file in enumerate(entry.files if entry is not None else ()):
        assert entry is not None
        try:
            found = _sum(_file_of(path, entry, worker))
        except OSError as error:
            yield f"{file.name} cannot be read: {error.strerror}"
            continue
        if found != (file.xxh3, file.n_bytes):
            yield f"{file.name}, the residuals of a worker: the checksum does not match"


def read_file(path: Path, entry: ResidualEntry, worker: int) -> dict[str, Float32]:
    """Return the residuals of a worker of the checkpoint, by table; float32, flat. Blocking.

    Args:
        path: Folder of the checkpoint.
        entry: Entry of its manifest.
        worker: Index of the worker in the job that wrote it.

    Raises:
        CheckpointError: The file cannot be read.
    """
    file = _file_of(path, entry, worker)
    try:
        whole = np.fromfile(file, "<f4").astype(np.float32, copy=False)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from None
    ends = np.cumsum([n for _, n in entry.tables]).tolist()
    if len(whole) != ends[-1]:
        raise CheckpointError(f"{file}: has {len(whole)} values instead of {ends[-1]}")
    parts = np.split(whole, ends[:-1])
    return {name: part for (name, _), part in zip(entry.tables, parts, strict=True)}


def restored(
    path: Path,
    manifest: Manifest,
    tables: Sequence[Table],
    worker: int,
    n_workers: int,
    taking: Taking = lambda table, worker: [worker],
) -> dict[str, Float32]:
    """Return the residuals with which a worker starts, by table; float32, flat. Blocking.

    Args:
        path: Folder of the checkpoint.
        manifest: Its manifest.
        tables: All tables of this job.
        worker: Index of the worker in this job.
        n_workers: Number of workers in this job.
        taking: `taking(table, worker)` returns the workers whose residuals of a table the worker takes: those
            of its group, of which it is the leader, or its own.

    Raises:
        CheckpointError: A file cannot be read.
    """
    entry, sums = manifest.residuals, dict[str, Float32]()
    if entry is None:
        return sums
    before = len(entry.files)
    saved = {name for name, _ in entry.tables}
    present = [table for table in feedback_tables(tables).values() if table.name in saved]
    takes = {table.name: set(taking(table.name, worker)) for table in present}
    for other in range(before):
        names = [name for name, workers in takes.items() if other % n_workers in workers]
        values = read_file(path, entry, other) if names else {}
        for name in names:
            sums[name] = sums[name] + values[name] if name in sums else values[name]
    found = {}
    for table in present:
        if table.name not in sums:
            continue
        is_mean = isinstance(table.consistency, BSP) and table.consistency.reduce == "mean"
        scale = np.float32(n_workers / before) if is_mean else np.float32(1)
        found[table.name] = sums[table.name] * scale
    return found


def unused(manifest: Manifest, tables: Sequence[Table]) -> list[str]:
    """Return the names of the tables that have residuals in a checkpoint, and none in this job."""
    if manifest.residuals is None:
        return []
    present = {table.name for table in feedback_tables(tables).values()}
    return [name for name, _ in manifest.residuals.tables if name not in present]
