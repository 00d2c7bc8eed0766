"""The command line. One file per command; commands are loaded when they are called."""

from __future__ import annotations

import importlib
import sys

import click

from mpips import __version__
from mpips.errors import CapabilityError, MpipsError
from mpips.mpi import failure_report
from mpips.mpi.launch import launched_rank, say_and_exit

_COMMANDS = {
    "bench": "mpips.cli.bench",
    "ckpt": "mpips.cli.ckpt",
    "doctor": "mpips.cli.doctor",
    "explain": "mpips.cli.explain",
    "plan": "mpips.cli.plan",
    "run": "mpips.cli.run",
    "submit": "mpips.cli.submit",
    "top": "mpips.cli.top",
    "train": "mpips.cli.train",
}


class _Lazy(click.Group):
    """A group whose commands are imported when needed, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by its name."""
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(_COMMANDS[cmd_name]).command
        return command


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """mpips: a parameter server for MPI clusters.

    Start it alone (one process) or under a launcher: mpirun -n 6 python -m mpips train job.toml
    """


def main() -> None:
    """Run the command line; every error of mpips becomes one sentence and its exit code.

    Under a launcher every rank meets the same error, so only rank 0 speaks.
    """
    try:
        failure_report.begin()
        code = cli.main(prog_name="mpips", standalone_mode=False)
        if isinstance(code, int) and code:
            sys.exit(code)
    except MpipsError as error:
        failure_report.write(**failure_report.fields_of(error))
        say_and_exit(str(error), error.exit_code)
    except MemoryError as error:
        text = f"out of memory: {error}" if str(error) else "out of memory"
        failure_report.write(**failure_report.fields_of(CapabilityError(text)))
        say_and_exit(text, CapabilityError.exit_code)
    except click.ClickException as error:
        failure_report.write(
            kind="UsageError", message=error.format_message(), exit_code=error.exit_code
        )
        if launched_rank() == 0:
            error.show()
            sys.exit(error.exit_code)
        say_and_exit(error.format_message(), error.exit_code)
    except click.Abort:
        sys.exit(130)
