"""The suite `stages`: its bound, and what it makes of the results of its processes."""

from __future__ import annotations

import pytest

from mpips.bench import stages
from mpips.bench.launching import Options
from mpips.bench.measure import BARS
from mpips.bench.stages import StagedSide, bubble_bound
from mpips.errors import CapabilityError


@pytest.mark.parametrize(
    ("times", "n_micro", "n_cores", "expected"),
    [
        ([1.0, 1.0], 1, 2, 2.0),
        ([1.0, 1.0], 4, 2, 5.0),
        ([1.0, 3.0], 4, 2, 13.0),
        ([1.0, 1.0, 1.0, 1.0], 4, 2, 8.0),  # 7 with four cores
        ([1.0, 1.0, 1.0, 1.0], 4, 4, 7.0),
        ([2.0], 3, 1, 6.0),
    ],
)
def test_the_bound_is_the_longer_of_pipeline_and_cores(
    times: list[float], n_micro: int, n_cores: int, expected: float
) -> None:
    assert bubble_bound(times, n_micro, n_cores) == expected


def test_all_ratios_have_bars_and_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        "staged": [StagedSide(2.0, n, 400, 8) for n in (100, 110, 90, 100)],
        "times": [StagedSide(0.0, 400, 400, 8, (0.1, 0.2))],
        "one": [StagedSide(0.51, 1, 1)],
        "plain": [StagedSide(0.5, 1, 1)],
        "softmax": [StagedSide(0.5, 3 << 20, 0), StagedSide(0.6, 2 << 20, 0)],
        "whole": [StagedSide(0.4, 4 << 20, 0)],
    }
    monkeypatch.setattr(stages, "_sides", lambda launch, kind, options: made[kind])
    monkeypatch.setattr(stages, "why_no_links", lambda: "")
    monkeypatch.setattr(stages.os, "sched_getaffinity", lambda _: {0, 1})
    found = stages.run("stages", Options(repetitions=2), 0)
    ratios = {one.name: one.ratio for one in found.comparisons}
    # Two stages of 0.1 and 0.2 s need 0.3 + 7 * 0.2 s for 8 micro-batches.
    assert ratios == pytest.approx(
        {
            "stage_memory": 110 / 400,
            "one_stage_cost": 1.02,
            "wide_softmax_step": 1.5,
            "wide_softmax_memory": 0.75,
            stages.BOUND: 1.7 / 2.0,
        }
    )
    assert [len(one.ours) for one in found.comparisons] == [1, 2, 2, 2, 2]
    assert found.comparisons[2].ours == [600.0, 600.0]
    assert found.comparisons[3].baseline == [4.0, 4.0]
    assert ratios.keys() <= BARS.keys()


def test_a_machine_without_nodes_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_sides", lambda *_: [StagedSide(1.0, 1, 4, 2)])
    monkeypatch.setattr(stages, "why_no_links", lambda: "no tc")
    assert stages.run("stages", Options(repetitions=1), 0).skipped == {stages.BOUND: "no tc"}
    assert stages.run("stages", Options(repetitions=1), 1).skipped == {stages.BOUND: "--nodes 1"}
    with pytest.raises(CapabilityError, match="--nodes 2: no tc"):
        stages.run("stages", Options(repetitions=1), 2)
