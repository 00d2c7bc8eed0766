"""`base` names the pull that a push was computed on: staleness counts from there."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from harness import Rig, dense, rows

from mpips.model.consistency import ASP, BSP, SSP, Compensate, Reject, Scale
from mpips.worker.noted import NotedPulls

ONE = np.ones(8, np.float32)
KEYS = np.array([7, 3])
ROWS = np.ones((2, 4), np.float32)


def moved(rig: Rig, times: int) -> None:
    """Let another worker change the table so many times."""
    other = rig.worker(1).table(rig.tables[0].name)
    for _ in range(times):
        if rig.tables[0].name == "w":
            other.push(ONE).wait()
        else:
            other.push(KEYS, ROWS).wait()


@pytest.mark.parametrize("policy", [Scale(), Reject(5), Compensate()])
def test_a_dense_push_is_as_old_as_the_array_that_it_names(policy: Any) -> None:
    rig = Rig(dense(consistency=ASP(policy)), n_workers=2)
    handle = rig.worker().table("w")
    first = handle.pull()
    moved_by = 3
    if isinstance(policy, Compensate):
        for _ in range(moved_by):
            rig.worker(1).table("w").push(ONE, base=np.zeros(8, np.float32)).wait()
    else:
        moved(rig, moved_by)
    second = handle.pull()
    assert handle.push(ONE, base=first).wait().staleness == 3
    assert handle.push(ONE, base=second).wait().staleness == 1


@pytest.mark.parametrize("model", [ASP(Reject(50)), SSP(3, Reject(50))])
def test_a_pull_into_the_same_array_replaces_what_it_held(model: Any) -> None:
    rig = Rig(dense(consistency=model), n_workers=2)
    handle = rig.worker().table("w")
    out = np.empty(8, np.float32)
    handle.pull(out)
    moved(rig, 2)
    handle.pull(out)
    moved(rig, 1)
    handle.pull()
    assert handle.push(ONE, base=out).wait().staleness == 1


def test_parts_and_views_are_known_and_copies_are_not() -> None:
    rig = Rig(dense(consistency=ASP(Reject(50))), n_workers=2)
    handle = rig.worker().table("w")
    memory = np.empty((2, 8), np.float32)
    handle.pull(memory[1])
    moved(rig, 4)
    handle.pull(memory[0])
    assert handle.push(ONE, base=memory[1]).wait().staleness == 4
    assert handle.push(ONE, base=memory[1].reshape(2, 4)).wait().staleness == 5
    assert handle.push(ONE, base=np.asarray(memoryview(memory[1]))).wait().staleness == 6
    # The newest pull: three own pushes ago.
    assert handle.push(ONE, base=memory[1].copy()).wait().staleness == 3
    assert handle.push(ONE, base=[0.0] * 8).wait().staleness == 4
    assert handle.push(ONE).wait().staleness == 5


def test_views_in_the_servers_memory_are_pulls() -> None:
    rig = Rig(dense(consistency=ASP(Reject(50))), n_workers=2)
    handle = rig.worker(local=False, channel=rig.channel(0, True)).table("w")
    view = handle.view()
    moved(rig, 2)
    later = handle.pull()
    assert handle.push(ONE, base=view).wait().staleness == 2
    assert handle.push(ONE, base=later).wait().staleness == 1


@pytest.mark.parametrize("into", [False, True])
def test_rows_that_a_prefetch_overtook_are_as_old_as_they_are(into: bool) -> None:
    rig = Rig(rows(consistency=ASP(Reject(5))), n_workers=2)
    handle = rig.worker().table("e")
    out = np.empty((2, 4), np.float32) if into else None
    used = handle.pull(KEYS, out)
    moved(rig, 3)
    newer = handle.prefetch(KEYS)
    assert newer.wait() is not used
    assert handle.push(KEYS, ROWS, base=used).wait().staleness == 3
    assert handle.push(KEYS[:1], ROWS[:1], base=used[:1]).wait().staleness == 4
    assert handle.push(KEYS, ROWS, base=newer.wait()).wait().staleness == 2
    assert handle.push(KEYS, ROWS).wait().staleness == 3


def test_prefetches_under_way_keep_their_own_versions() -> None:
    rig = Rig(rows(consistency=ASP(Reject(50))), n_workers=2, n_slots=8)
    handle = rig.worker().table("e")
    requests = []
    for _ in range(3):
        requests.append(handle.prefetch(KEYS))
        moved(rig, 1)
    found = [request.wait() for request in requests]
    ages = [handle.push(KEYS, ROWS, base=base).wait().staleness for base in found]
    assert ages == [3, 3, 3]


def test_rows_copied_into_a_strided_destination_are_known() -> None:
    rig = Rig(rows(consistency=ASP(Reject(50))), n_workers=2)
    handle = rig.worker().table("e")
    wide = np.empty((2, 8), np.float32)
    handle.pull(KEYS, wide[:, ::2])
    moved(rig, 2)
    handle.pull(KEYS)
    assert handle.push(KEYS, ROWS, base=wide[:, ::2]).wait().staleness == 2


def test_a_push_of_several_records_has_one_base() -> None:
    rig = Rig(rows(1), n_workers=2, n_slots=2, slot_bytes=256)
    writer, other = rig.writers[0], rig.worker(1)
    keys, update = np.arange(90, dtype=np.int64), np.ones((90, 1), np.float32)
    out = np.empty((1, 1), np.float32)
    assert writer.pull_rows(0, 0, np.array([5]), out, 0) == 1
    other.table("e").push(np.array([1]), update[:1]).wait()
    done = writer.push_rows(0, 0, keys, update, None, 0)
    assert 0 < done < 90
    # An answer comes while the push is being written.
    rig.drain()
    assert writer.collect() == 0
    version = rig.core.version(0)
    writer.set_base_version(0, version)
    while done < 90:
        done = writer.push_rows(0, 0, keys, update, None, done)
        rig.drain()
    assert writer.result(writer.next_sequence - 1)[1] == version


def test_a_refused_push_leaves_no_name_behind() -> None:
    rig = Rig(dense(consistency=ASP(Reject(50))), n_workers=2)
    handle = rig.worker().table("w")
    old = handle.pull()
    moved(rig, 2)
    handle.pull()
    with pytest.raises(ValueError, match="contains nan"):
        handle.push(ONE * np.nan, base=old)
    assert handle.push(ONE).wait().staleness == 0


def test_nothing_is_kept_alive_and_memory_of_the_dead_is_not_known() -> None:
    noted = NotedPulls()
    array = np.zeros(4, np.float32)
    noted.note(array, {0: 5})
    assert noted.find(array) == {0: 5}
    assert noted.find(np.zeros(4, np.float32)) is None
    owner = array
    del array, owner
    gc.collect()
    assert noted.find(np.zeros(4, np.float32)) is None
    assert noted.find("text") is None


@pytest.mark.parametrize("table", [dense, rows])
@pytest.mark.parametrize("model", [BSP(), ASP(), SSP(3)])
def test_where_nothing_depends_on_staleness_no_pull_is_noted(table: Any, model: Any) -> None:
    spec = table(consistency=model)
    assert Rig(spec).worker().table(spec.name)._noted is None


def test_under_bsp_no_push_is_stale() -> None:
    rig = Rig(dense(consistency=BSP()))
    worker = rig.worker()
    handle = worker.table("w")
    base = handle.pull()
    for _ in range(3):
        request = handle.push(ONE, base=base)
        worker.clock()
        assert request.wait().staleness == 0
