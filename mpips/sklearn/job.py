"""The job of a fit.

Without `mpips.init` a fit is a job of its own, with all roles in this process and without MPI. So it is in
the processes that joblib starts for `n_jobs`.

In a script that `mpips.init` has begun all fits train in the script's job, which the first one starts. Fits
are numbered in the order in which the script calls them, equally on all workers. The cursor of a clock has
the number of the fit and the place in it. A restart runs the script from its beginning: each fit that was
complete takes its losses and values from the servers, and the one of the restart goes on at its place.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from mpips.config.options import SessionOptions
from mpips.errors import ConfigError
from mpips.model.consistency import Consistency
from mpips.mpi import launch
from mpips.mpi.one_rank import OneRank
from mpips.process import forked
from mpips.session.initial_values import InitialValues
from mpips.session.job import Job
from mpips.session.script import Script
from mpips.session.script_job import ScriptJob
from mpips.session.session import scripts
from mpips.sklearn.fit import FitArguments, Trained, TrainingPlace
from mpips.sklearn.progress import FitsProgress
from mpips.sklearn.settings import RULES
from mpips.sklearn.training import Training, losses_table, table_name, table_of
from mpips.worker.worker import Worker

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

_SEED_TAG = 0x736B6C6561726E  # "sklearn"


class ServerRows(msgspec.Struct, frozen=True):
    """The rows of a model that `partial_fit` continues, with the state of the optimizer.

    Attributes:
        base: Values at the beginning of the rows, float32.
        result: Values at the end of the newest call, float32.
        rule: Name of the rule.
        first: Number of the fit that has made the rows.
        job: The script's job that has the rows; None: they are here.
        content: The rows, if they are here: keys, values and state; see Job.content.
    """

    base: Float32
    result: Float32
    rule: str
    first: int
    job: FitJob | None
    content: tuple[Int64, Float32] | None

    def continues(self, fit: FitArguments, job: FitJob | None) -> bool:
        """Return True if a fit that begins with `fit.base` can use these rows."""
        return (
            self.job is job
            and self.rule == fit.settings.rule.name
            and np.array_equal(self.result, fit.base)
        )


class FitJob(ScriptJob):
    """All fits of a script. Make it by `fit_job`.

    Attributes:
        progress: Automatic reports of the script.
    """

    library = "mpips.sklearn"
    progress: FitsProgress
    first_use = "the first fit"

    def __init__(self, script: Script) -> None:
        """Declare nothing yet."""
        super().__init__(script)
        self.progress = FitsProgress(script)
        self._number = 0
        self._place = TrainingPlace()  # in this fit, at the end of the newest clock
        self._resumed: tuple[int, TrainingPlace] | None = None
        self._consistency: Consistency | None = None

    def next_seed(self) -> int:
        """Return a seed of the next fit, a function of the job's seed and the fit's number."""
        sequence = np.random.SeedSequence([_SEED_TAG, self.script.seed, self._number + 1])
        return int(sequence.generate_state(1)[0])

    def run(self, fit: FitArguments, rows: ServerRows | None) -> tuple[Trained, ServerRows]:
        """Train. Collective over all workers; over all ranks at the first call. Blocks.

        Args:
            fit: The arguments, equal on all workers.
            rows: Rows that the fit continues, of this job; None: it takes new ones.

        Returns:
            The result, and the rows, for the fit that continues this one.

        Raises:
            ConfigError: The workers have different arguments, the consistency is not that of the script's
                first fit, or this is not the main thread.
            ValueError: The loss is not finite.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                "fit was called in a thread of a script that mpips.init has begun: there fits train in the "
                "main thread; leave n_jobs = None"
            )
        worker = self._start(fit)
        self._number += 1
        number, first = self._number, rows.first if rows is not None else self._number
        if rows is not None:
            fit = replace(fit, base=rows.base)
        begin = self._first_place()
        training = Training(
            worker,
            fit,
            number,
            first,
            begin,
            fit.digest(),
            self._end_clock,
            self.progress.note_step,
        )
        trained = training.run()
        self.progress.end_fit(len(trained.curve.losses))
        self._report(worker, trained)
        return trained, ServerRows(
            fit.base, trained.rows, fit.settings.rule.name, first, self, None
        )

    def _start(self, fit: FitArguments) -> Worker:
        """Return the worker; start the job at the first call. Collective over all ranks then; blocks."""
        consistency = fit.settings.consistency
        if not self.has_started and self._failure is None:
            rules = {kind.name: kind(rate) for kind, rate in RULES.values()}
            for rule in {**rules, fit.settings.rule.name: fit.settings.rule}.values():
                self.script.declare(table_of(rule, consistency))
            self.script.declare(losses_table())
            self._consistency = consistency
        worker = self.start()
        if consistency != self._consistency:
            raise ConfigError(
                f"fit with consistency = {consistency}: the tables of this script have {self._consistency}, "
                "that of its first fit; use one consistency in a script"
            )
        return worker

    def position(self) -> dict[str, Any]:
        """Return the number of the newest fit and the place in it."""
        return {"fit": self._number, "place": list(self._place)}

    def resume(self, cursor: Mapping[str, Any]) -> None:
        """Take the place of the checkpoint or of the launch before."""
        self._resumed = (cursor["fit"], TrainingPlace(*cursor["place"]))

    def end(self) -> None:
        """Do nothing: a fit ends its clocks, and all workers wait for each other in it."""

    def _end_clock(self, place: TrainingPlace) -> None:
        """End a clock, behind which the fit is at a place."""
        self._place = place
        self.is_open = True
        self.settle()

    def _first_place(self) -> TrainingPlace | None:
        """Return the place at which the newest fit begins; None: it was complete before the restart."""
        if self._resumed is None or self._resumed[0] < self._number:
            return TrainingPlace()
        return None if self._resumed[0] > self._number else self._resumed[1]

    def _report(self, worker: Worker, trained: Trained) -> None:
        """Report the last loss for `mpips top` and metrics.jsonl, on worker 0."""
        if worker.index == 0:
            losses = trained.curve.losses
            worker.report_metrics(len(losses), worker.now, {"loss": losses[-1]})


def fit_job() -> FitJob | None:
    """Return the fits of this script; None: a fit is a job of its own.

    Raises:
        ConfigError: A launcher has started several ranks, and `mpips.init` has not been called.
    """
    if forked.is_helper():
        return None
    if scripts:
        return FitJob.of_script("fit")
    size = launch.launched_size()
    if size > 1:
        raise ConfigError(
            f"fit was called on one of {size} ranks that a launcher has started: call mpips.init() at the "
            "beginning of the script, so that they train together"
        )
    return None


def run_alone(fit: FitArguments, rows: ServerRows | None) -> tuple[Trained, ServerRows]:
    """Train in a job of its own, with all roles in this process. Blocks.

    Args:
        fit: The arguments.
        rows: Rows that the fit continues; None: it takes new ones.

    Returns:
        The result, and the rows, for the fit that continues this one.

    Raises:
        ValueError: The loss is not finite.
    """
    rule = fit.settings.rule
    name, initial = table_name(rule), None
    tables = [table_of(rule, fit.settings.consistency), losses_table()]
    if rows is not None:
        content = rows.content
        fit = replace(fit, base=rows.base)
        initial = InitialValues((), tables, {name: lambda: content})
    job = Job(OneRank(), tables, SessionOptions(), initial=initial)
    trained, _ = job.run(
        lambda worker: Training(
            worker, fit, 1, 0, TrainingPlace(), None, lambda _: worker.clock()
        ).run()
    )
    return trained, ServerRows(fit.base, trained.rows, rule.name, 0, None, job.content(name))
