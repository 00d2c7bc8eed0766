"""Switch in runs that are killed around its clock: each update counts once, with its rate."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from supervised import PROGRAMS, start

AT = 6
N_WORKERS = 2
DECIDED = 5  # the clock that server 0 decides on with PLATEAU=1
UNEVEN = 20  # the earliest one with LATE=1
BY_DAY = [f"server:ended:{AT - 1}", f"worker:pushed:{AT + 2}"]
PLANS = [
    [f"{role}:{place}:{step}" for step in steps]
    for role in ("worker", "server", "both")
    for place in ("pulled", "pushed", "ended")
    for steps in ((AT - 2, AT - 1, AT), (AT, AT + 1, AT + 3))
]


def switched(
    folder: Path, plan: list[str], *options: str, servers: int = 2, at: int = AT, **more: str
) -> list[dict[str, object]]:
    """Run the program with kills; check its values; return how each launch but the first has begun."""
    script = str(PROGRAMS / "switching.py")
    shape = ["-n", str(1 + servers + N_WORKERS), "--max-restarts", str(len(plan))]
    run = start(folder, *shape, *options, script, str(at), *plan, SERVERS=str(servers), **more)
    with run.launched:
        assert run.launched.wait() == 0, run.launched.tail(80)
        found = json.loads(run.launched.stdout().strip().splitlines()[-1])
    assert run.attempts == len(plan) + 1
    # The mean of two workers, and from the switch on half of the rate.
    n = N_WORKERS * (2 * at + 6)  # steps as in switching.py
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


@pytest.mark.long
@pytest.mark.parametrize("place", ["pulled", "pushed", "ended"])
def test_kills_around_a_switch_at_a_plateau_leave_its_clock_as_it_was_decided(
    tmp_path: Path, place: str
) -> None:
    plan = [
        f"{role}:{place}:{DECIDED + step}"
        for role, step in (("worker", -2), ("server", -1), ("both", 0))
    ]
    begun = switched(tmp_path, plan, at=DECIDED, PLATEAU="1")
    assert [e["source"] for e in begun] == ["memory"] * len(plan)


@pytest.mark.long
def test_a_run_that_continues_from_checkpoints_keeps_the_clock_of_a_plateau(tmp_path: Path) -> None:
    plan = [f"worker:pushed:{step}" for step in (DECIDED, DECIDED + 3, DECIDED + 7)]
    begun = switched(
        tmp_path, plan, "--set", "redundancy.warm=false", at=DECIDED, SAVED="1", PLATEAU="1"
    )
    assert [e["source"] == "memory" for e in begun] == [False] * len(plan)


@pytest.mark.long
@pytest.mark.parametrize("place", ["pulled", "ended"])
def test_kills_around_a_switch_with_uneven_workers_lose_and_double_nothing(
    tmp_path: Path, place: str
) -> None:
    """The second launch decides, within 17 clocks; before the third one starts the workers are under ASP."""
    plan = [f"worker:{place}:3", f"server:{place}:30", f"both:{place}:36"]
    begun = switched(tmp_path, plan, at=UNEVEN, LATE="1")
    assert [e["source"] for e in begun] == ["memory"] * len(plan)
    logs = "".join(p.read_text(errors="replace") for p in tmp_path.rglob("logs/*/*") if p.is_file())
    (clock,) = set(re.findall(r"clock of Switch\(at='uneven'\) is (\d+): ", logs))
    assert UNEVEN < int(clock) <= 30
    assert "worker 1 most" in logs
