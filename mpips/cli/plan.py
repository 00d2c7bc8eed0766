"""`mpips plan`: what a job needs and how fast it will be, before it is started."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mpips.cli.train import configure
from mpips.errors import ConfigError


@click.command()
@click.argument("job")
@click.option("-n", "n_ranks", type=click.IntRange(1, 1 << 20), required=True, help="Ranks.")
@click.option("--ppn", type=click.IntRange(1), help="Ranks on a node [default: all on one].")
@click.option("--train", "train_file", help="File to train on, or 'digits'.")
@click.option("--test", "test_file", help="File to evaluate on.")
@click.option("--servers", type=int, help="Number of server ranks (0: chosen).")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any option.")
@click.option(
    "--rows", multiple=True, metavar="TABLE=N", help="Rows that an embedding table will have."
)
@click.option("--cores", type=click.IntRange(1), help="Cores of a node [default: as here].")
@click.option(
    "--memory", type=click.FloatRange(0), metavar="GIB", help="Memory of a node [as here]."
)
@click.option(
    "--shm", type=click.FloatRange(0), metavar="GIB", help="/dev/shm of a node [as here]."
)
@click.option(
    "--steps",
    type=click.IntRange(0),
    default=60,
    show_default=True,
    help="Steps of the task to try in this process; 0: none, and nothing said of messages and time.",
)
@click.option(
    "--calibration",
    type=click.Path(dir_okay=False, path_type=Path),
    help="What mpips bench measured [default: in the user's cache, if there is one].",
)
@click.option("--json", "want_json", is_flag=True, help="One line of JSON instead of text.")
@click.option(
    "--plot", "plot_file", type=click.Path(dir_okay=False, path_type=Path), help="Write a PNG."
)
def command(
    job: str,
    n_ranks: int,
    ppn: int | None,
    train_file: str | None,
    test_file: str | None,
    servers: int | None,
    assignments: tuple[str, ...],
    rows: tuple[str, ...],
    cores: int | None,
    memory: float | None,
    shm: float | None,
    steps: int,
    calibration: Path | None,
    want_json: bool,
    plot_file: Path | None,
) -> int:
    """Plan a job of -n ranks without starting it. JOB as for mpips train. Exit code 2 if it cannot fit.

    Roles, rows, memory, messages and the size of a checkpoint are what the job will have: the data
    is read, and the task makes some steps here. The time of a step is a model.

    \b
    mpips plan job.toml -n 64 --ppn 8 --cores 8 --memory 32 --shm 16
    mpips plan mlp --train digits -n 6 --plot plan.png
    """
    # What a rank takes before it has read anything.
    from mpips.bench.report import calibration_path
    from mpips.data.hdf5 import keep_mpi_asleep
    from mpips.plan import planning, report
    from mpips.plan.predict import load_costs

    keep_mpi_asleep()
    program = planning.program_bytes()
    given = {
        "data.train": train_file,
        "data.test": test_file,
        "cluster.servers": servers,
    }
    config = configure(job, given, assignments)
    here = planning.this_machine()
    hardware = planning.Hardware(
        cores or here.cores,
        here.memory if memory is None else int(memory * 2**30),
        here.shm if shm is None else int(shm * 2**30),
    )
    costs = load_costs(calibration or calibration_path(), must_exist=calibration is not None)
    inputs = planning.read_inputs(config, n_ranks)
    plan = planning.make_plan(
        config,
        inputs,
        n_ranks,
        ppn or n_ranks,
        hardware,
        costs,
        n_steps=steps,
        program=program,
        rows=dict(map(_rows, rows)),
    )
    click.echo(json.dumps(report.as_json(plan)) if want_json else report.as_text(plan))
    if plot_file is not None:
        report.plot(plan, plot_file)
    return ConfigError.exit_code if plan.problems else 0


def _rows(text: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    digits = value.replace("_", "").replace(",", "")
    if not equals or not name or not digits.isdigit():
        raise ConfigError(f"--rows {text!r}: write TABLE=N, such as weight=1000000")
    return name, int(digits)
