"""The decision whether another attempt follows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mpips.rundir.files import Progress, StartPoint
from mpips.supervisor import restarts
from mpips.supervisor.attempt import Ended
from mpips.supervisor.block import Newest
from mpips.supervisor.verdict import Death, Verdict

LONG_S = 30.0  # more than any interval of heartbeats


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> restarts.Restarts:
    """Of a run of five ranks that keeps its memory and has no checkpoint."""
    monkeypatch.setattr(restarts, "newest_checkpoint", lambda folder: Newest())
    plan: Any = SimpleNamespace(
        checkpoints=None,
        config=SimpleNamespace(redundancy=SimpleNamespace(warm=True)),
        pool=SimpleNamespace(n_ranks=5),
        run=SimpleNamespace(path="runs/job", again="mpips run runs/job"),
        max_restarts=50,
    )
    made = restarts.Restarts(plan)
    made.begin()
    return made


def stopped(made: restarts.Restarts, start: int, step: int, recoverable: int) -> bool:
    """Whether the run ends with an attempt from `start` whose last status has these steps."""
    progress = Progress(step=step, recoverable=recoverable)
    status: Any = SimpleNamespace(progress=progress, start=StartPoint(source="memory", step=start))
    death = Death("killed by SIGKILL (signal 9)", 3, "worker 0")
    ended = Ended(-9, 1, LONG_S, "", status=status, worked_s=LONG_S)
    return made.why_stop(Verdict("crashed", 1, death), ended, 1) != ""


def test_steps_behind_a_long_first_one_show_in_the_next_start(found: restarts.Restarts) -> None:
    """A program that is compiled for seconds makes its first steps within an interval of heartbeats."""
    # It dies at its step 0, then at 5, which no status shows, at 5 once more, and at 17.
    assert not stopped(found, 0, 0, 0)
    assert not stopped(found, 0, 0, 0)
    assert not stopped(found, 5, 5, 5)
    assert not stopped(found, 5, 5, 5)
    assert not stopped(found, 17, 17, 17)


def test_a_start_that_nothing_follows_is_the_last_after_three(found: restarts.Restarts) -> None:
    assert not stopped(found, 5, 5, 5)
    assert not stopped(found, 5, 5, 5)
    assert stopped(found, 5, 5, 5)


def test_steps_that_were_shown_and_cannot_be_kept_bring_no_progress(
    found: restarts.Restarts,
) -> None:
    assert not stopped(found, 0, 40, 0)
    assert stopped(found, 0, 40, 0)
