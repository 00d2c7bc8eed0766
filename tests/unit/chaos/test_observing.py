"""Observation of a run: work is seen by clocks, and time is lost against the usual rate."""

from __future__ import annotations

import msgspec
import pytest

from mpips.chaos.observing import Observation, RunObserver, StepTimes
from mpips.rundir.files import Progress, RankRow, Ranks, StartPoint, Status
from mpips.rundir.view import RunView


class Records:
    """The records of a run with two workers."""

    def __init__(self) -> None:
        self.view = RunView(name="job", state="running", now=100.0)

    def show(self, generation: int, *clocks: int, heard: int = 9, step: int = 0) -> None:
        """Write the clocks of the workers, of which the first `heard` ones have sent a heartbeat."""
        rows = [RankRow(rank=0, role="scheduler + server 0", host="node", pid=1, heard_s=1.0)]
        rows += [
            RankRow(
                rank=1 + w,
                role=f"worker {w}",
                host="node",
                pid=2 + w,
                clock=clock,
                heard_s=float(w < heard),
            )
            for w, clock in enumerate(clocks)
        ]
        status = Status(
            state="running",
            generation=generation,
            time_s=90.0,
            start=StartPoint(source="memory", step=391),
            progress=Progress(step=step, recoverable=391, in_memory=True),
        )
        ranks = Ranks(generation=generation, time_s=91.0, ranks=tuple(rows))
        self.view = msgspec.structs.replace(self.view, status=status, ranks=ranks)

    def read(self) -> RunView:
        return self.view


def test_a_step_beyond_the_begin_of_an_attempt_is_no_work() -> None:
    records = Records()
    observer = RunObserver(records.read)
    # The attempt began with the least clock; the other worker is two steps ahead since the attempt before.
    records.show(1, 391, 393, step=393)
    first = observer.look()
    assert (first.generation, first.step, first.made) == (1, 393, 0)
    assert not first.moves
    assert not first.all_move
    records.show(1, 391, 395, step=395)
    one = observer.look()
    assert (one.made, one.moves, one.all_move) == (2, True, False)
    records.show(1, 392, 395, step=395)
    both = observer.look()
    assert (both.made, both.moves, both.all_move) == (3, True, True)
    assert both.time_s == 91.0
    # Another attempt begins anew.
    records.show(2, 392, 395, step=395)
    assert observer.look().made == 0


def test_workers_that_have_not_been_heard_are_not_compared() -> None:
    records = Records()
    observer = RunObserver(records.read)
    records.show(1, 0, 0, heard=0)
    observer.look()
    # Their first report has the clock that they had in the attempt before.
    records.show(1, 391, 393)
    assert observer.look().made == 0


def test_a_worker_that_has_not_been_heard_may_not_work_yet() -> None:
    records = Records()
    observer = RunObserver(records.read)
    records.show(1, 5, 0, heard=1)
    observer.look()
    records.show(1, 9, 0, heard=1)
    seen = observer.look()
    assert seen.moves
    assert not seen.all_move


@pytest.mark.parametrize(
    "change", [{"ranks": None}, {"state": "restarting"}, {"state": "done", "alive": False}]
)
def test_there_is_no_work_where_no_attempt_runs(change: dict[str, object]) -> None:
    records = Records()
    observer = RunObserver(records.read)
    records.show(1, 5, 5)
    observer.look()
    records.show(1, 9, 9)
    records.view = msgspec.structs.replace(records.view, **change)
    seen = observer.look()
    assert not seen.moves
    assert not seen.all_move
    records.view = RunView(name="job", state="not started", alive=False, now=5.0)
    assert observer.look() == Observation(5.0, False, "not started")


def steps(*points: tuple[float, int, int]) -> StepTimes:
    """Return the steps at these times: Unix time, generation, step."""
    found = StepTimes()
    for time_s, generation, step in points:
        found.note(Observation(time_s, True, "running", generation, step, made=1))
    return found


def test_time_is_lost_against_the_usual_rate() -> None:
    times = steps((0, 0, 0), (5, 0, 500), (10, 0, 1000), (18, 1, 1300), (20, 1, 1500))
    times.add_quiet(0.0, 10.0)
    assert times.quiet_rate() == 100.0
    # Of the 8 s around the fault 3 s were work.
    assert times.downtime_s(10.5, 18.0) == pytest.approx(5.0)
    assert times.net_rate() == pytest.approx(75.0)
    assert times.greatest(0) == 1000
    assert times.greatest(7) == 0


def test_steps_that_are_made_again_are_lost_time() -> None:
    times = steps((0, 0, 0), (10, 0, 1000), (15, 1, 700), (20, 1, 1200))
    times.add_quiet(0.0, 10.0)
    assert times.downtime_s(10.5, 15.0) == pytest.approx(8.0)
    # The whole time counts the steps once.
    assert times.net_rate() == pytest.approx(60.0)


def test_nothing_is_computed_from_too_few_observations() -> None:
    times = steps((0, 0, 10))
    times.add_quiet(5.0, 1.0)
    assert (times.quiet_rate(), times.net_rate(), times.downtime_s(1.0, 2.0)) == (0.0, 0.0, 0.0)
    times.note(Observation(3.0, True, "running", 0, 50, made=0))
    assert times.net_rate() == 0.0
