"""`mpips doctor`: what would keep a job from running here, and the command that mends it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from mpips.doctor.finding import Finding, as_json, as_line, count, summary
from mpips.errors import CapabilityError


@click.command()
@click.option("--mpi", is_flag=True, help="Start ranks, too, and let them do what a job does.")
@click.option("-n", "n_ranks", type=click.IntRange(2, 4096), default=2, help="Ranks of a job here.")
@click.option("--hosts", metavar="A,B,...", help="With --mpi: the hosts to start ranks on.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Where checkpoints shall go [default: this folder].",
)
@click.option(
    "--timeout", type=click.FloatRange(1.0), default=60.0, help="Seconds for each launch of ranks."
)
@click.option("--clean", is_flag=True, help="Remove what dead runs left in /dev/shm; no checks.")
@click.option("--json", "want_json", is_flag=True, help="One line of JSON instead of text.")
def command(
    mpi: bool,
    n_ranks: int,
    hosts: str | None,
    folder: Path,
    timeout: float,
    clean: bool,
    want_json: bool,
) -> int:
    """Check this machine: one line per check, PASS, WARN or FAIL, and the command that mends it.

    Without --mpi nothing is started and MPI need not be there. Exit code 69 if any check fails.

    \b
    mpips doctor
    mpips doctor --mpi -n 4
    mpips doctor --mpi -n 4 --hosts node1,node2 --folder /scratch/me/run
    """
    if hosts and not mpi:
        raise click.UsageError("--hosts needs --mpi")
    if clean:
        return _clean(want_json)
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
    """All of them, each printed as it comes."""
    found = []
    for finding in findings:
        found.append(finding)
        if not quiet:
            click.echo(as_line(finding, width))
            sys.stdout.flush()
    return found


def _clean(want_json: bool) -> int:
    from mpips.doctor import cleaning
    from mpips.doctor.situation import Situation

    here = Situation(Path())
    found = cleaning.clean(here.shm, here.temporary)
    gone = [left for left in found if left.dead]
    if want_json:
        rows = [
            {"path": str(f.path), "bytes": f.n_bytes, "removed": f.dead, "why": f.why}
            for f in found
        ]
        click.echo(json.dumps({"removed_bytes": sum(f.n_bytes for f in gone), "found": rows}))
        return 0
    for left in found:
        what = "removed" if left.dead else "kept   "
        click.echo(f"{what}  {left.n_bytes / 2**20:10.2f} MiB  {left.path}  ({left.why})")
    total = sum(left.n_bytes for left in gone) / 2**20
    click.echo(f"{len(gone)} removed, {total:.1f} MiB; {len(found) - len(gone)} kept")
    return 0
