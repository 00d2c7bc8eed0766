"""Why a worker could not write a file of a checkpoint, with its kind, as records and manifests carry it."""

from __future__ import annotations

import errno
import os

import msgspec

from mpips.errors import CheckpointError, DiskFullError

FULL = (errno.ENOSPC, errno.EDQUOT)  # of a full disk or quota


class FileError(msgspec.Struct, frozen=True):
    """A failure to write a file.

    Attributes:
        text: Message of the system, with the file.
        is_full: The disk or the quota was full.
    """

    text: str
    is_full: bool = False

    @classmethod
    def of(cls, error: OSError) -> FileError:
        """Return the failure that the system has reported."""
        text = os.strerror(error.errno) if error.errno else str(error)
        where = f" ({error.filename})" if error.filename else ""
        return cls(text + where, error.errno in FULL)

    def raised(self, sentence: str) -> CheckpointError:
        """Return the error of a checkpoint that lacks the file, of this failure's kind."""
        return DiskFullError(sentence) if self.is_full else CheckpointError(sentence)
