"""`mpips trace`: record what every rank of a run does, and write it for Perfetto."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

import click

from mpips.cli.runs import folder_option, run_argument
from mpips.errors import ConfigError
from mpips.monitor.runs import find_run
from mpips.monitor.trace import align, flows_of, read_trace, write_chrome
from mpips.monitor.tracing import newest_trace, notes_of, record_trace
from mpips.process.terminating import terminating
from mpips.terminal.screen import say


@click.command(short_help="Record what every rank does, for Perfetto.")
@run_argument(required=True)
@folder_option
@click.option(
    "--steps",
    type=click.IntRange(1, 1_000_000),
    help="Record the next steps of each worker.  [default: show the last trace of the run]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("trace.json"),
    show_default=True,
    help="File to write.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.0),
    default=300.0,
    show_default=True,
    help="Seconds after which all ranks end their parts, even if they have not done all steps.",
)
def command(run: str, folder: str, steps: int | None, output: Path, timeout: float) -> None:
    """Record what every rank of a run does, and write it in the format of Chrome's trace viewer.

    RUN is a run directory or the beginning of a run's name. Open the file in ui.perfetto.dev or in
    chrome://tracing: a process for each rank, with pushes, pulls, waits and computation of its worker, and
    what its server applies; arrows lead from a push to its application.
    """
    found = find_run(run, Path(folder))
    if steps is None:
        trace = newest_trace(found)
    else:
        with terminating():
            trace = record_trace(found, steps, timeout)
    ranks = read_trace(trace)
    new = output.with_name(f".{output.name}-{secrets.token_hex(4)}")
    try:
        with new.open("xb") as file:
            n = write_chrome(file, ranks)
        os.replace(new, output)
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written: {error.strerror}") from None
    finally:
        # On a read-only file system this is an error even if there is no such file.
        with contextlib.suppress(OSError):
            new.unlink()
    flows = flows_of(ranks)
    alignment = align([rank.head for rank in ranks], flows)
    say(
        f"mpips trace: {output}: {n:,} events of {len(ranks)} ranks, "
        f"{sum(len(flow.sent_ns) for flow in flows):,} updates",
        err=False,
    )
    index = trace.index()
    notes = notes_of(index) if index is not None else []
    if dropped := sum(rank.head.dropped for rank in ranks):
        notes.append(f"{dropped:,} older events did not fit; give fewer --steps")
    if alignment.backwards:
        notes.append(
            f"{alignment.backwards:,} updates seem to arrive before they are sent: the hosts' clocks have "
            "drifted; give fewer --steps"
        )
    for note in notes:
        say(f"note: {note}")
