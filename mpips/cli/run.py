"""`mpips run`: start a training job under mpirun and bring it back after failures."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mpips.cli.train import configure, job_keys, train_options
from mpips.config.schema import JobConfig, RunConfig, load_config, parse_assignment
from mpips.errors import ConfigError
from mpips.monitor.progress import Display, PlainDisplay, make_display
from mpips.rundir.directory import RunFolder
from mpips.supervisor import hosts as hosts_module
from mpips.supervisor.hosts import Host, HostPool
from mpips.supervisor.launcher import cores, find_launcher

# Under [run] in the configuration by the same name.
_RUN_KEYS = (
    "ranks",
    "hosts",
    "hostfile",
    "spares",
    "max_restarts",
    "min_workers",
    "name",
    "folder",
)


class _JobOrScript(click.Command):
    """What follows a script on the command line is the script's, as after `python script.py`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse options up to a script, or all of them where JOB is none."""
        ctx.allow_interspersed_args = False
        before = self.make_parser(ctx).parse_args(args=list(args))[0]
        ctx.allow_interspersed_args = not is_script(str(before.get("job", "")))
        return super().parse_args(ctx, args)


def is_script(job: str) -> bool:
    """Whether JOB is a program of the user's own."""
    return job.endswith(".py")


@click.command(
    cls=_JobOrScript,
    short_help="Start a job under mpirun and bring it back after failures.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 69 something is missing here, "
    "75 checkpoint written: run again to continue, 124 stalled, 130 and 143 interrupted.",
)
@click.argument("job")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-n",
    "--ranks",
    type=click.IntRange(1),
    help="Processes [default: one a slot, or one a core and one more].",
)
@click.option("--hosts", metavar="A:4,B:4", help="Hosts and their slots.")
@click.option(
    "--hostfile", type=click.Path(dir_okay=False), help="The same as a file: node1 slots=4."
)
@click.option(
    "--spares", type=click.IntRange(0), help="Keep the last so many hosts for when others fail."
)
@click.option(
    "--max-restarts", type=click.IntRange(0), help="Failures to come back from [default: 3]."
)
@click.option(
    "--min-workers",
    type=click.IntRange(1),
    help="Go on with so few workers when hosts are lost [default: all].",
)
@click.option("--name", help="Of the run [default: the file's].")
@click.option(
    "--folder", type=click.Path(file_okay=False), help="For run directories [default: runs]."
)
@click.option(
    "--discard-memory",
    is_flag=True,
    help="Throw away what the run JOB has kept in shared memory, and start nothing.",
)
@click.option("--resume-run", is_flag=True, help="JOB is a run directory (found out without it).")
@train_options
@click.option("--dry-run", is_flag=True, help="Check and print the command, start nothing.")
def command(
    job: str,
    arguments: tuple[str, ...],
    discard_memory: bool,
    resume_run: bool,
    assignments: tuple[str, ...],
    progress: str,
    quiet: bool,
    as_json: bool,
    dry_run: bool,
    **given: Any,
) -> None:
    """Train under mpirun, and start again where training stood after a failure.

    JOB is a TOML file or a task as for `mpips train`, a Python script that calls `mpips.run`, or the
    directory of an earlier run, which goes on. ARGUMENTS after `--` are mpirun's; those after a script are
    the script's.

    \b
    mpips run -n 6 job.toml
    mpips run --hosts node1:8,node2:8,node3:8 --spares 1 job.toml -- --map-by numa
    mpips run -n 6 script.py --its own
    mpips run runs/job-20260102-030405-6b7a
    mpips run --discard-memory runs/job-20260102-030405-6b7a

    A run that is given up, or interrupted before it could save, leaves in shared memory what no checkpoint
    holds. The same command goes on in it, or --discard-memory throws it away.

    Everything of a run is in its directory, RUN = runs/NAME-TIME-ID: config.json, status.json, metrics.jsonl,
    result.json, checkpoints/, and logs/attempt-N/ with a log of each rank. In a Slurm allocation its
    hosts are used.
    """
    from mpips.supervisor.script import check_script
    from mpips.supervisor.stopping import Signals
    from mpips.supervisor.supervise import SupervisionPlan, Supervisor, make_run, say

    options = {key: given.pop(key) for key in _RUN_KEYS}
    # A run that goes on keeps the arguments that it began with, unless there are new ones.
    script = is_script(job)
    if script:
        _refuse_of_tasks(given, assignments, as_json)
        options |= {"script": job, "script_args": list(arguments)}
    else:
        options["mpirun_args"] = list(arguments) or None
    existing = None if script else _existing(job, resume_run or discard_memory)
    if existing is not None:
        _refuse_changes(existing, given, assignments, options)
        config = load_config(str(existing.config_file), _as_overrides(options))
        if not discard_memory:
            _refuse_other_shape(existing, options["ranks"])
    else:
        settings = {f"run.{key}": value for key, value in options.items()}
        if script:
            check_script(job)
            config = load_config(
                None, [*_as_overrides(options), *map(parse_assignment, assignments)]
            )
        else:
            config = configure(job, {**job_keys(given), **settings}, assignments)
    pool = _pool(config)
    if discard_memory and existing is not None:
        from mpips.supervisor.left_memory import discard

        if not discard(existing, pool.names, say):
            raise click.exceptions.Exit(1)
        return
    if existing is None and not script:
        from mpips.training.preflight import preflight
        from mpips.training.train import rehearse

        if dry_run:
            rehearse(config, pool.n_ranks)
        else:
            preflight(config, pool.n_ranks)
    launcher = find_launcher()
    name = config.run.name or Path(job).stem.partition(":")[0]
    if dry_run:
        planned = existing or RunFolder(Path(config.run.folder) / f"{name}-TIME-ID")
    elif existing is None:
        planned = make_run(config, Path(config.run.folder), name)
    else:
        planned = existing
    display = None if quiet or dry_run else _own_display(progress)
    passed = ["--progress", "none" if quiet or display is not None else progress]
    passed += ["--quiet"] if quiet else []
    passed += ["--json"] if as_json else []
    show = display.update if display is not None else None
    more = config.run.mpirun_args
    plan = SupervisionPlan(
        planned, config, pool, launcher, config.run.max_restarts, more, passed, show
    )
    layout = pool.layout()
    text = shlex.join(plan.command(0, layout, planned.attempt(0) / "hostfile"))
    if dry_run:
        click.echo(text)
        return
    if not quiet:
        say(f"mpips run: {planned.path}\n{text}")
    try:
        with Signals(config.checkpoint.grace_s) as signals:
            code = Supervisor(plan, signals).run()
    finally:
        if display is not None:
            display.close()
    if code:
        raise click.exceptions.Exit(code)


def _refuse_of_tasks(given: dict[str, Any], assignments: Sequence[str], as_json: bool) -> None:
    """Refuse options that describe a task, before a script.

    Raises:
        ConfigError: Which, and where it belongs.
    """
    wrong = [
        f"--{key.removesuffix('_file').replace('_', '-')}"
        for key, value in given.items()
        if value is not None
    ]
    wrong += ["--json"] if as_json else []
    wrong += [f"--set {text}" for text in assignments if not text.startswith("run.")]
    if wrong:
        raise ConfigError(
            f"{', '.join(wrong)}: describes a task; a script says it in mpips.run(...), and its own options "
            "stand after it"
        )


def _own_display(progress: str) -> Display | None:
    """A live line here, where there is a terminal: mpirun passes on no more than whole lines."""
    if progress not in ("auto", "rich") or not sys.stderr.isatty():
        return None
    display = make_display(progress)
    return None if isinstance(display, PlainDisplay) else display


def _existing(job: str, wanted: bool) -> RunFolder | None:
    """The run directory that is meant, or None if the job is to be begun."""
    if not wanted and not Path(job).is_dir():
        return None
    run = RunFolder(Path(job))
    run.info()
    return run


def _refuse_changes(
    run: RunFolder, given: dict[str, Any], assignments: Sequence[str], options: dict[str, Any]
) -> None:
    changed = [
        f"--{key.removesuffix('_file').replace('_', '-')}"
        for key, value in given.items()
        if value is not None
    ]
    changed += ["--set"] if assignments else []
    changed += [f"--{key}" for key in ("name", "folder") if options[key] is not None]
    if changed:
        raise ConfigError(
            f"{', '.join(changed)}: {run.path} goes on with the configuration it began with; leave it "
            "out, or begin a new run with --resume CHECKPOINT"
        )


def _refuse_other_shape(run: RunFolder, ranks: int | None) -> None:
    """Refuse another number of ranks than that for which the run has memory here.

    Raises:
        ConfigError: The launch would have to remove the memory and start from a checkpoint.
    """
    from mpips.supervisor.left_memory import is_memory_here

    status = run.status()
    before = len(status.ranks) if status is not None else 0
    if ranks is not None and before and ranks != before and is_memory_here(run.info().token):
        raise ConfigError(
            f"--ranks {ranks}: what {run.path} has kept in memory is of {before} ranks; go on with -n "
            f"{before}, or throw it away first: mpips run --discard-memory {run.path}"
        )


def _as_overrides(options: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(f"run.{key}", value) for key, value in options.items() if value is not None]


def _pool(config: JobConfig) -> HostPool:
    """The hosts that are asked for, those of the allocation, or none: this machine.

    Raises:
        ConfigError: They do not fit the ranks.
    """
    options: RunConfig = config.run
    if options.hosts and options.hostfile:
        raise ConfigError("--hosts and --hostfile: give one of them")
    if options.hosts:
        hosts: list[Host] = hosts_module.parse_hosts(options.hosts)
    elif options.hostfile:
        hosts = hosts_module.read_hostfile(Path(options.hostfile))
    else:
        hosts = hosts_module.slurm_hosts()
    if not hosts and options.spares:
        raise ConfigError(f"spares = {options.spares}: needs --hosts, --hostfile or an allocation")
    ranks = options.ranks or (0 if hosts else max(3, cores() + 1))
    return HostPool(hosts, ranks, options.spares, config.cluster.servers, options.min_workers)
