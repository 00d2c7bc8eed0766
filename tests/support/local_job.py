"""A job of one rank, without the driver of programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpips.config.options import SessionOptions
from mpips.model.table import Table
from mpips.mpi.one_rank import OneRank
from mpips.recovery.saving import FixedPlan, Saving
from mpips.rundir.directory import Supervised
from mpips.session.job import Job
from mpips.worker.worker import Worker


def run_local(
    main: Callable[[Worker], Any],
    tables: Sequence[Table],
    options: SessionOptions,
    saving: Saving | None = None,
    run: Supervised | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Make a job of one rank and run it; returns the value of `main` and the statistics."""
    plan = FixedPlan(saving) if saving is not None else None
    return Job(OneRank(), tables, options, plan, run).run(main)
