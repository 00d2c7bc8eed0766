"""The description of a run for people: what was trained, its best evaluation, its state in one sentence.

`mpips web`, `mpips report` and `mpips plot` use it. All of it comes from files of the run directory, which
may be damaged or missing; then a part of the description is missing as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TypeVar

import msgspec

from mpips.data.metrics import BY_DEFAULT, HIGHER_IS_BETTER, LOWER_IS_BETTER
from mpips.monitor.progress import duration, plural
from mpips.monitor.summary_text import HASHED, METRICS
from mpips.rundir.directory import RunFolder
from mpips.rundir.files import Progress, Status
from mpips.rundir.history import AttemptHead
from mpips.rundir.reading import DAMAGED, read_regular

VALIDATION = "validation "  # in front of the names of metrics of the validation data
_MOST_ANCHORS = 100  # pairs of step and epoch that are returned
_FLOAT_BYTES = 4  # bytes of a value of a table


Kind = TypeVar("Kind")


class EvaluatedStep(NamedTuple):
    """An evaluation. `epochs`: complete epochs; `metrics`: values by name, None: not a finite number."""

    step: int
    epochs: int
    metrics: Mapping[str, float | None]


class _Best(msgspec.Struct, frozen=True):
    """The best checkpoint, as result.json has it."""

    metric: str
    value: float
    epoch: int


class RunResult(msgspec.Struct, frozen=True):
    """The part of result.json that describes a training; see `mpips.cli.train.make_report`.

    `staleness` has the number of updates by staleness; entry 64 counts a staleness of 64 and more.
    """

    epochs: int | None = None
    stopped: str = ""
    best: _Best | None = None
    seconds: float | None = None
    samples_per_s: float | None = None
    n_samples: int = 0
    n_features: int = 0
    history: tuple[dict[str, float | None], ...] = ()
    staleness: tuple[int, ...] = ()

    @property
    def losses(self) -> list[tuple[float, float]]:
        """Epoch and mean loss of each epoch that has a finite one."""
        rows = ((row.get("epoch"), row.get("loss")) for row in self.history)
        return [(epoch, loss) for epoch, loss in rows if epoch is not None and loss is not None]


class _Data(msgspec.Struct, frozen=True):
    """Data of a job: a path, several of them, or other values that the description leaves out."""

    train: Any = ""
    test: Any = ""
    validation: Any = 0.0


class _Train(msgspec.Struct, frozen=True):
    metric: str = "auto"


class _Run(msgspec.Struct, frozen=True):
    script: str | None = ""


class JobDescription(msgspec.Struct, frozen=True):
    """The part of config.json that describes a job."""

    task: str = ""
    data: _Data = _Data()
    train: _Train = _Train()
    run: _Run = _Run()

    @property
    def name(self) -> str:
        """Name of the script, or of the task."""
        return PurePath(self.run.script or "").name or self.task


class _TableSize(msgspec.Struct, frozen=True):
    kind: str
    shape: tuple[int, ...]


class _Content(msgspec.Struct, frozen=True):
    tables: tuple[_TableSize, ...] = ()


class _Manifest(msgspec.Struct, frozen=True):
    content: _Content


class ModelSize(msgspec.Struct, frozen=True):
    """Size of a model.

    Attributes:
        values: Values of all tables.
        tables: Number of tables.
        rows: Rows of embedding tables.
    """

    values: int
    tables: int
    rows: int = 0


def read_job(run: RunFolder) -> JobDescription:
    """Return the description of a job in config.json; an empty one if it cannot be read."""
    return _decoded(run.config_file, JobDescription) or JobDescription()


def read_result(run: RunFolder) -> RunResult | None:
    """Return the result of a training; None if it cannot be read."""
    return _decoded(run.result_file, RunResult)


def _decoded(path: Path, kind: type[Kind], within: Path | None = None) -> Kind | None:
    try:
        return msgspec.json.decode(read_regular(path, within=within), type=kind)
    except (OSError, ValueError, *DAMAGED):
        return None


def read_size(run: RunFolder, status: Status | None) -> ModelSize | None:
    """Return the size of the model by the newest checkpoint of the run directory; None without one."""
    name = PurePath(status.checkpoint).name if status is not None else ""
    if not name:
        return None
    path = run.checkpoints / name / "manifest.json"
    found = _decoded(path, _Manifest, within=run.path)
    return size_of(found.content.tables) if found is not None and found.content.tables else None


def size_of(tables: Sequence[Any]) -> ModelSize:
    """Return the size of tables that have a `kind` and a `shape`, as in a manifest."""
    rows = sum(table.shape[0] for table in tables if table.kind == "embedding" and table.shape)
    return ModelSize(sum(math.prod(table.shape) for table in tables), len(tables), rows)


def size_from_head(head: AttemptHead | None) -> ModelSize | None:
    """Return the size of a model by the placement of its tables; None if one has rows or is replicated."""
    if head is None or not head.placement or len(head.placement) != len(head.tables):
        return None
    if any(not row or min(row) < 0 or not any(row) for row in head.placement):
        return None
    return ModelSize(sum(map(sum, head.placement)) // _FLOAT_BYTES, len(head.tables))


def names_of(given: Any) -> str:
    """Return names of files for people, without their folders; "" without files."""
    paths = given if isinstance(given, list) else [given]
    names = [PurePath(path).name or path for path in paths if isinstance(path, str) and path]
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more


def data_text(job: JobDescription, result: RunResult | None) -> str:
    """Return the data of a job in a few words, such as "digits: 1,437 samples, 64 features"."""
    text = names_of(job.data.train)
    if not text:
        return ""
    if result is not None and result.n_samples > 0:
        text += f": {plural(result.n_samples, 'sample')}"
        # Hashed keys have no number of features.
        if 0 < result.n_features < HASHED:
            text += f", {plural(result.n_features, 'feature')}"
    if test := names_of(job.data.test):
        text += f"; test {test}"
    share = job.data.validation
    if held := names_of(share):
        text += f"; validation {held}"
    if isinstance(share, int | float) and 0 < share < 1:
        text += f"; validation {share:.2g} of it"
    return text


def higher_is_better(metric: str) -> bool | None:
    """Return True if higher values of a metric are better, False if lower ones are; None: not known."""
    if metric in HIGHER_IS_BETTER:
        return True
    return False if metric in (*LOWER_IS_BETTER, "loss") else None


def best_of(
    evaluations: Iterable[EvaluatedStep], metric: str, higher: bool | None = None
) -> EvaluatedStep | None:
    """Return the first evaluation with the best value of a metric; None without a finite value.

    Args:
        evaluations: The evaluations, in their order.
        metric: The metric.
        higher: True: higher values are better; None: as `higher_is_better`.
    """
    higher = higher_is_better(metric) if higher is None else higher
    if higher is None:
        return None
    sign = 1.0 if higher else -1.0
    best, found = -math.inf, None
    for each in evaluations:
        value = each.metrics.get(metric)
        if value is not None and math.isfinite(value) and sign * value > best:
            best, found = sign * value, each
    return found


def chosen_from(evaluations: Sequence[EvaluatedStep]) -> list[EvaluatedStep]:
    """Return the evaluations by which a job chooses: those of the validation data, if it has such data.

    Args:
        evaluations: Evaluations; the names of metrics of the validation data begin with VALIDATION.

    Returns:
        Evaluations whose metrics have their own names.
    """
    held = [
        each._replace(
            metrics={metric_of(n): v for n, v in each.metrics.items() if metric_of(n) != n}
        )
        for each in evaluations
    ]
    return [each for each in held if each.metrics] or list(evaluations)


def metric_of(name: str) -> str:
    """Return the name of a metric without the name of its data in front."""
    return name.removeprefix(VALIDATION)


def counting_metric(job: JobDescription, result: RunResult | None, names: Iterable[str]) -> str:
    """Return the metric by which evaluations of a run are compared; "" if none has better values.

    Args:
        job: The job.
        result: Its result, if it has one.
        names: Metrics that evaluations have.
    """
    if result is not None and result.best is not None:
        return result.best.metric
    there = [name for name in names if higher_is_better(name) is not None]
    order = (job.train.metric, *BY_DEFAULT, *METRICS, *there)
    return next((name for name in order if name in there), "")


def best_evaluation(
    job: JobDescription, result: RunResult | None, evaluations: Sequence[EvaluatedStep]
) -> dict[str, Any] | None:
    """Return `metric`, `value`, `epoch` and `others` of the best evaluation; None: it is not known.

    `others` has the values of its other metrics by name.
    """
    names = dict.fromkeys(name for each in evaluations for name in each.metrics)
    metric = counting_metric(job, result, names)
    if result is not None and result.best is not None:
        value, epoch = result.best.value, result.best.epoch
        at = next((each for each in evaluations if each.epochs == epoch), None)
    else:
        at = best_of(evaluations, metric)
        found = at.metrics[metric] if at is not None else None
        if at is None or found is None:
            return None
        value, epoch = found, at.epochs
    given = at.metrics if at is not None else {}
    others = {name: v for name, v in given.items() if name != metric and v is not None}
    return {"metric": metric, "value": value, "epoch": epoch, "others": others}


def state_sentence(
    state: str,
    result: RunResult | None,
    progress: Progress | None,
    alive: bool,
) -> str:
    """Return in one sentence how far a run has come.

    Args:
        state: State of the run, as `mpips top` shows it.
        result: Its result, if it has one.
        progress: Its progress; None: it has not begun.
        alive: A supervisor runs it.
    """
    n_epochs = progress.n_epochs if progress is not None else 0
    if state == "done":
        if result is not None and result.stopped:
            return f"Ended early {result.stopped}."
        if result is not None and result.epochs:
            return f"Done after {plural(result.epochs, 'epoch')}."
        return f"Done after step {progress.step:,}." if progress is not None else "Done."
    name = state[:1].upper() + state[1:]
    if progress is None or not progress.step:
        return f"{name}."
    reached = f"step {progress.step:,}"
    if n_epochs:
        reached = f"epoch {min(progress.epoch + 1, n_epochs)} of {n_epochs}, {reached}"
    elif progress.has_epochs:
        reached = f"epoch {progress.epoch + 1}, {reached}"
    if not alive:
        counts = n_epochs or progress.has_epochs
        return f"{name} in {reached}." if counts else f"{name} at {reached}."
    left = "" if progress.left_s is None else f"; about {duration(progress.left_s)} left"
    return f"{name}: {reached}{left}."


def epoch_anchors(
    evaluations: Iterable[EvaluatedStep], status: Status | None
) -> list[tuple[int, float]]:
    """Return pairs of step and complete epochs, both ascending, between which the epochs grow linearly.

    Empty: the job does not count epochs.

    Args:
        evaluations: The evaluations of the run.
        status: Its status.
    """
    if status is None or not status.progress.n_epochs:
        return []
    p = status.progress
    found = [(0, 0.0), *((each.step, float(each.epochs)) for each in evaluations)]
    if p.share > 0:
        found.append((p.step, p.share * p.n_epochs))
    ascending = [found[0]]
    for step, epochs in sorted(found[1:]):
        if step > ascending[-1][0] and ascending[-1][1] <= epochs < math.inf:
            ascending.append((step, epochs))
    if len(ascending) > _MOST_ANCHORS:
        every = (len(ascending) - 1) / (_MOST_ANCHORS - 1)
        ascending = [ascending[round(i * every)] for i in range(_MOST_ANCHORS)]
    return ascending if len(ascending) > 1 else []


def epochs_at(anchors: Sequence[tuple[int, float]], step: float) -> float:
    """Return the epochs at a step, also beyond the last one. `anchors`: as of `epoch_anchors`, not empty."""
    after = next((i for i, (s, _) in enumerate(anchors) if s >= step), len(anchors) - 1)
    (s0, e0), (s1, e1) = anchors[max(after, 1) - 1], anchors[max(after, 1)]
    return e0 + (step - s0) / (s1 - s0) * (e1 - e0)
