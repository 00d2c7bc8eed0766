"""`mpips report`: write the page of runs into one file."""

from __future__ import annotations

from pathlib import Path

import click

from mpips.cli.runs import folder_option
from mpips.errors import ConfigError
from mpips.monitor.runs import find_run
from mpips.terminal.screen import say

_MOST_RUNS = 8
_MOST_TRIALS = 4  # trials of a sweep whose curves are shown, the best ones


@click.command(short_help="Write the page of runs into one file.")
@click.argument("names", metavar="RUN...", nargs=-1)
@folder_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="The file; it must not exist yet.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def command(names: tuple[str, ...], folder: str, output: Path, force: bool) -> None:
    """Write what `mpips web` shows of runs into one HTML file, which needs no server and loads nothing.

    RUN is a run directory or the beginning of a run's name [default: the newest run in --folder]; several
    are shown side by side. The folder of a sweep stands for the table of its trials and for the best of them.
    The file contains configuration and ends of logs: look at it before you send it.
    """
    from mpips.web.report import report
    from mpips.web.run_data import RunData
    from mpips.web.runs_data import RunsData

    if output.exists() and not force:
        raise _exists(output)
    sweeps = [Path(name) for name in names if (Path(name) / "sweep.json").is_file()]
    if sweeps and len(names) > 1:
        raise ConfigError(f"{sweeps[0]}: a sweep has a report of its own; give it alone")
    trials = None
    if sweeps:
        there = RunsData(sweeps[0])
        there.listed()
        trials = there.sweep()
        if trials is None or not trials["trials"]:
            raise ConfigError(f"{sweeps[0] / 'sweep.json'}: has no trials that can be read")
        first = [sweeps[0] / trial["run"] for trial in trials["trials"][:_MOST_TRIALS]]
        runs = [RunData(path) for path in first]
    else:
        found = [find_run(name, Path(folder)) for name in names or (None,)]
        runs = list({run.path: RunData(run.path) for run in found}.values())
    if len(runs) > _MOST_RUNS:
        raise ConfigError(f"{len(runs)} runs: a page shows at most {_MOST_RUNS}; give fewer")
    text = report(runs, sweep=trials)
    try:
        # Another process may have made the file meanwhile.
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise _exists(output) from None
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written: {error.strerror}") from None
    say(f"mpips report: {output} ({len(text.encode()) / 1e6:.1f} MB)")


def _exists(output: Path) -> ConfigError:
    return ConfigError(
        f"{output}: exists already; give another name (-o FILE), or replace it (--force)"
    )
