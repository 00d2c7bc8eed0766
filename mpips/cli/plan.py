"""`mpips plan`: predict what a job needs and how fast it runs, without starting it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mpips.cli.train import DATA, SERVERS, SET, configure, with_options
from mpips.errors import ConfigError
from mpips.terminal.screen import say


@click.command(short_help="Predict what a job needs and how fast it runs.")
@click.argument("job")
@click.option(
    "-n",
    "--ranks",
    "n_ranks",
    type=click.IntRange(1, 1 << 20),
    required=True,
    help="Number of ranks.",
)
@click.option("--ppn", type=click.IntRange(1), help="Ranks per node [default: all on one node].")
@with_options((*DATA, SERVERS, SET))
@click.option(
    "--rows", multiple=True, metavar="TABLE=N", help="Number of rows of an embedding table."
)
@click.option("--cores", type=click.IntRange(1), help="Cores of a node [default: of this one].")
@click.option(
    "--memory",
    type=click.FloatRange(0),
    metavar="GIB",
    help="Memory of a node [default: of this one].",
)
@click.option(
    "--shm",
    type=click.FloatRange(0),
    metavar="GIB",
    help="Size of /dev/shm of a node [default: of this one].",
)
@click.option(
    "--steps",
    type=click.IntRange(0),
    default=60,
    show_default=True,
    help="Steps to measure in this process; 0: measure none, and predict neither messages nor time.",
)
@click.option(
    "--calibration",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that mpips bench wrote [default: in the user's cache, if there is one].",
)
@click.option("--json", "want_json", is_flag=True, help="Print one line of JSON instead of text.")
@click.option(
    "--plot",
    "plot_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the predicted speed into this file, such as plan.png.",
)
def command(
    job: str,
    n_ranks: int,
    ppn: int | None,
    train_file: str | tuple[str, ...] | None,
    validation: float | str | tuple[str, ...] | None,
    test_file: str | tuple[str, ...] | None,
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
    """Predict what JOB needs on -n ranks, and how fast it runs. No rank is started.

    JOB is a TOML file or a task, as for `mpips train`. The command reads the data and runs some steps of
    the task in this process, so roles, rows, memory, messages and the size of a checkpoint are those of the
    job. It names the limits that more ranks would meet. The time of a step is predicted for one node with a
    core for each worker and server. Exit code 2 if the job does not fit into the nodes.

    \b
    mpips plan job.toml -n 64 --ppn 8 --cores 8 --memory 32 --shm 16
    mpips plan mlp --train digits -n 6 --plot plan.png
    """
    from mpips.bench.report import calibration_path
    from mpips.data.hdf5 import keep_mpi_asleep
    from mpips.plan import planning, report
    from mpips.plan.plot import plot
    from mpips.plan.predict import load_costs

    # Measure the memory of the program before it reads any data.
    keep_mpi_asleep()
    program = planning.program_bytes()
    given = {
        "data.train": train_file,
        "data.validation": validation,
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
    if want_json:
        click.echo(json.dumps(report.as_json(plan)))
    else:
        say(report.as_text(plan), err=False)
    if plot_file is not None:
        plot(plan, plot_file)
    return ConfigError.exit_code if plan.problems else 0


def _rows(text: str) -> tuple[str, int]:
    """Return (table, number of rows) of an argument of --rows; digits may be grouped by "_" or ",".

    Raises:
        ConfigError: The argument has another form.
    """
    name, equals, value = text.partition("=")
    digits = value.replace("_", "").replace(",", "")
    if not equals or not name or not digits.isdigit():
        raise ConfigError(f"--rows {text!r}: expected TABLE=N, such as weight=1000000")
    return name, int(digits)
