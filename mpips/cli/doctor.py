"""`mpips doctor`: check this machine and print the commands that fix what is wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from mpips.doctor.finding import Finding, as_json, as_line, count, summary
from mpips.errors import CapabilityError
from mpips.terminal.screen import columns, has_colour, say
from mpips.terminal.table import text_table


@click.command(short_help="Check this machine and print the commands that fix what is wrong.")
@click.option("--mpi", is_flag=True, help="Also start ranks, which test all that a job does.")
@click.option(
    "-n",
    "n_ranks",
    type=click.IntRange(2, 4096),
    default=2,
    show_default=True,
    help="Number of ranks of a job on this node.",
)
@click.option("--hosts", metavar="A,B,...", help="With --mpi: start the ranks on these hosts.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Folder for checkpoints, or of a table's storage [default: the working folder].",
)
@click.option(
    "--timeout",
    type=click.FloatRange(1.0),
    default=60.0,
    show_default=True,
    help="With --mpi: seconds that each launch of ranks may take.",
)
@click.option(
    "--clean",
    is_flag=True,
    help="Remove files of ended runs from /dev/shm, the temporary folder and --folder; check nothing.",
)
@click.option("--json", "want_json", is_flag=True, help="Print one line of JSON instead of text.")
def command(
    mpi: bool,
    n_ranks: int,
    hosts: str | None,
    folder: Path,
    timeout: float,
    clean: bool,
    want_json: bool,
) -> int:
    """Check this machine. Each check prints PASS, WARN or FAIL, and the command that fixes it.

    Without --mpi no rank is started, and MPI need not be installed. FAIL: jobs cannot run. WARN: jobs
    run slower, or some kinds of jobs fail. Exit code 69 if any check fails.

    \b
    mpips doctor
    mpips doctor --mpi -n 4
    mpips doctor --mpi -n 4 --hosts node1,node2 --folder /scratch/me/run
    """
    if hosts and not mpi:
        raise click.UsageError("--hosts needs --mpi, which starts ranks on these hosts: add --mpi")
    if clean:
        return _clean(folder.absolute(), want_json)
    from mpips.doctor.checks import CHECKS, run_checks
    from mpips.doctor.situation import Situation

    here = Situation(folder.absolute(), n_ranks)
    width = max(map(len, CHECKS))
    if mpi:
        from mpips.doctor.launches import NAMES, run_launches

        width = max(width, *map(len, NAMES))
    findings = _printed(run_checks(here), width, want_json)
    if mpi:
        names = hosts.split(",") if hosts else []
        findings += _printed(run_launches(here, names, timeout), width, want_json)
    click.echo(json.dumps(as_json(findings)) if want_json else summary(findings))
    return CapabilityError.exit_code if count(findings, "FAIL") else 0


def _printed(findings: Iterable[Finding], width: int, quiet: bool) -> list[Finding]:
    """Print each finding as soon as its check is done, unless `quiet`; return all of them."""
    found = []
    for finding in findings:
        found.append(finding)
        if not quiet:
            say(as_line(finding, width, columns(sys.stdout), has_colour(sys.stdout)), err=False)
    return found


def _clean(folder: Path, want_json: bool) -> int:
    """Remove what ended runs left on this machine, print what was found, and return exit code 0.

    Args:
        folder: Folder whose files of rows are removed.
        want_json: Print JSON.
    """
    from mpips.doctor import cleaning
    from mpips.doctor.situation import Situation

    here = Situation(folder)
    found = cleaning.clean(here.shm, here.temporary, here.folder)
    gone = [left for left in found if left.dead]
    if want_json:
        rows = [
            {"path": str(f.path), "bytes": f.n_bytes, "removed": f.dead, "why": f.why}
            for f in found
        ]
        click.echo(json.dumps({"removed_bytes": sum(f.n_bytes for f in gone), "found": rows}))
        return 0
    lines = [
        (
            "removed" if left.dead else "remains",
            f"{left.n_bytes / 2**20:.2f} MiB",
            str(left.path),
            f"({left.why})",
        )
        for left in found
    ]
    total = sum(left.n_bytes for left in gone) / 2**20
    counts = f"{len(gone)} removed, {total:.1f} MiB; {len(found) - len(gone)} remain"
    say("\n".join([*text_table(lines, right=[1]), counts]), err=False)
    return 0
