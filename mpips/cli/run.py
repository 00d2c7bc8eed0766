"""`mpips run`: start a training job under mpirun, and restart it after failures."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from mpips.cli.train import TRAIN, Decorator, configure, job_keys, with_options
from mpips.config.launching import RunConfig
from mpips.config.schema import JobConfig, load_config, parse_assignment
from mpips.config.site import SiteSettings, load_site
from mpips.errors import ConfigError
from mpips.monitor.progress import LineDisplay, make_display
from mpips.rundir.directory import RunFolder
from mpips.rundir.requests import RequestFolder
from mpips.supervisor import hosts as hosts_module
from mpips.supervisor.hosts import Host, HostPool
from mpips.supervisor.launcher import cores, find_launcher
from mpips.tasks.registry import TASKS
from mpips.terminal.screen import columns, command_text, say

# Options of this command that the configuration has under [run] by the same name.
_RUN_KEYS = (
    "ranks",
    "hosts",
    "hostfile",
    "spares",
    "max_restarts",
    "min_workers",
    "max_workers",
    "elastic",
    "name",
    "folder",
)


# Where a run has its ranks; `mpips sweep` has these options, too.
PLACES: tuple[Decorator, ...] = (
    click.option(
        "-n",
        "--ranks",
        type=click.IntRange(1),
        help="Number of ranks [default: one per slot of the hosts; on this machine one per core and one "
        "more].",
    ),
    click.option("--hosts", metavar="A:4,B:4", help="Hosts and their numbers of slots."),
    click.option(
        "--hostfile",
        type=click.Path(dir_okay=False),
        help="File with a line such as `node1 slots=4` for each host, instead of --hosts.",
    ),
    click.option(
        "--spares",
        type=click.IntRange(0),
        help="Number of hosts, the last ones, that only replace failed hosts [default: 0].",
    ),
    click.option(
        "--max-restarts", type=click.IntRange(0), help="Restarts after failures [default: 3]."
    ),
    click.option(
        "--min-workers",
        type=click.IntRange(1),
        help="Continue with at least this many workers when hosts fail [default: all].",
    ),
)


class JobOrScript(click.Command):
    """A command whose arguments after a Python script belong to the script, as after `python script.py`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options before a script, or all options if JOB is not a script."""
        ctx.allow_interspersed_args = False
        before = self.make_parser(ctx).parse_args(args=list(args))[0]
        ctx.allow_interspersed_args = not is_script(str(before.get("job", "")))
        return super().parse_args(ctx, args)


def is_script(job: str) -> bool:
    """Return True if JOB is a Python program rather than a job file, a task or a run directory."""
    return job.endswith(".py")


@click.command(
    cls=JobOrScript,
    short_help="Train under mpirun, and restart after failures.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 69 something is missing here, "
    "75 checkpoint written: run again to continue, 124 stalled, 130 and 143 interrupted.",
)
@click.argument("job")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@with_options(PLACES)
@click.option(
    "--max-workers",
    type=click.IntRange(1),
    help="Elastic run with at most this many workers; see --elastic.",
)
@click.option(
    "--elastic",
    is_flag=True,
    default=None,
    help="Take all slots of the hosts, and follow them: when hosts leave or come (hostfile, allocation, "
    "`mpips join`), the job continues with another number of workers.",
)
@click.option("--name", help="Name of the run [default: the name of the file or task].")
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    help="Folder of the run directories [default: runs].",
)
@click.option(
    "--discard-memory",
    is_flag=True,
    help="Remove what the run JOB left in shared memory, and start nothing.",
)
@click.option(
    "--resume-run",
    is_flag=True,
    help="JOB is a run directory (recognised also without this option).",
)
@with_options(TRAIN)
@click.option("-v", "--verbose", is_flag=True, help="Also print the command of mpirun.")
@click.option("--dry-run", is_flag=True, help="Check the job, print the command, start nothing.")
def command(
    job: str,
    arguments: tuple[str, ...],
    discard_memory: bool,
    resume_run: bool,
    assignments: tuple[str, ...],
    progress: str,
    quiet: bool,
    as_json: bool,
    verbose: bool,
    dry_run: bool,
    **given: Any,
) -> None:
    """Train JOB under mpirun. After a failure, restart it where the training was.

    JOB is a TOML file or a task as for `mpips train`, a Python script that calls `mpips.run`, a TOML file
    with run.script, or the directory of an earlier run, which is continued. ARGUMENTS after `--` are
    passed to mpirun; those after a script are passed to the script.

    \b
    mpips run -n 6 job.toml
    mpips run --hosts node1:8,node2:8,node3:8 --spares 1 job.toml -- --map-by numa
    mpips run -n 6 script.py --option-of-the-script
    mpips run --hostfile hosts --min-workers 2 --max-workers 64 job.toml
    mpips run runs/job-20260102-030405-6b7a
    mpips run --discard-memory runs/job-20260102-030405-6b7a

    A run that failed too often, or was interrupted before it wrote a checkpoint, leaves in shared memory
    the updates that no checkpoint contains. `mpips run RUN` continues from them; --discard-memory removes
    them.

    The run directory RUN = runs/NAME-TIME-ID contains config.json, status.json, metrics.jsonl, result.json,
    checkpoints/, and logs/attempt-N/ with a log of each rank. In a Slurm allocation the default hosts are
    those of the allocation.
    """
    options = {key: given.pop(key) for key in _RUN_KEYS}
    existing = None
    site = load_site()
    os.environ.update(site.added(os.environ))
    if is_script(job):
        if discard_memory:
            raise ConfigError(
                "--discard-memory: expected the directory of a run, not a script; give runs/NAME-TIME-ID"
            )
        refuse_task_options([*flags(given), *["--json"] * as_json], assignments, SCRIPT_KEYS)
        config = _configure_script(job, arguments, options, assignments, site)
    else:
        if arguments and not arguments[0].startswith("-"):
            raise ConfigError(
                f"{arguments[0]}: is one argument too many, since mpips run takes one job or run; arguments "
                "of mpirun begin with - and follow --"
            )
        # A continued run uses the mpirun arguments of its beginning, unless new ones are given.
        options["mpirun_args"] = list(arguments) or None
        existing = _existing(job, resume_run or discard_memory)
        if existing is None:
            keys = {**job_keys(given), **run_keys(options)}
            config = configure(job, keys, assignments, site=site)
            if config.run.script:
                check_script_of_file(job, config, {**given, "json": as_json or None})
        else:
            _refuse_changes(existing, given, assignments, options)
            config = load_config(str(existing.config_file), list(run_keys(options).items()))
    if existing is not None and not discard_memory:
        _refuse_other_format(existing)
        _refuse_other_shape(existing, options["ranks"])
    pool = pool_of(config)
    if existing is not None and discard_memory:
        _discard_memory(existing, pool)
        return

    # Check the job before a run directory is made: all that can be wrong in a task shows here.
    check_programs(config)
    if existing is None and not config.run.script:
        from mpips.training.preflight import preflight
        from mpips.training.train import rehearse

        if dry_run:
            rehearse(config, pool.n_ranks)
        else:
            preflight(config, pool.n_ranks)
    start_run(
        job,
        config,
        pool,
        existing,
        progress=progress,
        quiet=quiet,
        verbose=verbose,
        json=as_json,
        dry=dry_run,
    )


def start_run(
    job: str,
    config: JobConfig,
    pool: HostPool,
    existing: RunFolder | None,
    *,
    progress: str,
    quiet: bool,
    verbose: bool,
    json: bool,
    dry: bool,
) -> None:
    """Supervise the job to its end, or only print the command of its first attempt if `dry`.

    Raises:
        click.exceptions.Exit: The job ended with an exit code other than 0.
    """
    from mpips.checkpoint.structure import load_writer
    from mpips.supervisor.plan import SupervisionPlan, make_run
    from mpips.supervisor.stopping import Signals
    from mpips.supervisor.supervise import Supervisor

    # Find the launcher, and h5py for the checkpoints of the run, before a run directory is made.
    launcher = find_launcher()
    if existing is None or existing.finished() is None:
        load_writer()
    name = config.run.name or Path(job).stem.partition(":")[0]
    if existing is not None:
        run = existing
    elif dry:
        run = RunFolder(Path(config.run.folder) / f"{name}-TIME-ID")
    else:
        run = make_run(config, Path(config.run.folder), name)

    # Where this process shows a live line, the ranks report no progress.
    display = None if quiet or dry else _own_display(progress)
    passed = ["--progress", "none" if quiet or display is not None else progress]
    passed += ["--quiet"] if quiet else []
    passed += ["--json"] if json else []
    plan = SupervisionPlan(
        run=run,
        config=config,
        pool=pool,
        launcher=launcher,
        max_restarts=config.run.max_restarts,
        launcher_args=config.run.mpirun_args,
        program_args=passed,
        show=display.update if display is not None else None,
        shows_elapsed=not quiet,
    )
    words = [*map(shlex.quote, plan.command(0, pool.layout(), run.attempt(0) / "hostfile"))]
    if dry:
        click.echo(command_text(words, columns(sys.stdout)))
        if config.producers.words:
            program = [*map(shlex.quote, config.producers.member(0)[0])]
            click.echo(f"\nmember 0 of {config.producers.members} of the producers:")
            click.echo(command_text(program, columns(sys.stdout)))
        return
    if not quiet:
        say(f"mpips run: {run.path}")
    if verbose:
        say(command_text(words, columns(sys.stderr)))
    try:
        with Signals(config.checkpoint.grace_s, RequestFolder(run)) as signals:
            code = Supervisor(plan, signals).run()
    finally:
        if display is not None:
            display.erase()
    if code:
        raise click.exceptions.Exit(code)


def _configure_script(
    job: str,
    arguments: Sequence[str],
    options: Mapping[str, Any],
    assignments: Sequence[str],
    site: SiteSettings,
) -> JobConfig:
    """Return the configuration of a script.

    [run], [redundancy], [producers] and monitor.record have a meaning.

    Raises:
        ConfigError: The script cannot be read or is not a Python program, or an option is not valid.
    """
    from mpips.supervisor.script import check_script

    check_script(job)
    keys = run_keys({**options, "script": job, "script_args": list(arguments)})
    return load_config(None, [*keys.items(), *map(parse_assignment, assignments)], site=site)


def check_script_of_file(job: str, config: JobConfig, given: Mapping[str, Any]) -> None:
    """Refuse what has no meaning in a job file that names a script in place of a task.

    Args:
        job: The file.
        config: Its content.
        given: Options that only a task has, by name; None: not given.

    Raises:
        ConfigError: The script is not a Python program, or the file has a section that only a task has.
    """
    from mpips.supervisor.script import check_script

    check_script(config.run.script)
    refuse_task_options(flags(given), (), SCRIPT_KEYS)
    plain = JobConfig()
    names = [name for name in _OF_TASKS if getattr(config, name) != getattr(plain, name)]
    if names:
        raise ConfigError(
            f"{job}: {', '.join(names)} applies only to a task, but run.script = {config.run.script!r} is "
            "given: pass such options to mpips.run(...) in the script, or remove run.script"
        )


def check_programs(config: JobConfig) -> None:
    """Refuse a program of [producers] that is not there. One in a folder that is made later is not checked.

    Raises:
        ConfigError: Names the program and where it was searched.
    """
    producers = config.producers
    if not producers.words:
        return
    command, folder = producers.member(0)
    folder = os.path.join(os.getcwd(), folder)
    if not producers.makes_folders and not os.path.isdir(folder):
        raise ConfigError(f"producers.folder = {producers.folder!r}: there is no folder {folder}")
    path = producers.environment.get("PATH", os.environ.get("PATH", os.defpath))
    program, is_path = command[0], "/" in command[0]
    if is_path and producers.makes_folders and not os.path.isabs(program):
        return
    # mpirun of this environment is found without its folder in PATH.
    path = f"{path}{os.pathsep}{Path(find_launcher().path).parent}"
    found = os.path.join(folder, program) if is_path else shutil.which(program, path=path)
    if found is None or not os.access(found, os.X_OK) or os.path.isdir(found):
        where = f"in {folder}" if is_path else "in PATH"
        raise ConfigError(
            f"producers.command = {producers.command!r}: there is no program {program!r} {where}; give its "
            "path, absolute or relative to the working folder"
        )


def _discard_memory(run: RunFolder, pool: HostPool) -> None:
    """Remove what a run left in the shared memory of its hosts.

    Raises:
        ConfigError: A supervisor is at work on the run.
        click.exceptions.Exit: A host did not answer, so its memory is unchanged; code 1.
    """
    from mpips.supervisor.left_memory import discard

    if not discard(run, pool.names, say):
        raise click.exceptions.Exit(1)


def flags(given: Mapping[str, Any]) -> list[str]:
    """Return the options of TRAIN that were given, as they are written on the command line."""
    return [
        f"--{name.removesuffix('_file').replace('_', '-')}"
        for name, value in given.items()
        if value is not None
    ]


# Beginnings of the keys of `--set` that `mpips run` takes before a script.
SCRIPT_KEYS = ("run.", "monitor.record", "redundancy.", "producers.")
# Sections of a job file that a script does not read.
_OF_TASKS = ("task", "data", "train", "schedule", "cluster", "table", "tables", "options")


def refuse_task_options(
    given: Sequence[str], assignments: Sequence[str], sections: tuple[str, ...]
) -> None:
    """Refuse options before a script that only a task has.

    Args:
        given: Options that only a task has.
        assignments: Arguments of --set.
        sections: Beginnings of the keys that a script also has. The batch scripts also set
            checkpoint.on_usr1, since the batch system ends the job in any case.

    Raises:
        ConfigError: Names these options and where their values belong.
    """
    accepted = (*sections, "checkpoint.on_usr1=")
    wrong = [*given, *(f"--set {text}" for text in assignments if not text.startswith(accepted))]
    if wrong:
        raise ConfigError(
            f"{', '.join(wrong)}: applies only to a task; pass it to mpips.run(...) in the script, and write "
            "options of the script after its name"
        )


def _own_display(progress: str) -> LineDisplay | None:
    """Return a live progress line of this process; None where stderr is not a terminal or none is wanted.

    mpirun passes on only whole lines of its ranks, so they cannot show one.
    """
    if progress not in ("auto", "rich") or not sys.stderr.isatty():
        return None
    display = make_display(progress)
    return display if isinstance(display, LineDisplay) else None


def _existing(job: str, wanted: bool) -> RunFolder | None:
    """Return the run directory that JOB names, or None if JOB is a new job.

    A built-in task may have the name of a folder that is not a run directory.

    Raises:
        ConfigError: JOB is a folder but not a run directory, or `wanted` is true and JOB is not one.
    """
    if not wanted and not Path(job).is_dir():
        return None
    run = RunFolder(Path(job))
    if not wanted and job in TASKS and not run.info_file.exists():
        return None
    run.info()
    return run


def _refuse_changes(
    run: RunFolder, given: Mapping[str, Any], assignments: Sequence[str], options: Mapping[str, Any]
) -> None:
    """Refuse options that would change the configuration of a continued run.

    Raises:
        ConfigError: Names these options.
    """
    changed = flags(given)
    changed += ["--set"] if assignments else []
    changed += [f"--{key}" for key in ("name", "folder") if options[key] is not None]
    if changed:
        raise ConfigError(
            f"{', '.join(changed)}: {run.path} continues with the configuration it began with; leave the "
            "option out, or begin a new run with --resume CHECKPOINT"
        )


def _refuse_other_format(run: RunFolder) -> None:
    """Refuse memory on this machine that an mpips with another format of memory has left.

    Raises:
        ConfigError: Names both builds of mpips and the ways out.
    """
    from mpips.recovery.memory import read_head, why_other_build
    from mpips.supervisor.left_memory import is_memory_here

    head = read_head(run)
    if head is None or not is_memory_here(run.info().token):
        return
    if why := why_other_build(head, run.path):
        raise ConfigError(why)


def _refuse_other_shape(run: RunFolder, ranks: int | None) -> None:
    """Refuse another number of ranks than that of the memory which the run left on this machine.

    Raises:
        ConfigError: The launch would have to remove the memory and start from a checkpoint.
    """
    from mpips.supervisor.left_memory import is_memory_here

    before = len(run.last_places())
    if ranks is not None and before and ranks != before and is_memory_here(run.info().token):
        raise ConfigError(
            f"--ranks {ranks}: {run.path} left updates of {before} ranks in shared memory; continue with "
            f"-n {before}, or discard them first: mpips run --discard-memory {run.path}"
        )


def run_keys(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given by their configuration keys."""
    return {f"run.{key}": value for key, value in options.items() if value is not None}


def pool_of(config: JobConfig) -> HostPool:
    """Return the hosts that the options name, else those of the Slurm allocation, else this machine.

    Raises:
        ConfigError: The options contradict each other, or the ranks do not fit on the hosts.
    """
    options: RunConfig = config.run
    if options.hosts and options.hostfile:
        raise ConfigError("--hosts and --hostfile are both given: leave one of them out")
    if options.is_elastic:
        from mpips.supervisor.elastic import first_pool

        return first_pool(config)
    if options.hosts:
        hosts: list[Host] = hosts_module.parse_hosts(options.hosts)
    elif options.hostfile:
        hosts = hosts_module.read_hostfile(Path(options.hostfile))
    else:
        hosts = hosts_module.slurm_hosts()
    if not hosts and options.spares:
        raise ConfigError(
            f"spares = {options.spares}, but there is only this machine: give --hosts or --hostfile, start "
            "in a Slurm allocation, or leave --spares out"
        )
    ranks = options.ranks or (0 if hosts else max(3, cores() + 1))
    return HostPool(hosts, ranks, options.spares, config.cluster.servers, options.min_workers)
