"""`mpips submit`: write a batch script for a job and hand it to Slurm."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from mpips.cli.train import JOB_KEYS, tuning_options
from mpips.config.schema import load_config, parse_assignment
from mpips.monitor.progress import plural
from mpips.supervisor.submit import (
    TEMPLATES,
    directives,
    find_root,
    make_folder,
    make_script,
    submit,
)
from mpips.training.preflight import preflight


@click.command(short_help="Write a batch script for a job and submit it to Slurm.")
@click.argument("job", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("sbatch_args", nargs=-1)
@click.option("--launcher", type=click.Choice(list(TEMPLATES)), help="[default: mpirun]")
@click.option("-N", "--nodes", type=click.IntRange(1), help="To work on [default: 1].")
@click.option("--ranks-per-node", type=click.IntRange(1), help="[default: 4]")
@click.option("--cpus-per-rank", type=click.IntRange(1), help="[default: 1]")
@click.option("-t", "--time", metavar="TIME", help="Limit of one turn [default: 01:00:00].")
@click.option("-p", "--partition")
@click.option("-A", "--account")
@click.option("--qos")
@click.option(
    "--spares", type=click.IntRange(0), help="restart: nodes more, for when some are lost."
)
@click.option("--name", help="Of the job [default: the file's].")
@tuning_options
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any option.")
@click.option("--dry-run", is_flag=True, help="Check, print the script, submit nothing.")
def command(
    job: Path,
    sbatch_args: tuple[str, ...],
    spares: int | None,
    name: str | None,
    epochs: int | None,
    lr: float | None,
    batch_size: int | None,
    assignments: tuple[str, ...],
    dry_run: bool,
    **given: Any,
) -> None:
    """Submit the training job JOB, a TOML file, to Slurm.

    \b
    mpips submit job.toml --nodes 2 --ranks-per-node 16 --time 04:00:00
    mpips submit job.toml --launcher restart --nodes 8 --spares 1
    mpips submit job.toml --dry-run -- --mem=64G --constraint=skylake

    Options can also stand in [slurm] of JOB; those after `--` are sbatch's. Near its time limit the job
    writes a checkpoint, goes back into the queue and continues, until training is done.

    \b
    mpirun    as any MPI job: a lost node or rank ends the turn
    srun      Slurm starts the ranks; needs its plug-in for PMIx
    restart   `mpips run` in the allocation: goes on within the turn after a loss, on the nodes that are left
    """
    tuning = {"epochs": epochs, "lr": lr, "batch_size": batch_size}
    flags = [f"{JOB_KEYS[key]}={value}" for key, value in tuning.items() if value is not None]
    assignments = (*flags, *assignments)
    overrides = [(f"slurm.{key}", value) for key, value in given.items() if value is not None]
    if sbatch_args:
        overrides.append(("slurm.sbatch", list(sbatch_args)))
    config = load_config(str(job), [*map(parse_assignment, assignments), *overrides])
    options = config.slurm.check()
    preflight(config, options.nodes * options.ranks_per_node, dry_run=dry_run)
    n_spares = options.spares if spares is None else spares
    if n_spares and options.launcher != "restart":
        raise click.UsageError(
            f"--spares needs --launcher restart; {options.launcher} has no use for them"
        )

    # The job runs later: what is in JOB then shall not matter.
    root, name = find_root(), name or job.stem
    folder = make_folder(Path("runs"), name)
    copy = folder / "job.toml"
    arguments = [str(copy), *(word for text in assignments for word in ("--set", text))]
    environment = {"MPIPS_ROOT": str(root), "MPIPS_FOLDER": str(folder)}
    if n_spares:
        environment["MPIPS_SPARES"] = str(n_spares)
    script = make_script(
        (root / "jobs" / TEMPLATES[options.launcher]).read_text(),
        directives(options, name, folder, n_spares),
        environment,
        arguments,
        shlex.join(["mpips", *sys.argv[1:]]),
    )
    if dry_run:
        click.echo(script, nl=False)
        return
    folder.mkdir(parents=True)
    shutil.copyfile(job, copy)
    path = folder / "job.sbatch"
    path.write_text(script)
    try:
        number = submit(path, options, n_spares)
    except BaseException:
        shutil.rmtree(folder)
        raise
    click.echo(
        f"job {number} ({name}) is submitted: {plural(options.nodes, 'node')} of "
        f"{plural(options.ranks_per_node, 'rank')}\n"
        f"folder  {folder}\n"
        f"output  {folder}/slurm-{number}.out\n"
        f"stop    scancel {number}"
    )
