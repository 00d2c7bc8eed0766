"""Options that are refused, before a job starts, beside tables of which some rows lie in a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpips.errors import ConfigError
from mpips.model.table import EmbeddingTable, Table

if TYPE_CHECKING:
    from mpips.recovery.saving import Saving
    from mpips.rundir.directory import Supervised


def refuse_combinations(
    tables: Sequence[Table], saving: Saving, run: Supervised | None, has_partners: bool
) -> None:
    """Refuse options of a job that do not combine with storage of its tables. Equal on all ranks.

    Args:
        tables: All tables of the job.
        saving: When checkpoints are written, and where.
        run: The supervised run of which this launch is an attempt.
        has_partners: Servers have replicas on other nodes.

    Raises:
        ConfigError: Names the table, the option and the way out.
    """
    name = next(
        (t.name for t in tables if isinstance(t, EmbeddingTable) and t.storage is not None), None
    )
    if name is None:
        return
    why = ""
    if has_partners:
        why = "redundancy.partner = true: a replica lies in memory; checkpoints have all rows"
    elif saving.triggers.incremental > 1:
        why = (
            f"checkpoint.incremental = {saving.triggers.incremental}: changes of rows in files are not "
            "noted; leave it out, so that all checkpoints are whole"
        )
    elif run is not None and _changes_shape(run):
        why = (
            "run.elastic, run.max_workers and run.min_workers: rows in files do not move between servers; "
            "leave them out"
        )
    if why:
        raise ConfigError(f"table {name!r}: storage does not combine with {why}")


def _changes_shape(run: Supervised) -> bool:
    if not run.folder.config_file.exists():
        return False
    from mpips.config.schema import load_config

    config = load_config(str(run.folder.config_file), [])
    return bool(config.run.is_elastic or config.run.min_workers)
