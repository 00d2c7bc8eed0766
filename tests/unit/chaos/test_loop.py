"""The loop in virtual time, with a run that is imitated: no process, no file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from mpips.chaos.errors import ChaosError, NotNowError
from mpips.chaos.faults import Injected
from mpips.chaos.loop import ChaosLoop
from mpips.chaos.observing import Observation
from mpips.chaos.report import INTERRUPTED, FaultResult
from mpips.chaos.schedule import PlannedFault
from mpips.rundir.files import Event

BEGIN = 1_790_000_000.0  # Unix time
RATE = 50  # steps per second
DETECTED_S = 2.0  # seconds from a kill to the failure that the supervisor records
DOWN_S = 5.0  # seconds from a kill to the next attempt


class VirtualRun:
    """A run, and the clock of its world. Its status is written once a second, as that of a real one."""

    def __init__(self) -> None:
        self.now = 0.0
        self.state = "running"
        self.generation = 0
        self.events: list[Event] = [self._event("began")]
        self.source = "memory"  # what the next attempt begins from
        self.lost = 0  # steps by which it begins earlier than it should
        self.again = True  # another attempt follows a failure
        self.paused = False
        self.fails_again = 0  # attempts that begin after a kill and fail at once
        self.stuck_s = 0.0  # seconds after a restart in which no step is made
        self._start = self._step = 0.0
        self._died: float | None = None
        self._idle_s = 0.0  # seconds until the next step
        self._status = self._observed()

    # The clock.

    def unix(self) -> float:
        return BEGIN + self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds * 100))):
            self._tick(0.01)

    # The run.

    def kill(self) -> None:
        self._died = self.now

    def look(self) -> Observation:
        return self._status._replace(events=tuple(self.events))

    def _event(self, event: str, **more: object) -> Event:
        return Event(
            time_s=BEGIN + self.now,
            generation=self.generation,
            event=event,
            **more,  # type: ignore[arg-type]
        )

    def _tick(self, dt: float) -> None:
        second = int(self.now + 1e-9)
        self.now += dt
        if self._died is None and not self.paused and self.state == "running":
            self._step += RATE * dt if self._idle_s <= 0 else 0.0
            self._idle_s -= dt
        elif self._died is not None:
            self._recover(self.now - self._died)
        if int(self.now + 1e-9) > second:
            self._status = self._observed()

    def _recover(self, dead_s: float) -> None:
        if self.state == "running" and dead_s >= DETECTED_S:
            self.events.append(self._event("failed", cause="killed by SIGKILL"))
            self.state = "restarting" if self.again else "failed"
            self._status = self._observed()
        if self.state == "restarting" and dead_s >= DOWN_S:
            self.generation += 1
            if self.fails_again:
                self.fails_again -= 1
                self.events.append(self._event("began", step=int(self._step), source="memory"))
                self.events.append(self._event("failed", cause="worker 0: ReplayError"))
                self._died = self.now - DETECTED_S
                return
            self._start = self._step = max(self._step - self.lost, 0)
            self.state, self._died, self._idle_s = "running", None, self.stuck_s
            self.events.append(self._event("began", step=int(self._start), source=self.source))

    def _observed(self) -> Observation:
        alive = self.state not in ("failed", "done")
        return Observation(
            time_s=BEGIN + self.now,
            alive=alive,
            state=self.state,
            generation=self.generation,
            step=int(self._step),
            made=int(self._step - self._start),
            all_move=self._step - self._start >= 1,
            start_source=self.source if self.generation else "nothing",
            start_path="runs/x/checkpoints/step-7" if self.source == "checkpoint" else "",
            recoverable=int(self._step),
            in_memory=True,
        )


class Effect:
    """A kind of fault that acts on an imitated run."""

    hits_process = True

    def __init__(
        self, name: str, act: Callable[[], None], back: Callable[[], None], injected: Injected
    ) -> None:
        self.name = name
        self._act, self._back, self._injected = act, back, injected
        self.ends = self.holds = 0

    def why_not(self, seen: Observation) -> str:
        return ""

    def inject(self, fault: PlannedFault, seen: Observation) -> Injected:
        self._act()
        return self._injected

    def hold(self) -> None:
        self.holds += 1

    def end(self) -> None:
        self.ends += 1
        self._back()


def planned(kind: str, *times: float) -> list[PlannedFault]:
    return [PlannedFault(at_s=t, kind=kind, role="any", which=0.5, how_long=0.5) for t in times]


def kill_of(run: VirtualRun, **more: object) -> Effect:
    what = Injected(what="kill", ends_attempt=True, **more)  # type: ignore[arg-type]
    return Effect("kill", run.kill, lambda: None, what)


def disturbed(
    run: VirtualRun, kind: Effect, schedule: Sequence[PlannedFault], for_s: float = 60.0
) -> ChaosLoop:
    loop = ChaosLoop(
        run.look,
        {kind.name: kind},
        schedule,
        for_s=for_s,
        back_s=30.0,
        clock=run,
        tell=lambda text: None,
    )
    loop.run()
    return loop


def reasons(result: FaultResult) -> list[str]:
    return [f"{broken.promise}: {broken.reason}" for broken in result.broken]


def only(loop: ChaosLoop) -> FaultResult:
    [result] = loop.results
    return result


def test_a_kill_is_followed_to_the_next_attempt_and_its_downtime_measured() -> None:
    run = VirtualRun()
    loop = disturbed(run, kill_of(run), planned("kill", 10.0))
    result = only(loop)
    assert (result.attempt, result.effect) == (0, "attempt 1 from memory")
    assert result.downtime_s == pytest.approx(DOWN_S, abs=1.0)
    assert (result.failures, result.lost_steps, result.repeated_steps) == (1, 0, 0)
    assert result.broken == []
    assert loop.unplanned == []
    assert loop.seconds == pytest.approx(60.0, abs=0.2)
    # 5 of 60 s were lost.
    assert loop.steps.quiet_rate() == pytest.approx(RATE, rel=0.02)
    assert loop.steps.net_rate() / loop.steps.quiet_rate() == pytest.approx(55 / 60, abs=0.02)


def test_an_attempt_that_makes_no_step_is_not_at_work() -> None:
    run = VirtualRun()
    run.stuck_s = 10.0
    result = only(disturbed(run, kill_of(run), planned("kill", 10.0)))
    assert result.downtime_s == pytest.approx(DOWN_S + 10.0, abs=1.5)


def test_what_was_reported_before_the_end_of_a_fault_is_no_sign_of_work_after_it() -> None:
    run = VirtualRun()
    ended: list[float] = []
    # A fault that stops no step: the next report has steps that were made before its end.
    kind = Effect(
        "pause", lambda: None, lambda: ended.append(run.now), Injected(what="p", length_s=3.3)
    )
    back: list[float] = []
    loop = ChaosLoop(
        run.look,
        {"pause": kind},
        planned("pause", 10.0),
        for_s=14.0,
        back_s=30.0,
        clock=run,
        tell=lambda text: back.append(run.now) if "continued" in text else None,
    )
    loop.run()
    assert back[0] - ended[0] > 1.0
    assert back[0] - ended[0] < 2.2


def test_the_time_to_the_next_fault_counts_from_the_recovery() -> None:
    run = VirtualRun()
    killed: list[float] = []
    kill = kill_of(run)
    kill._act = lambda: (killed.append(run.now), run.kill())[1]  # type: ignore[func-returns-value]
    loop = disturbed(run, kill, planned("kill", 10.0, 12.0, 50.0))
    assert len(killed) == len(loop.results) == 2
    # Two seconds after the run was seen at work again, and the third fault would be due after the end.
    assert killed[1] - killed[0] == pytest.approx(DOWN_S + 1.0 + 2.0, abs=1.0)


def test_steps_that_memory_had_and_the_next_attempt_lacks_are_lost() -> None:
    run = VirtualRun()
    run.lost = 100
    result = only(disturbed(run, kill_of(run), planned("kill", 10.0)))
    # The last status before the kill was up to a second old.
    assert 100 - RATE <= result.lost_steps <= 100
    [reason] = reasons(result)
    assert reason.startswith("updates: ")
    assert "were not recovered by attempt 1" in reason


def test_a_checkpoint_in_place_of_memory_breaks_a_promise_unless_the_fault_took_the_memory() -> (
    None
):
    run = VirtualRun()
    run.source, run.lost = "checkpoint", 200
    result = only(disturbed(run, kill_of(run), planned("kill", 10.0)))
    assert reasons(result) == [
        "updates: attempt 1 began from checkpoint although the memory was there"
    ]
    assert 200 - RATE <= result.repeated_steps <= 200
    assert result.lost_steps == 0

    run = VirtualRun()
    run.source, run.lost = "checkpoint", 200
    kind = kill_of(run, spares_memory=False, damaged="runs/x/checkpoints/step-9")
    result = only(disturbed(run, kind, planned("kill", 10.0)))
    assert result.broken == []
    assert "from step-7" in result.effect
    kind = kill_of(run, spares_memory=False, damaged="runs/x/checkpoints/step-7")
    result = only(disturbed(run, kind, planned("kill", 10.0)))
    assert reasons(result) == ["damage: step-7 was read although a bit is changed"]


def test_an_attempt_that_fails_after_a_kill_breaks_a_promise() -> None:
    run = VirtualRun()
    run.fails_again, run.source, run.lost = 1, "checkpoint", 200
    result = only(disturbed(run, kill_of(run), planned("kill", 10.0)))
    assert result.failures == 2
    assert result.effect.startswith("attempt 2 from step-7, ")
    assert reasons(result) == [
        "updates: attempt 2 began from checkpoint although the memory was there",
        "survival: attempt 1 after it failed as well: worker 0: ReplayError",
    ]
    assert 200 - RATE <= result.repeated_steps <= 200


def test_a_run_that_ends_by_a_fault_has_not_survived_it() -> None:
    run = VirtualRun()
    run.again = False
    kind = kill_of(run)
    loop = disturbed(run, kind, planned("kill", 10.0, 20.0))
    assert only(loop).effect == "not at work again (failed)"
    assert only(loop).downtime_s is None
    assert reasons(only(loop)) == ["survival: the run was not at work again after it (failed)"]
    assert run.now < 15.0
    assert kind.ends == 1


def test_a_run_that_is_not_back_in_time_has_not_survived() -> None:
    run = VirtualRun()
    pause = Effect(
        "pause",
        lambda: setattr(run, "paused", True),
        lambda: None,
        Injected(what="p", length_s=3.0),
    )
    result = only(disturbed(run, pause, planned("pause", 10.0, 20.0), 90.0))
    assert result.effect == "not at work again (running)"
    # It was given 30 s.
    assert run.now == pytest.approx(10 + 3 + 30, abs=2.0)


def test_a_pause_lasts_its_time_is_held_up_and_taken_back() -> None:
    run = VirtualRun()
    times: list[float] = []

    def stop() -> None:
        run.paused = True
        times.append(run.now)

    def go() -> None:
        if run.paused:
            times.append(run.now)
        run.paused = False

    pause = Effect("pause", stop, go, Injected(what="pause", length_s=3.0))
    result = only(disturbed(run, pause, planned("pause", 10.0)))
    assert times[1] - times[0] == pytest.approx(3.0, abs=0.15)
    assert pause.holds >= 20
    assert result.effect == "the attempt continued"
    assert result.downtime_s == pytest.approx(3.0, abs=1.0)
    assert result.failures == 0


def test_what_lasts_is_taken_back_when_the_loop_is_interrupted() -> None:
    run = VirtualRun()
    pause = Effect("pause", lambda: None, lambda: None, Injected(what="pause", length_s=3.0))

    def interrupt() -> None:
        raise KeyboardInterrupt

    pause.hold = interrupt  # type: ignore[method-assign]
    loop = ChaosLoop(
        run.look,
        {"pause": pause},
        planned("pause", 10.0),
        for_s=60.0,
        back_s=30.0,
        clock=run,
        tell=lambda text: None,
    )
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    assert pause.ends == 1
    assert only(loop).effect == INTERRUPTED


@pytest.mark.parametrize("place", ["inject", "tell"])
def test_what_inject_did_is_taken_back_wherever_a_signal_comes(place: str) -> None:
    run = VirtualRun()

    def stop() -> None:
        run.paused = True
        if place == "inject":
            raise KeyboardInterrupt

    def tell(text: str) -> None:
        if run.paused and place == "tell":
            raise KeyboardInterrupt

    pause = Effect(
        "pause", stop, lambda: setattr(run, "paused", False), Injected(what="p", length_s=3.0)
    )
    loop = ChaosLoop(
        run.look,
        {"pause": pause},
        planned("pause", 10.0),
        for_s=60.0,
        back_s=30.0,
        clock=run,
        tell=tell,
    )
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    assert not run.paused
    if place == "tell":
        assert only(loop).effect == INTERRUPTED
    else:
        assert loop.left_out == ["pause at 0:10: interrupted while it was injected"]


def test_a_fault_that_is_impossible_when_it_is_due_is_left_out() -> None:
    run = VirtualRun()

    def refuse() -> None:
        raise NotNowError("no server is there")

    kind = Effect("kill", refuse, lambda: None, Injected(what="kill"))
    loop = disturbed(run, kind, planned("kill", 10.0, 20.0))
    assert loop.results == []
    assert loop.left_out == [f"kill at 0:{s}: no server is there" for s in (10, 20)]


def test_an_attempt_that_fails_without_a_fault_is_named() -> None:
    run = VirtualRun()
    kind = Effect("kill", run.kill, lambda: None, Injected(what="kill", ends_attempt=True))
    schedule = planned("kill", 10.0, 30.0)
    loop = ChaosLoop(
        run.look,
        {"kill": kind},
        schedule,
        for_s=60.0,
        back_s=30.0,
        clock=run,
        tell=lambda text: run.kill() if "attempt 1 from memory" in text else None,
    )
    loop.run()
    assert loop.unplanned == ["attempt 1: killed by SIGKILL"]
    assert [r.failures for r in loop.results] == [1, 1]


def test_the_run_is_done_before_the_last_fault() -> None:
    run = VirtualRun()

    def finish() -> None:
        run.state = "done"
        run._status = run._observed()

    kind = Effect("kill", finish, lambda: None, Injected(what="kill", ends_attempt=True))
    result = only(disturbed(run, kind, planned("kill", 10.0, 20.0)))
    assert (result.effect, result.broken) == ("the run was done", [])


def test_no_fault_is_injected_into_a_run_that_makes_no_steps() -> None:
    run = VirtualRun()
    run.paused = True
    kind = kill_of(run)
    with pytest.raises(ChaosError, match="not every worker has made a step within 30 s"):
        disturbed(run, kind, planned("kill", 0.0))
    assert kind.ends == 0
