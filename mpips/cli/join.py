"""`mpips join`: lend hosts to an elastic run."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import click

from mpips.cli.runs import folder_option, run_argument
from mpips.errors import ConfigError
from mpips.monitor.runs import find_run
from mpips.terminal.screen import say


def limit_s(given: float | None, env: Mapping[str, str] = os.environ) -> float | None:
    """Return the seconds until the hosts are gone; None: no limit is known.

    Args:
        given: Seconds that the user gave.
        env: Environment of the Slurm job; the end of its time limit is a time of this host's clock.
    """
    if given is not None:
        return given
    end = env.get("SLURM_JOB_END_TIME", "") if env.get("SLURM_JOB_ID") else ""
    return float(end) - time.time() if end.isdigit() else None


@click.command(
    short_help="Lend hosts to an elastic run.",
    epilog="Exit codes: 0 the hosts are free again or the run has ended, 1 the supervisor of the run is "
    "gone, 2 the run takes no hosts or refuses these.",
)
@run_argument(required=True)
@folder_option
@click.option(
    "--hosts",
    metavar="A:4,B:4",
    help="Hosts and their numbers of slots [default: those of the Slurm allocation, or this machine].",
)
@click.option(
    "--slots", type=click.IntRange(1), help="Ranks on this machine [default: one per core]."
)
@click.option(
    "--time-limit",
    type=click.FloatRange(0.0, min_open=True),
    help="Seconds until the hosts are gone [default: those of the Slurm job, or no limit].",
)
@click.option(
    "--leave-before",
    type=click.FloatRange(0.0),
    default=180.0,
    show_default=True,
    help="Seconds before the time limit at which the run leaves the hosts.",
)
def command(
    run: str,
    folder: str,
    hosts: str | None,
    slots: int | None,
    time_limit: float | None,
    leave_before: float,
) -> None:
    """Lend hosts to a run that was started with `mpips run --elastic`.

    RUN is a run directory or the beginning of a run's name. The command lends the hosts until the run ends,
    until it gets SIGTERM, or until the time limit of the hosts comes near. Then the job continues without
    them, and the command exits with code 0 when no rank is left there. A second signal ends it at once.

    \b
    mpips join job-2026 --slots 8
    sbatch --nodes=2 --ntasks-per-node=8 --signal=B:TERM@180 --wrap "exec mpips join runs/job-2026..."
    """
    from mpips.monitor.joining import Join, check_elastic
    from mpips.supervisor.hosts import Host, parse_hosts, slurm_hosts
    from mpips.supervisor.launcher import cores

    if hosts and slots:
        raise ConfigError("--hosts and --slots are both given: write the slots as --hosts A:4")
    found = find_run(run, Path(folder))
    check_elastic(found)
    job = os.environ.get("SLURM_JOB_ID", "")
    named = parse_hosts(hosts) if hosts else [] if slots else slurm_hosts()
    if not named:
        named = [Host(socket.gethostname(), slots or cores())]
    pairs = [(host.name, host.slots or 1) for host in named]
    Join(found, pairs, job, limit_s(time_limit), leave_before, say).lend()
