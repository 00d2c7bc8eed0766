"""The suite `kills`: launches end at random places, no update is lost, none counts twice."""

from __future__ import annotations

import pytest

from tests.bench import kills
from tests.bench.options import SuiteOptions


@pytest.mark.long
@pytest.mark.timeout(300)
def test_no_update_is_lost_or_doubled_whoever_is_killed() -> None:
    found = kills.run("kills", SuiteOptions(kills=4, seed=2), 0)
    values = {figure.name: figure.median for figure in found.figures}
    assert values["kills"] >= 4, found.notes
    for name in ("lost_updates", "double_updates", "different_runs", "failed_runs"):
        assert values[name] == 0, found.notes
