"""Stages of a model that is divided between workers, and the tables that belong to them.

A job whose tables have stages 0 to N - 1 has N stages. Worker w computes stage w % N; workers with the same
w // N are a pipeline, which has all stages. Only the workers of its stage push to a table and pull from it; a
table without a stage has all workers. The clock is one for all workers.

- BSP: a clock closes for all tables at once, when all workers have ended it. The mean is over the workers of
  the stage, and a push waits for those of them with lower indices.
- SSP, ASP: the bound, and the age of values, count the clocks of the workers of the stage.

A job of one worker has one stage: this worker computes the whole model, whatever the stages of its tables.

If the number of servers is a multiple of N, dense tables of stage s lie on servers k with k % N == s. With
a server and a worker on each node these are the nodes of the stage's workers (mpips.mpi.roles), so with one
pipeline no gradient and no parameter travels between nodes, and with p pipelines the p-th part of them stays.
No network link carries more than with all servers: a server receives what one worker sends. The numbers alone
decide, not the nodes, since a restart may find other nodes and must find the same parts.

A stage is a property of a job, not of the values: checkpoints do not contain it, so they restore with any
number of stages. The memory of a run does: its checksum has all options of tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpips.errors import ConfigError
from mpips.model.local_sgd import Local

if TYPE_CHECKING:
    from mpips.model.table import Table


def n_stages(tables: Sequence[Table]) -> int:
    """Return the number of stages of a job with these tables; 1: it is not divided."""
    return 1 + max((table.stage for table in tables if table.stage is not None), default=0)


def has_stages(tables: Sequence[Table]) -> bool:
    """Return True if a table belongs to a stage."""
    return any(table.stage is not None for table in tables)


def check_stages(tables: Sequence[Table]) -> None:
    """Raise ConfigError for tables that one job cannot have together with tables of stages."""
    if not has_stages(tables):
        return
    local = next((table for table in tables if isinstance(table.consistency, Local)), None)
    if local is not None:
        raise ConfigError(
            f"table {local.name!r} is under {type(local.consistency).__name__} in a job whose tables have "
            "stages: use BSP(), SSP() or ASP()"
        )
    there = {table.stage for table in tables}
    n = n_stages(tables)
    missing = next((stage for stage in range(n) if stage not in there), None)
    if missing is not None:
        raise ConfigError(
            f"no table has stage {missing}, although the tables have stages up to {n - 1}: number the "
            "stages from 0, and give each one table or more"
        )


def for_workers(tables: Sequence[Table], n_workers: int) -> list[Table]:
    """Return the tables of a job with so many workers: with one worker they have no stages.

    Raises:
        ConfigError: The number of workers is not a multiple of the number of stages.
    """
    n = n_stages(tables)
    if n_workers == 1:
        return [dataclasses.replace(t, stage=None) if t.stage is not None else t for t in tables]
    if n_workers % n:
        raise ConfigError(
            f"{n_workers} workers: the tables have stages 0 to {n - 1}, so the number of workers must be a "
            f"multiple of {n}, or 1 for a worker that computes all stages"
        )
    return list(tables)


def takes_part(table: Table, worker: int, n: int) -> bool:
    """Return True if a worker pushes to a table and pulls from it, in a job of `n` stages."""
    return table.stage is None or worker % n == table.stage


def servers_of(stage: int | None, n: int, n_servers: int) -> range:
    """Return the servers of the dense tables of a stage, in a job of `n` stages; see above.

    Args:
        stage: The stage; None for tables of all workers.
        n: Number of stages.
        n_servers: Number of servers.
    """
    if stage is None or n_servers % n:
        return range(n_servers)
    return range(stage, n_servers, n)


def not_of_stage(table: Table, worker: int, n: int) -> ConfigError:
    """Return the error of a worker that uses a table of another stage."""
    return ConfigError(
        f"table {table.name!r} belongs to stage {table.stage} of the model, and worker {worker} computes "
        f"stage {worker % n} of {n}: only the workers of its stage push to a table and pull from it"
    )


def clock_tables(tables: Sequence[Table]) -> tuple[int, ...]:
    """Return the indices of tables whose workers are together all workers of the job: one table if possible.

    The lowest clock that servers publish with a table is that of its workers.
    """
    common = next((i for i, table in enumerate(tables) if table.stage is None), None)
    if common is not None:
        return (common,)
    return tuple({table.stage: i for i, table in enumerate(tables)}.values())
