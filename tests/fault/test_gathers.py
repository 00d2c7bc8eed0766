"""Gathers to which one worker does not come end the job with a message that names it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from launcher import launch

PROGRAM = Path(__file__).with_name("programs") / "meeting.py"


ENDS = ["is at the end of its program", "barrier 'measured'", "in the same order"]
DIFFERS = ["is at gather 'rates'", "barrier 'measured'", "in the same order"]


# The root of the tree, an inner worker and a leaf; each way at the root and below.
@pytest.mark.parametrize(
    ("odd", "how", "parts"),
    [
        (2, "ends", ENDS),
        (0, "differs", DIFFERS),
        pytest.param(0, "ends", ENDS, marks=pytest.mark.long),
        pytest.param(3, "differs", DIFFERS, marks=pytest.mark.long),
    ],
)
def test_a_worker_at_another_call_is_named_at_once(odd: int, how: str, parts: list[str]) -> None:
    argv = [
        sys.executable,
        str(PROGRAM),
        str(odd),
        how,
        json.dumps({"timeout_s": 60, "servers": 1}),
    ]
    with launch(6, argv, timeout=30.0) as job:
        assert job.wait() == 2, job.stderr()
        text = job.stderr()
    for part in [f"worker {odd} (rank {odd + 2} on", *parts]:
        assert part in text, text


@pytest.mark.parametrize("odd", [3, *(pytest.param(n, marks=pytest.mark.long) for n in (0, 2))])
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


@pytest.mark.parametrize(
    ("slow", "divided"),
    [
        (0, True),
        (2, False),
        pytest.param(0, False, marks=pytest.mark.long),
        pytest.param(2, True, marks=pytest.mark.long),
    ],
)
def test_a_late_worker_takes_part_in_every_evaluation(
    tmp_path: Path, slow: int, divided: bool
) -> None:
    # With a backup worker the others close clocks without it, and it ends before its last epochs.
    path = tmp_path / "data.npz"
    x = np.random.default_rng(0).normal(size=(240, 3)).astype(np.float32)
    np.savez(path, x=x, y=np.arange(240) % 2)
    data = ["--train", str(path), "--test", str(path), "--servers", "1"]
    sets = ["train.eval_every=1", "cluster.timeout_s=20", f"options.slow={slow}"]
    arguments = [word for text in sets for word in ("--set", text)]
    command = [sys.executable, "-m", "mpips", "train", "slow_task:Slow", *data, *arguments]
    env = {"PYTHONPATH": str(PROGRAM.parent), **({"DIVIDED_AUC": "1"} if divided else {})}
    with launch(5, [*command, "--progress", "none", "--json"], timeout=60.0, env=env) as job:
        assert job.wait() == 0, job.tail()
        found = json.loads(job.stdout().strip().splitlines()[-1])
    # The scores do not depend on what was learned: each evaluation finds the same pairs, however divided.
    assert [row["auc"] for row in found["history"]] == [pytest.approx(121 / 240, abs=1e-12)] * 4
