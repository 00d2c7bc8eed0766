"""The test data of a job with validation data: it is evaluated once, with the values that the job keeps.

These are the values of the best checkpoint if the job keeps one (checkpoint.keep_best), else those at the end
of the training. Each worker evaluates its share of the samples. The values of a checkpoint are read from its
file, which servers do not notice, so the checkpoint at the end of the job has the last values as before.

The scheduler records the metrics in metrics.jsonl. An attempt that begins at the end of the training, because
the one before it failed there, takes them from this file and does not evaluate the samples again.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mpips.checkpoint import Checkpoint, open_checkpoint
from mpips.data import Dataset
from mpips.data.stream import StreamedData
from mpips.errors import CheckpointError, ConfigError
from mpips.rundir.directory import RunFolder
from mpips.rundir.series import TEST, series
from mpips.training.evaluation import evaluate
from mpips.training.mapped_tables import MappedTables
from mpips.worker.worker import Worker

if TYPE_CHECKING:
    from mpips.training.epochs import Inputs


class FinalTest(msgspec.Struct):
    """Test data that is evaluated once, when training has ended.

    Attributes:
        data: Samples of this worker; None on ranks that are not workers.
        n_total: Number of samples of all workers.
        source: The data, for people.
        run: The run directory; None: the job is not supervised.
    """

    data: Dataset | StreamedData | None
    n_total: int
    source: str
    run: RunFolder | None = None


class Tested(msgspec.Struct, frozen=True):
    """The result of the test.

    Attributes:
        metrics: Values by name on worker 0; {} on other workers.
        epoch: Number of complete epochs of the values that were evaluated.
        note: Why the test data was not evaluated; "": it was.
    """

    metrics: dict[str, float] = {}
    epoch: int = 0
    note: str = ""


def evaluate_final(worker: Worker, inputs: Inputs, epochs: int, steps: int, seed: int) -> Tested:
    """Evaluate the test data with the values that the job keeps. Collective over workers; blocks.

    Args:
        worker: The worker; all updates of the training are applied.
        inputs: Its data, task and best checkpoint; `final_test` is not None.
        epochs: Number of complete epochs.
        steps: Number of steps of the run.
        seed: Seed of the job.
    """
    test, best = inputs.final_test, inputs.best
    assert test is not None
    assert test.data is not None
    known = recorded(test.run, steps) if worker.index == 0 and test.run is not None else None
    own = msgspec.json.encode([known is not None, best.path if best is not None else ""])
    first = worker.gather("the test", own if worker.index == 0 else b"")[0]
    is_known, path = msgspec.json.decode(first)
    if is_known:
        return known or Tested()
    if best is None or best.best is None:
        found = evaluate(worker, inputs.task, test.data, test.n_total, "test", inputs.metrics)
        tested = Tested(found or {}, epochs)
    else:
        tested = _of_best(worker, inputs, test, Path(path), best.best.epoch, seed)
    if worker.index == 0 and not tested.note:
        worker.report_metrics(tested.epoch, steps, tested.metrics, TEST)
    return tested


def recorded(run: RunFolder, steps: int) -> Tested | None:
    """Return the test that an earlier attempt of a run recorded at its end; None without a record.

    Args:
        run: The run directory.
        steps: Number of steps of the run at its end.
    """
    try:
        lines = [line for line in series(run) if line["step"] == steps and TEST in line]
    except (OSError, ConfigError):
        return None
    if not lines:
        return None
    metrics = {k: math.nan if v is None else float(v) for k, v in lines[-1][TEST].items()}
    return Tested(metrics, int(lines[-1].get("epoch", 0)) + 1)


def _of_best(
    worker: Worker, inputs: Inputs, test: FinalTest, path: Path, epoch: int, seed: int
) -> Tested:
    """Evaluate the test data with the values of a checkpoint. Collective over workers; blocks."""
    checkpoint: Checkpoint | None = None
    problem = ""
    # Each worker reads a part of the file, so that together they compare all of it with its checksums.
    try:
        checkpoint = open_checkpoint(path)
        problem = next(iter(checkpoint.damage(worker.index, worker.n_workers)), "")
    except (CheckpointError, OSError) as error:
        problem = str(error)
    problems = worker.gather("reading the best checkpoint", problem.encode())
    problem = next((text.decode() for text in problems if text), "")
    try:
        if problem or checkpoint is None:
            return Tested(note=_untested(test, path, problem))
        assert test.data is not None
        task, tables = _task_of(inputs, checkpoint, seed)
        n, more = test.n_total, inputs.metrics
        return Tested(evaluate(worker, task, test.data, n, "test", more, tables) or {}, epoch)
    finally:
        if checkpoint is not None:
            checkpoint.close()


def _task_of(inputs: Inputs, checkpoint: Checkpoint, seed: int) -> tuple[Any, MappedTables]:
    """Return a task of its own, prepared, and the tables of a checkpoint from which it predicts."""
    assert inputs.make_task is not None
    assert inputs.moments is not None
    task = inputs.make_task(inputs.info)
    if inputs.info.kind == "own":
        task.receive(inputs.arrays)
    tables = MappedTables(checkpoint, task.tables(), seed)
    task.prepare(tables, inputs.moments)
    return task, tables


def _untested(test: FinalTest, path: Path, problem: str) -> str:
    return (
        f"the test data was not evaluated, because the best checkpoint cannot be read: {problem}; use "
        f"`mpips evaluate {path.parent} --data {test.source}`"
    )
