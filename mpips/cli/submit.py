"""`mpips submit`: write the batch script of a job and submit it to Slurm."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from mpips.checkpoint.structure import load_writer
from mpips.cli.run import (
    SCRIPT_KEYS,
    JobOrScript,
    check_script_of_file,
    flags,
    is_script,
    refuse_task_options,
)
from mpips.cli.train import DATA, JOB_KEYS, SET, TUNING, configure, job_keys, with_options
from mpips.config.schema import JobConfig, load_config, parse_assignment
from mpips.config.site import SiteSettings, load_site
from mpips.errors import ConfigError
from mpips.monitor.progress import plural
from mpips.supervisor.script import check_script
from mpips.supervisor.submit import (
    TEMPLATES,
    directives,
    environment_of,
    find_root,
    make_folder,
    make_script,
    requeue_directives,
    submit,
)
from mpips.terminal.screen import say
from mpips.training.preflight import preflight


def _removed(*names: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """Refuse an option that mpips had once. `names`: the last one is that of sbatch."""

    def refuse(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(
                f"{names[0]} was removed: write {names[-1]}={value} after `--` behind the job, or for a "
                f"script --set 'slurm.sbatch=[\"{names[-1]}={value}\"]'"
            )

    given = [name for name in names if name != "--cpus-per-task"]
    return click.option(*given, hidden=True, expose_value=False, callback=refuse)


@click.command(
    cls=JobOrScript, short_help="Write the batch script of a job and submit it to Slurm."
)
@click.argument("job")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--launcher",
    type=click.Choice(list(TEMPLATES)),
    help="Program that starts the ranks, as above [default: mpirun; restart for a script].",
)
@click.option("-N", "--nodes", type=click.IntRange(1), help="Nodes of the job [default: 1].")
@click.option("--ranks-per-node", type=click.IntRange(1), help="Ranks per node [default: 4].")
@click.option(
    "-t", "--time", metavar="TIME", help="Time limit of one allocation [default: 01:00:00]."
)
@_removed("--cpus-per-rank", "--cpus-per-task")
@_removed("-p", "--partition")
@_removed("-A", "--account")
@_removed("--qos")
@click.option(
    "--spares",
    type=click.IntRange(0),
    help="With --launcher restart: nodes on top of --nodes that replace lost ones [default: 0].",
)
@click.option("--name", help="Name of the job [default: the name of the file or task].")
@with_options((*DATA, *TUNING, SET))
@click.option("--dry-run", is_flag=True, help="Check the job, print the script, submit nothing.")
def command(
    job: str,
    arguments: tuple[str, ...],
    spares: int | None,
    name: str | None,
    train_file: Any,
    validation: Any,
    test_file: Any,
    epochs: int | None,
    lr: float | None,
    batch_size: int | None,
    assignments: tuple[str, ...],
    dry_run: bool,
    **given: Any,
) -> None:
    """Submit the training job JOB to Slurm: a TOML file, a task as for `mpips train`, or a Python script.

    Near its time limit the job writes a checkpoint and goes back into the queue; the next allocation
    continues from there, until training is done. Options can also be written in [slurm] of a TOML file;
    ARGUMENTS after `--` are then passed to sbatch. ARGUMENTS after a script are passed to the script.

    \b
    mpips submit job.toml --nodes 2 --ranks-per-node 16 --time 04:00:00
    mpips submit job.toml --launcher restart --nodes 8 --spares 1
    mpips submit logistic --train raw.csv --nodes 2
    mpips submit job.toml --dry-run -- --partition=gpu --account=NAME --mem=64G
    mpips submit --nodes 2 --ranks-per-node 16 script.py --option-of-the-script

    Launchers:

    \b
    mpirun    mpirun starts the ranks; a lost rank or node ends the allocation
    srun      Slurm starts the ranks, by its PMIx plug-in; a loss ends the allocation
    restart   mpips run starts the ranks again after a loss, on the remaining nodes
    """
    data = {"train_file": train_file, "validation": validation, "test_file": test_file}
    tuning = {"epochs": epochs, "lr": lr, "batch_size": batch_size}
    overrides = [(f"slurm.{key}", value) for key, value in given.items() if value is not None]
    site = load_site()
    if is_script(job):
        tuned_by = {**data, **tuning}
        config = _configure_script(Path(job), arguments, tuned_by, assignments, overrides, site)
    else:
        tuned = [f"{JOB_KEYS[key]}={value}" for key, value in tuning.items() if value is not None]
        assignments = (*tuned, *assignments)
        config = configure(job, job_keys(data), assignments, overrides, site)
        if config.run.script:
            check_script_of_file(job, config, tuning)
            _refuse_other_launcher(config)
    options = config.slurm
    if not is_script(job):
        options = msgspec.structs.replace(options, sbatch=(*options.sbatch, *arguments))
    options.check()
    if config.producers.words and options.launcher != "restart":
        raise ConfigError(
            f"slurm.launcher = {options.launcher!r} does not start the programs of [producers]: use "
            "--launcher restart"
        )
    if not config.run.script:
        preflight(config, options.nodes * options.ranks_per_node, dry_run=dry_run)
    # The scripts of all launchers make the job write checkpoints.
    load_writer()
    n_spares = options.spares if spares is None else spares
    if n_spares and options.launcher != "restart":
        raise click.UsageError(
            f"--spares needs --launcher restart: {options.launcher} cannot replace a lost node"
        )

    # Copy a TOML file into a folder of its own: the job runs later, and the file may have changed by then.
    root, name = find_root(), name or Path(job).stem.partition(":")[0]
    folder = make_folder(Path(config.run.folder), name)
    copy = folder / "job.toml" if Path(job).is_file() and not is_script(job) else None
    # `mpips run` takes these sections of a script; [slurm] is in the directives.
    passed = [t for t in assignments if not is_script(job) or t.startswith(SCRIPT_KEYS)]
    assigned = [word for text in passed for word in ("--set", text)]
    if is_script(job):
        words = [*assigned, config.run.script, *config.run.script_args]
    else:
        words = [str(copy or job), *_words(data), *assigned]
    environment = {
        **site.added(os.environ),
        **environment_of(root),
        "MPIPS_FOLDER": str(folder),
    }
    if site.modules:
        environment["MPIPS_MODULES"] = " ".join(site.modules)
    if options.launcher == "restart":
        environment["MPIPS_SPARES"] = str(n_spares)
    script = make_script(
        (root / "jobs" / TEMPLATES[options.launcher]).read_text(),
        [*requeue_directives(), *directives(options, name, folder, n_spares)],
        environment,
        words,
        shlex.join(["mpips", *sys.argv[1:]]),
    )
    if dry_run:
        click.echo(script, nl=False)
        return

    # Write copy and script, and remove them again if Slurm refuses the job.
    folder.mkdir(parents=True)
    if copy is not None:
        shutil.copyfile(job, copy)
    path = folder / "job.sbatch"
    path.write_text(script)
    try:
        number = submit(path, options, n_spares)
    except BaseException:
        shutil.rmtree(folder)
        raise
    say(
        f"job {number} ({name}) is submitted: {plural(options.nodes, 'node')} with "
        f"{plural(options.ranks_per_node, 'rank')} each\n"
        f"folder  {folder}\n"
        f"output  {folder}/slurm-{number}.out\n"
        f"stop    scancel {number}",
        err=False,
    )


def _words(given: Mapping[str, Any]) -> list[str]:
    """Return options of TRAIN as they are written on the command line, with their values."""
    words = []
    for name, value in given.items():
        for one in value if isinstance(value, tuple) else (value,):
            words += [] if one is None else [*flags({name: one}), str(one)]
    return words


def _configure_script(
    job: Path,
    arguments: Sequence[str],
    tuning: Mapping[str, Any],
    assignments: Sequence[str],
    overrides: Sequence[tuple[str, Any]],
    site: SiteSettings,
) -> JobConfig:
    """Return the configuration of a script, of which [run], [redundancy] and [slurm] have a meaning.

    The script itself is not copied: it may read files and import modules beside it.

    Raises:
        ConfigError: The script is not a Python program, or an option is not valid for a script.
    """
    check_script(str(job))
    refuse_task_options(flags(tuning), assignments, (*SCRIPT_KEYS, "slurm."))
    keys = {
        "slurm.launcher": "restart",
        "run.script": str(job.absolute()),
        "run.script_args": list(arguments),
    }
    every = [*keys.items(), *map(parse_assignment, assignments), *overrides]
    config = load_config(None, every, site=site)
    _refuse_other_launcher(config)
    return config


def _refuse_other_launcher(config: JobConfig) -> None:
    """Raise ConfigError for a script with a launcher that starts tasks only."""
    if config.slurm.launcher != "restart":
        raise ConfigError(
            f"slurm.launcher = {config.slurm.launcher!r} starts tasks only: must be 'restart' for a script"
        )
