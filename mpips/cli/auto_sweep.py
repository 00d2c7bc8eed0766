"""The trials of `mpips sweep --auto`: what the task of a job proposes to vary, drawn at random."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mpips.config import variation
from mpips.config.schema import JobConfig
from mpips.errors import ConfigError
from mpips.mpi.one_rank import OneRank
from mpips.tasks.proposals import Proposal
from mpips.terminal.table import text_table


class AutoSweep(NamedTuple):
    """The trials of a sweep that varies options by itself.

    Attributes:
        trials: Assignments of each trial; the first one has the values of the job.
        lines: The options that vary and the reasons, for people.
    """

    trials: list[variation.Assignments]
    lines: list[str]


def propose(
    config: JobConfig, n: int, seed: int, check: Callable[[Sequence[str]], object], folds: bool
) -> AutoSweep:
    """Return the trials that the task of a job proposes. Reads the data, because proposals depend on it.

    Args:
        config: The job as it is.
        n: Number of trials.
        seed: Seed of the draws.
        check: Raises ConfigError if a job with these assignments is refused.
        folds: The trials have folds, and so validation data.

    Raises:
        ConfigError: There is no data that trials could be compared by, or nothing can vary.
        DataError: The data cannot be read.
    """
    if not (config.data.evaluates or folds):
        raise ConfigError(
            "--auto compares trials by data that they were not trained on: give --validation (a part, such "
            "as 0.1, or files), --test FILE or --folds N"
        )
    from mpips.training.prepare import prepare

    task = prepare(OneRank(), 1, config).task
    proposed: list[Proposal] = task.proposals() if hasattr(task, "proposals") else []
    rows, used = [("option", "values", "why")], []
    refused: list[str] = []
    for proposal in proposed:
        own, reason = _own(proposal), _set_by_job(proposal, config)
        try:
            check((own,))
        except ConfigError as error:
            reason = reason or str(error)
        if reason:
            refused.append(f"options.{proposal.name}: {reason}")
        else:
            used.append(proposal)
        rows.append(
            (
                f"options.{proposal.name}",
                _shown(proposal.values) if not reason else "not varied",
                reason or proposal.why,
            )
        )
    if not used:
        why = f"can vary nothing ({'; '.join(refused)})" if refused else "proposes nothing to vary"
        raise ConfigError(
            f"--auto: task '{config.task}' {why}; give --grid KEY=V1,V2 or --random KEY=LOW:HIGH"
        )
    random = [f"options.{p.name}={p.values}" for p in used]
    drawn = variation.trials((), random, n - 1, seed) if n > 1 else []
    return AutoSweep([tuple(_own(p) for p in used), *drawn], text_table(rows, indent=2))


def _own(proposal: Proposal) -> str:
    """Return the assignment of the value that the job has."""
    own = list(proposal.own) if isinstance(proposal.own, tuple) else proposal.own
    return f"options.{proposal.name}={json.dumps(own, separators=(',', ':'))}"


def _set_by_job(proposal: Proposal, config: JobConfig) -> str:
    if proposal.name not in config.options:
        return ""
    return f"the job sets it to {json.dumps(config.options[proposal.name])}"


def _shown(values: str) -> str:
    """Return a range or a list in words."""
    parts = values.split(":")
    if len(parts) == 1:
        return values.replace(",", ", ") if "[" not in values else values
    return f"{parts[0]} to {parts[1]}{', log' if len(parts) == 3 else ''}"
