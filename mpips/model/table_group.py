"""Tables that are declared together: one value that stands for several tables of a job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpips.model.table import Table


class TableGroup(ABC):
    """A value that `mpips.run` takes in the place of tables."""

    @property
    @abstractmethod
    def tables(self) -> Sequence[Table]:
        """Return the tables of the job for which it stands."""


def ungrouped(given: Iterable[Table | TableGroup]) -> list[Table]:
    """Return the tables, with those of each group in its place."""
    found: list[Table] = []
    for each in given:
        if isinstance(each, TableGroup):
            found += each.tables
        else:
            found.append(each)
    return found
