"""Tables that are declared together: one value that stands for several tables of a job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from mpips.errors import ConfigError

if TYPE_CHECKING:
    from mpips.model.table import Table


class TableGroup(ABC):
    """A value that `mpips.run` takes in the place of tables."""

    @property
    @abstractmethod
    def tables(self) -> Sequence[Table]:
        """Return the tables of the job for which it stands."""


def ungrouped(given: Iterable[Table | TableGroup]) -> list[Table]:
    """Return the tables, with those of each group in its place.

    Raises:
        ConfigError: The argument is not a list, or contains something other than tables.
    """
    if not isinstance(given, Iterable) or isinstance(given, Mapping):
        raise ConfigError(f"tables is {_kind(given)}: must be a list of tables, such as [table]")
    found: list[Table] = []
    for each in given:
        if isinstance(each, TableGroup):
            found += each.tables
        elif hasattr(each, "consistency"):
            found.append(each)
        else:
            raise ConfigError(f"tables contains {_kind(each)}: must be a list of tables")
    return found


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
