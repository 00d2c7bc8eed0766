"""`mpips report`: write the page of runs into one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mpips.cli.output import check_new, output_options, write_new
from mpips.cli.runs import folder_option, runs_named
from mpips.errors import ConfigError
from mpips.terminal.screen import say

if TYPE_CHECKING:
    from mpips.web.run_data import RunData

_MOST_RUNS = 8
_MOST_TRIALS = 4  # trials of a sweep whose curves are shown, the best ones


@click.command(short_help="Write the page of runs into one file.")
@click.argument("names", metavar="RUN...", nargs=-1)
@folder_option
@output_options("report.html")
def command(names: tuple[str, ...], folder: str, output: Path, force: bool) -> None:
    """Write what `mpips web` shows of runs into one HTML file, which needs no server and loads nothing.

    RUN is a run directory or the beginning of a run's name [default: the newest run in --folder]; several
    are shown side by side. The folder of a sweep stands for the table of its trials and for the best of them.
    The file contains configuration and ends of logs: look at it before you send it.
    """
    from mpips.web.report import report

    check_new(output, force)
    sweeps = [Path(name) for name in names if (Path(name) / "sweep.json").is_file()]
    if sweeps and len(names) > 1:
        raise ConfigError(f"{sweeps[0]}: a sweep has a report of its own; give it alone")
    if sweeps:
        trials, runs = _best_trials(sweeps[0])
    else:
        trials, runs = None, runs_named(names, folder, _MOST_RUNS, "a page")
    content = report(runs, sweep=trials).encode()
    write_new(output, content, force)
    say(f"mpips report: {output} ({len(content) / 1e6:.1f} MB)")


def _best_trials(folder: Path) -> tuple[dict[str, Any], list[RunData]]:
    """Return the table of a sweep's trials, and the best ones, whose run directories exist."""
    from mpips.rundir.directory import version_of
    from mpips.web.run_data import RunData
    from mpips.web.runs_data import RunsData

    there = RunsData(folder)
    there.listed()
    found = there.sweep()
    paths = [folder / trial["run"] for trial in found["trials"]] if found is not None else []
    # A trial without files has a row in the table, but no curves.
    begun = [path for path in paths if any(version_of(path / "run.json"))]
    runs = [RunData(path) for path in begun[:_MOST_TRIALS]]
    if found is None or not runs:
        raise ConfigError(f"{folder / 'sweep.json'}: has no trials that can be read")
    return found, runs
