"""`mpips sweep`: train a job with several values of its options, and compare."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from mpips.cli.auto_sweep import propose
from mpips.cli.run import PLACES, is_script, pool_of, run_keys
from mpips.cli.train import DATA, SERVERS, SET, TUNING, configure, job_keys, with_options
from mpips.config import variation
from mpips.config.schema import JobConfig
from mpips.data.metrics import MORE_BINARY, MORE_REGRESSION
from mpips.data.quotients import Direction
from mpips.errors import ConfigError
from mpips.monitor.progress import plural
from mpips.monitor.summary_text import metric_label, metrics_text
from mpips.monitor.trials import TrialResult
from mpips.supervisor.sweep import FILE, Sweep, check_metric, why
from mpips.supervisor.trial_watch import TrialWatch
from mpips.tasks import load_task
from mpips.terminal.screen import say, state_style
from mpips.terminal.table import print_table

_PLACE_KEYS = ("ranks", "hosts", "hostfile", "spares", "max_restarts", "min_workers")


@click.command(
    short_help="Train with several values of options, and compare.",
    epilog="Exit codes: 0 all trials are done, 1 a trial failed, 2 wrong usage or configuration, "
    "130 and 143 interrupted.",
)
@click.argument("job")
@click.option(
    "--grid",
    multiple=True,
    metavar="KEY=V1,V2",
    help="Values of an option of the job; all combinations of all --grid are tried.",
)
@click.option(
    "--random",
    multiple=True,
    metavar="KEY=LOW:HIGH[:log]",
    help="Draw the option for each trial: from a range, with log by its logarithm, or one of V1,V2.",
)
@click.option(
    "--n",
    "n_draws",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Draws of all --random.",
)
@click.option(
    "--auto",
    "n_auto",
    type=click.IntRange(1),
    metavar="N",
    help="Run N trials of the options that matter for the task and its data, in ranges that it proposes.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the draws.")
@click.option(
    "--metric",
    default="",
    help="Metric whose best value decides which trial is best [default: the loss on the validation data, "
    "else on the test data, else in training].",
)
@click.option(
    "--folds",
    type=click.IntRange(2),
    metavar="N",
    help="Cross-validation: train each combination N times, each time with another Nth held out.",
)
@click.option("--folder", help="Folder of the sweep [default: sweeps/NAME].")
@with_options(PLACES)
@with_options((*DATA, *TUNING, SERVERS, SET))
@click.option("--show", is_flag=True, help="Print the results of the sweep JOB, and run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON per trial at the end.")
def command(
    job: str,
    grid: tuple[str, ...],
    random: tuple[str, ...],
    n_draws: int,
    n_auto: int | None,
    seed: int,
    metric: str,
    folds: int | None,
    folder: str | None,
    assignments: tuple[str, ...],
    show: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Train JOB once for each combination of values, each time as `mpips run` does, and list the results.

    JOB is a job file or a task; or the folder of a sweep, of which the trials that are not done are run or
    continued. The other options are those of `mpips run`. A trial that fails does not end the sweep.

    \b
    mpips sweep job.toml --grid train.batch_size=32,64 --grid table.consistency=bsp,asp
    mpips sweep job.toml --auto 20
    mpips sweep job.toml --random table.optimizer.lr=1e-4:1:log --n 20
    mpips sweep sweeps/job
    """
    path = Path(job)
    if path.is_dir():
        _refuse_changes(path)
        sweep = Sweep.open(path)
        check_metric(metric, sweep.content.own_metrics)
    elif show:
        raise ConfigError(f"{job}: is no folder of a sweep, so there is nothing to show")
    else:
        options = {key: given.pop(key) for key in _PLACE_KEYS}
        path = Path(folder) if folder is not None else Path("sweeps") / _name(job)
        keys = {**job_keys(given), **run_keys({**options, "folder": str(path)})}
        split = (f"data.folds={folds}", "data.fold=1") if folds is not None else ()
        # Folds take the place of the validation data of a job file, such as that of a draft.
        replaces = folds is not None and keys.get("data.validation") is None
        whole = ("data.validation=0",) if replaces else ()

        def checked(varied: Sequence[str]) -> JobConfig:
            return _checked(job, keys, (*whole, *assignments, *varied, *split))

        if n_auto is not None:
            _refuse_beside_auto()
            wanted, lines = propose(checked(()), n_auto, seed, checked, folds is not None)
            say(
                "\n".join(
                    (f"--auto {n_auto}: trial 1 has the values of the job, the others vary", *lines)
                )
            )
        else:
            wanted = variation.trials(grid, random, n_draws, seed)
        if wanted == [()] and folds is None:
            raise ConfigError(
                "nothing varies: give --grid KEY=V1,V2 or --random KEY=LOW:HIGH, --auto N to let the task "
                "choose, or --folds N to validate one job N times"
            )
        if folds is not None:
            _refuse_other_folds(wanted, folds)
        configs = [checked(varied) for varied in wanted]
        own: dict[str, Direction] = {}
        for config in configs:
            own |= getattr(load_task(config.task), "own_metrics", {})
        check_metric(metric, own)
        trials = [
            (varied, _with_metric(config, metric, own))
            for varied, config in zip(wanted, configs, strict=True)
        ]
        sweep = Sweep.create(path, job, metric, trials, own, folds or 0)
    n_folds = sweep.content.folds
    n = len(sweep.content.trials) // max(n_folds, 1)
    code = 0
    if not show:
        each = f", {n_folds} folds each," if n_folds else ""
        say(f"mpips sweep: {plural(n, 'trial')}{each} in {sweep.path}")
        watch = TrialWatch(sweep)
        try:
            code = sweep.run([], lambda result, ended: _tell(sweep, result, ended, n), watch.look)
        finally:
            watch.close()
    _print(sweep, metric, as_json)
    if code:
        say(f"interrupted; continue with: mpips sweep {sweep.path}")
    failed = any(result.state != "done" for result in sweep.results())
    if code or (failed and not show):
        raise click.exceptions.Exit(code or 1)


def _refuse_changes(path: Path) -> None:
    """Refuse options that would change a sweep that continues.

    Raises:
        ConfigError: Names these options.
    """
    context = click.get_current_context()
    source = click.core.ParameterSource.COMMANDLINE
    names = [
        max(option.opts, key=len)
        for option in context.command.params
        if option.name not in ("job", "metric", "show", "as_json")
        and context.get_parameter_source(str(option.name)) == source
    ]
    if names:
        raise ConfigError(
            f"{', '.join(names)}: {path} continues with the trials of its {FILE}; leave the option out, or "
            "begin a new sweep in another --folder"
        )


def _refuse_beside_auto() -> None:
    """Refuse options that choose what varies beside --auto.

    Raises:
        ConfigError: Names them.
    """
    context, source = click.get_current_context(), click.core.ParameterSource.COMMANDLINE
    names = [
        flag
        for name, flag in (("grid", "--grid"), ("random", "--random"), ("n_draws", "--n"))
        if context.get_parameter_source(name) == source
    ]
    if names:
        raise ConfigError(
            f"{', '.join(names)}: --auto chooses what varies and how often; leave out one of them (an option "
            "that the job or --set sets does not vary)"
        )


def _refuse_other_folds(wanted: Sequence[variation.Assignments], folds: int) -> None:
    """Refuse to vary options on which the folds depend.

    Raises:
        ConfigError: Trials would have other folds.
    """
    keys = {text.partition("=")[0] for text in wanted[0]}
    for key in (
        "cluster.seed",
        "data.train",
        "data.on_bad",
        "data.validation",
        "data.folds",
        "data.fold",
    ):
        if key in keys:
            raise ConfigError(
                f"{key}: varies, and all trials must have the same folds; leave it out, or leave out "
                f"--folds {folds}"
            )


def _name(job: str) -> str:
    """Return the name of a job, for a folder."""
    return Path(job).stem.partition(":")[0]


def _checked(job: str, keys: dict[str, Any], assignments: Sequence[str]) -> JobConfig:
    """Return the configuration of a trial.

    Raises:
        MpipsError: `mpips run` would refuse the job before it starts.
    """
    from mpips.training.preflight import preflight

    if is_script(job):
        raise ConfigError(
            f"{job}: a script has no options that a sweep can set; give a job file or a task"
        )
    config = configure(job, keys, tuple(assignments))
    if config.checkpoint.folder:
        raise ConfigError(
            f"checkpoint.folder = {config.checkpoint.folder!r}: all trials would share it, and each would "
            "start from the one before; leave it out (a trial keeps its checkpoints in its run directory)"
        )
    preflight(config, pool_of(config).n_ranks, dry_run=True)
    return config


def _with_metric(config: JobConfig, metric: str, own_metrics: Mapping[str, Direction]) -> JobConfig:
    """Return the configuration of a job that computes this metric; "" is any metric."""
    train = config.train
    on_request = (*MORE_BINARY, *MORE_REGRESSION, *own_metrics)
    if metric not in on_request or metric in train.metrics:
        return config
    metrics = (*train.metrics, metric)
    return replace(config, train=replace(train, metrics=metrics))


def _tell(sweep: Sweep, result: TrialResult, code: int, n: int) -> None:
    """Print the result of a trial that has just ended."""
    fold = (f"fold {result.fold}",) if result.fold else ()
    options = " ".join((*result.assignments, *fold))
    if result.state == "done":
        metric = sweep.metric([result])
        shown = _metric_text(metric, sweep.with_best(result, metric))
        text = f"{shown}, {plural(result.epochs, 'epoch')}, {result.seconds:.1f} s"
    else:
        run = Path(result.run)
        text = f"{result.state} (exit {code}): {why(run)}; log: {run / 'logs'}"
    say(f"{result.number:>{len(str(n))}}/{n}  {options}: {text}")


def _metric_text(metric: str, result: TrialResult) -> str:
    best, label = result.best, metric_label(metric)
    if best is None:
        return f"no {label}"
    of = f" after epoch {best.epoch}" if best.epoch != result.epochs else ""
    spread = f" ± {result.spread:.4f}" if result.spread is not None else ""
    of = f" over {len(result.folds)} folds" if result.folds else of
    return f"{label} {best.value:.4f}{spread}{of}"


def _print(sweep: Sweep, metric: str, as_json: bool) -> None:
    """Print all trials, the best first."""
    if metric:
        sweep.content = msgspec.structs.replace(sweep.content, metric=metric)
    ranked = sweep.ranked()
    if as_json:
        for result in ranked:
            click.echo(json.dumps(msgspec.to_builtins(result)))
        return
    keys = [text.partition("=")[0] for text in sweep.content.trials[0].assignments]
    names = sorted({name for result in ranked for name in result.metrics})
    chosen = sweep.metric(ranked)
    names = [name for name in names if name != chosen] if chosen else []
    heads = [metric_label(chosen), "epoch", *map(metric_label, names)] if chosen else []
    rows = [("trial", *keys, *heads, "epochs", "s", "state")]
    for result in ranked:
        values = [text.partition("=")[2] for text in result.assignments]
        best, there = result.best, result.at(chosen)
        spread = f" ± {result.spread:.4f}" if result.spread is not None else ""
        found = [f"{best.value:.4f}{spread}", str(best.epoch)] if best is not None else ["-", "-"]
        found += [f"{there[n]:.4f}" if n in there else "-" for n in names]
        found = found if chosen else []
        shown = [str(result.epochs), f"{result.seconds:.1f}"] if result.epochs else ["-", "-"]
        rows.append((str(result.number), *values, *found, *shown, result.state))
    n, first = len(rows[0]), 1 + len(keys)
    styles: dict[int | tuple[int, int], str] = {
        (i + 1, n - 1): state_style(result.state) for i, result in enumerate(ranked)
    }
    leader = ranked[0]
    if leader.best is not None:
        styles |= {(1, column): "green" for column in range(n)}
    # A narrow terminal shows the options, the metric that counts and the state.
    others = (n - 3, n - 2, *range(n - 4, first, -1))
    print_table(rows, right=[0, *range(first, n - 1)], styles=styles, optional=others)
    if leader.best is not None:
        tested = f", test {metrics_text(leader.test_metrics)}" if leader.test_metrics else ""
        text = f"{_metric_text(chosen, leader)}{tested}"
        which = f"best: {' '.join(leader.assignments)}, " if leader.assignments else ""
        say(f"{which}{text}, in {leader.run}", err=False)
