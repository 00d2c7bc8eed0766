"""Switch in runs that are killed around its clock: each update counts once, with its rate."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from supervised import PROGRAMS, start

AT = 6
N_WORKERS, STEPS = 2, 2 * AT + 6  # as in switching.py
BY_DAY = [f"server:ended:{AT - 1}", f"worker:pushed:{AT + 2}"]
PLANS = [
    [f"{role}:{place}:{step}" for step in steps]
    for role in ("worker", "server", "both")
    for place in ("pulled", "pushed", "ended")
    for steps in ((AT - 2, AT - 1, AT), (AT, AT + 1, AT + 3))
]


def switched(
    folder: Path, plan: list[str], *options: str, servers: int = 2, **more: str
) -> list[dict[str, object]]:
    """Run the program with kills; check its values; return how each launch but the first has begun."""
    script = str(PROGRAMS / "switching.py")
    shape = ["-n", str(1 + servers + N_WORKERS), "--max-restarts", str(len(plan))]
    run = start(folder, *shape, *options, script, str(AT), *plan, SERVERS=str(servers), **more)
    with run.launched:
        assert run.launched.wait() == 0, run.launched.tail(80)
        found = json.loads(run.launched.stdout().strip().splitlines()[-1])
    assert run.attempts == len(plan) + 1
    # The mean of two workers, and from the switch on half of the rate.
    n = N_WORKERS * STEPS
    assert found["plain"] == [0.5] * n
    assert found["rows"] == [[0.5] * 3] * n
    # A gradient moves values by rate / (1 - momentum) times itself, on whichever side of the switch.
    np.testing.assert_allclose(found["heavy"], np.ones(n), rtol=1e-5)
    lines = (run.path / "events.jsonl").read_text().splitlines()
    return [e for e in map(json.loads, lines) if e["event"] == "began" and e["generation"]]


def test_kills_at_and_after_the_switch_lose_and_double_nothing(tmp_path: Path) -> None:
    begun = switched(tmp_path, BY_DAY, servers=1)
    assert [e["source"] for e in begun] == ["memory"] * len(BY_DAY)


@pytest.mark.long
@pytest.mark.parametrize("plan", PLANS, ids=map(" ".join, PLANS))
def test_kills_of_each_role_at_each_place_lose_and_double_nothing(
    tmp_path: Path, plan: list[str]
) -> None:
    switched(tmp_path, plan)


@pytest.mark.long
@pytest.mark.parametrize("role", ["worker", "server"])
def test_a_run_that_continues_from_checkpoints_switches_at_the_same_clock(
    tmp_path: Path, role: str
) -> None:
    plan = [f"{role}:pushed:{step}" for step in (AT - 1, AT + 3, AT + 7)]
    begun = switched(tmp_path, plan, "--set", "redundancy.warm=false", SAVED="1")
    assert [e["source"] == "memory" for e in begun] == [False] * len(plan)
