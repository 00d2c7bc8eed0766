"""`mpips train`: run a training job on the ranks of this launch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from mpips import __version__
from mpips.checkpoint import open_checkpoint
from mpips.config.schema import JobConfig, load_config, parse_assignment
from mpips.errors import CheckpointError
from mpips.monitor import summary
from mpips.mpi import launch
from mpips.rundir import directory

if TYPE_CHECKING:
    from mpips.session.driver import Outcome

_PROGRESS = ["auto", "rich", "plain", "none"]
# Flags of a job by their parameter's name, and the keys that they set.
JOB_KEYS = {
    "train_file": "data.train",
    "test_file": "data.test",
    "epochs": "train.epochs",
    "lr": "table.optimizer.lr",
    "batch_size": "train.batch_size",
    "servers": "cluster.servers",
    "save": "checkpoint.folder",
    "resume": "checkpoint.resume",
}
# How long and how fast a job trains.
TUNING = (
    click.option("--epochs", type=int, metavar="N", help="Passes over the data [the task's]."),
    click.option(
        "--lr", type=float, metavar="RATE", help="Learning rate of all tables [the task's]."
    ),
    click.option(
        "--batch-size", type=int, metavar="N", help="Samples per step and worker [the task's]."
    ),
)
_OPTIONS = (
    click.option("--train", "train_file", help="File to train on, or 'digits'."),
    click.option("--test", "test_file", help="File to evaluate on."),
    *TUNING,
    click.option("--servers", type=int, help="Number of server ranks (0: chosen)."),
    click.option("--save", metavar="FOLDER", help="Save the trained tables there as a checkpoint."),
    click.option(
        "--resume",
        metavar="auto|never|PATH",
        help="What to start from [default: the newest in --save].",
    ),
    click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any option."),
    click.option("--progress", type=click.Choice(_PROGRESS), default="auto"),
    click.option("--quiet", is_flag=True, help="No roles, no progress; only the result."),
    click.option("--json", "as_json", is_flag=True, help="End with one line of JSON."),
)


def tuning_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say how long and how fast a job trains."""
    for option in reversed(TUNING):
        command = option(command)
    return command


def train_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that describe a training job."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.argument("job")
@train_options
@click.option("--dry-run", is_flag=True, help="Check, print the resolved configuration, stop.")
def command(
    job: str,
    assignments: tuple[str, ...],
    progress: str,
    quiet: bool,
    as_json: bool,
    dry_run: bool,
    **given: Any,
) -> None:
    """Train. JOB is a TOML file, or a task: softmax, mlp, logistic, fm, module:Class.

    \b
    mpips train mlp --train digits --test digits
    mpirun -n 6 python -m mpips train logistic --train a.svm --test b.svm --set table.consistency=asp
    """
    config = _in_run(configure(job, job_keys(given), assignments))
    from mpips.training.train import rehearse, train

    if dry_run:
        rehearse(config)
        if launch.launched_rank() == 0:
            click.echo(json.dumps(msgspec.to_builtins(config), indent=2))
        return

    outcome = train(config, "none" if quiet else progress, verbose=not quiet)
    if outcome.is_first_worker:
        report = make_report(outcome)
        _conclude(config, outcome, report, say=not quiet or not as_json)
        if as_json:
            click.echo(json.dumps(report))
        if report["checkpoint"] is not None and "error" in report["checkpoint"]:
            raise CheckpointError(report["checkpoint"]["error"])


def _in_run(config: JobConfig) -> JobConfig:
    """A supervised job saves into its run directory if it is not told where."""
    run = directory.current()
    if run is None or config.checkpoint.folder:
        return config
    checkpoint = msgspec.structs.replace(config.checkpoint, folder=str(run.folder.checkpoints))
    return msgspec.structs.replace(config, checkpoint=checkpoint)


def job_keys(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of `train_options` by the keys of the configuration that they set."""
    return {JOB_KEYS[name]: value for name, value in given.items()}


def configure(job: str, given: Mapping[str, Any], assignments: tuple[str, ...]) -> JobConfig:
    """The configuration that a command line describes.

    Args:
        job: A file, or the name of a task.
        given: Values of dotted keys; None: not given.
        assignments: As after `--set`; they win.

    Raises:
        ConfigError: What is wrong, where, and what is accepted.
    """
    overrides: list[tuple[str, Any]] = []
    is_file = job.endswith((".toml", ".json")) or (Path(job).is_file() and ":" not in job)
    if not is_file:
        overrides.append(("task", job))
    overrides += [(key, value) for key, value in given.items() if value is not None]
    if given["data.train"] == "digits" and given["data.test"] is None:
        overrides.append(("data.test", "digits"))
    overrides += [parse_assignment(text) for text in assignments]
    return load_config(job if is_file else None, overrides)


def make_report(outcome: Outcome) -> dict[str, Any]:
    """Everything that a run tells, as plain values."""
    result = outcome.value
    samples = result.samples
    metrics = {k: (v if math.isfinite(v) else None) for k, v in result.metrics.items()}
    return {
        **metrics,
        "history": result.history,
        "epochs": result.epochs,
        "steps": result.steps,
        "samples": samples,
        "seconds": round(result.seconds, 6),
        "samples_per_s": round(samples / max(result.seconds, 1e-9), 1),
        "n_samples": result.n_samples,
        "n_features": result.n_features,
        **summary.figures(outcome.statistics, outcome.transports),
    }


def _conclude(config: JobConfig, outcome: Outcome, report: dict[str, Any], say: bool) -> None:
    """Tell people of the end, and leave it in the run directory of a supervised run."""
    run = directory.current()
    folder = run.folder if run is not None else None
    figures = summary.summarize(config, report, outcome.ranks, _versions(report), folder)
    if folder is not None:
        directory.replace_json(folder.result_file, report)
        summary.write(folder, figures)
    if say:
        click.echo(summary.text(figures))


def _versions(report: Mapping[str, Any]) -> dict[str, str]:
    """Of what the job used; HDF5 as its checkpoint says."""
    saved = report["checkpoint"] or {}
    hdf5 = ""
    if "path" in saved:
        with open_checkpoint(Path(saved["path"])) as checkpoint:
            hdf5 = checkpoint.manifest.versions.get("hdf5", "")
    return {"mpips": __version__, "MPI": launch.mpi_version(), "HDF5": hdf5}
