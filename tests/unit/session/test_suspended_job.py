"""Every wait of a job, in a process that is suspended for long: only time in which it ran counts.

Each case is one wait of mpips. It raises if what it waits for does not come within `LIMIT_S`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_time import SimulatedTime

from mpips.checkpoint.steps import Peers
from mpips.errors import ConfigError, MpipsError
from mpips.mpi.control import Client
from mpips.mpi.messages import Heartbeat, Pong, Taken
from mpips.mpi.roles import Assignment
from mpips.mpi.watchdog import Guard
from mpips.process import patience
from mpips.recovery.mirror import Mirror
from mpips.rundir.directory import STALE_S, RunFolder, replace_json
from mpips.rundir.files import Lease
from mpips.scheduler.job_failure import JobFailure
from mpips.scheduler.scheduler import Scheduler
from mpips.snapshot.attachments import Attachments
from mpips.snapshot.server_part import ServerPart
from mpips.supervisor.host_step import ProcessLauncher
from mpips.supervisor.lease import LeaseHolder
from mpips.supervisor.stopping import drive
from mpips.worker import waits
from mpips.worker.collectives import Collectives
from mpips.worker.requests import stalled_after

LIMIT_S = 40.0
POLL_S = 0.02

Wait = Callable[[SimulatedTime, Callable[[], bool]], None]


def in_a_wait_of_the_worker(simulated: SimulatedTime, came: Callable[[], bool]) -> None:
    def done() -> bool:
        simulated.pass_by(POLL_S)
        return came()

    connection: Any = SimpleNamespace(
        timeout_s=LIMIT_S, poll=lambda: None, clock_state=SimpleNamespace(wait_s=0.0)
    )
    waits.until(connection, done, lambda: "late")


def in_a_request(simulated: SimulatedTime, came: Callable[[], bool]) -> None:
    def advance(seconds: float) -> bool:
        simulated.pass_by(seconds)
        return came()

    stalled_after(LIMIT_S, advance, lambda: "late", lambda: None)


def at_the_end_of_gathers(simulated: SimulatedTime, came: Callable[[], bool]) -> None:
    collectives: Any = Collectives.__new__(Collectives)
    collectives._connection = SimpleNamespace(timeout_s=LIMIT_S)
    collectives._late = lambda what: what

    class Tree:
        waits = False

        @property
        def idle(self) -> bool:
            return came()

        def poll(self) -> None:
            pass

    collectives._tree = Tree()
    collectives.settle()


def for_the_scheduler(simulated: SimulatedTime, came: Callable[[], bool]) -> None:
    class Line:
        def receive(self) -> list[tuple[int, Pong]]:
            return [(0, Pong())] if came() else []

        def send(self, rank: int, message: object) -> None:
            pass

    client = Client(Line(), 0, "here", LIMIT_S)  # type: ignore[arg-type]
    while not came():
        client.poll()
        # A worker that computes: no wait reads the clock.
        simulated.pass_by(3.0)
    client.poll()


def for_all_ranks(simulated: SimulatedTime, came: Callable[[], bool]) -> None:
    class Line:
        def receive(self) -> list[tuple[int, Heartbeat]]:
            return [(rank, Heartbeat("computing", 0, None)) for rank in (1, 2) if came()]

        def send(self, rank: int, message: object) -> None:
            pass

    scheduler = Scheduler(
        Line(),  # type: ignore[arg-type]
        Assignment((0,) * 3, ("here",), 0, (1,), (2,)),
        [10, 11, 12],
        LIMIT_S,
        None,
    )
    while not came():
        scheduler.poll()
        simulated.pass_by(POLL_S)
    scheduler.poll()


def in_a_guarded_call(simulated: SimulatedTime, came: Callable[[], bool]) -> None:
    guard = Guard()
    with guard("a flush"):
        while not came():
            simulated.pass_by(0.2)
            if late := guard.overdue(LIMIT_S):
                raise TimeoutError(late)


class _Request:
    """A request of MPI."""

    def __init__(self, came: Callable[[], bool]) -> None:
        self.Test = came


def for_other_servers(simulated: SimulatedTime, came: Callable[[], bool]) -> None:
    for _ in Peers(None, LIMIT_S, "a checkpoint").wait(_Request(came)):
        simulated.pass_by(POLL_S)


def for_arrays_of_the_worker(simulated: SimulatedTime, came: Callable[[], bool]) -> None:
    for _ in Attachments(["model"]).awaited(LIMIT_S):
        simulated.pass_by(POLL_S)
        if came():
            return


def for_the_partner(simulated: SimulatedTime, came: Callable[[], bool]) -> None:
    class Incoming:
        @property
        def closed(self) -> bool:
            return came()

        def free(self) -> None:
            pass

    own: Any = SimpleNamespace(
        _outgoing=None,
        _incoming=[Incoming()],
        _server=SimpleNamespace(index=0),
        _partner=1,
        poll=lambda: False,
    )
    Mirror.close(own, LIMIT_S, lambda: simulated.pass_by(POLL_S))


def at_a_cut(simulated: SimulatedTime, came: Callable[[], bool]) -> None:
    own: Any = SimpleNamespace(
        _held=None,
        _timeout_s=2 * LIMIT_S,
        _id=1,
        _cannot_copy=0,
        _server=SimpleNamespace(
            core=SimpleNamespace(holds_cut=lambda: True, cut_ready=lambda: False)
        ),
    )

    def send(message: Taken) -> None:
        raise TimeoutError(message)

    own._send = send
    while not came():
        ServerPart._come_to_cut(own)
        simulated.pass_by(POLL_S)


def for_heartbeats_of_the_attempt(simulated: SimulatedTime, came: Callable[[], bool]) -> None:
    attempt: Any = SimpleNamespace(
        wait=lambda seconds: simulated.pass_by(seconds) or came(),
        is_ending=False,
        is_suspended=False,
        look=lambda: None,
        heartbeat=lambda: None,
        kill=lambda: None,
    )
    requests: Any = SimpleNamespace(poll=lambda at_work: False, number=0)
    if why := drive(attempt, requests, LIMIT_S, lambda status: None):
        raise TimeoutError(why)


def for_hosts(simulated: SimulatedTime, came: Callable[[], bool]) -> None:
    launcher = ProcessLauncher(lambda hosts: [], {}, False)
    until = launcher.now() + LIMIT_S
    while not came():
        if launcher.now() >= until:
            raise TimeoutError
        simulated.pass_by(POLL_S)


CASES: list[Wait] = [
    in_a_wait_of_the_worker,
    in_a_request,
    at_the_end_of_gathers,
    for_the_scheduler,
    for_all_ranks,
    in_a_guarded_call,
    for_other_servers,
    for_arrays_of_the_worker,
    for_the_partner,
    at_a_cut,
    for_heartbeats_of_the_attempt,
    for_hosts,
]


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> SimulatedTime:
    return SimulatedTime(monkeypatch)


@pytest.mark.parametrize("wait", CASES)
def test_a_suspension_counts_in_no_wait(simulated: SimulatedTime, wait: Wait) -> None:
    simulated.suspend_at, simulated.suspend_s = LIMIT_S / 2, 100 * LIMIT_S
    wait(simulated, lambda: simulated.ran_s >= 0.8 * LIMIT_S)


@pytest.mark.parametrize("wait", CASES)
def test_what_does_not_come_after_a_suspension_is_late(
    simulated: SimulatedTime, wait: Wait
) -> None:
    simulated.suspend_at, simulated.suspend_s = LIMIT_S / 2, 100 * LIMIT_S
    with pytest.raises((MpipsError, JobFailure, TimeoutError)):
        wait(simulated, lambda: simulated.ran_s > 10 * LIMIT_S)
    assert LIMIT_S - patience.JUMP_S <= simulated.ran_s <= 2 * LIMIT_S + 10.0


@pytest.mark.parametrize("wait", CASES)
def test_one_that_is_suspended_alone_is_late(simulated: SimulatedTime, wait: Wait) -> None:
    # The clock of this process does not jump: what it waits for was stopped.
    with pytest.raises((MpipsError, JobFailure, TimeoutError)):
        wait(simulated, lambda: simulated.ran_s > 10 * LIMIT_S)
    assert LIMIT_S <= simulated.ran_s <= LIMIT_S + 10.0


def test_the_lease_of_another_host_is_watched_anew_after_a_suspension(
    simulated: SimulatedTime, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path)

    def renew(renewals: int) -> None:
        lease = Lease(generation=0, host="far", pid=1, time_s=0.0, renewals=renewals)
        replace_json(run.lease_file, lease)

    renew(1)
    pass_by = simulated.pass_by

    def sleep(seconds: float) -> None:
        # Both were suspended. The supervisor of the other host continues later than this one.
        before = simulated.ran_s
        pass_by(seconds)
        if before < 0.9 * STALE_S <= simulated.ran_s:
            renew(2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.sleep", sleep)
        simulated.suspend_at, simulated.suspend_s = STALE_S / 2, 3600.0
        with pytest.raises(ConfigError, match="has just renewed its lease"):
            LeaseHolder(run)
