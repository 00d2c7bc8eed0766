"""Checks before the first fault: runs of others, ended runs, runs elsewhere, too few restarts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator, Mapping, Sequence

from mpips.chaos.faults import FaultKind
from mpips.chaos.observing import Observation
from mpips.chaos.processes import ANY, has_role, pids_of_ranks
from mpips.chaos.schedule import FaultChoice, PlannedFault
from mpips.config.schema import JobConfig
from mpips.errors import ConfigError
from mpips.rundir.directory import RunFolder
from mpips.rundir.view import running

# Kinds of faults that end an attempt, each of which takes one restart of the run.
ENDS_ATTEMPT = ("kill", "flip-bits")


@contextlib.contextmanager
def only_one(run: RunFolder) -> Iterator[None]:
    """Exclude another command that disturbs the same run, where the file system has locks; for the block.

    Raises:
        ConfigError: Another command disturbs the run.
    """
    with run.info_file.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{run.path.name}: another mpips chaos disturbs this run; wait for its end"
            ) from None
        except OSError:
            pass
        yield


def refuse_run(run: RunFolder) -> None:
    """Refuse a run of another user, and one that is not running.

    Raises:
        ConfigError: Names the reason.
    """
    owner = run.info_file.stat().st_uid
    if owner != os.geteuid():
        raise ConfigError(
            f"{run.path.name}: belongs to the user with number {owner}; faults are injected only into runs "
            "of your own"
        )
    running(run)


def refuse_place(run: RunFolder, seen: Observation, choices: Sequence[FaultChoice]) -> None:
    """Refuse a run of which this machine does not show the processes that faults are to hit.

    Raises:
        ConfigError: Names the hosts, or the role that is missing.
    """
    here = pids_of_ranks(seen.places, run.path, seen.generation)
    if not here:
        hosts = ", ".join(sorted({place.host for place in seen.places})) or "unknown hosts"
        raise ConfigError(
            f"{run.path.name}: none of its ranks is a process of yours on this machine "
            f"({socket.gethostname()}); they are on {hosts}: start mpips chaos there"
        )
    places = [place for place in seen.places if place.rank in here]
    for role in sorted({role for choice in choices for role in choice.roles} - {ANY}):
        if not any(has_role(place, role) for place in places):
            roles = ", ".join(sorted({place.role for place in places}))
            raise ConfigError(
                f"--kill {role}: {run.path.name} has no {role} on this machine; it has {roles}"
            )


def refuse_kinds(kinds: Mapping[str, FaultKind], seen: Observation) -> None:
    """Refuse kinds of faults that are impossible in the run.

    Raises:
        ConfigError: Names the first such kind and the reason.
    """
    for kind in kinds.values():
        if why := kind.why_not(seen):
            raise ConfigError(why)


def restarts_needed(schedule: Sequence[PlannedFault]) -> int:
    """Return the number of restarts that a schedule takes for certain."""
    return sum(fault.kind in ENDS_ATTEMPT for fault in schedule)


def refuse_restarts(
    run: RunFolder, config: JobConfig, seen: Observation, schedule: Sequence[PlannedFault]
) -> None:
    """Refuse a schedule that takes more restarts than the run has left: the faults would end it.

    Raises:
        ConfigError: Names both numbers and the way out.
    """
    left, needed = config.run.max_restarts - seen.restarts, restarts_needed(schedule)
    if needed > left:
        raise ConfigError(
            f"{run.path.name}: the schedule ends {needed} attempts, and the run has {left} restarts left; "
            f"start it with --max-restarts {needed + seen.restarts + 1} or more, or give a shorter --for or "
            "a longer --every"
        )
