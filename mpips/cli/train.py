"""`mpips train`: run a training job on the ranks of this launch. Other commands share its options."""

from __future__ import annotations

import difflib
import glob
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from mpips.checkpoint import open_checkpoint
from mpips.config.conversion import UnknownKeyError
from mpips.config.schema import JobConfig, load_config, parse_assignment
from mpips.config.site import SiteSettings
from mpips.errors import CheckpointError, ConfigError
from mpips.model.build import described
from mpips.monitor import summary, summary_text
from mpips.monitor.best_epoch import BestEpoch, best_epoch, rows_of, watched_name
from mpips.mpi import launch
from mpips.rundir import directory
from mpips.rundir.directory import RunFolder
from mpips.tasks import TASKS, load_task
from mpips.terminal.screen import has_colour, say

if TYPE_CHECKING:
    from mpips.session.driver import Outcome
    from mpips.training.result import Result

_PROGRESS = ["auto", "rich", "plain", "none"]
# Parameter names of the options below, and the configuration keys that they set.
JOB_KEYS = {
    "train_file": "data.train",
    "validation": "data.validation",
    "test_file": "data.test",
    "epochs": "train.epochs",
    "lr": "table.optimizer.lr",
    "batch_size": "train.batch_size",
    "servers": "cluster.servers",
    "save": "checkpoint.folder",
    "resume": "checkpoint.resume",
}
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _files(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> Any:
    """Return the value of data.train or data.test: None, one path or pattern, or several."""
    return (given if len(given) > 1 else given[0]) if given else None


def _part_or_files(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> Any:
    """Return the value of data.validation: None, a fraction, one path or pattern, or several."""
    try:
        return float(given[0]) if len(given) == 1 else _files(context, option, given)
    except ValueError:
        return given[0]


_TRAIN_FILE, _TEST_FILE = (
    click.option(
        f"--{name}",
        f"{name}_file",
        multiple=True,
        callback=_files,
        metavar="FILE",
        help=f"{what} data: a file, a quoted pattern, or 'digits'; may be repeated.",
    )
    for name, what in (("train", "Training"), ("test", "Test"))
)
DATA = (
    _TRAIN_FILE,
    click.option(
        "--validation",
        multiple=True,
        callback=_part_or_files,
        metavar="PART|FILE",
        help="Validation data: the part of the training samples that is held out, such as 0.1, or files.",
    ),
    _TEST_FILE,
)
TUNING = (
    click.option(
        "--epochs", type=int, metavar="N", help="Passes over the data [default: of the task]."
    ),
    click.option(
        "--lr",
        type=float,
        metavar="RATE",
        help="Learning rate of all tables [default: of the task].",
    ),
    click.option(
        "--batch-size",
        type=int,
        metavar="N",
        help="Samples per step and worker [default: of the task].",
    ),
)
SERVERS = click.option(
    "--servers",
    type=int,
    metavar="N",
    help="Number of server ranks; 0: chosen by the number of ranks.",
)
SET = click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set any option of the job, such as table.consistency=asp; may be repeated.",
)
TRAIN = (
    *DATA,
    *TUNING,
    SERVERS,
    click.option(
        "--save",
        metavar="FOLDER",
        help="Write a checkpoint of the trained tables into this folder.",
    ),
    click.option(
        "--resume",
        metavar="auto|never|PATH",
        help="Checkpoint to start from; auto: the newest in --save [default: auto].",
    ),
    SET,
    click.option(
        "--progress",
        type=click.Choice(_PROGRESS),
        default="auto",
        show_default=True,
        help="Form of the progress report; auto: rich on a terminal, else plain.",
    ),
    click.option("--quiet", is_flag=True, help="Print only the result: no roles, no progress."),
    click.option("--json", "as_json", is_flag=True, help="Print one line of JSON at the end."),
)


def with_options(options: Sequence[Decorator]) -> Decorator:
    """Return a decorator that gives a command these options, in this order in its help."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.command(short_help="Train in one process, or on the ranks of a launcher.")
@click.argument("job")
@with_options(TRAIN)
@click.option(
    "--dry-run", is_flag=True, help="Check the job, print its whole configuration, train nothing."
)
def command(
    job: str,
    assignments: tuple[str, ...],
    progress: str,
    quiet: bool,
    as_json: bool,
    dry_run: bool,
    **given: Any,
) -> None:
    """Train JOB: a TOML file, or the name of a task.

    Tasks: logistic, softmax and mlp for rows of numbers, of words or of sparse features, fm for sparse
    features and words, wide_deep, deepfm and dcnv2 for columns of text and numbers, kge for knowledge graphs,
    mf for ratings, word2vec for text, or your own as module:Class.

    Without a launcher one process has all roles; under mpirun or srun the ranks share them.

    \b
    mpips train mlp --train digits --test digits
    mpirun -n 6 python -m mpips train logistic --train a.svm --test b.svm --set table.consistency=asp
    """
    config = _in_run(configure(job, job_keys(given), assignments))
    if config.producers.words and directory.current() is None:
        raise ConfigError(
            "[producers] of the job file names programs, which only `mpips run` starts: use `mpips run`, or "
            "remove the section and start them yourself"
        )
    from mpips.training.train import rehearse, train

    if dry_run:
        rehearse(config)
        if launch.launched_rank() == 0:
            click.echo(json.dumps(msgspec.to_builtins(config), indent=2))
        return

    # Every rank trains; the first worker reports the result.
    try:
        outcome = train(config, "none" if quiet else progress, verbose=not quiet)
    except KeyboardInterrupt:
        if not config.checkpoint.folder:
            say(
                "mpips: interrupted: nothing is kept without a folder for checkpoints; with --save FOLDER, "
                "Ctrl-C writes one, and the same command continues from it"
            )
        raise
    if outcome.is_first_worker:
        run = directory.current()
        report = make_report(outcome, config, run.folder if run is not None else None)
        _conclude(config, outcome, report, show=not quiet or not as_json)
        if as_json:
            click.echo(json.dumps(report))
        if report["checkpoint"] is not None and "error" in report["checkpoint"]:
            raise CheckpointError(report["checkpoint"]["error"])


def _in_run(config: JobConfig) -> JobConfig:
    """Return `config` with the run directory as checkpoint folder, if `mpips run` supervises the job.

    A checkpoint folder that the job names itself is left as it is.
    """
    run = directory.current()
    if run is None or config.checkpoint.folder:
        return config
    checkpoint = msgspec.structs.replace(config.checkpoint, folder=str(run.folder.checkpoints))
    return msgspec.structs.replace(config, checkpoint=checkpoint)


def job_keys(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options of TRAIN by the configuration keys that they set."""
    return {JOB_KEYS[name]: value for name, value in given.items()}


def configure(
    job: str,
    given: Mapping[str, Any],
    assignments: tuple[str, ...],
    last: Sequence[tuple[str, Any]] = (),
    site: SiteSettings | None = None,
) -> JobConfig:
    """Return the configuration that a command line describes.

    Args:
        job: Path of a job file, or the name of a task.
        given: Values by dotted configuration key; None if the option was not given.
        assignments: Arguments of `--set`; they override `given` and the file.
        last: Keys and values that override all of these.
        site: Its defaults hold where none of these has a value.

    Raises:
        ConfigError: The file or a value is not valid.
    """
    overrides: list[tuple[str, Any]] = []
    is_file = job.endswith((".toml", ".json")) or (Path(job).is_file() and ":" not in job)
    if not is_file:
        _check_task(job)
        overrides.append(("task", job))
    overrides += [(key, value) for key, value in given.items() if value is not None]
    others = (given["data.test"], given["data.validation"])
    if given["data.train"] == "digits" and others == (None, None):
        overrides.append(("data.test", "digits"))
    overrides += [*map(parse_assignment, assignments), *last]
    from mpips.training.preflight import option_names

    try:
        return load_config(job if is_file else None, overrides, option_names, site)
    except UnknownKeyError as error:
        # Name the option of the command line that sets a suggested key, too.
        suggested = tuple(key + _flag(key) for key in error.suggested)
        raise UnknownKeyError(error.key, error.text, suggested) from None


def _check_task(job: str) -> None:
    """Refuse a word that is neither a task nor a class.

    Raises:
        ConfigError: Names the tasks, and runs whose names begin with this word.
    """
    if ":" in job or job in TASKS:
        return
    meant = sorted(str(path.parent) for path in Path("runs").glob(f"{glob.escape(job)}*/run.json"))
    if meant and os.sep not in job:
        raise ConfigError(
            f"{job!r}: is the beginning of a run's name; give its directory: {', '.join(meant[-3:])}"
        )
    close = difflib.get_close_matches(job, TASKS, 1)
    raise ConfigError(
        f"{job!r}: there is no such job file, task or run directory"
        + (f"; did you mean {close[0]}?" if close else f"; the tasks are {', '.join(TASKS)}")
    )


def _flag(key: str) -> str:
    """Return the option of TRAIN that sets a key, for a message; "" without such an option."""
    names = [name for name, own in JOB_KEYS.items() if own == key]
    return f" (--{names[0].removesuffix('_file').replace('_', '-')})" if names else ""


def make_report(outcome: Outcome, config: JobConfig, run: RunFolder | None) -> dict[str, Any]:
    """Return the result of a run as plain values, as `--json` and result.json have it.

    Args:
        outcome: The outcome of the job.
        config: The job.
        run: The run directory of a supervised run.
    """
    result = outcome.value
    samples = result.samples
    best = _best_epoch(result, config, run)
    cures = (bool(config.train.patience), config.checkpoint.keep_best)
    return {
        **_finite(result.metrics),
        "evaluated_data": result.evaluated_data,
        "test_metrics": _finite(result.test_metrics) or None,
        "test_epoch": result.test_epoch if result.test_metrics else None,
        "history": result.history,
        "epochs": result.epochs,
        "stopped": result.stopped,
        "best": result.best,
        "best_epoch": msgspec.to_builtins(best),
        "hint": best.hint(*cures) if best is not None else "",
        "steps": result.steps,
        "samples": samples,
        "seconds": round(result.seconds, 6),
        "samples_per_s": round(samples / max(result.seconds, 1e-9), 1),
        "n_samples": result.n_samples,
        "n_features": result.n_features,
        "skipped": result.skipped,
        "model": result.model,
        "notes": list(result.notes),
        **summary.figures(outcome.statistics, outcome.transports),
    }


def _best_epoch(result: Result, config: JobConfig, run: RunFolder | None) -> BestEpoch | None:
    """Return the best evaluation of a run; None: fewer than two epochs were evaluated."""
    own = getattr(load_task(config.task), "own_metrics", {})
    rows = rows_of(result.history, result.evaluated_data, run)
    metric = watched_name(rows, config.train.metric, own)
    return best_epoch(rows, metric, own) if len(rows) > 1 and metric else None


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Return metrics as values of JSON: None in place of infinity and NaN."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def _conclude(config: JobConfig, outcome: Outcome, report: dict[str, Any], *, show: bool) -> None:
    """Print the summary if `show`; write result and summary into the run directory of a supervised run."""
    run = directory.current()
    folder = run.folder if run is not None else None
    figures = summary.summarize(config, report, outcome.ranks, _versions(report), folder)
    if folder is not None:
        directory.replace_json(folder.result_file, report)
        summary.write(folder, figures)
    if show:
        say(summary_text.text(figures, has_colour(sys.stdout)), err=False)


def _versions(report: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of mpips, MPI and HDF5 (as in the checkpoint); "" where one was not used."""
    saved = report["checkpoint"] or {}
    hdf5 = ""
    if "path" in saved:
        with open_checkpoint(Path(saved["path"])) as checkpoint:
            hdf5 = checkpoint.manifest.versions.get("hdf5", "")
    return {"mpips": described(), "MPI": launch.mpi_version(), "HDF5": hdf5}
