"""Large pushes into a worker's rendezvous buffer at a remote server count exactly once, as a whole."""

from __future__ import annotations

import numpy as np
import pytest
from fake_network import INLINE_BYTES, KINDS, Network, remote
from harness import Rig, dense, floats, rows

from mpips.errors import StallError
from mpips.model.consistency import ASP, BSP, SSP, Compensate, Scale
from mpips.transport.area import Area
from mpips.worker.paths import rendezvous
from mpips.worker.paths.rendezvous import LAST_FLOATS
from mpips.worker.worker import connection_of

LARGE = 3 * LAST_FLOATS + 5  # floats; makes several segments, one of which takes several puts
PUT_FLOATS = Network.piece_bytes // 4
MODELS = {"asp": ASP(), "ssp": SSP(bound=1), "bsp": BSP("sum")}


def area_rig(*tables, n_workers=1, pushes=2, **options) -> Rig:
    """Return a rig whose rendezvous buffers have room for so many pushes of LARGE floats."""
    n_bytes = n_workers * (4 * LARGE * pushes + (pushes << 12))
    options = {"n_slots": 3, "remote": range(n_workers), "remote_staging_bytes": n_bytes, **options}
    return Rig(*tables, n_workers=n_workers, **options)


def in_area(network, rig, w=0) -> int:
    """Return the number of bytes that were put into the rendezvous buffer of a worker."""
    start = rig.layout.mailbox_offset(w) + rig.layout.geometry.mailbox_bytes
    stop = start + rig.layout.area_bytes(w)
    return sum(n for offset, n in network.puts if start <= offset and offset + n <= stop)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_large_pushes_over_a_bad_network_are_exact_and_free_at_return(seed, kind, model):
    rig = area_rig(dense(LARGE, consistency=model), rows(3, consistency=model))
    network, channel = remote(rig, seed=seed, kind=kind)
    worker = rig.worker(channel=channel)
    table, total = worker.table("w"), np.zeros(LARGE, np.float32)
    update = np.empty(LARGE, np.float32)
    for step in range(5):
        for _ in range(1 + step % 2):
            update[:] = floats(LARGE, step)
            total -= update
            table.push(update)
            update[:] = np.nan
        worker.table("e").push(np.arange(4), np.ones((4, 3), np.float32))
        worker.clock()
        assert (table.pull() == total).all()
    connection_of(worker).finish()
    assert (rig.values() == total).all()
    assert rig.core.stats(0)["pushed"] == 7
    assert in_area(network, rig) == 7 * 4 * LARGE
    assert rig.core.counters()["records"] == channel.writer.next_sequence


TAILS = (1, 5, INLINE_BYTES // 4, INLINE_BYTES // 4 + 1, PUT_FLOATS)  # floats of the last put


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("before", [7100, 7800, 8100])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_large_push_behind_a_record_of_any_length_is_applied_when_all_of_it_is_there(
    model, before, tail
):
    # A record that nearly fills its slot goes in one put with the next record; under BSP both wait for
    # the tick.
    n = 4 * PUT_FLOATS + tail
    tables = dense(n, consistency=model), dense(before, "v", consistency=model)
    for seed in range(4):
        rig = area_rig(*tables, slot_bytes=32 << 10, n_slots=8)
        network, channel = remote(rig, seed=seed)
        worker = rig.worker(channel=channel)
        for step in range(3):
            worker.table("v").push(np.ones(before, np.float32))
            worker.table("w").push(np.ones(n, np.float32))
            worker.clock()
            assert (worker.table("w").pull() == -(step + 1)).all(), (seed, step)
        connection_of(worker).finish()
        assert in_area(network, rig) == 3 * 4 * n


def test_large_parts_take_the_rendezvous_path_and_others_the_ring():
    compensating = ASP(Compensate())
    rig = area_rig(dense(LARGE), dense(8, "small"), dense(LARGE, "old", consistency=compensating))
    worker = rig.worker(channel=remote(rig)[1])
    paths = {name: worker.table(name).paths for name in ("w", "small", "old")}
    assert paths == {"w": ["rendezvous"], "small": ["ring"], "old": ["ring"]}


def test_a_push_that_is_waited_for_is_one_record_behind_its_bytes():
    rig = area_rig(dense(LARGE))
    network, channel = remote(rig)
    worker = rig.worker(channel=channel)
    seen = []
    network.on_piece = lambda: seen.append(bool(rig.values().any()))
    request = worker.table("w").push(np.ones(LARGE, np.float32))
    assert channel.writer.next_sequence == 1
    # All bytes arrive before the record is sent.
    assert network.flushes == 1
    assert len(seen) >= 2 * 4 * LARGE // network.piece_bytes
    assert not any(seen)
    assert request.wait().applied == 1
    assert (rig.values() == -1).all()


def test_a_push_too_long_for_one_record_takes_several(monkeypatch):
    monkeypatch.setattr(rendezvous, "_RECORD_FLOATS", LARGE // 3)
    rig = area_rig(dense(LARGE), n_slots=8)
    _, channel = remote(rig)
    worker = rig.worker(channel=channel)
    update = floats(LARGE)
    assert worker.table("w").push(update).wait().applied == 1
    assert channel.writer.next_sequence == 4
    assert (rig.values() == -update).all()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_with_checksums_the_pieces_of_every_push_have_one(seed, kind):
    rig = area_rig(dense(LARGE), n_slots=32)
    network, channel = remote(rig, seed=seed, checksums=True, kind=kind)
    worker = rig.worker(channel=channel)
    table, update = worker.table("w"), np.full(LARGE, 1.0, np.float32)
    table.push(update)
    # The array is free when push returns, although the server may read its copy later.
    assert not network.pending
    update[:] = np.nan
    with pytest.raises(ValueError, match=f"position 0 of {LARGE}"):
        table.push(update)
    connection_of(worker).finish()
    assert channel.writer.next_sequence > 2
    assert (rig.values() == -1).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_staged_pushes_over_a_bad_network_are_exact(seed, kind):
    rig = area_rig(dense(LARGE), staging_bytes=1 << 24, n_slots=32)
    _, channel = remote(rig, seed=seed, kind=kind)
    worker = rig.worker(channel=channel)
    arrays, total = [worker.allocate(LARGE) for _ in range(2)], np.zeros(LARGE, np.float32)
    requests = []
    for step in range(6):
        if len(requests) > 1:
            requests.pop(0).wait()
        array = arrays[step % 2]
        array[:] = floats(LARGE, step)
        total -= array
        requests.append(worker.table("w").push(array))
    connection_of(worker).finish()
    assert (rig.values() == total).all()
    # Each push needed more than one record.
    assert channel.writer.next_sequence > 12


def test_staged_update_that_is_not_finite_is_refused():
    rig = area_rig(dense(LARGE), staging_bytes=1 << 24, n_slots=32)
    network, channel = remote(rig)
    worker = rig.worker(channel=channel)
    array = worker.allocate(LARGE)
    array[:] = 1.0
    array[LARGE - 2] = np.nan
    with pytest.raises(ValueError, match=f"position {LARGE - 2} of {LARGE}"):
        worker.table("w").push(array)
    assert not network.puts


@pytest.mark.parametrize("seed", range(4))
def test_a_large_push_changes_nothing_until_all_of_it_is_there(seed):
    rig = area_rig(dense(LARGE))
    network, channel = remote(rig, seed=seed)
    worker = rig.worker(channel=channel)
    seen = set()

    def look():
        values = rig.values()
        assert (values == values[0]).all()
        seen.add(float(values[0]))

    network.on_piece = look
    for _ in range(3):
        worker.table("w").push(np.ones(LARGE, np.float32)).wait()
    assert seen >= {0.0, -1.0, -2.0}


def test_staging_memory_is_put_without_waiting_and_read_until_the_push_is_consumed():
    rig = area_rig(dense(LARGE), staging_bytes=1 << 24, n_slots=32)
    network, channel = remote(rig)
    worker = rig.worker(channel=channel)
    arrays = [worker.allocate(LARGE) for _ in range(2)]
    requests = []
    for step, array in enumerate(arrays):
        array[:] = step + 1
        requests.append(worker.table("w").push(array))
    assert network.flushes == 0
    assert all(request.wait().applied == 1 for request in requests)
    assert (rig.values() == -3).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, PUT_FLOATS + 3, LARGE - 1])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_update_that_is_not_finite_is_refused_wherever_it_shows(model, at, bad):
    rig = area_rig(dense(LARGE, consistency=model))
    network, channel = remote(rig)
    worker = rig.worker(channel=channel)
    table = worker.table("w")
    table.push(np.ones(LARGE, np.float32))
    update = np.ones(LARGE, np.float32)
    update[at] = bad
    records = channel.writer.next_sequence
    with pytest.raises(ValueError, match=f"position {at} of {LARGE}"):
        table.push(update)
    assert channel.writer.next_sequence == records
    assert not network.pending or model == MODELS["bsp"]
    table.push(np.ones(LARGE, np.float32))
    connection_of(worker).finish()
    assert (rig.values() == -2).all()
    assert worker.counters()["pushed"] == 2


def test_update_longer_than_clip_norm_is_scaled():
    rig = area_rig(dense(LARGE, clip_norm=1.0))
    _, channel = remote(rig)
    worker = rig.worker(channel=channel)
    update = np.zeros(LARGE, np.float32)
    update[7] = 64.0
    worker.table("w").push(update).wait()
    assert rig.values()[7] == -1.0
    assert update[7] == 64.0


def test_result_of_a_large_push_says_how_stale_it_was():
    rig = area_rig(dense(LARGE, consistency=ASP(policy=Scale())), n_workers=2)
    worker = rig.worker(channel=remote(rig)[1])
    other = rig.worker(1, channel=remote(rig, 1)[1])
    other.table("w").push(np.ones(LARGE, np.float32)).wait()
    result = worker.table("w").push(np.ones(LARGE, np.float32)).wait()
    assert (result.applied, result.scaled, result.staleness) == (1, 1, 1)
    assert (rig.values() == -1.5).all()


@pytest.mark.parametrize("pushes", [1, 2])
def test_a_push_that_finds_no_room_waits_for_an_earlier_one(pushes):
    rig = area_rig(dense(LARGE), pushes=pushes, n_slots=32)
    network, channel = remote(rig, drain=False)
    worker = rig.worker(channel=channel, timeout_s=0.05)
    for _ in range(pushes):
        worker.table("w").push(np.ones(LARGE, np.float32))
    with pytest.raises(StallError, match="server 0 has consumed"):
        worker.table("w").push(np.ones(LARGE, np.float32))
    network.drains = True
    worker.table("w").push(np.ones(LARGE, np.float32)).wait()
    assert (rig.values() == -(pushes + 1)).all()


def test_tables_that_do_not_fit_or_are_small_go_through_the_ring():
    rig = area_rig(dense(100, "small"), dense(LARGE, "w"), dense(2 * LARGE, "huge"), pushes=1)
    network, channel = remote(rig)
    worker = rig.worker(channel=channel)
    for name, n in (("small", 100), ("huge", 2 * LARGE)):
        worker.table(name).push(np.ones(n, np.float32)).wait()
    assert in_area(network, rig) == 0
    worker.table("w").push(np.ones(LARGE, np.float32)).wait()
    assert in_area(network, rig) == 4 * LARGE
    assert all((rig.values(table) == -1).all() for table in range(3))


def test_bsp_over_areas_has_the_bits_of_bsp_over_rings():
    def run(areas):
        rig = area_rig(
            dense(LARGE, consistency=BSP("mean")),
            n_workers=2,
            **({} if areas else {"remote": (), "remote_staging_bytes": 0}),
        )
        networks = [remote(rig, w, seed=w) for w in range(2)]
        workers = [rig.worker(w, channel=networks[w][1]) for w in range(2)]
        for step in range(3):
            for w, worker in enumerate(workers):
                rng = np.random.default_rng([step, w])
                worker.table("w").push(rng.standard_normal(LARGE, np.float32))
                worker.clock()
        for worker in workers:
            connection_of(worker).finish()
        assert (in_area(networks[0][0], rig) > 0) == areas
        return rig.values().tobytes()

    assert run(True) == run(False)


def test_places_in_an_area_never_overlap_and_come_back():
    class Writer:
        applied = next_sequence = 0

    rng, writer = np.random.default_rng(1), Writer()
    room, held = Area(10_000, writer), []
    for _ in range(3000):
        n_bytes = int(rng.integers(1, 5000))
        offset = room.take(n_bytes)
        if offset is None:
            assert held
            assert room.next_free == min(until for _, _, until in held)
            writer.applied = room.next_free + 1
        else:
            assert offset % 64 == 0
            assert offset + n_bytes <= 10_000
            assert all(offset + n_bytes <= a or b <= offset for a, b, _ in held)
            writer.next_sequence += int(rng.integers(1, 4))
            room.keep(offset)
            held.append((offset, offset + n_bytes, writer.next_sequence - 1))
        held = [piece for piece in held if piece[2] >= writer.applied]
    writer.applied = writer.next_sequence
    assert room.take(10_000) == 0
