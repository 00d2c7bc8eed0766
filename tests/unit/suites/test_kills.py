"""The count of lost and doubled updates, and the matrix of faults."""

from __future__ import annotations

import itertools
import operator
import random

import numpy as np
import pytest
from click.testing import CliRunner

from mpips.testing import faults, matrix
from mpips.testing.counted import COPIES, DIM
from tests.bench import kills
from tests.bench.__main__ import command
from tests.bench.options import SuiteOptions

N = 40
TIMES = 3


def counted(**changes: float) -> dict[str, bytes]:
    """Return tables with the expected count of each of N features, except for `changes`."""
    seen = np.full((COPIES, N), TIMES, np.float32)
    rows = np.full((N, DIM), TIMES, np.float32)
    seen[1, 3] += changes.get("seen", 0)
    rows[5] += changes.get("rows", 0)
    keys = np.arange(N)[: N - int(changes.get("absent", 0))]
    return {
        "/tables/seen/values": seen.tobytes(),
        "/tables/rows/keys": keys.tobytes(),
        "/tables/rows/values": rows[keys].tobytes(),
    }


@pytest.mark.parametrize(
    ("changes", "lost", "double"),
    [
        ({}, 0, 0),
        ({"seen": -2}, 2, 0),
        ({"rows": 1}, 0, DIM),
        ({"seen": 3, "rows": -1}, DIM, 3),
        ({"absent": 1}, DIM * TIMES, 0),
    ],
)
def test_every_lost_and_doubled_update_is_counted(
    changes: dict[str, float], lost: int, double: int
) -> None:
    assert kills.audit(counted(**changes), np.full(N, TIMES)) == (lost, double)


@pytest.mark.parametrize("kind", [pytest.param("pairs", marks=pytest.mark.long), "main_pairs"])
def test_a_sample_is_always_the_same_and_holds_all_its_pairs_and_every_row(kind: str) -> None:
    pairs_of = operator.attrgetter(kind)
    runs = matrix.covering(pairs_of)
    assert runs == matrix.covering(pairs_of)
    chosen = [cell for run in runs for cell in run.cells]
    pairs = {pair for cell in matrix.cells() for pair in pairs_of(cell)}
    assert pairs <= {pair for cell in chosen for pair in pairs_of(cell)}
    for name, rows in (("place", faults.PLACES), ("how", faults.HOWS)):
        assert {getattr(cell, name) for cell in chosen} == set(rows)
    for name, values in (
        ("task", faults.TASKS),
        ("servers", faults.SERVERS),
        ("transport", faults.TRANSPORTS),
    ):
        assert {getattr(cell.shape, name) for cell in chosen} == set(values)


def test_the_tests_run_each_kind_of_job_with_a_death_on_each_side_of_it() -> None:
    sample = matrix.sample()
    sides = {
        (run.shape.task, faults.SIDES[faults.PLACES[cell.place].group])
        for run in sample
        for cell in run.cells
    }
    assert sides == set(itertools.product(faults.TASKS, set(faults.SIDES.values())))
    shapes = {(run.shape.servers, run.shape.transport) for run in sample}
    assert shapes == set(itertools.product(faults.SERVERS, faults.TRANSPORTS))
    # They take half the runs of all pairs at most, for they have minutes.
    assert len(sample) < 46


def test_every_run_is_possible_and_the_supervisor_does_not_give_up() -> None:
    rng = random.Random(1)
    for run in [*matrix.sample(), *(matrix.draw(rng, 5) for _ in range(200))]:
        assert all(cell.possible and cell.shape == run.shape for cell in run.cells)
        deaths = run.deaths
        assert len(deaths) >= len(run.cells)
        # After two consecutive launches that end before they make steps, the supervisor gives up.
        assert not any(a.early and b.early for a, b in itertools.pairwise(deaths))
        assert all(bool(death.who) != bool(death.fault) for death in deaths)


@pytest.mark.parametrize("how", ["twice", "thrice"])
def test_launches_end_again_at_the_same_place_of_a_clock(how: str) -> None:
    shape = matrix.JobShape("rows-bsp", 3, "rma")
    for place in ("placed", "between ticks", "between sends"):
        run = matrix.Run((matrix.FaultCell(place, how, shape),), 7)
        first, *others = [int(death.fault.partition(":")[2]) for death in run.deaths]
        a_clock = {"placed": 1, "between ticks": 3, "between sends": 6}[place]
        assert len(others) == faults.HOWS[how].launches - 1
        assert first > 3 * a_clock
        assert all(other <= a_clock and (first - other) % a_clock == 0 for other in others)


@pytest.mark.long
def test_the_matrix_is_run_once_and_says_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged = []

    def judge(runs: kills.Runs, run: matrix.Run, epochs: int) -> kills.RunVerdict:
        judged.append(run)
        return kills.RunVerdict(run, lost=len(judged) == 2)

    monkeypatch.setattr(kills._native, "HAS_FAULT_POINTS", True)
    monkeypatch.setattr(kills.Runs, "judge", judge)
    monkeypatch.setattr(kills.beside, "why_not", lambda event: "no root" if event == "disk" else "")
    found = kills.run("kills", SuiteOptions(matrix=True), 0)
    runs = matrix.covering()
    assert judged == [run for run in runs if run.event != "disk"]
    assert len(judged) < len(runs)
    left_out = [note for note in found.notes if note.startswith("left out: ")]
    assert left_out == [f"left out: {run}: no root" for run in runs if run.event == "disk"]
    (lost,) = (figure for figure in found.figures if figure.name == "lost_updates")
    assert lost.values == [1.0]


def test_the_matrix_and_a_number_of_kills_exclude_each_other() -> None:
    result = CliRunner().invoke(command, ["kills", "--matrix", "--kills", "3"])
    assert result.exit_code == 2
    assert "--matrix takes the place of --kills" in result.output
