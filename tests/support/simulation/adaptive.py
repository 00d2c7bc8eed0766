"""Histories with SSP("auto"): random decisions on the bound, and the bound in force for the checker.

The checker computes the bound of a pull from the decisions alone: that of the newest one which is in force at
the worker's clock. It uses neither the word that server 0 publishes nor what workers have read of it.
"""

from __future__ import annotations

import bisect
import random
from dataclasses import replace
from typing import Any

from mpips import ASP, SSP, DenseTable
from mpips.model.adaptive_bound import BoundChoice
from mpips.model.consistency import BSP
from mpips.server.bound_control import BoundControl
from mpips.server.server import Server
from simulation.backups import DrawnBackups
from simulation.program import Shape, may_group
from simulation.row_limits import is_limited

# Share of the histories; the salt is chosen so that no test's seed is one of them.
SHARE, SALT = 0.12, 207
ADAPTIVE = "adaptive"  # name of these histories


def is_adaptive(seed: int, feature: str) -> bool:
    """Return True if the tables of a history with this feature are under SSP("auto")."""
    found = random.Random(f"adaptive {SALT} {seed}").random() < SHARE
    return found and feature in ("", "gathers") and not is_limited(seed, feature)


def draws_of(seed: int, feature: str) -> random.Random | None:
    """Return the draws of such a history; None: it is none."""
    return random.Random(f"bounds {seed}") if is_adaptive(seed, feature) else None


def with_adaptive(shape: Shape, draws: random.Random) -> Shape:
    """Return a shape whose tables on servers are under SSP("auto"), some under ASP."""
    most = draws.choice((1, 1, 2, 3))
    tables: list[Any] = []
    for i, table in enumerate(shape.tables):
        auto: Any = SSP("auto", max=most)
        consistency = auto if i == 0 or draws.random() < 0.7 else ASP()
        changes: dict[str, Any] = {}
        if isinstance(table, DenseTable):
            changes["placement"] = "servers"
            if isinstance(table.consistency, BSP):
                changes["compression"] = None
        tables.append(replace(table, consistency=consistency, **changes))
    topology = shape.topology if may_group(tables) else "flat"
    return shape._replace(tables=tuple(tables), topology=topology)


class Bounds:
    """The bound in force at each clock of a launch. The server's control draws its decisions."""

    def __init__(self, control: BoundControl, draws: random.Random) -> None:
        self._control, self._first = control, control.bound

        def choose() -> BoundChoice:
            return BoundChoice(draws.randrange(control.most + 1), "drawn")

        control.choose = choose  # type: ignore[method-assign]

    def poll(self) -> bool:
        """Let the server decide; return True if it has."""
        return bool(self._control.poll())

    def at(self, clock: int) -> int:
        """Return the bound at a clock."""
        decided = [(d.clock, d.bound) for d in self._control.decisions]
        i = bisect.bisect_right(decided, (clock, 1 << 30))
        return decided[i - 1][1] if i else self._first


def decisions_of(server: Server, draws: random.Random, era: Any) -> Bounds | DrawnBackups | None:
    """Return the drawn decisions of a server in a launch, for an era; None: it decides on nothing."""
    if server.backup_control is not None:
        return DrawnBackups(server, draws, era.applied.backups)
    if server.bound_control is None:
        return None
    era.bounds = Bounds(server.bound_control, draws)
    found: Bounds = era.bounds
    return found
