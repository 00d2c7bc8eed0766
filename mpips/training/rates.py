"""Learning rates that change in the course of a run: the schedules of [schedule].

A schedule is a factor on the rate of every table's optimizer, a function of the share of the run that is
done. It is evaluated at 1000 points of the run at most, so that a long run sends few changes. A change is a
record in the rings, before the pushes of its clock (`Handle.set_optimizer`): under BSP the updates of a clock
have the rate of that clock, and a run that is killed and goes on has the bits of an undisturbed one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from mpips.config.sections import ScheduleConfig
from mpips.errors import ConfigError
from mpips.model.optimizer import FTRL
from mpips.model.table import Table
from mpips.session.library_progress import MOST_RATES
from mpips.worker.worker import Worker

POINTS = 1000  # points of a run at which a continuous schedule is evaluated


def factor(schedule: ScheduleConfig, epoch: int, share: float) -> float:
    """Return the factor on all rates.

    Args:
        schedule: The schedule.
        epoch: Epochs that are done.
        share: Share of the whole run that is done, from 0 to below 1.

    Returns:
        A number from above 0 to 1.

    The cosine is that of Loshchilov and Hutter, "SGDR", ICLR 2017, without restarts. one_cycle is the rate of
    Smith and Topin, "Super-Convergence", 2018: a linear rise over `warmup`, a linear fall to `end`.
    """
    if share < schedule.warmup:
        # The first point has a rate, too.
        return (share + 1 / POINTS) / (schedule.warmup + 1 / POINTS)
    rest = (share - schedule.warmup) / (1 - schedule.warmup)
    if schedule.name == "step":
        return float(schedule.factor ** (epoch // schedule.every))
    if schedule.name == "cosine":
        return schedule.end + (1 - schedule.end) * (1 + math.cos(math.pi * rest)) / 2
    if schedule.name in ("linear", "one_cycle"):
        return schedule.end + (1 - schedule.end) * (1 - rest)
    return 1.0


class Rates:
    """The learning rates of a job's tables on one worker. Not thread-safe."""

    def __init__(self, schedule: ScheduleConfig, tables: Sequence[Table], n_epochs: int) -> None:
        """Check that all tables can have the schedule.

        Args:
            schedule: The schedule; "constant" without warm-up changes nothing.
            tables: Tables of the job, with the rates that the factor multiplies.
            n_epochs: Epochs of the whole run.

        Raises:
            ConfigError: A table's optimizer has no rate that can change.
        """
        self._schedule = schedule
        self._n_epochs = n_epochs
        self._tables = list(tables) if schedule.changes else []
        declared = (getattr(table.optimizer, "lr", None) for table in tables)
        self._declared = [float(rate) for rate in declared if isinstance(rate, int | float)]
        self._last: float | None = None
        for table in self._tables:
            rule = table.optimizer
            if isinstance(rule, FTRL) or not hasattr(rule, "lr"):
                why = (
                    "whose weights follow from its rate"
                    if isinstance(rule, FTRL)
                    else "which has no rate"
                )
                raise ConfigError(
                    f"schedule.name = '{schedule.name}': table '{table.name}' has the optimizer {rule.name}, "
                    f"{why}; choose another one (table.optimizer=adagrad), or remove the schedule"
                )

    def current(self, task: object) -> list[float]:
        """Return the learning rates of the newest step, for reports.

        Args:
            task: The task; its `current_rate`, if it has one, is the rate that it applies itself.

        Returns:
            One rate if all are equal, else that of each table that has one; empty: none is known.
        """
        own = getattr(task, "current_rate", None)
        if own is not None:
            return [float(own)]
        scale = 1.0 if self._last is None else self._last
        rates = [rate * scale for rate in self._declared][:MOST_RATES]
        return rates[:1] if len(set(rates)) == 1 else rates

    def set(self, worker: Worker, epoch: int, step: int, steps: int) -> None:
        """Send the rates of a step to the servers, if they differ from those in force.

        Call it before the step. Not collective; returns at once unless a ring is full.

        Args:
            worker: The worker.
            epoch: Epoch of the step, from 0.
            step: Number of the step in the epoch, from 0.
            steps: Steps of that epoch, equal on all workers.
        """
        if not self._tables:
            return
        done = (epoch + step / max(steps, 1)) / max(self._n_epochs, 1)
        share = min(math.floor(done * POINTS) / POINTS, 1 - 1 / POINTS)
        found = factor(self._schedule, epoch, share)
        if found == self._last:
            return
        self._last = found
        for table in self._tables:
            rule: Any = table.optimizer
            changed = dataclasses.replace(rule, lr=rule.lr * found)
            worker.table(table.name).set_optimizer(changed)
