"""Tables under LocalSGD and DiLoCo in a job: those that servers have, their fragments, and what fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeGuard

from mpips.errors import ConfigError
from mpips.model.consistency import ASP, BSP
from mpips.model.local_sgd import Local, OuterSteps, outer_rule, outer_steps
from mpips.model.shared_scales import with_scales

if TYPE_CHECKING:
    from mpips.model.table import DenseTable, Table


def is_local(table: Table) -> TypeGuard[DenseTable]:
    """Return True if workers hold the table themselves between outer steps."""
    return isinstance(table.consistency, Local)


def local_tables(tables: Sequence[Table]) -> dict[int, DenseTable]:
    """Return the tables under LocalSGD or DiLoCo by their index in `tables`."""
    return {i: table for i, table in enumerate(tables) if is_local(table)}


def local_of(table: DenseTable) -> Local:
    """Return the consistency of a table under LocalSGD or DiLoCo."""
    assert isinstance(table.consistency, Local)
    return table.consistency


def times_of(table: DenseTable) -> OuterSteps:
    """Return when a table under LocalSGD or DiLoCo has its outer steps."""
    return outer_steps(local_of(table))


def check_together(tables: Sequence[Table]) -> None:
    """Raise ConfigError for tables that one job cannot have together with LocalSGD or DiLoCo."""
    found = list(local_tables(tables).values())
    if not found:
        return
    first = found[0]
    for table in found:
        if times_of(table) != times_of(first):
            raise ConfigError(
                f"tables {first.name!r} and {table.name!r} have outer steps at different clocks: all tables "
                "under LocalSGD or DiLoCo must have equal steps, fragments, delay, asynchronous, bound and "
                "steps_by_speed"
            )
    if times_of(first).fragments > len(found):
        raise ConfigError(
            f"fragments = {times_of(first).fragments} with {len(found)} tables under DiLoCo: a fragment "
            "consists of whole tables; use fewer"
        )
    for other in tables:
        if not isinstance(other.consistency, Local) and other.consistency.name != "asp":
            raise ConfigError(
                f"table {other.name!r} is {other.consistency.name.upper()} beside {first.name!r} under "
                f"{type(first.consistency).__name__}: servers end a clock only at outer steps there; use "
                "ASP() for it"
            )


def fragments_of(tables: Mapping[int, DenseTable]) -> dict[int, int]:
    """Return the fragment of each table under LocalSGD or DiLoCo, by the table's index in the job.

    Fragments get about equal numbers of values: the largest table goes first, each to the fragment with the
    fewest values so far.
    """
    n = max((times_of(t).fragments for t in tables.values()), default=1)
    filled = [0] * n
    found = {}
    for i in sorted(tables, key=lambda i: (-tables[i].n_elements, i)):
        fragment = filled.index(min(filled))
        found[i] = fragment
        filled[fragment] += tables[i].n_elements
    return found


def served(tables: Sequence[Table], n_workers: int = 1) -> list[Table]:
    """Return the tables that servers have.

    In place of LocalSGD or DiLoCo a table has the outer rule, under BSP or, if it is asynchronous, under ASP.
    Tables of scales come behind all others (mpips.model.shared_scales).

    Args:
        tables: All tables of the job.
        n_workers: Number of its workers, from which outer rules may take a hyperparameter.
    """
    found = [
        dataclasses.replace(
            table,
            optimizer=outer_rule(local_of(table), n_workers),
            consistency=ASP() if times_of(table).asynchronous else BSP(),
            clip_norm=0.0,
        )
        if is_local(table)
        else table
        for table in tables
    ]
    return with_scales(found)
