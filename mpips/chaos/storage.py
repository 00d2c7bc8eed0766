"""Faults of storage: a full disk, and a changed bit in a checkpoint.

The file that fills a disk has no name (O_TMPFILE): the kernel frees its space when it is closed, whatever
ends this process. Only the folder that the user gives is filled, and without `--leave` only a file system of
its own, on which the machine has nothing else.

The changed bit lies in a value of the newest checkpoint, of which the run has an older one as well. Then the
memory of the run is removed and a rank is killed, so that the next attempt must start from a
checkpoint. The bit is changed back when that attempt is at work.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
from pathlib import Path

from mpips.chaos.errors import NotNowError
from mpips.chaos.faults import Injected, choose_rank, described
from mpips.chaos.mounts import why_shared
from mpips.chaos.observing import Observation
from mpips.chaos.processes import rank_process
from mpips.chaos.schedule import PlannedFault, between
from mpips.chaos.undo import FaultGuard, Undo
from mpips.checkpoint.find import order
from mpips.checkpoint.manifest import DatasetEntry
from mpips.checkpoint.reader import open_checkpoint
from mpips.errors import CheckpointError, ConfigError
from mpips.rundir.directory import FULL, STALE_S, RunFolder
from mpips.supervisor.reap import segments
from mpips.transport.region import MARK

_SHORTEST_S = 1.0  # seconds of the shortest full disk
# Seconds of the longest one: a lease that cannot be renewed for STALE_S lets the run look dead.
_LONGEST_S = 0.6 * STALE_S
_PERSISTENT = "-kept-"  # part of the names of memory that outlives an attempt
_CHUNK_BYTES = 64 << 20
_LEAST_BYTES = 4096


class DiskFiller:
    """A file without a name that takes up the free space of a file system."""

    def __init__(self, folder: Path, leave_bytes: int = 0) -> None:
        """Make the file, still empty.

        Args:
            folder: A folder of the file system.
            leave_bytes: Bytes that stay free.

        Raises:
            OSError: The file system has no files without names, or the folder cannot be written to.
        """
        self._leave_bytes = leave_bytes
        self._size = 0
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        # A file object closes once, also if a signal interrupts `close`.
        self._file = os.fdopen(fd, "r+b", buffering=0)

    def fill(self) -> None:
        """Take up the space that is free now. Errors of a full disk are expected and ignored.

        Raises:
            OSError: Another error of the file system.
        """
        chunk, fd = _CHUNK_BYTES, self._file.fileno()
        while chunk >= _LEAST_BYTES:
            if self._leave_bytes:
                state = os.fstatvfs(fd)
                chunk = min(chunk, state.f_bavail * state.f_frsize - self._leave_bytes)
                if chunk < _LEAST_BYTES:
                    return
            try:
                os.posix_fallocate(fd, self._size, chunk)
                self._size += chunk
            except OSError as error:
                if error.errno not in FULL:
                    raise
                # A part of the chunk may have been allocated.
                self._size = max(self._size, os.fstat(fd).st_size)
                chunk //= 2

    def close(self) -> None:
        """Free the space. Further calls have no effect."""
        self._file.close()


class FilledDisk:
    """A file system of the run that is full for some time."""

    name = "fill-disk"
    hits_process = False

    def __init__(self, run: RunFolder, folder: Path, leave_mib: int, longest_s: float) -> None:
        """Take the run.

        Args:
            run: The run.
            folder: The folder that the user allows to be filled.
            leave_mib: MiB that stay free; 0: none.
            longest_s: Seconds of the longest fault; more than 12 count as 12.
        """
        self._run, self._folder, self._leave_mib = run, folder, leave_mib
        self._longest_s = min(longest_s, _LONGEST_S)
        self._filler: DiskFiller | None = None

    def why_not(self, seen: Observation) -> str:
        """Return why the folder must not or cannot be filled; "" if it may be."""
        if why := why_not_fill(self._folder, self._run, self._leave_mib):
            return why
        try:
            DiskFiller(self._folder).close()
        except OSError as error:
            return (
                f"--fill-disk {self._folder}: no file without a name can be made: {error.strerror}"
            )
        return ""

    def inject(self, fault: PlannedFault, seen: Observation) -> Injected:
        """Fill the file system.

        Raises:
            NotNowError: The file system refuses it.
        """
        length_s = between(min(_SHORTEST_S, self._longest_s), self._longest_s, fault.how_long)
        try:
            self._filler = DiskFiller(self._folder, self._leave_mib << 20)
            self._filler.fill()
        except OSError as error:
            self._free()
            raise NotNowError(f"{self._folder} cannot be filled: {error.strerror}") from None
        except BaseException:
            self._free()
            raise
        left = f", {self._leave_mib} MiB left free" if self._leave_mib else ""
        return Injected(what=f"fill {self._folder} for {length_s:.1f} s{left}", length_s=length_s)

    def hold(self) -> None:
        """Take up what has become free since."""
        if self._filler is not None:
            with contextlib.suppress(OSError):
                self._filler.fill()

    def end(self) -> None:
        """Free the space."""
        self._free()

    def _free(self) -> None:
        if self._filler is not None:
            self._filler.close()
            self._filler = None


def why_not_fill(folder: Path, run: RunFolder, leave_mib: int) -> str:
    """Return why a folder must not be filled, with the way out; "" if it may be.

    Args:
        folder: The folder.
        run: The run.
        leave_mib: MiB that stay free; 0: none.
    """
    option = f"--fill-disk {folder}"
    try:
        device = folder.stat().st_dev
        of_run = {run.path.stat().st_dev, run.checkpoints.stat().st_dev}
    except OSError as error:
        return f"{option}: {error.strerror}"
    if not folder.is_dir():
        return f"{option}: is no folder"
    if device not in of_run:
        return (
            f"{option}: {run.path.name} has no file on this file system; give the folder that holds the run "
            "or its checkpoints"
        )
    if leave_mib:
        return ""
    why = why_shared(folder)
    if device in _devices_of_machine():
        why = "other programs need its file system"
    if why:
        return (
            f"{option}: is not the mount point of a file system of its own ({why}); mount one for the run "
            "(mount -t tmpfs -o size=1g tmpfs FOLDER), or give --leave MIB to leave that much of this one "
            "free"
        )
    return ""


def _devices_of_machine() -> set[int]:
    """Return the devices of file systems that other programs need."""
    found = set()
    for path in ("/", "/dev/shm", tempfile.gettempdir(), Path.home()):
        with contextlib.suppress(OSError):
            found.add(os.stat(path).st_dev)
    return found


class FlippedBit:
    """A changed bit in the newest checkpoint, which the next attempt must not start from."""

    name = "flip-bits"
    hits_process = False

    def __init__(self, run: RunFolder, folder: Path, has_partners: bool, guard: FaultGuard) -> None:
        """Take the run.

        Args:
            run: The run.
            folder: The folder of its checkpoints.
            has_partners: Servers have replicas.
            guard: Changes the bit back if this process is killed.
        """
        self._run, self._folder, self._guard = run, folder, guard
        self._has_partners = has_partners

    def why_not(self, seen: Observation) -> str:
        """Return why the run cannot be made to start from a checkpoint; "" if it can."""
        if self._has_partners:
            return (
                "--flip-bits: the run has replicas, from which it continues; test it without them"
            )
        if any(place.host != socket.gethostname() for place in seen.places):
            return (
                "--flip-bits: ranks of the run are on other hosts, and the run continues in their memory; "
                "test it on one host"
            )
        return ""

    def inject(self, fault: PlannedFault, seen: Observation) -> Injected:
        """Change a bit, check that it is detected, and make the next attempt start from a checkpoint.

        Raises:
            NotNowError: There are fewer than two good checkpoints of the run, or no rank can be killed.
        """
        path, file, entry = self._choose()
        place = choose_rank(self._run.path, fault, seen)
        offset = entry.offset + min(int(fault.how_long * entry.n_bytes), entry.n_bytes - 1)
        undo, fd = _open_byte(file, offset, int(fault.which * 8))
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, fd)
            number = self._guard.add(undo, fd)
            os.pwrite(fd, bytes([undo.after]), offset)
            where = f"byte {offset} of {path.name}/{file.name}"
            injected = Injected(
                what=f"flip a bit of {path.name}, drop the memory, kill {place.role}",
                ends_attempt=True,
                spares_memory=False,
                damaged=str(path),
                broken=_undetected(path, where),
            )
            self._drop_memory()
            killed = stack.enter_context(
                rank_process(seen.places, self._run.path, seen.generation, place.rank)
            )
            if killed is None or not killed.send(signal.SIGKILL):
                self._guard.undo(number)
                raise NotNowError(f"{described(place, place.pid)} ended before it could be killed")
        return injected

    def _choose(self) -> tuple[Path, Path, DatasetEntry]:
        """Return the newest checkpoint, its data file, and its largest dataset.

        Raises:
            NotNowError: The run has no older one beside it, or one of both belongs to another run.
        """
        try:
            ordered = order(self._folder)
            if len(ordered.readable) < 2:
                raise NotNowError("the run has no two checkpoints yet")
            path, older = (name.path for name in ordered.readable[:2])
            self._refuse_others(path, older)
            # The older one is what the run continues from: it must be good.
            _verify(older)
            with open_checkpoint(path) as checkpoint:
                manifest = checkpoint.manifest
        except (ConfigError, CheckpointError) as error:
            raise NotNowError(str(error)) from None
        entries = [entry for table in manifest.stored for entry in table.datasets if entry.n_bytes]
        if not entries:
            raise NotNowError(f"{path.name} has no values")
        return path, path / manifest.file.name, max(entries, key=lambda entry: entry.n_bytes)

    def _refuse_others(self, *paths: Path) -> None:
        """Refuse checkpoints of other runs in a folder that this run may share with them.

        A run that continued the checkpoint of another one writes the name of that run into its own, so it has
        none here that are its own for certain.

        Raises:
            NotNowError: Names the other run.
        """
        if self._folder.resolve() == self._run.checkpoints.resolve():
            return
        own = self._run.info().run_id
        for path in paths:
            with open_checkpoint(path) as checkpoint:
                run_id = checkpoint.manifest.run_id
            if run_id != own:
                raise NotNowError(
                    f"{path} belongs to the run {run_id}: only checkpoints of {own} are changed"
                )

    def _drop_memory(self) -> None:
        """Remove the names of the memory in which the next attempt would continue, the marks first."""
        own = [path for path in segments(self._run.info().token)[0] if _PERSISTENT in path.name]
        for path in sorted(own, key=lambda path: not path.name.endswith(MARK)):
            path.unlink(missing_ok=True)

    def hold(self) -> None:
        """Do nothing: the bit stays changed."""

    def end(self) -> None:
        """Change the bit back."""
        self._guard.undo_faults()


def _open_byte(file: Path, offset: int, bit: int) -> tuple[Undo, int]:
    """Open a file for the change of a bit; return how it is taken back, and the descriptor.

    Raises:
        NotNowError: It cannot be opened, or is shorter.
    """
    try:
        fd = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise NotNowError(f"{file}: {error.strerror}") from None
    byte = os.pread(fd, 1, offset)
    if not byte:
        os.close(fd)
        raise NotNowError(f"{file}: is shorter than its manifest says")
    return Undo(kind="restore", offset=offset, before=byte[0], after=byte[0] ^ (1 << bit)), fd


def _verify(path: Path) -> None:
    """Compare a whole checkpoint with its checksums.

    Raises:
        CheckpointError: It is damaged.
    """
    with open_checkpoint(path) as checkpoint:
        checkpoint.verify()


def _undetected(path: Path, where: str) -> str:
    """Return the broken promise if a checkpoint with a changed bit counts as good; else ""."""
    try:
        _verify(path)
    except CheckpointError:
        return ""
    return f"a changed bit in {where} is not detected by mpips ckpt verify"
