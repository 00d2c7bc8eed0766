"""The line that `mpips sweep` shows about the trial that runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mpips.monitor.trials import SweepFile, Trial
from mpips.rundir.files import Progress, RankPlace, Status
from mpips.supervisor import trial_watch
from mpips.supervisor.trial_watch import TrialWatch

RUNNING = Status(
    state="running",
    generation=0,
    time_s=1.0,
    ranks=(RankPlace(rank=0, role="worker 0", host="node1", pid=1),),
    progress=Progress(step=40, epoch=1, n_epochs=4, loss=0.25, share=0.5, samples_per_s=100.0),
)


class Line:
    """A live line."""

    def __init__(self, terminal: object) -> None:
        self.columns = 60
        self.texts: list[str] = []
        self.closed = False

    def width(self) -> int:
        return self.columns

    def show(self, text: str) -> None:
        self.texts.append(text)

    def close(self, text: str = "", erase: bool = False) -> None:
        self.closed = erase


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock, the status of the trial, the lines that were printed, and a terminal or none."""
    made = SimpleNamespace(now=0.0, status=None, printed=[], terminal=None)
    monkeypatch.setattr(trial_watch.time, "monotonic", lambda: made.now)
    monkeypatch.setattr(trial_watch, "find_terminal", lambda: made.terminal)
    monkeypatch.setattr(trial_watch, "LiveLine", Line)
    monkeypatch.setattr(trial_watch, "say", made.printed.append)
    folder = SimpleNamespace(status=lambda: made.status)
    monkeypatch.setattr(trial_watch, "RunFolder", lambda path: folder)
    return made


def watch() -> TrialWatch:
    trials = (Trial("trial-1", ("a=1",)), Trial("trial-2", ("a=2",)))
    sweep: Any = SimpleNamespace(path=Path("sweeps/job"), content=SweepFile("job", "", trials))
    return TrialWatch(sweep)


def test_a_log_gets_a_line_every_ten_seconds_and_later_one_a_minute(rig: Any) -> None:
    shown = watch()
    for second in range(731):
        rig.now, rig.status = float(second), RUNNING if second > 15 else None
        shown.look(1)
    assert rig.printed[0] == "1/2  0:10  starting"
    assert rig.printed[1].startswith("1/2  0:20   50%  epoch 2/4  step 40  100 samples/s")
    assert len(rig.printed) == 60 + 2
    assert rig.printed[-1].startswith("1/2  12:00 ")
    # The next trial begins anew.
    for rig.now in (732.0, 741.0, 742.0):
        shown.look(2)
    assert len(rig.printed) == 63
    assert rig.printed[-1].startswith("2/2  0:10 ")
    shown.close()


def test_a_terminal_has_a_live_line_that_fits(rig: Any) -> None:
    rig.terminal, rig.status = object(), RUNNING
    shown = watch()
    shown.look(1)
    rig.now = 1.0
    shown.look(1)
    line: Any = shown._line
    assert [text[:10] for text in line.texts] == ["1/2  0:00 ", "1/2  0:01 "]
    assert all(len(text) < 60 for text in line.texts)
    assert "left" in line.texts[0]
    assert rig.printed == []
    shown.close()
    assert line.closed


def test_a_line_leaves_the_last_column_of_any_terminal_free(rig: Any) -> None:
    rig.terminal = object()
    shown = watch()
    line: Any = shown._line
    for rig.status in (None, RUNNING):
        for line.columns in range(1, 90):
            shown.look(1)
            assert len(line.texts[-1]) < line.columns


def test_a_closed_output_ends_no_sweep(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def closed(text: str) -> None:
        tried.append(text)
        raise BrokenPipeError

    monkeypatch.setattr(trial_watch, "say", closed)
    shown = watch()
    for rig.now in (0.0, 10.0, 20.0):
        shown.look(1)
    assert len(tried) == 2
