"""The training behind `mpips.fit`, in this process or on ranks of its own, and its result."""

from __future__ import annotations

import html
import re
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from mpips.config.schema import JobConfig, load_config
from mpips.data.options import FileList
from mpips.data.several import given_files
from mpips.errors import CapabilityError, ConfigError, DataError, MpipsError
from mpips.inference.model import Model, load_model
from mpips.inference.training_files import as_file, options_of
from mpips.monitor.summary_text import metric_names, metrics_text
from mpips.mpi import launch
from mpips.session.driver import Outcome
from mpips.supervisor import child
from mpips.supervisor.plan import make_run
from mpips.tasks import load_task
from mpips.tasks.base import reader_of
from mpips.training.callback import OnEpochEnd
from mpips.training.preflight import option_names, preflight
from mpips.training.train import train

_LEAST_RANKS = 3  # a scheduler, a server, a worker
_MOST_ROWS = 12  # epochs that are shown


class Fit:
    """The result of a training.

    Attributes:
        metrics: The loss of the last epoch, and the metrics at the end of the training of the validation data
            (settings={"data.validation": 0.1}), or of the test data of a job without, by name.
        test_metrics: Metrics of the test data, by name. With validation data it is evaluated once, with the
            best values if they are kept, else with the last ones. {} without test data.
        test_epoch: Number of complete epochs of the values with `test_metrics`; 0 without test data.
        history: For each epoch its number from 1, the mean loss, and the metrics if it was evaluated.
        epochs: Complete epochs.
        steps: Steps of the run.
        seconds: Seconds of training.
        samples_per_s: Samples of all workers per second.
        stopped: Reason why training ended early, or "".
        skipped: Bad lines that data.on_bad = "skip" has left out, by "train", "validation" and "test"; only
            those above 0.
        notes: Sentences on the data: what was read, which columns are words, what looks wrong in them. The
            models of this result have them as their `notes` until they predict.
        best: The best checkpoint: its metric, value, epoch and path; None: none was kept.
        path: The run directory, or the folder of checkpoints.
        task: The task, for people.
    """

    def __init__(self, task: str, path: Path, report: Mapping[str, Any], keep: object) -> None:
        """Take a result.

        Args:
            task: The task.
            path: The run directory or the folder of checkpoints.
            report: As result.json has it.
            keep: Kept as long as this object: a temporary folder.
        """
        self.task = task
        self.path = path
        self.metrics: dict[str, float] = {
            name: report[name]
            for name in metric_names(report["history"])
            if report.get(name) is not None
        }
        self.test_metrics: dict[str, float] = {
            name: value
            for name, value in (report.get("test_metrics") or {}).items()
            if value is not None
        }
        self.test_epoch = int(report.get("test_epoch") or 0)
        self._evaluated = str(report.get("evaluated_data") or "test")
        self.history: list[dict[str, float]] = list(report["history"])
        self.epochs = int(report["epochs"])
        self.steps = int(report["steps"])
        self.seconds = float(report["seconds"])
        self.samples_per_s = report["samples"] / max(self.seconds, 1e-9)
        self.stopped = str(report.get("stopped") or "")
        self.skipped: dict[str, int] = dict(report.get("skipped") or {})
        own = keep.nameless if isinstance(keep, _TemporaryFolder) else str
        self.notes: tuple[str, ...] = tuple(map(own, report.get("notes") or ()))
        self.best: dict[str, Any] | None = report.get("best")
        self._keep = keep

    @cached_property
    def best_model(self) -> Model:
        """The model of the best checkpoint, of a training with keep_best=True.

        Raises:
            ConfigError: No best checkpoint was kept.
        """
        model = load_model(self.path, best=True)
        model.owns, model.notes = self._keep, self.notes
        return model

    @cached_property
    def model(self) -> Model:
        """The trained model; see `mpips.load`."""
        model = load_model(self.path)
        # The model reads its tables when they are used first, perhaps after the end of this object.
        model.owns, model.notes = self._keep, self.notes
        return model

    @property
    def losses(self) -> list[float]:
        """The mean loss of each epoch."""
        return [row["loss"] for row in self.history if "loss" in row]

    def plot(self, axes: Any = None) -> Any:
        """Draw the loss and the metrics over the epochs; return the axes of matplotlib.

        Args:
            axes: Axes to draw on; None: new ones.

        Raises:
            CapabilityError: matplotlib is not installed.
        """
        if axes is None:
            try:
                from matplotlib import pyplot
            except ImportError:
                raise CapabilityError(
                    "plot needs matplotlib: pip install matplotlib; the figures are in `history`"
                ) from None
            axes = pyplot.subplots()[1]
        names = self._names()
        for name in names:
            rows = [row for row in self.history if name in row]
            axes.plot(
                [row["epoch"] for row in rows],
                [row[name] for row in rows],
                label=f"{name.replace('_', ' ')} ({'training' if name == 'loss' else self._evaluated})",
                marker="." if len(rows) < 2 else None,
            )
        axes.set_xlabel("epoch")
        axes.set_title(self.task)
        if names:
            axes.legend()
        return axes

    def _names(self) -> list[str]:
        """Return the names of the metrics in the history."""
        names = metric_names(self.history)
        return [name for name in names if any(name in row for row in self.history)]

    def __repr__(self) -> str:
        """Return task, epochs and metrics in one line."""
        return f"<mpips fit: {self.task}, epoch {self.epochs}; {metrics_text(self.metrics)}>"

    def _repr_html_(self) -> str:
        """Return a table of metrics by epoch and a line of the loss, for notebooks."""
        names = self._names()
        rows = self.history
        if len(rows) > _MOST_ROWS:
            places = [round(i * (len(rows) - 1) / (_MOST_ROWS - 1)) for i in range(_MOST_ROWS)]
            rows = [rows[i] for i in places]
        head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in ("epoch", *names))
        body = "".join(
            f"<tr><td>{row['epoch']:.0f}</td>"
            + "".join(f"<td>{row[n]:.4f}</td>" if n in row else "<td></td>" for n in names)
            + "</tr>"
            for row in rows
        )
        ended = f"<p>ended early {html.escape(self.stopped)}</p>" if self.stopped else ""
        text = f"{self.epochs} epochs, {self.seconds:.1f} s, {self.samples_per_s:,.0f} samples/s"
        return (
            f"<b>{html.escape(self.task)}</b>: {html.escape(metrics_text(self.metrics))} ({text})"
            f"{_line(self.losses)}{ended}<table><tr>{head}</tr>{body}</table>"
        )


class _TemporaryFolder:
    """A folder that is made when it is first used, and removed with this object or the process."""

    def __init__(self, parent: Path | None = None) -> None:
        """Make nothing yet. `parent`: the folder around it; None: the one for temporary files."""
        self._parent = parent
        self._remove: Any = None

    @cached_property
    def path(self) -> Path:
        """The folder."""
        if self._parent is not None:
            self._parent.mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(prefix="mpips-fit-", dir=self._parent))
        self._remove = weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
        return path

    def nameless(self, text: str) -> str:
        """Return a text in which the data is named that was written into files of this folder."""
        if self._remove is None:
            return text
        return re.sub(rf"{re.escape(str(self.path))}/(train|test)\.[a-z]+", r"the \1 data", text)

    def remove(self) -> None:
        """Remove the folder now."""
        if self._remove is not None:
            self._remove()

    def stay(self) -> None:
        """Let the folder stay: a run that did not finish can be continued only with its data."""
        if self._remove is not None:
            self._remove.detach()
            self._remove = None


def _line(values: Sequence[float], width: int = 160, height: int = 32) -> str:
    """Return a drawing (SVG) of numbers as a line."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    scale = (high - low) or 1.0
    points = " ".join(
        f"{i * width / (len(values) - 1):.1f},{height - 1 - (v - low) / scale * (height - 2):.1f}"
        for i, v in enumerate(values)
    )
    return (
        f'<svg width="{width}" height="{height}" role="img" aria-label="loss by epoch">'
        f'<polyline points="{points}" fill="none" stroke="currentColor"/></svg>'
    )


def fit_job(
    task: str,
    train_data: Any,
    test_data: Any,
    ranks: int,
    pairs: Mapping[str, Any],
    folder: Path | None,
    progress: bool,
    on_epoch_end: OnEpochEnd | str | None = None,
) -> Fit:
    """Train; see `mpips.fit`. `pairs`: options of the job by their dotted names."""
    if launch.launched_size() > 1:
        raise ConfigError(
            "mpips.fit starts a job of its own, and this process is a rank of one: call mpips.run or "
            "mpips.init in a program that is launched"
        )
    if ranks != 1 and ranks < _LEAST_RANKS:
        raise ConfigError(
            f"ranks = {ranks}: must be 1 (this process alone), or {_LEAST_RANKS} or more (a scheduler, a "
            "server, a worker)"
        )
    if isinstance(on_epoch_end, str):
        pairs, on_epoch_end = {**pairs, "train.on_epoch_end": on_epoch_end}, None
    if on_epoch_end is not None and ranks > 1:
        raise ConfigError(
            f"on_epoch_end with ranks = {ranks}: the workers are other processes, which cannot call a "
            "function of this one; give its name, 'module:function', of a module that they can import, or "
            "use ranks = 1"
        )
    # A run on ranks of its own can be continued after a failure, so nothing of it is temporary.
    where = folder if folder is not None or ranks == 1 else Path("runs")
    own = _TemporaryFolder(where if ranks > 1 else None)
    try:
        return _fit(task, (train_data, test_data), ranks, pairs, where, progress, own, on_epoch_end)
    except DataError as error:
        text = own.nameless(str(error))
        own.remove()
        raise DataError(text) from error.__cause__
    except BaseException:
        own.remove()
        raise


def _refuse_arrays(task: str, data: tuple[Any, Any]) -> None:
    """Check that a task which reads its files itself gets no samples with features.

    Raises:
        DataError: It does.
    """
    if task.endswith(".toml") or reader_of(load_task(task)) is None:
        return
    for name, given in zip(("train", "test"), data, strict=True):
        if given is not None and given_files(given) is None and not hasattr(given, "to_csv"):
            raise DataError(
                f"the {name} data is {type(given).__name__}: task '{task}' reads its files itself; give the "
                "path of a file, or a frame of pandas, which is written as CSV"
            )


def _fit(
    task: str,
    data: tuple[Any, Any],
    ranks: int,
    pairs: Mapping[str, Any],
    folder: Path | None,
    progress: bool,
    own: _TemporaryFolder,
    on_epoch_end: OnEpochEnd | None,
) -> Fit:
    """Write the data into files where that is necessary, and train."""
    found: list[tuple[str, Any]] = [] if task.endswith(".toml") else [("task", task)]
    _refuse_arrays(task, data)
    for name, given in zip(("train", "test"), data, strict=True):
        if given is not None:
            path = as_file(given, own, name)
            found.append((f"data.{name}", path.paths if isinstance(path, FileList) else path))
    found += options_of(data[0], pairs.get("data.label"))
    if isinstance(data[0], str) and data[0] == "digits" and data[1] is None:
        found.append(("data.test", "digits"))
    config = load_config(
        task if task.endswith(".toml") else None, [*found, *pairs.items()], option_names
    )
    if ranks == 1:
        where = folder if folder is not None else own.path / "checkpoints"
        return _here(config, where, progress, own, on_epoch_end)
    assert folder is not None
    return _on_ranks(config, ranks, folder, progress, own)


def _here(
    config: JobConfig,
    folder: Path,
    progress: bool,
    keep: object,
    on_epoch_end: OnEpochEnd | None,
) -> Fit:
    """Train in this process."""
    checkpoint = msgspec.structs.replace(config.checkpoint, folder=str(folder), resume="never")
    config = msgspec.structs.replace(config, checkpoint=checkpoint)
    shown = "auto" if progress else "none"
    outcome: Outcome = train(config, shown, verbose=False, on_epoch_end=on_epoch_end)
    result = outcome.value
    return Fit(
        config.task,
        folder,
        {
            **result.metrics,
            "history": result.history,
            "epochs": result.epochs,
            "steps": result.steps,
            "seconds": result.seconds,
            "samples": result.samples,
            "stopped": result.stopped,
            "skipped": result.skipped,
            "notes": result.notes,
            "best": result.best,
            "evaluated_data": result.evaluated_data,
            "test_metrics": result.test_metrics,
            "test_epoch": result.test_epoch,
        },
        keep,
    )


def _on_ranks(
    config: JobConfig, ranks: int, folder: Path, progress: bool, keep: _TemporaryFolder
) -> Fit:
    """Train under `mpips run`.

    Raises:
        MpipsError: The run has failed.
    """
    # The run directory has the checkpoints, wherever a job file puts them.
    config = msgspec.structs.replace(
        config,
        run=msgspec.structs.replace(config.run, ranks=ranks),
        checkpoint=msgspec.structs.replace(config.checkpoint, folder="", resume="auto"),
    )
    preflight(config, ranks, dry_run=True)
    run = make_run(config, folder, Path(config.task.partition(":")[0]).name or "fit")
    log = run.path / "fit.log"
    process = child.start(run, log, [] if progress else ["--quiet"], show=progress)
    try:
        code = process.wait()
    except BaseException:
        # An interrupt: the run writes a checkpoint before it ends.
        process.terminate()
        process.wait()
        keep.stay()
        raise
    if code:
        keep.stay()
        raise MpipsError(
            f"{child.reason(run, log)} (exit code {code}); log: {log}; continue with: {run.again}"
        )
    report = msgspec.json.decode(run.result_file.read_bytes())
    return Fit(config.task, run.path, report, keep)
