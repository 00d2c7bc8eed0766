"""The state of a server that outlives its process: journal, marks, and the limits of a journal."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mpips.errors import ConfigError
from mpips.model.consistency import BSP
from mpips.model.placement import Placement
from mpips.model.table import Table


class Durability(msgspec.Struct, frozen=True):
    """The durability of a server's state: what outlives its process, and what it takes over.

    Attributes:
        generation: Generation number of this launch: the number of launches of this run before it.
        journal: True: a journal makes the application of updates atomic, so that a kill at any instruction
            loses none.
        warm: True: take over the shared memory that the launch before left.
        name: Begin of the names of the server's shared-memory files; "": "s" and the server's index.
    """

    generation: int = 0
    journal: bool = False
    warm: bool = False
    name: str = ""


# Elements of a shard: the journal's count of the elements that an update has reached must be smaller.
_JOURNAL_ELEMENTS = 1 << 35


_JOURNAL_TABLES = 32_766  # largest number of tables whose memory a journal can name


NEW = Durability()  # a server that takes nothing over and leaves nothing


def backup_workers(tables: Sequence[Table]) -> int:
    """Return the job's greatest number of backup workers; 0 without BSP tables. All of them have the same."""
    return max(
        (t.consistency.most_backup for t in tables if isinstance(t.consistency, BSP)), default=0
    )


def check_journal(index: int, tables: Sequence[Table], placement: Placement) -> None:
    """Raise ConfigError for tables or shards that a server's journal cannot describe.

    Args:
        index: Index of the server.
        tables: All tables of the job.
        placement: The parts of tables on each server.

    Raises:
        ConfigError: There are too many tables, or a shard is too large.
    """
    if len(tables) > _JOURNAL_TABLES:
        raise ConfigError(
            f"{len(tables)} tables: warm restart takes {_JOURNAL_TABLES} at most; use fewer tables, or set "
            "redundancy.warm = false"
        )
    for name, parts in placement.dense.items():
        for part in parts:
            if part.server == index and part.stop - part.start >= _JOURNAL_ELEMENTS:
                raise ConfigError(
                    f"table {name!r}: server {index} holds {part.stop - part.start:,} elements; with warm "
                    f"restart it must hold fewer than {_JOURNAL_ELEMENTS:,}: use more servers, or set "
                    "redundancy.warm = false"
                )
