"""Histories whose tables belong to stages of a model, and what the pushes of such a table are divided by.

Only the workers of its stage push to a table and pull from it. Under BSP it has the mean of their pushes: a
worker multiplies its update by the number of those that push in the clock, so the table gets whole numbers.
The model has no members: it computes that number from the programs of the workers alone.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpips import BSP, DenseTable

if TYPE_CHECKING:
    from simulation.program import Shape

# Share of the histories; the salt is chosen so that no test's seed is one of them.
SHARE, SALT = 0.08, 8
STAGES = "stages"  # name of these histories


def is_staged(seed: int, feature: str) -> bool:
    """Return True if tables of a history with this feature belong to stages."""
    found = random.Random(f"stages {SALT} {seed}").random() < SHARE
    return found and feature == ""


def with_stages(shape: Shape, draws: random.Random, keeps_sums: bool) -> Shape:
    """Return a shape whose tables belong to stages, with as many workers as these need.

    Args:
        shape: A shape without them.
        draws: Draws of this feature.
        keeps_sums: Embedding tables are under BSP("sum") already, and stay so.
    """
    n = draws.choice((1, 2, 2, min(len(shape.tables), 3)))
    n = min(n, len(shape.tables))
    n_workers = n * draws.choice((1, 2) if n == 2 else (1,) if n == 3 else (1, 2, 3))
    # Each stage has a table; others belong to a stage or to all workers.
    stages = [*range(n), *draws.choices((None, *range(n)), k=len(shape.tables) - n)]
    draws.shuffle(stages)
    tables: list[Any] = []
    for table, stage in zip(shape.tables, stages, strict=True):
        changes: dict[str, Any] = {"stage": stage}
        if isinstance(table, DenseTable):
            changes |= {"compression": None, "placement": "servers"}
        if isinstance(table.consistency, BSP) and (isinstance(table, DenseTable) or not keeps_sums):
            changes["consistency"] = BSP("mean" if stage is not None else "sum")
        tables.append(replace(table, **changes))
    most = max(shape.clocks)
    uneven = draws.random() < 0.3
    clocks = tuple(draws.randrange(1, most + 1) if uneven else most for _ in range(n_workers))
    return shape._replace(tables=tuple(tables), n_workers=n_workers, clocks=clocks, topology="flat")


def takes_part(shape: Shape, table: int, worker: int) -> bool:
    """Return whether a worker pushes to a table and pulls from it."""
    stage = shape.tables[table].stage
    if stage is None:
        return True
    n = 1 + max(t.stage for t in shape.tables if t.stage is not None)
    return shape.n_workers == 1 or worker in range(stage, shape.n_workers, n)


def n_pushing(shape: Shape, table: int, clock: int) -> int:
    """Return by what the sum of a clock's pushes to a table is divided."""
    spec = shape.tables[table]
    if not isinstance(spec.consistency, BSP) or spec.consistency.reduce == "sum":
        return 1
    return sum(
        takes_part(shape, table, w) and clock < shape.clocks[w] for w in range(shape.n_workers)
    )
