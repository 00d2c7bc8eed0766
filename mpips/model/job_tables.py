"""The tables of one job together: what one job cannot have, and the checksum that its ranks compare."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from mpips.errors import ConfigError
from mpips.model.consistency import BSP, SSP, Switch, estimates_staleness
from mpips.model.served import check_together
from mpips.model.stages import check_stages
from mpips.model.table import EmbeddingTable, Table


def check_tables(tables: list[Table]) -> None:
    """Refuse a list of tables that one job cannot have.

    Raises:
        ConfigError: There is no table or too many, two have one name, or backup workers do not fit together.
    """
    if not tables:
        raise ConfigError("a job needs at least one table, none is given")
    if len(tables) > 65535:
        raise ConfigError(
            f"{len(tables)} tables are given: a job takes at most 65535; join small ones"
        )
    name, count = Counter(t.name for t in tables).most_common(1)[0]
    if count > 1:
        raise ConfigError(f"two tables are named {name!r}; rename one")
    check_together(tables)
    models = {
        (t.consistency.backup, t.consistency.max) for t in tables if isinstance(t.consistency, BSP)
    }
    backups = {backup for backup, _ in models}
    check_stages(tables)
    if len(backups) > 1:
        raise ConfigError(
            f"BSP tables with different numbers of backup workers {sorted(backups, key=str)}: "
            "a clock closes for all tables at once, so give all of them the same backup"
        )
    if backups - {0} and any(not isinstance(t.consistency, BSP) for t in tables):
        raise ConfigError("backup workers need every table to be BSP; set backup = 0 or use BSP")
    if len(models) > 1:
        raise ConfigError(
            f"BSP tables with different greatest numbers of backup workers {sorted(m for _, m in models)}: a "
            "clock closes for all tables at once, so give all of them the same max"
        )
    _check_switch(tables)
    for table in tables:
        if isinstance(table, EmbeddingTable) and estimates_staleness(table.consistency):
            raise ConfigError(
                f"table {table.name!r}: max_staleness = 'auto' applies only to dense tables, whose pushes "
                "have all elements; give a number"
            )
    most = {
        t.consistency.max
        for t in tables
        if isinstance(t.consistency, SSP) and t.consistency.is_adaptive
    }
    if len(most) > 1:
        raise ConfigError(
            f"tables under SSP('auto') with different greatest bounds {sorted(most)}: a job has one bound "
            "for all of them, so give all of them the same max"
        )


def switch_of(tables: Sequence[Table]) -> Switch | None:
    """Return the model of the first table under Switch; None: no table is. All have the same clock."""
    found = (t.consistency for t in tables if isinstance(t.consistency, Switch))
    return next(found, None)


def _check_switch(tables: list[Table]) -> None:
    """Raise ConfigError for tables that cannot be in one job with a table under Switch."""
    first = next((t for t in tables if isinstance(t.consistency, Switch)), None)
    if first is None:
        return
    assert isinstance(first.consistency, Switch)
    at, place = first.consistency.at, first.consistency.place
    for other in tables:
        model = other.consistency
        if isinstance(model, Switch) and model.at == at:
            continue
        has = f"Switch at {model.place}" if isinstance(model, Switch) else model.name.upper()
        raise ConfigError(
            f"table {other.name!r} is under {has} beside {first.name!r} under Switch at {place}: all "
            "tables of a job switch at one clock, so give all of them the same at"
        )


def fingerprint(tables: list[Table], extra: str) -> str:
    """Return a checksum of the tables and of `extra`, which must be equal on all ranks."""
    digest = hashlib.blake2b(extra.encode(), digest_size=16)
    for table in tables:
        for f in dataclasses.fields(table):
            value = getattr(table, f.name)
            text = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
            digest.update(f.name.encode() + b"=" + text + b";")
    return digest.hexdigest()
