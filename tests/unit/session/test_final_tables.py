"""`Outcome.tables`: the values at the end of a job, from memory or from its last checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpips
from mpips.errors import ConfigError
from mpips.model.consistency import BSP
from mpips.session.final_tables import FinalTables

W = np.arange(6, dtype=np.float32).reshape(2, 3)
KEYS = np.array([9, -4, 1 << 60], np.int64)
ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


def tables() -> list[Any]:
    one = mpips.SGD(lr=1.0)
    return [
        mpips.DenseTable("w", (2, 3), optimizer=one),
        mpips.DenseTable("copied", (4,), optimizer=one, consistency=BSP(), placement="replicated"),
        mpips.DenseTable("scalar", (), optimizer=one),
        mpips.EmbeddingTable("e", 2, optimizer=one),
        mpips.EmbeddingTable("empty", 2, optimizer=one),
    ]


def main(worker: mpips.Worker) -> None:
    for _ in range(2):
        worker.table("w").push(-W)
        worker.table("copied").push(np.full(4, -3, np.float32))
        worker.table("scalar").push(np.array(-1, np.float32))
        worker.table("e").push(KEYS, -ROWS)
        worker.clock()


@pytest.mark.parametrize("saves", [False, True])
def test_tables_have_the_values_at_the_end(saves: bool, tmp_path: Path) -> None:
    if saves:
        pytest.importorskip("h5py")
    more: dict[str, Any] = {"save": tmp_path} if saves else {}
    outcome = mpips.run(main, tables(), verbose=False, **more)
    found = outcome.tables
    assert list(found) == ["w", "copied", "scalar", "e", "empty"]
    assert found["w"].tobytes() == (2 * W).tobytes()
    assert found["w"].shape == (2, 3)
    assert found["copied"].tolist() == [6] * 4
    assert (found["scalar"].shape, found["scalar"].item()) == ((), 2)
    keys, rows = found["e"]
    assert keys.tolist() == [-4, 9, 1 << 60]
    assert rows.tobytes() == (2 * ROWS[[1, 0, 2]]).tobytes()
    keys, rows = found["empty"]
    assert (keys.shape, rows.shape) == ((0,), (0, 2))
    # What is returned belongs to the caller.
    found["w"][:] = 0
    assert found["w"].any()
    assert "absent" not in found
    assert repr(found) == "<tables of a job: w, copied, scalar, e, empty>"


def test_a_job_after_another_changes_no_tables_of_it() -> None:
    first = mpips.run(main, tables(), verbose=False)
    mpips.run(main, tables(), verbose=False)
    assert first.tables["w"].tobytes() == (2 * W).tobytes()


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    outcome = mpips.run(main, tables(), verbose=False, save=tmp_path / "c")
    shutil.rmtree(tmp_path / "c")
    with pytest.raises(ConfigError, match="table 'w' cannot be read: its checkpoint is not there"):
        outcome.tables["w"]
    own = tables()
    failed = {"totals": {"servers": {"checkpoint": {"error": "the disk is full"}}}}
    with pytest.raises(ConfigError, match="could not be written: the disk is full"):
        FinalTables.of(own, failed, None)["e"]
    with pytest.raises(ConfigError, match=r"give it one \(mpips.run\(..., save=FOLDER\)\)"):
        FinalTables.of(own, {"totals": {"servers": {}}}, None)["e"]
