"""Ranks are killed and paused, the chosen ones only."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from chaos_rig import place, rank_of

from mpips.chaos.errors import NotNowError
from mpips.chaos.faults import KilledRank, PausedRank
from mpips.chaos.observing import Observation
from mpips.chaos.schedule import PlannedFault
from mpips.chaos.undo import FaultGuard
from mpips.supervisor.reap import state_of


def fault(role: str, which: float = 0.0, how_long: float = 0.5) -> PlannedFault:
    return PlannedFault(at_s=0.0, kind="kill", role=role, which=which, how_long=how_long)


def until_state(pid: int, state: str) -> None:
    deadline = time.monotonic() + 10.0
    while state_of(pid) not in state:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def seen_of(*pids: int) -> Observation:
    """Return a run of a server and workers with these pids."""
    roles = ["server 0", *(f"worker {w}" for w in range(len(pids) - 1))]
    places = tuple(
        place(r, role, pid) for r, (role, pid) in enumerate(zip(roles, pids, strict=True))
    )
    return Observation(0.0, True, "running", 0, places=places)


def test_the_rank_that_is_chosen_is_killed(tmp_path: Path) -> None:
    with (
        rank_of(tmp_path, 0, 0) as (server, _),
        rank_of(tmp_path, 0, 1) as (first, _),
        rank_of(tmp_path, 0, 2) as (second, child),
    ):
        seen, kind = seen_of(server, first, second), KilledRank(tmp_path)
        injected = kind.inject(fault("worker", which=0.9), seen)
        assert injected.what == f"kill worker 1 (rank 2, pid {second})"
        assert injected.ends_attempt
        assert injected.spares_memory
        until_state(second, "ZX")
        assert state_of(server) not in "ZX"
        assert state_of(first) not in "ZX"
        # The worker that is left is chosen now, and then there is none.
        kind.inject(fault("worker", which=0.9), seen)
        until_state(first, "ZX")
        with pytest.raises(NotNowError, match="no worker of attempt 0 runs on this machine"):
            kind.inject(fault("worker"), seen)
        os.kill(child, signal.SIGKILL)


def test_a_paused_rank_continues_at_the_end_and_when_the_guard_ends(tmp_path: Path) -> None:
    with rank_of(tmp_path, 0, 0) as (server, child), FaultGuard() as guard:
        kind = PausedRank(tmp_path, guard, 4.5)
        injected = kind.inject(fault("any"), seen_of(server))
        assert injected.what == f"pause server 0 (rank 0, pid {server}) for 2.5 s"
        assert injected.length_s == 2.5
        assert not injected.ends_attempt
        until_state(server, "T")
        kind.end()
        until_state(server, "S")
        kind.inject(fault("any"), seen_of(server))
        until_state(server, "T")
        guard.close()
        until_state(server, "S")
        os.kill(child, signal.SIGKILL)


def test_a_pause_is_never_longer_than_the_longest(tmp_path: Path) -> None:
    with rank_of(tmp_path, 0, 0) as (server, child), FaultGuard() as guard:
        for longest_s, how_long, expected in ((0.2, 0.9, 0.2), (0.5, 0.0, 0.5), (10.5, 0.5, 5.5)):
            kind = PausedRank(tmp_path, guard, longest_s)
            injected = kind.inject(fault("any", how_long=how_long), seen_of(server))
            assert injected.length_s == pytest.approx(expected)
            kind.end()
        os.kill(child, signal.SIGKILL)
