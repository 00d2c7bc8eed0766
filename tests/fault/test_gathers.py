"""Gathers to which one worker does not come end the job with a message that names it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from launcher import launch

PROGRAM = Path(__file__).with_name("programs") / "meeting.py"


@pytest.mark.parametrize("odd", [0, 2, 3])
@pytest.mark.parametrize(
    ("how", "code", "parts"),
    [
        ("ends", 2, ["is at the end of its program", "barrier 'measured'", "in the same order"]),
        ("differs", 2, ["is at gather 'rates'", "barrier 'measured'", "in the same order"]),
    ],
)
def test_a_worker_at_another_call_is_named_at_once(
    odd: int, how: str, code: int, parts: list[str]
) -> None:
    argv = [
        sys.executable,
        str(PROGRAM),
        str(odd),
        how,
        json.dumps({"timeout_s": 60, "servers": 1}),
    ]
    with launch(6, argv, timeout=30.0) as job:
        assert job.wait() == code, job.stderr()
        text = job.stderr()
    for part in [f"worker {odd} (rank {odd + 2} on", *parts]:
        assert part in text, text


@pytest.mark.parametrize("odd", [0, 2, 3])
def test_a_worker_that_works_on_is_named_with_its_clock_by_all_that_wait(odd: int) -> None:
    options = {"timeout_s": 4, "servers": 1}
    argv = [sys.executable, str(PROGRAM), str(odd), "works", json.dumps(options)]
    with launch(6, argv, timeout=40.0) as job:
        assert job.wait() == 124, job.stderr()
        text = job.stderr()
    late = (
        rf"not all workers have come to barrier 'measured'; late: worker {odd} \(rank {odd + 2} on "
    )
    assert re.search(
        late + r"[^;]*\): (computing|between clocks) at clock \d+ \(waited 4 s\)", text
    ), text


@pytest.mark.parametrize("odd", [2])
def test_a_worker_that_computes_for_too_long_is_named_by_all_that_wait(odd: int) -> None:
    options = {"timeout_s": 4, "servers": 1}
    argv = [sys.executable, str(PROGRAM), str(odd), "computes", json.dumps(options)]
    with launch(6, argv, timeout=40.0) as job:
        assert job.wait() == 124, job.stderr()
        text = job.stderr()
    # The scheduler misses the heartbeats of that worker at about the same time.
    late = f"not all workers have come to barrier 'measured'; late: worker {odd} (rank {odd + 2} on"
    silent = f"worker {odd} (rank {odd + 2} on"
    assert late in text or ("has sent no heartbeat" in text and silent in text), text
