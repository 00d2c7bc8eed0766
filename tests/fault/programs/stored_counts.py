"""The counting task, whose rows lie in files but for a few of each server."""

from __future__ import annotations

from dataclasses import replace

from mpips import EmbeddingTable, Storage
from mpips.model import storage
from mpips.testing import counted

storage.LEAST_ROWS = 8


class Options(counted.Counting, frozen=True, forbid_unknown_fields=True):
    """`folder`: folder of the files; "": rows lie in memory."""

    folder: str = ""


class Stored(counted.Counted):
    name = "stored"
    Options = Options

    def __init__(self, info, options, seed):
        super().__init__(info, options, seed)
        self.folder = options.folder

    def tables(self):
        return [self.with_storage(table) for table in super().tables()]

    def with_storage(self, table):
        if not self.folder or not isinstance(table, EmbeddingTable):
            return table
        return replace(table, storage=Storage(self.folder, 32 * table.row_bytes / 2**20))
