"""Run a training job from its configuration: read the data, make the task, train, evaluate.

`train` is the entry point. It passes a `TrainingProgram` to `mpips.session.driver.drive`, which calls
`prepare` on all ranks and then `main` on each worker.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpips.config.options import SessionOptions
from mpips.config.schema import JobConfig
from mpips.errors import ConfigError
from mpips.model.auto_codec import decided_alone
from mpips.model.placement import place
from mpips.model.served import local_tables
from mpips.model.table import Table
from mpips.monitor.progress import ProgressMeter, make_display
from mpips.monitor.summary_text import metrics_text
from mpips.mpi import launch
from mpips.mpi.messages import Evaluated
from mpips.mpi.one_rank import OneRank, Ranks
from mpips.mpi.roles import default_servers
from mpips.recovery.replica import check_tables
from mpips.recovery.saving import Saving, SavingPlan
from mpips.rundir import directory
from mpips.rundir.directory import RunFolder
from mpips.scheduler.run_progress import RunProgress
from mpips.session.driver import JobView, Outcome, drive
from mpips.tasks.base import description_of
from mpips.terminal.elapsed import show_elapsed
from mpips.terminal.screen import say
from mpips.training.callback import EpochCallback, OnEpochEnd
from mpips.training.epochs import Inputs, is_evaluation_cheap, refuse_backup, train_epochs
from mpips.training.evaluation import evaluate
from mpips.training.final_test import evaluate_final
from mpips.training.preflight import preflight
from mpips.training.prepare import prepare, ready
from mpips.training.result import Result, history, loss_sums
from mpips.training.resume import TrainingPlan, continue_in_memory
from mpips.worker.buffers import buffers_alone
from mpips.worker.worker import Worker

if TYPE_CHECKING:
    from mpi4py import MPI

CACHE = "data"  # folder in a run directory for data that is read in windows


def train_worker(worker: Worker, inputs: Inputs, config: JobConfig) -> Result:
    """Train all epochs on one worker, with evaluations between them and at the end.

    Collective over workers; blocks.

    Args:
        worker: The worker.
        inputs: Its data and task.
        config: The job.
    """
    loader = ready(worker, inputs, config.cluster.seed)
    result = Result()
    if inputs.best is not None:
        inputs.best.begin(worker)
    start = time.monotonic()
    every = config.evaluation_interval(is_evaluation_cheap(inputs))
    last = train_epochs(worker, inputs, loader, every, result)
    # Under LocalSGD and DiLoCo the steps since the last outer step belong to the result, too.
    worker.synchronize()
    worker.flush()
    # Add up samples and losses of all workers.
    steps = worker.reduce("steps", np.array([worker.now]), "max")
    sums = worker.reduce("losses", loss_sums(result, last, inputs.n_epochs))
    assert steps is not None
    assert sums is not None
    result.seconds = time.monotonic() - start
    result.steps = inputs.steps_before + int(steps[0])
    result.n_samples, result.n_features = inputs.info.n_samples_total, inputs.info.n_features
    result.notes, result.model = inputs.notes, description_of(inputs.task)
    result.skipped = {split: n for split, n in inputs.skipped.items() if n}
    loss, n, samples = sums[-1]
    result.samples = int(samples)
    result.metrics["loss"] = float(loss / n) if n else float("nan")
    _evaluate_end(worker, inputs, result)
    if inputs.final_test is not None:
        _test(worker, inputs, result, config.cluster.seed)
    result.history = history(sums[:-1], result.evaluated)
    result.best = inputs.best.report() if inputs.best is not None else None
    # The others do not wait for worker 0, which alone has the metrics: nothing is left to decide.
    calls = worker.index == 0 and result.history and not result.is_ended_by_caller
    if inputs.callback is not None and calls:
        inputs.callback.call(dict(result.history[-1]))
    return result


def _evaluate_end(worker: Worker, inputs: Inputs, result: Result) -> None:
    """Evaluate the values at the end of the training, if there is data for it. Collective over workers."""
    if inputs.test is None:
        return
    # After an early stop the last evaluation was that of the values at the end, but for steps since the last
    # outer step. `on_epoch_end` may end training without one.
    found = result.evaluated.get(result.epochs - 1, {})
    has_moved = bool(local_tables(inputs.tables))
    is_new = result.evaluated_epoch != result.epochs - 1
    is_due = not result.stopped or has_moved or (result.is_ended_by_caller and is_new)
    if is_due:
        n, more = inputs.n_test, inputs.metrics
        evaluated = evaluate(worker, inputs.task, inputs.test, n, "final", more)
        found = evaluated or {}
        if inputs.best is not None:
            inputs.best.agree(worker, result.epochs, evaluated)
    result.metrics.update(found)
    result.evaluated_data = inputs.test_name
    if inputs.test_name == "test":
        result.test_metrics, result.test_epoch = found, result.epochs
    if found and is_due:
        result.evaluated[max(result.epochs - 1, 0)] = found
        worker.report_metrics(result.epochs, result.steps, found, inputs.test_name)


def _test(worker: Worker, inputs: Inputs, result: Result, seed: int) -> None:
    """Evaluate the test data of a job with validation data, once. Collective over workers; blocks."""
    tested = evaluate_final(worker, inputs, result.epochs, result.steps, seed)
    result.test_metrics, result.test_epoch = tested.metrics, tested.epoch
    if tested.note and worker.index == 0:
        result.notes = (*result.notes, tested.note)
        say(f"mpips: warning: {tested.note}")


def train(
    config: JobConfig,
    progress: str = "auto",
    verbose: bool = True,
    on_epoch_end: OnEpochEnd | None = None,
) -> Outcome:
    """Run a training job on the ranks of this launch. Collective over them.

    Args:
        config: The job, as of `mpips.config.schema.load_config`.
        progress: "auto", "rich", "plain" or "none"; see `mpips.monitor.progress.make_display`.
        verbose: Print roles and transports at the start.
        on_epoch_end: Called on worker 0 as the function of train.on_epoch_end is; all ranks pass one.

    Returns:
        The outcome; on workers its `value` is the `Result`, which has test metrics on worker 0 only.

    Raises:
        MpipsError: The job cannot start; on one rank or on all of them.
    """
    preflight(config)
    refuse_partner(config)
    refuse_best(config)
    run = directory.current()
    config.monitor.check(run is not None)
    cache = run.folder.path / CACHE if run is not None else None
    folder = run.folder if run is not None else None
    program = TrainingProgram(config, progress, verbose, on_epoch_end, cache, folder)
    return drive(program, run, None, launch.launched_size())


def rehearse(config: JobConfig, n_ranks: int | None = None) -> None:
    """Check what `train` checks before its first step, and write nothing. Reads the data on rank 0.

    Args:
        config: The job.
        n_ranks: Ranks of the job under `mpips run`; None: those of this launch, without `mpips run`.

    Raises:
        MpipsError: `train` would raise this error.
    """
    preflight(config, n_ranks, dry_run=True)
    config.monitor.check(n_ranks is not None or directory.current() is not None)
    if n_ranks is None:
        refuse_partner(config)
        refuse_best(config)
    if launch.launched_rank() == 0:
        size = n_ranks or launch.launched_size()
        servers = config.cluster.servers or (default_servers(size, 1) if size > 1 else 1)
        n_workers = max(1, size - 1 - servers)
        inputs = prepare(OneRank(), 1, config).for_workers(n_workers)
        TrainingPlan(config, inputs, n_workers, None, "").choose()
        if config.redundancy.partner:
            check_tables(inputs.tables)
        tables = decided_alone(inputs.tables)  # the job decides at its start
        if size == 1:
            buffers_alone(inputs.tables, tables, config.cluster).shares()
        place(tables, servers, 1, config.cluster.ring_slots, config.cluster.slot_bytes)


def refuse_partner(config: JobConfig) -> None:
    """Check that a job with replicas on other nodes has several ranks and is supervised.

    Raises:
        ConfigError: It is not. The message gives the right way to start the job.
    """
    if config.redundancy.partner and (directory.current() is None or launch.launched_size() == 1):
        raise ConfigError(
            "redundancy.partner = true needs servers on two hosts and a relaunch after a failure: start the "
            "job with `mpips run` and more ranks, or set redundancy.partner = false"
        )


def refuse_best(config: JobConfig) -> None:
    """Check that a job that keeps its best checkpoint has a folder for checkpoints.

    Raises:
        ConfigError: It has none.
    """
    if config.checkpoint.keep_best and not config.checkpoint.folder:
        raise ConfigError(
            "checkpoint.keep_best = true needs a folder for checkpoints: set checkpoint.folder (or --save "
            "FOLDER), or start the job with `mpips run`"
        )


class TrainingProgram:
    """The job of a configuration file; see `mpips.session.driver.Program`."""

    def __init__(
        self,
        config: JobConfig,
        progress: str,
        verbose: bool,
        on_epoch_end: OnEpochEnd | None = None,
        cache: Path | None = None,
        folder: RunFolder | None = None,
    ) -> None:
        """Prepare nothing yet.

        Args:
            config: As of `train`.
            progress: As of `train`.
            verbose: As of `train`.
            on_epoch_end: As of `train`.
            cache: As of `prepare`.
            folder: The run directory; None: the job is not supervised.
        """
        self._cache = cache
        self._folder = folder
        self.options: SessionOptions = config.cluster
        self.monitor = config.monitor
        self.warm = config.redundancy.warm
        self.has_partners = config.redundancy.partner
        self._config = config
        self._progress = progress
        self._verbose = verbose
        self._callback = EpochCallback.of(config.train, on_epoch_end)
        self._notes: tuple[str, ...] = ()
        self._meter: ProgressMeter | None = None

    def prepare(
        self, ranks: Ranks, n_workers: int, run_id: str, comm: MPI.Intracomm | None
    ) -> SavingPlan:
        """Read the data and make the task."""
        tell = say if self._verbose else lambda line: None
        speaks = self._verbose and (comm is None or comm.rank == 0)
        with show_elapsed("mpips: reading the data", say if speaks else None):
            path = self._folder.path if self._folder is not None else None
            self._inputs = prepare(ranks, n_workers, self._config, self._cache, tell, path)
        self._inputs.verbose = self._verbose
        self._inputs.callback = self._callback
        if self._inputs.final_test is not None:
            self._inputs.final_test.run = self._folder
        refuse_backup(self._inputs)
        return TrainingPlan(self._config, self._inputs, n_workers, comm, run_id)

    def tables(self) -> list[Table]:
        """Return the task's tables."""
        return self._inputs.tables

    def initial_values(self) -> None:
        """Return None: tables have the values of their `init`."""

    def begin(self, saving: Saving, n_workers: int) -> None:
        """Set the folder, and the place of the inputs to that of the workers if the job goes on in memory."""
        self._notes = saving.notes
        best = self._inputs.best
        if best is not None:
            assert saving.folder is not None
            best.folder, best.run_id = saving.folder, saving.run_id
        if saving.places:
            self._notes = (continue_in_memory(self._config, self._inputs, saving, n_workers),)

    def show(self, view: JobView) -> RunProgress:
        """Print notes, roles and transports; start the progress display."""
        if self._verbose:
            for line in (*self._notes, view.description):
                if line:
                    say(line)
        run_progress, table = self._inputs.run_progress(), view.rank_table
        if self._verbose:
            of = self._inputs.test_name
            table.listen(functools.partial(_say_metrics, run_progress.n_epochs, of))
        display = make_display(self._progress, run_progress.share)
        meter = self._meter = ProgressMeter(display, run_progress, table.totals)
        table.attach(meter.look, meter.close)
        return run_progress

    def report(
        self, epoch: int, step: int, samples: int, loss_sum: float, rates: Sequence[float] = ()
    ) -> None:
        """Add a worker's report to the progress display."""
        if self._meter is not None:
            self._meter.report(epoch, step, samples, loss_sum, rates)

    def main(self, worker: Worker) -> Result | None:
        """Train on this worker; return the result."""
        return train_worker(worker, self._inputs, self._config)

    def close(self) -> None:
        """End the progress display."""
        if self._meter is not None:
            self._meter.close()


def _say_metrics(n_epochs: int, of: str, found: Evaluated) -> None:
    """Print the metrics of an evaluation, except of the last ones, which the summary shows."""
    if found.of == of and found.epochs < n_epochs:
        text = metrics_text(found.metrics)
        say(f"epoch {found.epochs}/{n_epochs}: {text} ({of})")
