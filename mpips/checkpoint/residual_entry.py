"""The part of a manifest that describes the files of residuals; see `mpips.checkpoint.residuals`."""

from __future__ import annotations

import msgspec


class ResidualFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file with the residuals of one worker: name, size in bytes, and XXH3-64 of its bytes."""

    name: str
    n_bytes: int
    xxh3: str


class ResidualEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The residuals of the workers' pushes; see `mpips.checkpoint.residuals`.

    Attributes:
        tables: Name and number of elements of each table that has residuals, in the order of the files.
        files: The file of each worker, by index.
    """

    tables: tuple[tuple[str, int], ...]
    files: tuple[ResidualFile, ...]
