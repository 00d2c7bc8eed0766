"""The command line: one file per command. A command's module is imported when the command is called.

The file to open first is `train`, whose options `run`, `submit` and `plan` share.
"""

from __future__ import annotations

import errno
import importlib
import sys

import click

from mpips.errors import CapabilityError, ConfigError, MpipsError
from mpips.mpi import failure_report
from mpips.mpi.launch import launched_rank, say_and_exit

# Errors of an output that cannot be written; a closed pipe is click's.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

_COMMANDS = {
    "bench": "mpips.cli.bench",
    "chaos": "mpips.cli.chaos",
    "checkpoint": "mpips.cli.checkpoint",
    "ckpt": "mpips.cli.ckpt",
    "client": "mpips.cli.client",
    "completion": "mpips.cli.completion",
    "demo": "mpips.cli.demo",
    "diff": "mpips.cli.diff",
    "doctor": "mpips.cli.doctor",
    "evaluate": "mpips.cli.evaluate",
    "export": "mpips.cli.export",
    "history": "mpips.cli.history",
    "init": "mpips.cli.init",
    "join": "mpips.cli.join",
    "logs": "mpips.cli.logs",
    "ls": "mpips.cli.ls",
    "plan": "mpips.cli.plan",
    "plot": "mpips.cli.plot",
    "predict": "mpips.cli.predict",
    "replay": "mpips.cli.replay",
    "report": "mpips.cli.report",
    "run": "mpips.cli.run",
    "scale": "mpips.cli.scale",
    "serve": "mpips.cli.serve",
    "stop": "mpips.cli.stop",
    "submit": "mpips.cli.submit",
    "sweep": "mpips.cli.sweep",
    "top": "mpips.cli.top",
    "trace": "mpips.cli.trace",
    "train": "mpips.cli.train",
    "web": "mpips.cli.web",
}


class _Lazy(click.Group):
    """A group that imports the module of a command when click asks for the command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command `cmd_name`; None if there is no such command."""
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(_COMMANDS[cmd_name]).command
        return command


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from mpips.model.build import described

    click.echo(f"mpips, version {described()}")
    context.exit()


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show version and commit, and exit.",
)
def cli() -> None:
    """mpips: a parameter server for MPI clusters.

    \b
    mpips train ...                          train in one process
    mpirun -n 6 python -m mpips train ...    train on six ranks
    mpips run -n 6 ...                       train on six ranks, and restart after failures

    `mpips COMMAND --help` describes a command and its options.
    """


def main() -> None:
    """Run the command line. An error of mpips becomes one message on stderr and the exit code of its class.

    Under a launcher all ranks usually fail with the same error, so only rank 0 prints it.
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
        reason = f": {error}" if str(error) else ""
        text = f"out of memory{reason}; use smaller tables or fewer ranks per node (see mpips plan)"
        failure_report.write(**failure_report.fields_of(CapabilityError(text)))
        say_and_exit(text, CapabilityError.exit_code)
    except OSError as error:
        # An error of a file has its name; without one it is of stdout.
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        say_and_exit(f"the output cannot be written: {error.strerror}", ConfigError.exit_code)
    except click.ClickException as error:
        failure_report.write(
            kind="UsageError", message=error.format_message(), exit_code=error.exit_code
        )
        # Only rank 0 prints the usage line of the command in addition to the error.
        if launched_rank() == 0:
            error.show()
            sys.exit(error.exit_code)
        say_and_exit(error.format_message(), error.exit_code)
    except click.Abort:
        sys.exit(130)
