"""Make a link of a chain whole while its run goes on: in a process of its own, beside server 0.

The process, `python -m mpips.checkpoint.folding LINK`, runs at the lowest priority. It needs no lock: it
reads the files of the chain, and writes two new ones into the folder of the link, whose names no reader uses.

    .folded-state       the file of whole tables; verified and durable before the next one is written
    .folded-manifest    the manifest that names it as state.h5

`adopt` then puts them in the place of the link's own, under the lock of the folder, by renames: the state
first, the manifest second. Finally the link's file is removed. Until the second rename the folder has the
link, and from then on the whole checkpoint, with `replaces` for the links that follow it. A kill at any point
leaves one of the two, and perhaps files that no manifest names. The first checkpoint of the next launch
removes them. The older checkpoints of the chain remain until `retain` finds them unneeded.

The process ends when its standard input is closed, which is at the latest when the server ends. Signals to
the job's ranks do not concern it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from mpips import _native
from mpips.checkpoint.compact import FOLDED, FOLDED_MANIFEST, fold, remove_unnamed
from mpips.checkpoint.folder import locked, sync_folder
from mpips.checkpoint.manifest import CHANGES, MANIFEST, STATE, LinkRef, decode, hexsum
from mpips.checkpoint.plan import ChainEnd
from mpips.checkpoint.reader import open_checkpoint, open_data
from mpips.checkpoint.record import write_manifest
from mpips.errors import CheckpointError, MpipsError

_END_S = 60.0  # s, most time for the end of a killed process
# mpirun sends signals to the process group of each rank, among them SIGUSR1, which requests a checkpoint. A
# group in the same session keeps the low priority, where the scheduler divides time among sessions first.
_APART: dict[str, Any] = (
    {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
)


def write_folded(path: Path) -> None:
    """Write and verify the whole tables of a link beside its own files. Local, blocking; memory: one block.

    After an error the files are gone: they may be what fills the disk.

    Raises:
        ConfigError: The checkpoint is whole already.
        CapabilityError: h5py is missing.
        CheckpointError: The chain is damaged.
        OSError: A file cannot be written.
    """
    discard(path)
    try:
        _write_beside(path)
    except BaseException:
        discard(path)
        raise


def _write_beside(path: Path) -> None:
    with open_checkpoint(path) as checkpoint:
        manifest = fold(checkpoint, path, FOLDED)
    _native.fault_point("synced")
    # Compare all checksums with what the disk has.
    beside = replace(manifest, file=replace(manifest.file, name=FOLDED))
    with open_data(path, beside) as made:
        damage = made.damage()
    if damage:
        raise CheckpointError(f"{path}: the file of whole tables is damaged: {damage[0]}")
    write_manifest(path, manifest, FOLDED_MANIFEST)
    sync_folder(path)


def adopt(path: Path) -> LinkRef:
    """Replace a link by what `write_folded` has written. Local, blocking; takes the folder's lock.

    Returns:
        The whole checkpoint.

    Raises:
        CheckpointError: The link has been replaced or removed meanwhile, or another process has the lock.
        OSError: A file cannot be renamed.
    """
    with locked(path.parent):
        with open_checkpoint(path) as checkpoint:
            replaced = checkpoint.manifest_xxh3
        data = (path / FOLDED_MANIFEST).read_bytes()
        manifest = decode(data, path / FOLDED_MANIFEST)
        if manifest.replaces != replaced:
            raise CheckpointError(f"{path}: has been replaced by another checkpoint meanwhile")
        os.rename(path / FOLDED, path / STATE)
        sync_folder(path)
        _native.fault_point("named")
        os.rename(path / FOLDED_MANIFEST, path / MANIFEST)
        sync_folder(path)
        _native.fault_point("named")
        with suppress(FileNotFoundError):
            os.unlink(path / CHANGES)
    return LinkRef(path.name, manifest.step, hexsum(data))


def discard(path: Path) -> None:
    """Remove what a process that did not finish has left in the folder of a link."""
    for name in (FOLDED, FOLDED_MANIFEST):
        with suppress(OSError):
            os.unlink(path / name)


def discard_all(folder: Path) -> None:
    """Remove what killed launches have left in the links of a folder. No process makes one of them whole."""
    for path in {left.parent for left in folder.glob("step-*/.folded-*")}:
        try:
            with locked(folder):
                remove_unnamed(path)
        except (MpipsError, OSError):
            # The link is damaged, or another process has the lock.
            discard(path)


class ChainFolding:
    """The compaction of a run's chains, on server 0. Not thread-safe: one call at a time.

    Attributes:
        failure: Why the last compaction failed; "": it did not.
    """

    def __init__(self, folder: Path, links: int) -> None:
        """Start nothing yet.

        Args:
            folder: The run's folder of checkpoints.
            links: Number of checkpoints of a chain, its base included, from which on it is folded.
        """
        self.failure = ""
        self._folder, self._links = folder, links
        self._process: subprocess.Popen[bytes] | None = None
        self._end: ChainEnd | None = None  # the link that the process makes whole
        # The link that was made whole last, and what it is now.
        self._whole: tuple[ChainEnd, LinkRef] | None = None

    def written(self, place: ChainEnd | None) -> None:
        """Note that a checkpoint was written: adopt what is complete, or begin what is due. Blocking.

        Adopting waits for a few files to be synced. Failures go to `failure`: the chain remains as it is.

        Args:
            place: Its place in its chain; None: it is not known.
        """
        if place is None or place.index == 0:
            # A new base makes the compaction of the chain before it useless.
            self.close()
            discard_all(self._folder)
            self._whole = None
            return
        if self._process is not None and self._process.poll() is not None:
            self._adopt(self._process.returncode)
        if self._process is None and self.length(place) >= self._links:
            self._begin(place)

    def length(self, place: ChainEnd) -> int:
        """Return how many checkpoints are read for a place: those from the last whole one on."""
        return place.index + 1 - (self._whole[0].index if self._whole is not None else 0)

    def continued(self, place: ChainEnd) -> ChainEnd:
        """Return a place with the last whole checkpoint as its base. Links are numbered as before."""
        return place if self._whole is None else replace(place, base=self._whole[1])

    def close(self) -> None:
        """End the process, if there is one, and remove its files; no effect when repeated. Blocking."""
        process, end = self._process, self._end
        self._process = self._end = None
        if process is None or end is None:
            return
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_END_S)
        discard(self._folder / end.last.name)

    def _begin(self, place: ChainEnd) -> None:
        path = self._folder / place.last.name
        command = [sys.executable, "-m", "mpips.checkpoint.folding", str(path.absolute())]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                **_APART,
            )
        except OSError as error:
            self.failure = str(error)
            return
        self._end = place

    def _adopt(self, status: int) -> None:
        """Adopt what the process has written, if it has succeeded."""
        assert self._process is not None
        assert self._end is not None
        text = self._process.communicate()[1].decode(errors="replace").strip()
        end, self._process, self._end = self._end, None, None
        path = self._folder / end.last.name
        try:
            if status != 0:
                raise CheckpointError(text.splitlines()[-1] if text else f"exit status {status}")
            whole = adopt(path)
        except (MpipsError, OSError) as error:
            discard(path)
            self.failure = str(error)
            return
        self.failure = ""
        self._whole = end, whole


def _end_with_parent() -> None:
    """Exit as soon as the standard input is closed."""
    with suppress(OSError):
        while os.read(0, 1):
            pass
    os._exit(1)


def main(path: str) -> int:
    """Run the process; return its exit status."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(19)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        write_folded(Path(path))
    except (MpipsError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
