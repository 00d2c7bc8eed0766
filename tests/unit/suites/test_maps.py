"""The suite `maps`: its figures, and the map that it compares with."""

from __future__ import annotations

import numpy as np
import pytest

from mpips import _native
from mpips.bench import loops
from mpips.errors import CapabilityError
from mpips.testing.errors import BenchError
from tests.bench import maps
from tests.bench.bars import BARS
from tests.bench.options import SuiteOptions

QUICK = SuiteOptions(repetitions=2, quick=True)


class NoRobinMap:
    def __init__(self, capacity: int) -> None:
        raise CapabilityError("built without it")


def test_lookups_are_measured_and_compared_with_the_map_if_the_build_has_it() -> None:
    found = maps.run("maps", QUICK, 0)
    assert {f.name for f in found.figures} == {"map_lookups_present", "map_lookups_absent"}
    assert all(len(f.values) == 2 and min(f.values) > 0 for f in found.figures)
    measured = {c.name for c in found.comparisons}
    assert measured & BARS.keys() | found.skipped.keys() == {"map_lookup_vs_robin"}
    assert all(len(c.ratios) == 2 and c.ratio > 0 for c in found.comparisons)


def test_without_the_other_map_the_key_map_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "RobinMap", NoRobinMap)
    found = maps.run("maps", QUICK, 0)
    assert found.skipped == {"map_lookup_vs_robin": "built without it"}
    assert {f.name for f in found.figures} == {"map_lookups_present", "map_lookups_absent"}
    assert not found.comparisons


def test_maps_that_disagree_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        def __init__(self, capacity: int) -> None:
            self.rows = np.zeros(maps.BATCH_QUICK, np.uint32)

        def insert(self, keys: np.ndarray) -> None: ...

        def find(self, keys: np.ndarray) -> np.ndarray:
            return self.rows

    monkeypatch.setattr(loops, "RobinMap", Wrong)
    with pytest.raises(BenchError, match="return different rows"):
        maps.measure_map(QUICK)


def test_robin_map_agrees_with_a_dict() -> None:
    try:
        robin = loops.RobinMap(10)
    except CapabilityError as error:
        pytest.skip(str(error))
    keys = np.array([5, -3, 5, 2**63 - 1, -(2**63), 0], np.int64)
    robin.insert(keys)
    assert len(robin) == 5
    assert robin.find(keys).tolist() == [0, 1, 0, 2, 3, 4]
    assert robin.find(np.array([1], np.int64)).tolist() == [_native.RowMap.npos]
