"""The block that `mpips run` prints about a failed attempt."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from mpips.rundir.directory import RunFolder
from mpips.rundir.files import Progress, StartPoint, Status
from mpips.supervisor.attempt import Ended
from mpips.supervisor.block import WIDTH, Newest, failure_block, origin, trained
from mpips.supervisor.conclusion import Conclusion
from mpips.supervisor.verdict import Death, Verdict


def block(width: int) -> list[str]:
    verdict = Verdict("crashed", 1, Death("killed by SIGKILL (signal 9)", 4, "worker 1"))
    run = RunFolder(Path("runs/job"))
    ended = Ended(1, 1, 71.3, "")
    text = failure_block(run, 0, verdict, ended, Newest(), "restart 1 of 3", 0.0, width=width)
    return text.splitlines()


def test_a_terminal_of_few_columns_gets_the_same_words() -> None:
    words = " ".join(block(WIDTH)[1:-1]).split()
    for width in (1, 18, 20, 60):
        narrow = block(width)
        assert narrow[0] == narrow[-1] == "-" * width
        assert " ".join(narrow[1:-1]).split() == words
    # At 60 columns nothing but the title, which `say` wraps, and the path of the logs is longer.
    assert all(len(line) <= 60 for line in block(60)[2:] if not line.startswith("  logs"))


def test_epochs_are_named_where_the_program_counts_them() -> None:
    start = StartPoint(source="memory", step=4, epoch=1)
    assert origin(start) == "from memory: step 4, 1 epoch done"
    assert origin(StartPoint(source="memory", step=4, has_epochs=False)) == "from memory: step 4"
    verdict, ended = Verdict("crashed", 1, Death("killed")), Ended(1, 1, 1.0, "")
    for counts, expected in ((True, "(step 4, 0 epochs done)"), (False, "(step 4)")):
        newest = Newest(Path("c"), 4, 0, 0.0, counts)
        text = failure_block(RunFolder(Path("r")), 0, verdict, ended, newest, "none", 0.0)
        assert f"c {expected}" in text


def test_loss_and_rate_are_named_where_they_are_known() -> None:
    assert trained(Progress(loss=0.123456, learning_rate=3e-5)) == "loss 0.1235, lr 3e-05"
    assert trained(Progress(loss=2.0)) == "loss 2"
    assert trained(Progress(learning_rate=0.1)) == "lr 0.1"
    assert trained(Progress()) == trained(None) == ""


def test_the_line_of_a_restart_has_loss_and_rate_before_the_failure(tmp_path: Path) -> None:
    said: list[str] = []
    # Of the plan only the folders are read here, and of the record only what is printed.
    plan: Any = SimpleNamespace(run=RunFolder(tmp_path), checkpoints=tmp_path, config=None)
    record: Any = SimpleNamespace(tell=said.append)
    conclusion = Conclusion(plan, record, lambda: False)
    status = Status(state="running", generation=0, time_s=1.0)
    progress = Progress(loss=0.5, learning_rate=0.25)
    conclusion.note_failure(replace(status, progress=progress))
    # An attempt that ends before its first report does not hide the one before.
    conclusion.note_failure(status)
    start = StartPoint(source="memory", step=4, epoch=1)
    conclusion.recovered(2, replace(status, start=start))
    assert said[0].startswith("mpips run: attempt 2 is at work ")
    assert said[0].endswith(" from memory: step 4, 1 epoch done; before it: loss 0.5, lr 0.25")
    conclusion.recovered(2, status)
    assert len(said) == 1
