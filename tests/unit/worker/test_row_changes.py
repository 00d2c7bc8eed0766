"""Changes of an embedding table since a version: each reader's copy is the table, and no change is lost."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from fake_network import remote
from harness import Rig, rows
from recovery_rig import Launches

from mpips import Storage
from mpips.errors import ConfigError, VersionError
from mpips.model import storage
from mpips.model.consistency import ASP, BSP, SSP
from mpips.model.optimizer import Adam, RowAdagrad
from mpips.model.row_limits import Idle, MaxRows, MinCount
from mpips.worker import row_changes
from mpips.worker.worker import connection_of

DIM = 3


class Copy:
    """A reader's copy of a table, brought forward by deltas."""

    def __init__(self, states: bool = False) -> None:
        self.version: str | None = None
        self.rows: dict[int, Any] = {}
        self.states = states
        self.named: list[int] = []  # keys of the rows of the last delta
        self.removed: list[int] = []

    def read(self, table: Any) -> None:
        delta = table.delta(self.version, states=self.states)
        self.named, self.removed = [], []
        for block in delta:
            for key in block.removed.tolist():
                self.rows.pop(key, None)
                self.removed.append(key)
            for i, key in enumerate(block.keys.tolist()):
                self.rows[key] = block.rows[i].tolist()
                if self.states:
                    steps = [] if block.steps is None else [int(block.steps[i])]
                    self.rows[key] = [
                        self.rows[key],
                        *[s[i].tolist() for s in block.states],
                        *steps,
                    ]
            self.named += block.keys.tolist()
        # A version may be stored as text.
        self.version = json.loads(json.dumps(delta.version))


def pushed(worker: Any, random: np.random.Generator, n: int, keys: int = 60) -> set[int]:
    chosen = np.unique(random.integers(-keys, keys, n))
    update = random.integers(-4, 5, (len(chosen), DIM)).astype(np.float32)
    worker.table("e").push(chosen, update).wait()
    return set(chosen.tolist())


LIMITS: list[dict[str, Any]] = [
    {},
    {"evict": MaxRows(30, by="lru")},
    {"evict": MaxRows(25, by="lfu"), "admit": MinCount(2)},
    {"evict": Idle(2)},
    {"admit": MinCount(2)},
]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("block_bytes", [24, 1 << 22])
def test_readers_with_versions_of_their_own_have_the_table_under_bsp(
    limits, block_bytes, monkeypatch
):
    monkeypatch.setattr(row_changes, "BLOCK_BYTES", block_bytes)
    rig = Rig(rows(DIM, init="constant(2)", consistency=BSP(), **limits), n_slots=4, slot_bytes=256)
    worker, random = rig.worker(), np.random.default_rng(3)
    table = worker.table("e")
    readers, due = [Copy() for _ in range(4)], (1, 2, 5, 11)
    left = 0
    for step in range(40):
        changed = pushed(worker, random, int(random.integers(0, 30)))
        worker.clock()
        for copy, every in zip(readers, due, strict=True):
            if step % every:
                continue
            copy.read(table)
            keys, values = table.all_rows()
            assert copy.rows == dict(zip(keys.tolist(), values.tolist(), strict=True))
            assert len(set(copy.named)) == len(copy.named)
            # Names nothing else: a row that has changed, or one that has left.
            if every == 1 and step > 0:
                assert set(copy.named) <= changed
                left += len(copy.removed)
                assert not set(copy.removed) & set(copy.rows)
    assert (left > 20) == ("evict" in limits)


@pytest.mark.parametrize("model", [ASP(), SSP(1)], ids=str)
@pytest.mark.parametrize("n_keys", [5, 40, 400], ids=["one record", "deferred", "assembled"])
def test_readers_have_the_table_where_pushes_are_applied_as_they_come(model, n_keys):
    rig = Rig(rows(DIM, init="zeros", consistency=model), n_slots=8, slot_bytes=256)
    worker, random = rig.worker(), np.random.default_rng(7)
    readers = [Copy(), Copy()]
    for step in range(12):
        changed = pushed(worker, random, n_keys, 10 * n_keys)
        worker.clock()
        for copy in readers[: 1 + (step % 4 == 0)]:
            copy.read(worker.table("e"))
            assert copy.rows == rig.table_rows()
        if step > 0 and step % 4:
            assert set(readers[0].named) == changed
    readers[0].read(worker.table("e"))
    assert readers[0].named == []


@pytest.mark.parametrize("rule", [Adam(0.5), RowAdagrad(0.5)], ids=["adam", "rowadagrad"])
@pytest.mark.parametrize("row_dtype", ["float32", "bf16"])
def test_states_and_counts_come_with_the_rows(rule, row_dtype):
    rig = Rig(rows(DIM, optimizer=rule, row_dtype=row_dtype), n_slots=4, slot_bytes=256)
    worker, random, copy = rig.worker(), np.random.default_rng(1), Copy(states=True)
    for _ in range(4):
        pushed(worker, random, 20)
        copy.read(worker.table("e"))
        keys, states, steps = worker.table("e").all_states()
        _, values = worker.table("e").all_rows()
        for i, key in enumerate(keys.tolist()):
            counts = [] if steps is None else [int(steps[i])]
            assert copy.rows[key] == [values[i].tolist(), *[s[i].tolist() for s in states], *counts]
        assert len(keys) == len(copy.rows)


def test_a_row_that_changes_during_a_read_is_named_by_the_next_one(monkeypatch):
    monkeypatch.setattr(row_changes, "BLOCK_BYTES", 60)
    rig = Rig(rows(DIM, init="zeros"), n_workers=2, n_slots=8, slot_bytes=256)
    worker, other = rig.worker(0), rig.worker(1)
    keys = np.arange(20)
    worker.table("e").push(keys, np.ones((20, DIM), np.float32)).wait()
    delta = worker.table("e").delta()
    blocks = iter(delta)
    first = next(blocks)
    # One row that was read, one that is still to be read, and a new one.
    late = np.array([first.keys[0], 19, 77])
    other.table("e").push(late, np.ones((3, DIM), np.float32)).wait()
    found = {
        int(k): r.tolist() for block in blocks for k, r in zip(block.keys, block.rows, strict=True)
    }
    assert found[19] == [-2.0] * DIM
    copy = Copy()
    copy.version, copy.rows = delta.version, {}
    copy.read(worker.table("e"))
    assert sorted(copy.named) == sorted(late.tolist())
    assert copy.rows[int(first.keys[0])] == [-2.0] * DIM


def test_several_servers_have_versions_of_their_own():
    first, second = (Rig(rows(DIM, init="zeros"), n_slots=4, slot_bytes=256) for _ in range(2))
    worker, other = first.worker(), second.worker()
    connection_of(worker).channels.append(second.channel(0, local=True))
    copy = Copy()
    for step in range(6):
        # Keys of the servers do not overlap.
        for part, sign in ((worker, 1), (other, -1)):
            keys = sign * (np.arange(step, step + 2) + 1)
            if (step + sign) % 3:
                writer = connection_of(part).channels[0].writer
                writer.push_rows(0, 0, keys, np.ones((2, DIM), np.float32), None, 0)
                first.drain()
                second.drain()
        copy.read(worker.table("e"))
        assert copy.rows == {**first.table_rows(), **second.table_rows()}
    assert len(copy.version.split("-")) == 2
    with pytest.raises(
        VersionError, match="the version is one of 2 servers, and the job has 1: read all rows"
    ):
        other.table("e").delta(copy.version)


def test_the_servers_changes_of_an_earlier_process_are_refused():
    copy = Copy()
    for _ in range(2):
        rig = Rig(rows(DIM, init="zeros"), rows(DIM, "f"))
        worker = rig.worker()
        worker.table("e").push(np.array([1]), np.ones((1, DIM), np.float32)).wait()
        if copy.version is not None:
            break
        copy.read(worker.table("e"))
    for name in ("e", "f"):
        with pytest.raises(
            VersionError,
            match=f"delta of table '{name}': the changes since version 1 are not known: server 0 has no "
            r"marks of it, because it is of an earlier launch, or of another table: read all rows again by "
            r"delta\(\)",
        ):
            worker.table(name).delta(copy.version)
    copy.version = None
    copy.read(worker.table("e"))
    assert copy.rows == rig.table_rows()


@pytest.mark.parametrize("since", ["", "7", "1.2.3", "x.1", 5, "1.-1", "1.99999999999999999999"])
def test_what_is_no_version_is_refused(since):
    with pytest.raises(VersionError, match="is no version: give the `version` of an earlier delta"):
        Rig(rows(DIM)).worker().table("e").delta(since)


def test_a_version_before_the_oldest_removal_that_is_known_is_refused():
    rig = Rig(
        rows(1, init="zeros", consistency=BSP(), evict=MaxRows(8, by="lru")),
        n_slots=8,
        slot_bytes=1 << 16,
    )
    worker, n, versions, copies = rig.worker(), 10_000, [], []
    table = worker.table("e")
    for step in range(8):
        table.push(np.arange(step * n, (step + 1) * n), np.ones((n, 1), np.float32))
        worker.clock()
        delta = table.delta(versions[-1] if versions else None)
        versions.append(delta.version)
        copies.append(list(delta))
    # A table of few rows knows the last 65,536 that have left it.
    known = [version for version in versions if is_known(table, version)]
    assert known == versions[1:]
    with pytest.raises(
        VersionError, match="knows the rows that have left the table since version 2 only"
    ):
        table.delta(versions[0])
    removed = [key for block in table.delta(versions[1]) for key in block.removed.tolist()]
    assert len(removed) == 6 * n
    assert not set(removed) & set(rig.table_rows())


def is_known(table: Any, version: str) -> bool:
    try:
        table.delta(version)
    except VersionError:
        return False
    return True


def test_blocks_are_read_once_and_before_the_next_clock(monkeypatch):
    monkeypatch.setattr(row_changes, "BLOCK_BYTES", 60)
    rig = Rig(rows(DIM, consistency=BSP()), n_slots=4, slot_bytes=256)
    worker = rig.worker()
    pushed(worker, np.random.default_rng(0), 50)
    worker.clock()
    delta = worker.table("e").delta()
    blocks = iter(delta)
    next(blocks)
    with pytest.raises(ConfigError, match="the changes of table 'e' are read once"):
        iter(delta)
    worker.clock()
    with pytest.raises(ConfigError, match="the worker has ended clock 1 while it read the changes"):
        next(blocks)


@pytest.mark.parametrize("evicts", [True, False])
def test_rows_that_may_have_moved_during_a_read_are_an_error(evicts):
    limits = {"evict": MaxRows(30, by="lru")} if evicts else {}
    worker = Rig(rows(DIM, consistency=BSP(), **limits), n_slots=4, slot_bytes=256).worker()
    pushed(worker, np.random.default_rng(0), 20)
    worker.clock()
    delta = worker.table("e").delta()
    # As if the server had applied another sum since.
    delta._heads[0].version -= 1
    if not evicts:
        assert sum(len(block.keys) for block in delta) > 0
        return
    with pytest.raises(VersionError, match="table 'e' has changed while it was read"):
        list(delta)


def test_a_row_that_does_not_fit_into_a_reply_is_refused():
    rig = Rig(rows(40, optimizer=Adam(0.5)), n_slots=4, slot_bytes=512)
    with pytest.raises(ValueError, match="does not fit into a reply slot; raise slot_kib"):
        list(rig.worker().table("e").delta(states=True))


@pytest.mark.parametrize("seed", range(3))
def test_replies_that_arrive_in_pieces_are_taken_whole(seed):
    rig = Rig(rows(DIM, init="zeros"), n_slots=4, slot_bytes=256)
    worker = rig.worker(channel=remote(rig, seed=seed)[1])
    random, copy = np.random.default_rng(seed), Copy()
    for _ in range(4):
        pushed(worker, random, 30)
        copy.read(worker.table("e"))
        assert copy.rows == rig.table_rows()


@pytest.mark.parametrize("model", [ASP(), BSP()], ids=str)
def test_a_restart_in_memory_refuses_versions_and_a_full_read_begins_anew(model):
    """The rows, their versions and the clocks of two servers stay; their marks do not."""
    launches = Launches(rows(DIM, init="zeros", consistency=model), n_servers=2)
    try:
        random, copy = np.random.default_rng(9), Copy()
        for launch in range(3):
            if launch:
                launches.again()
            play(launches, copy, random, is_known=launch == 0)
    finally:
        launches.close()


def play(launches: Launches, copy: Copy, random: np.random.Generator, is_known: bool) -> None:
    (worker,) = launches.workers
    table = worker.table("e")
    if not is_known:
        with pytest.raises(VersionError, match=r"earlier launch.*: read all rows again"):
            table.delta(copy.version)
        copy.version, copy.rows = None, {}
    for _ in range(3):
        copy.read(table)
        changed = pushed(worker, random, 20)
        worker.clock()
        copy.read(table)
        assert set(copy.named) == changed
        keys, values = table.all_rows()
        assert copy.rows == dict(zip(keys.tolist(), values.tolist(), strict=True))


def test_rows_that_lie_in_a_file_are_read_from_it(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "LEAST_ROWS", 2)
    options = {"init": "constant(1)", "consistency": BSP()}
    few = 8 * rows(DIM, **options).row_bytes / 2**20
    table = rows(DIM, storage=Storage(str(tmp_path), few), **options)
    rig = Rig(table, n_slots=8, slot_bytes=256)
    worker, random, copy = rig.worker(), np.random.default_rng(2), Copy()
    for _ in range(8):
        pushed(worker, random, 25)
        worker.clock()
        copy.read(worker.table("e"))
        keys, values = worker.table("e").all_rows()
        assert copy.rows == dict(zip(keys.tolist(), values.tolist(), strict=True))
    assert len(copy.rows) > 50


def test_marks_that_workers_asked_for_before_are_those_of_the_table():
    """A pull of changes by keys (mpips.worker.node_rows) begins to mark rows as well."""
    rig = Rig(rows(DIM, init="zeros", consistency=BSP()), n_slots=8, slot_bytes=256)
    worker, copy = rig.worker(), Copy()
    for step in range(6):
        worker.table("e").push(np.array([step, step + 1]), np.ones((2, DIM), np.float32))
        worker.clock()
        found = np.empty((2, 1), np.float32)
        plan = worker.table("e")._planned(np.array([0, step]))
        if step in (1, 4):
            rig.writers[0].pull_planned(0, step + 1, plan, 0, found, 0, None, since=step)
            rig.drain()
            rig.writers[0].collect()
            assert found.reshape(-1).tolist()[1] == 1
        if step >= 2:
            copy.read(worker.table("e"))
            assert copy.rows == rig.table_rows()
        if step > 2:
            assert sorted(copy.named) == [step, step + 1]
