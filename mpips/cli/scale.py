"""`mpips scale`: give a running job other numbers of workers and servers."""

from __future__ import annotations

import re
from pathlib import Path

import click

from mpips.cli.runs import folder_option, run_argument
from mpips.errors import ConfigError
from mpips.monitor.requesting import request_scale
from mpips.monitor.runs import find_run
from mpips.rundir.files import RankPlace
from mpips.rundir.requests import JobSize
from mpips.rundir.view import view_of
from mpips.terminal.screen import say


class Count(click.ParamType):  # type: ignore[type-arg]  # generic in some versions of click only
    """A number, or a change of one: 8, +2, -1."""

    name = "N|+N|-N"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text if it is one."""
        if not re.fullmatch(r"[+-]?\d+", value):
            self.fail(f"{value!r} is neither a number nor a change such as +2 or -1", param, ctx)
        return value


def changed(now: int, count: str | None, what: str) -> int:
    """Return the new number of something.

    Args:
        now: The number now.
        count: A number or a change; None: it stays.
        what: Its name.

    Raises:
        ConfigError: It would be less than 1.
    """
    new = now if count is None else now + int(count) if count[0] in "+-" else int(count)
    if new < 1:
        raise ConfigError(f"--{what} {count}: the job has {now} {what}; at least 1 must remain")
    return new


def numbers(ranks: tuple[RankPlace, ...]) -> tuple[int, int]:
    """Return the numbers of workers and servers of these ranks."""
    roles = [role.split()[0] for place in ranks for role in place.role.split(" + ")]
    return roles.count("worker"), roles.count("server")


@click.command(
    short_help="Change the numbers of workers and servers of a run.",
)
@run_argument(required=True)
@folder_option
@click.option("--workers", type=Count(), help="Number of workers, or its change.")
@click.option("--servers", type=Count(), help="Number of servers, or its change.")
@click.option(
    "--timeout",
    type=click.FloatRange(0.0),
    default=300.0,
    show_default=True,
    help="Seconds to wait for the change. The request stands afterwards.",
)
def command(
    run: str, folder: str, workers: str | None, servers: str | None, timeout: float
) -> None:
    """Change the numbers of workers and servers of a run that `mpips run` started.

    RUN is a run directory or the beginning of a run's name. The ranks of the new size are started beside the
    job. When they wait, its servers leave all tables in shared memory, from where the new ranks continue:
    no sample of an epoch is read twice or left out, and no update is lost. Where shared memory cannot be
    used, for example with several nodes, a checkpoint is, and the answer gives the reason. A script
    chooses the number of its servers itself.

    \b
    mpips scale job-2026 --workers +2
    mpips scale job-2026 --workers 8 --servers 2
    """
    found = find_run(run, Path(folder))
    if workers is None and servers is None:
        raise click.UsageError("give --workers, --servers or both")
    view = view_of(found)
    ranks = view.status.ranks if view.status is not None else ()
    if not ranks or not view.alive:
        raise ConfigError(
            f"{found.path.name} is not at work ({view.state}): its size cannot be changed"
        )
    old_workers, old_servers = numbers(ranks)
    new_workers = changed(old_workers, workers, "workers")
    new_servers = changed(old_servers, servers, "servers")
    if (new_workers, new_servers) == (old_workers, old_servers):
        say(f"mpips scale: {found.path.name} has this size already", err=False)
        return
    n_ranks = 2 if (new_workers, new_servers) == (1, 1) else 1 + new_workers + new_servers
    is_fixed = servers is not None or not is_script(found.path)
    shape = JobSize(ranks=n_ranks, servers=new_servers if is_fixed else 0)
    after = request_scale(found, shape, timeout, say)
    counts = numbers(after.status.ranks if after.status is not None else ())
    text = "{} and {}".format(
        *(
            f"{n} {what}{'s' * (n != 1)}"
            for n, what in zip(counts, ("worker", "server"), strict=True)
        )
    )
    scaled = [event.source for event in after.events if event.event == "scaled"]
    source = f", from {scaled[-1]}" if scaled and scaled[-1] else ""
    say(f"mpips scale: {found.path.name} continues with {text}{source}", err=False)


def is_script(run: Path) -> bool:
    """Return True if the program of a run is a script of the user's own."""
    from mpips.config.schema import load_config

    return bool(load_config(str(run / "config.json"), []).run.script)
