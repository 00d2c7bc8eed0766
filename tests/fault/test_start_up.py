"""A rank that is stopped while the job starts or ends: the others end in time and name it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from launcher import launch

PROGRAM = Path(__file__).with_name("programs") / "stopped.py"
TIMEOUT_S = 3

# The place, the rank that stops there (0 schedules, 1 serves), and what is said of it.
PLACES = [
    ("mpi", 1, "the start of MPI, where all ranks meet, has not returned for 3 s; rank 1 (pid "),
    (
        "meeting",
        0,
        "start-up (the beginning, where all ranks meet): rank 0 has not come within 3 s",
    ),
    ("making the regions", 1, "start-up (making the regions): server 0 (rank 1 on "),
    ("making the MPI window", 3, "start-up (making the MPI window): worker 1 (rank 3 on "),
    ("leaving", 0, "the end (leaving): scheduler (rank 0 on "),
    ("leaving", 1, "the end (leaving): server 0 (rank 1 on "),
    ("leaving", 3, "the end (leaving): worker 1 (rank 3 on "),
]


# By day each part of the start and of the end once, and each role.
BY_DAY = (("mpi", 1), ("meeting", 0), ("making the MPI window", 3), ("leaving", 1))


@pytest.mark.parametrize(
    ("place", "rank", "said"),
    [
        pytest.param(*p, id=f"{p[0]}-{p[1]}", marks=[pytest.mark.long] * (p[:2] not in BY_DAY))
        for p in PLACES
    ],
)
def test_a_rank_that_stops_while_the_job_starts_or_ends_is_named(
    tmp_path: Path, place: str, rank: int, said: str
) -> None:
    argv = [sys.executable, str(PROGRAM), place, str(rank), str(TIMEOUT_S), str(tmp_path)]
    with launch(4, argv, timeout=60.0) as job:
        # prterun of Open MPI 5.0.11 may crash once it has ended ranks that are not in MPI yet.
        assert job.wait() in (124, -signal.SIGSEGV), job.tail()
        text = job.stderr()
    line = next(line for line in text.splitlines() if line.startswith("mpips: error: "))
    assert said in line, text
    assert "stopped by a signal" in line or place == "meeting"
    assert "Traceback" not in text


SLOW = PROGRAM.with_name("slow_reader.py")
DIGITS = ["mlp", "--train", "digits", "--epochs", "1", "--servers", "1"]


def test_a_rank_that_reads_for_longer_than_the_timeout_is_no_stall() -> None:
    argv = [sys.executable, str(SLOW), "steps", "5", "2", *DIGITS]
    with launch(4, argv, timeout=90.0) as job:
        assert job.wait() == 0, job.tail()
        assert "accuracy" in job.stderr() + job.stdout()


def test_a_rank_whose_read_never_returns_is_named() -> None:
    argv = [sys.executable, str(SLOW), "stuck", "600", "3", *DIGITS]
    with launch(4, argv, timeout=60.0) as job:
        assert job.wait() == 124, job.tail()
        text = job.stderr()
    assert "start-up (reading the training data): worker 0 (rank 2 on" in text, text
    # More than one rank only where the launcher has not ended the others yet; all say the same.
    said = [line for line in text.splitlines() if line.startswith("mpips: error:")]
    assert len({line.partition("start-up")[2] for line in said}) == 1, text
