"""The start of a worker's connection, and the interfaces of handles and of their pulls that it uses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from mpips.checkpoint.position import Position
from mpips.model.consistency import BSP, SSP, Switch
from mpips.model.grouping import Groups
from mpips.model.table import Table
from mpips.recovery.replica import Partners

NO_PARTNERS = Partners()


def needs_common_clock(tables: Sequence[Table], groups: Groups = ()) -> bool:
    """Return whether workers wait for each other's clocks; then a cut is at the same clock for all.

    In a group one worker pushes for others. A cut at a later clock of that worker than theirs would contain
    updates that they repeat, and a cut at an earlier one would lack updates that they do not.
    """
    return bool(groups) or any(isinstance(t.consistency, BSP | SSP | Switch) for t in tables)


class ConnectionOptions(msgspec.Struct, frozen=True):
    """Start of a worker and its duties beside its program.

    Attributes:
        position: State to start from, with random stream and cursor; None: a new one.
        ask_every: The worker requests a checkpoint at each multiple of this many steps of the run; 0: never.
        first_clock: Clock of the servers at which the worker continues.
        writes_position: The worker writes its position to the servers before each clock ends, so that a later
            launch can continue there; see `mpips.recovery.memory`.
        partners: Replicas of the servers; see `mpips.recovery.replica`.
        first_step: Number of clocks that the worker's program has ended at `first_clock`.
        groups: All groups of workers of the job, for errors.
        behind: Servers that lack the tick of the clock before `first_clock`, after a restart in memory.
        folder: Folder of checkpoints; None: the job saves nothing.
    """

    position: Position | None = None
    ask_every: int = 0
    first_clock: int = 0
    writes_position: bool = False
    partners: Partners = NO_PARTNERS
    first_step: int = 0
    groups: Groups = ()
    behind: tuple[int, ...] = ()
    folder: Path | None = None


class Disowning(Protocol):
    """A handle, whose operations under way belong to the parent of a forked child."""

    def disown(self) -> None:
        """Give up operations under way. Called in the child."""


class AskedValues(Protocol):
    """Values that the worker has asked for in advance; see mpips.worker.by_use."""

    def finish(self) -> None:
        """Wait until all updates are sent and all values are there. Blocks; further calls do nothing."""
