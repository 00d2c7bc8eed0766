"""`record_cost` of `mpips bench recovery`: one of its two servers records every push."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec.structs import replace

from mpips.bench import recording
from mpips.bench.launching import Options
from mpips.model.consistency import ASP
from mpips.model.optimizer import SGD
from mpips.model.table import DenseTable
from mpips.record.files import read_record
from mpips.record.reading import PUSH_DENSE, read_order


def test_both_loads_are_compared():
    found = recording.run(replace(Options(), repetitions=1, quick=True))
    assert [c.name for c in found.comparisons] == ["record_cost_4k", "record_cost_rows"]
    assert all(ratio > 0 for c in found.comparisons for ratio in c.ratios)


def test_the_recorded_side_records_each_push_and_the_other_one_none(tmp_path: Path):
    table = DenseTable("w", (recording.SMALL,), optimizer=SGD(1.0), consistency=ASP())
    update = np.ones(recording.SMALL, np.float32)
    for name in ("a.rec", None):
        file = tmp_path / name if name else None
        side = recording.RecordedSide(table, 1 << 12, file, 5)
        assert side.seconds(lambda w: w.push_dense(0, 0, update, None, 0), 12) > 0
        assert side.core.dense_array(0, 0).tolist() == [-12.0] * recording.SMALL
        side.close()
    assert [r.kind for r in read_order(read_record(tmp_path / "a.rec"))] == [PUSH_DENSE] * 12
    assert [path.name for path in tmp_path.iterdir()] == ["a.rec"]
