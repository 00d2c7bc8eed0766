"""The files of one worker's image, for checkpoints: one for each cut, and one for the end.

A disk may be full just when a worker ends. The servers of a supervised run then try the last checkpoint again
(`ServerPart.save`). The worker's file must be written by the worker: it tries again until the file is there.
Nothing in the image changes after the end, so a later file has the same bytes, and the description in the
worker's position fits it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mpips.checkpoint import worker_files
from mpips.checkpoint.manifest import ImageFile
from mpips.worker.table_part import TablePart

# s between two tries; several fit between the first and the last try of servers after other failures
_PAUSE_S = 0.5


class ImageFiles:
    """The files of one worker. Not thread-safe: only the worker's thread uses it."""

    def __init__(self, folder: Path, worker: int, parts: Sequence[TablePart]) -> None:
        """Write nothing yet.

        Args:
            folder: Folder of checkpoints.
            worker: Index of the worker.
            parts: The parts that contribute to its image.
        """
        self._folder, self._worker, self._parts = folder, worker, parts
        self._digits = worker_files.new_digits()
        self._paths: list[Path] = []  # of its files that wait for a checkpoint, the newest last
        self._next: float | None = None  # monotonic s of the next try; None: nothing is missing

    def write(self, number: int, folder: str = "") -> ImageFile:
        """Write the image for the cut of this number, LAST: for the end. Blocks for parts and for files.

        A failure is not raised but described: the checkpoint lacks the file, and is not published.

        Args:
            number: Number of the cut.
            folder: Folder into which its checkpoint is written; "": that of checkpoints.
        """
        # The checkpoint of the newest file may still be written. One before has taken its file, or was given
        # up.
        for path in self._paths[:-1]:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        name = worker_files.temporary_name(self._digits, number, self._worker)
        self._paths = [*self._paths[-1:], Path(folder or self._folder) / name]
        found = self._write()
        if number == worker_files.LAST and found.error:
            self._next = time.monotonic() + _PAUSE_S
        return found

    def _write(self) -> ImageFile:
        image = {name: part for each in self._parts for name, part in each.image().items()}
        return worker_files.write_file(self._paths[-1].parent, self._paths[-1].name, image)

    def try_again(self) -> None:
        """Write the file of the end if it is missing, and the last try was long enough ago. Else cheap."""
        if self._next is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + _PAUSE_S if self._write().error else None
