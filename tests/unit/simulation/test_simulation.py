"""Simulated jobs: new histories in every run, and defects that the simulator must find."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from long_runs import LONG, taking_turns, turn

pytest.importorskip("greenlet", reason="the simulator needs greenlet")

from simulation.planted import PLANTED

from mpips import _native

SUPPORT = Path(__file__).parents[2] / "support"
SEEDS = 1_000_000  # of one commit

pytestmark = pytest.mark.skipif(
    not _native.HAS_FAULT_POINTS, reason="this build of mpips has no fault points"
)


def simulate(*arguments: object, timeout_s: float = 280.0) -> tuple[int, str]:
    """Run the simulator in a process of its own; return its exit code and what it has printed."""
    command = [sys.executable, "-m", "simulation", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=SUPPORT, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.sampled
@pytest.mark.timeout(4000)
def test_histories_of_this_commit_keep_every_promise() -> None:
    """A minute of seeds that nobody has run before, an hour in the long run; a failure names its seed."""
    seconds = 3600 if LONG else 60
    code, text = simulate(
        turn() * SEEDS, "--count", SEEDS, "--seconds", seconds, timeout_s=seconds + 300
    )
    print(text)
    assert code == 0, text


# In the fourth a worker repeats inner steps from values that have its asynchronous outer step already. In the
# last workers are at different places of their periods; one keeps pace with those in a collective operation.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [3, 17, 28, 935000153, 998000039])
def test_a_seed_replays_to_the_same_end(seed: int) -> None:
    first, second = (simulate(seed)[1].rpartition(" in ")[0] for _ in range(2))
    assert "turns" in first
    assert first == second


# A seed from which on each planted defect is found soon. A history depends on all that is drawn and done, so
# after changes other seeds may show it: `python -m simulation 0 --count 100000 --planted NAME`.
SHOWN_BY = {
    "tick-before-position": 0,
    "no-fence": 424,
    "least-clock": 76,
    "missing-ticks": 4,
    "ticks-without-pushes": 399,
    "old-cursor": 3,
    "residual-of-the-last-try": 99,
    "pushes-again": 3,
    "commits-early": 8,
    "agrees-late": 88,
    "counts-the-finished": 1343006662,
    "cuts-after-a-push": 225,
    "positions-of-later": 19,
    "one-clock-too-old": 9,
    "releases-before-the-copy": 23,
    "forgets-its-pushes": 1,
    "acknowledges-before-the-copy": 56,
    "ticks-before-the-copies": 70,
    "stale-copy": 89,
    "full-copy": 208,
    "says-more-after-its-end": 39,
    "closes-early": 36,
    "skips-too-far": 5,
    "forgets-skipped-clocks": 372,
    "counts-dropped-pushes": 44,
    "one-version-too-stale": 10,
    "forgets-pending-steps": 21,
    "keeps-nothing-of-its-own": 21,
    "one-image": 128,
    "looks-ahead-by-outer-steps": 17,
    "silent-in-gathers": 469,
    "cuts-in-a-gather-after-a-push": 3695,
    "keeps-waiting-pushes": 10900,
    "leaves-before-the-exchange": 125,
    "keeps-the-exchange": 2,
    "forgets-the-exchange": 49,
    "cuts-in-a-repetition": 6227,
    "sends-no-rest-of-a-clock": 3,
    "counts-a-clock-that-was-sent-in-part": 3,
    "bound-before-its-clock": 59,
    "knows-the-bound-for-too-long": 169,
    "rows-of-the-greatest-bound": 110,
    "removes-idle-rows-late": 45,
    "counts-clocks-of-this-job-alone": 45,
    "counts-clocks-of-this-memory-alone": 205,
    "uses-of-the-cut": 45,
    "counts-keys-again": 45,
    "keeps-rows-that-left": 420,
    "workers-switch-early": 12,
    "servers-switch-early": 12,
    "switches-by-the-clock-of-the-launch": 12,
    "forgets-its-backup-workers": 79,
    "decides-for-the-open-clock": 136,
    "forgets-stages": 131,
    "ticks-name-no-switch": 314,
    "ends-clocks-before-the-switch-is-known": 115,
    "forgets-the-clock-of-the-switch": 314,
    "continues-after-a-failure": 177,
    "forgets-a-changed-row": 139,
}


# Defects that few histories show: the long run begins this close to a seed that does.
SELDOM = (
    "cuts-in-a-gather-after-a-push",
    "keeps-waiting-pushes",
    "cuts-in-a-repetition",
    "counts-the-finished",
)
NEAR = 50


def check_is_found(text: str) -> None:
    """Check that a history has failed by its defect, and not because the defect no longer fits the code."""
    wrong = re.search(r"^(Type|Attribute|Name|Import|Key|Index)Error\b.*", text, re.MULTILINE)
    assert wrong is None, f"the planted defect does not fit mpips: {text}"


def test_each_planted_defect_has_a_seed() -> None:
    assert SHOWN_BY.keys() == PLANTED.keys()


@pytest.mark.sampled
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", taking_turns(sorted(PLANTED), 6))
def test_a_seed_shows_a_planted_defect_and_passes_without_it(name: str) -> None:
    code, text = simulate(SHOWN_BY[name], "--count", 100_000, "--seconds", 120, "--planted", name)
    assert code == 1, f"the defect was not found: {text}"
    check_is_found(text)
    seed = re.search(r"seed (\d+)", text)
    assert seed is not None, text
    code, text = simulate(seed[1])
    assert code == 0, text


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_defect_is_found_within_two_minutes(name: str) -> None:
    jobs, first = len(os.sched_getaffinity(0)), SHOWN_BY[name] - NEAR if name in SELDOM else 0
    code, text = simulate(
        first, "--count", 100_000, "--seconds", 120, "--jobs", jobs, "--planted", name
    )
    print(text)
    assert code == 1, f"{name} was not found: {text}"
    check_is_found(text)
