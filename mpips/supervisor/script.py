"""Run a user's own script as a rank of a supervised run.

`python -m mpips.supervisor.script FILE ARGUMENTS` runs it as `python FILE ARGUMENTS` would. The code before
and after `mpips.run` belongs to the run as well: an error in it leaves a failure report, and a script that
never calls `mpips.run` is an error.
"""

from __future__ import annotations

import ast
import os
import runpy
import sys

from mpips.errors import ConfigError, MpipsError
from mpips.model.build import described
from mpips.monitor import summary
from mpips.mpi import failure_report, launch
from mpips.process import forked
from mpips.rundir import directory
from mpips.session import init, session
from mpips.session.driver import Outcome
from mpips.terminal.screen import say


def check_script(path: str) -> None:
    """Check that a script can be read and parsed.

    Raises:
        ConfigError: It cannot.
    """
    try:
        with open(path, "rb") as file:
            ast.parse(file.read(), path)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror} (working folder: {os.getcwd()})"
        ) from None
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{path}: is not a Python program: {error}; correct it") from None


def execute(path: str) -> None:
    """Run the script in this process, as the main module; its arguments are in sys.argv.

    Raises:
        ConfigError: The script has ended without a call of `mpips.run`.
    """
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as error:
        if error.code == failure_report.USAGE_CODE and not _has_begun():
            failure_report.write_usage()
        init.end(error.code)
        if error.code not in (None, 0):
            raise
    # The job of `mpips.init` ends with the script.
    init.end()
    # A forked child may come here as well.
    run = directory.current() if not forked.is_helper() else None
    # Rank 0 is the scheduler, which marks the run as finished before its `mpips.run` returns.
    if run is not None and launch.launched_rank() == 0 and run.folder.finished() is None:
        raise ConfigError(
            f"{path} has ended without calling mpips.run(main, tables), or without a pull after "
            "mpips.init(), so there was nothing to supervise; do it on every rank, "
            "or start the program without `mpips run`"
        )


def _has_begun() -> bool:
    """Return True if the script has called `mpips.init`, or a job of this attempt was at work."""
    run = directory.current()
    return bool(session.scripts) or (
        run is not None and run.folder.at_work_file(run.generation).exists()
    )


def leave_summary(outcome: Outcome) -> None:
    """Write the summary of a job into the run directory, on the rank of the scheduler."""
    run = directory.current()
    if run is None or not outcome.role.startswith("scheduler"):
        return
    report = summary.figures(outcome.statistics, outcome.transports)
    versions = {"mpips": described(), "MPI": launch.mpi_version()}
    name = os.path.basename(sys.argv[0])
    figures = summary.summarize_script(name, report, outcome.ranks, versions, run.folder)
    try:
        summary.write(run.folder, figures)
    except OSError as error:
        say(f"mpips: warning: the summary in {run.folder.path} was not written: {error}")


def main() -> None:
    """Run the script that the command line names; an error of mpips is printed in one sentence."""
    sys.argv = sys.argv[1:]
    try:
        failure_report.begin()
        session.after_run.append(leave_summary)
        execute(sys.argv[0])
    except MpipsError as error:
        failure_report.write(**failure_report.fields_of(error))
        launch.say_and_exit(str(error), error.exit_code)


if __name__ == "__main__":
    main()
