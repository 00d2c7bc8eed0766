"""The matrix of faults (mpips/testing/matrix.py): a fixed sample of it, and every update counts once.

One run of a job has two faults or three, one after the other. By day the runs take turns with the other tests
of this folder, but those with a row that is new or changed (tests/support/matrix_rows.py) always run. To run
one again: its id names it, and the order of the sample is always the same.
"""

from __future__ import annotations

import matrix_rows
import pytest
from _pytest.mark import ParameterSet

from mpips.testing import beside, matrix
from tests.bench import kills

CHANGED = set(matrix_rows.changed())


def cases() -> list[ParameterSet]:
    """Return all runs of the sample; those with a changed row have the marker `sampled`."""
    found = []
    for run in matrix.sample():
        is_changed = not CHANGED.isdisjoint(matrix_rows.rows_of(run))
        found.append(
            pytest.param(run, marks=[pytest.mark.sampled] if is_changed else [], id=str(run))
        )
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> kills.Runs:
    """Results of undisturbed runs are shared."""
    return kills.Runs(tmp_path_factory.mktemp("matrix"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("run", cases())
def test_no_update_is_lost_or_doubled(runs: kills.Runs, run: matrix.Run) -> None:
    if reason := beside.why_not(run.event):
        pytest.skip(reason)
    verdict = runs.judge(run, kills.epochs(len(run.cells)))
    assert verdict.is_right, str(verdict)
    assert verdict.damage is not None
    assert verdict.damage.missed == 0, str(verdict)
    # A launch ends only where something ends it.
    assert verdict.damage.causes == [], str(verdict)
