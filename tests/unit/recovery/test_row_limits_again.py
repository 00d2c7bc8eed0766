"""Limits of rows over restarts and on several servers: the same rows, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from mpips.checkpoint import ManifestHead, open_checkpoint, write_checkpoint
from mpips.errors import ConfigError
from mpips.model.consistency import BSP
from mpips.model.optimizer import Adam
from mpips.model.placement import place
from mpips.model.row_limits import Idle, MaxRows, MinCount, Probability
from mpips.model.table import EmbeddingTable
from mpips.recovery.restore import restore
from mpips.snapshot.copy import shards_in_place
from tests.support.harness import Rig
from tests.support.recovery_rig import Launches

CLOCKS = 24
LIMITS = {
    "idle": {"evict": Idle(3)},
    "lru": {"evict": MaxRows(300)},
    "lfu": {"evict": MaxRows(300, by="lfu"), "admit": Probability(0.5)},
    "idle-random": {"evict": Idle(2), "admit": Probability(0.6)},
}
COUNTED = {"counted": {"evict": Idle(4), "admit": MinCount(2, within=6, memory_mib=1)}}


def table(**limits) -> EmbeddingTable:
    return EmbeddingTable("e", 4, Adam(0.1), BSP(), "uniform(1)", **limits)


def step(workers, clock: int) -> None:
    """Push what workers push at this clock of the run: some keys often, most seldom."""
    for w, worker in enumerate(workers):
        rng = np.random.default_rng([clock, w])
        keys = np.unique((1000 * rng.random(60) ** 2).astype(np.int64) * 3 - 900)
        worker.table("e").pull(keys)
        worker.table("e").push(keys, rng.normal(size=(len(keys), 4)).astype(np.float32))
    for worker in workers:
        worker.clock()


def rows_of(*cores) -> dict[int, tuple[bytes, bytes]]:
    """Return key -> (row with its state, use) over all servers."""
    found = {}
    for core in cores:
        keys, rows = core.embedding_content(0)
        uses = core.embedding_uses(0)
        pairs = ((row.tobytes(), use.tobytes()) for row, use in zip(rows, uses, strict=True))
        found |= dict(zip(keys.tolist(), pairs, strict=True))
    return found


def launched(limits, n_servers: int, again: tuple[int, ...] = ()) -> dict[int, tuple[bytes, bytes]]:
    """Return the rows after CLOCKS clocks, with a restart in memory after each clock of `again`."""
    launches = Launches(table(**limits), n_servers=n_servers, n_workers=2)
    try:
        for clock in range(CLOCKS):
            step(launches.workers, clock)
            if clock in again:
                launches.again()
        return rows_of(*(server.core for server in launches.servers))
    finally:
        launches.close()


@pytest.mark.parametrize("limits", [*LIMITS.values(), *COUNTED.values()], ids=[*LIMITS, *COUNTED])
def test_the_number_of_servers_and_restarts_in_memory_change_no_bit(limits):
    expected = launched(limits, 1)
    assert 50 < len(expected) <= 400
    assert launched(limits, 4) == expected
    assert launched(limits, 2, (0, 3, 4, 11, 22)) == expected
    if not isinstance(limits["evict"], MaxRows):
        assert launched(limits, 3, (7,)) == expected


@pytest.mark.parametrize("rows", [1, 127, 128, 500, 1000])
@pytest.mark.parametrize("n_servers", [1, 2, 4, 8])
def test_servers_keep_a_limit_together_or_refuse_it(rows, n_servers):
    limited = EmbeddingTable("e", 4, Adam(0.1), BSP(), evict=MaxRows(rows))
    if n_servers > 1 and rows < 64 * n_servers:
        with pytest.raises(ConfigError, match=f"{64 * n_servers} rows or more"):
            place([limited], n_servers, 1, 8, 4096)
        return
    launches = Launches(limited, n_servers=n_servers, n_workers=1)
    try:
        (worker,) = launches.workers
        for _ in range(2):
            for block in range(0, 3000, 20):
                keys = np.arange(block, block + 20) * 7919
                worker.table("e").push(keys, np.ones((20, 4), np.float32))
            worker.clock()
        found = rows_of(*(server.core for server in launches.servers))
        assert 0.9 * rows <= len(found) <= rows
    finally:
        launches.close()


def rig_of(limits, clocks_before: int = 0) -> Rig:
    rig = Rig(table(**limits), n_workers=2, n_slots=16)
    rig.core.set_clocks_before(clocks_before)
    return rig


def written(rig: Rig, folder, step_: int):
    shards = shards_in_place(rig.server, rig.placement, rig.tables)
    head = ManifestHead("run", 1, step_, 1.7e9, rig.tables)
    return write_checkpoint(None, folder, head, shards, timeout_s=60.0).path


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_a_start_from_a_checkpoint_changes_no_bit(limits, tmp_path):
    straight = rig_of(limits)
    workers = [straight.worker(w) for w in range(2)]
    for clock in range(CLOCKS):
        step(workers, clock)
        if clock == 10:
            path = written(straight, tmp_path, 11)
    later = rig_of(limits, 11)
    restore(later.server, later.placement, later.tables, path)
    workers = [later.worker(w) for w in range(2)]
    for clock in range(11, CLOCKS):
        step(workers, clock)
    assert rows_of(later.core) == rows_of(straight.core)


def test_a_checkpoint_has_only_rows_that_count_and_their_uses(tmp_path):
    rig = rig_of({"evict": Idle(2)})
    workers = [rig.worker(w) for w in range(2)]
    for clock in range(9):
        step(workers, clock)
    with open_checkpoint(written(rig, tmp_path, 9)) as checkpoint:
        (block,) = checkpoint.iter_rows("e")
    assert (block.uses[:, 0] >= 7).all()
    assert (block.uses[:, 1] >= 1).all()
    assert dict(zip(block.keys.tolist(), map(bytes, block.uses), strict=True)) == {
        key: use for key, (_, use) in rows_of(rig.core).items()
    }


def test_a_start_with_other_limits_applies_them(tmp_path):
    rig = rig_of({"evict": MaxRows(300)})
    workers = [rig.worker(w) for w in range(2)]
    for clock in range(CLOCKS):
        step(workers, clock)
    path = written(rig, tmp_path, CLOCKS)
    assert rig.core.n_rows(0) > 250
    before = rows_of(rig.core)

    # Fewer rows: the newest stay. A time limit: rows of the last clocks stay.
    for limits, left in (
        ({"evict": MaxRows(40)}, 40),
        ({"evict": Idle(1)}, sum(use >= CLOCKS - 1 for use in map(last_clock, before.values()))),
    ):
        smaller = rig_of(limits, CLOCKS)
        restore(smaller.server, smaller.placement, smaller.tables, path)
        found = rows_of(smaller.core)
        assert len(found) == left
        assert all(before[key] == row for key, row in found.items())
        oldest = min(map(last_clock, found.values()))
        assert oldest >= sorted(map(last_clock, before.values()))[-left]

    # Rows of a checkpoint without uses count as pushed in the clock before.
    plain = Rig(table(), n_workers=2, n_slots=16)
    workers = [plain.worker(w) for w in range(2)]
    step(workers, 0)
    path = written(plain, tmp_path / "plain", 1)
    limited = rig_of({"evict": Idle(3)}, 1)
    restore(limited.server, limited.placement, limited.tables, path)
    assert rows_of(limited.core).keys() == plain.table_rows().keys()


def last_clock(row: tuple[bytes, bytes]) -> int:
    return int(np.frombuffer(row[1], np.uint32)[0])
