"""Histories with Switch(BSP(), ASP(), at): the clock at which BSP ends, for the checker.

The checker computes it from the clock of the switch and from the number of clocks before the era alone.
Values at the clocks before it are exact; at later ones they have all updates of the clocks before it.

In half of the histories server 0 decides on the clock (plateau.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mpips import ASP, BSP, DenseTable, EmbeddingTable
from mpips.model.consistency import Switch
from simulation.adaptive import draws_of, with_adaptive
from simulation.program import Shape, with_gathers
from simulation.row_limits import is_limited

# Share of the histories; the salt is chosen so that no test's seed is one of them.
SHARE, SALT = 0.1, 6
PLATEAU_SALT = 1  # chosen so that the seeds of the tests keep the clock that they have drawn
SWITCHING = "switching"  # name of these histories


def is_switching(seed: int, feature: str) -> bool:
    """Return True if the tables of a history with this feature are under Switch."""
    found = random.Random(f"switching {SALT} {seed}").random() < SHARE
    # Tables with limits are under BSP, and all tables of a job switch together.
    return found and feature in ("", "gathers") and not is_limited(seed, feature)


def switch_of(seed: int, feature: str, clocks: int) -> Switch | None:
    """Return the model of all tables of such a history; None: it is none."""
    if not is_switching(seed, feature):
        return None
    draws = random.Random(f"switch {seed}")
    fixed = draws.randrange(1, 2 * clocks)
    drawn = random.Random(f"plateau {PLATEAU_SALT} {seed}")
    if drawn.random() >= 0.5:
        return Switch(BSP("sum"), ASP(), at=fixed)
    return Switch(BSP("sum"), ASP(), at="uneven" if drawn.random() < 0.3 else "plateau")


def with_switch(shape: Shape, model: Switch, more: random.Random, feature: str) -> Shape:
    """Return a shape whose tables are on servers, all under Switch; `feature`: of the history."""
    shape = with_gathers(shape, more) if feature == "gathers" else shape
    # Each server has a part of an embedding table; server 0 may have none of small dense ones.
    measures = shape.n_servers == 1 or any(isinstance(t, EmbeddingTable) for t in shape.tables)
    if model.at == "plateau" and not measures:
        model = replace(model, at=3)
    tables: list[Any] = []
    for table in shape.tables:
        on_servers: dict[str, Any] = {"compression": None, "placement": "servers"}
        changes = on_servers if isinstance(table, DenseTable) else {}
        tables.append(replace(table, consistency=model, **changes))
    return shape._replace(tables=tuple(tables), has_partners=False, topology="flat")


def change_of_models(
    seed: int, feature: str, clocks: int
) -> Callable[[Shape, random.Random], Shape] | None:
    """Return the change of the models of a history's tables, with draws of its features; None: none."""
    switch, draws = switch_of(seed, feature, clocks), draws_of(seed, feature)
    if switch is not None:
        return lambda shape, more: with_switch(shape, switch, more, feature)
    return None if draws is None else lambda shape, more: with_adaptive(shape, draws)
