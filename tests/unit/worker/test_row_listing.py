"""All rows of an embedding table, read by their places: exactly those that exist, at the worker's clock."""

from __future__ import annotations

import numpy as np
import pytest
from fake_network import remote
from harness import Rig, rows

from mpips import _native
from mpips.errors import StallError
from mpips.model.consistency import ASP, BSP, SSP
from mpips.model.optimizer import Adam, Momentum
from mpips.worker import row_listing
from mpips.worker.row_listing import RowListing
from mpips.worker.worker import connection_of

KEYS = np.array([7, -(2**63), 3, 2**62, -1, 12, 8, 2**40, -6, 0, 1], np.int64)
VALUES = np.arange(33, dtype=np.float32).reshape(11, 3) * np.float32(1 + 2**-10)  # not in bf16


def filled(**options):
    """A table with a row for each of KEYS, whose values are VALUES."""
    rig = Rig(rows(3, init="zeros", **options), n_slots=4, slot_bytes=256)
    worker = rig.worker()
    worker.table("e").push(KEYS, -VALUES).wait()
    return rig, worker


def stored():
    """The same, without a record in any ring."""
    rig = Rig(rows(3, init="zeros"), n_slots=4, slot_bytes=256)
    rig.core.set_rows(0, KEYS, VALUES)
    return rig


@pytest.mark.parametrize("block_bytes", [8, 30, 1 << 22])
@pytest.mark.parametrize("codec", [None, "bf16"])
def test_all_rows_come_exactly_and_in_the_order_of_their_keys(block_bytes, codec, monkeypatch):
    monkeypatch.setattr(row_listing, "BLOCK_BYTES", block_bytes)
    rig, worker = filled(pull_compression=codec)
    before = rig.core.stats(0)
    keys, found = worker.table("e").all_rows()
    order = np.argsort(KEYS)
    assert (keys.dtype, found.dtype) == (np.int64, np.float32)
    assert np.array_equal(keys, KEYS[order])
    assert np.array_equal(found, VALUES[order])
    assert rig.core.stats(0) == before
    # Nothing is made, and the rings go on.
    assert rig.core.n_rows(0) == len(KEYS)
    worker.table("e").push(KEYS, VALUES).wait()
    assert not worker.table("e").all_rows()[1].any()


def test_a_table_without_rows_gives_empty_arrays():
    keys, found = Rig(rows(3)).worker().table("e").all_rows()
    assert (keys.shape, found.shape) == ((0,), (0, 3))


def test_rows_of_several_servers_are_put_together():
    first, worker = filled()
    second, other = filled()
    other.table("e").push(np.array([5, -9]), np.full((2, 3), -4, np.float32)).wait()
    own = connection_of(worker)
    own.channels.append(second.channel(0, local=True))
    second.core.set_rows(0, KEYS + 100, VALUES + 100)
    listing = RowListing(own, 0, "e")
    # The servers' keys do not overlap in a job; here those of `filled` are on both.
    expected = sorted([*KEYS.tolist(), *KEYS.tolist(), 5, -9, *(KEYS + 100).tolist()])
    assert listing.keys.tolist() == expected
    found = dict(zip(listing.keys.tolist(), listing.read(0, 3).tolist(), strict=True))
    assert found == {**first.table_rows(), **second.table_rows()}


@pytest.mark.parametrize(
    ("rule", "n_state"),
    [(Momentum(0.5, momentum=0.5), 1), (Adam(0.5), 2)],
    ids=["momentum", "adam"],
)
def test_states_and_step_counts_are_floats_behind_the_values(rule, n_state):
    rig, worker = filled(optimizer=rule)
    worker.table("e").push(KEYS[:4], VALUES[:4]).wait()
    listing = RowListing(connection_of(worker), 0, "e")
    keys, content = rig.core.embedding_content(0)
    stride = 3 * (1 + n_state) + (n_state == 2)
    assert content.shape[1] == stride
    order = np.argsort(keys)
    for first, n in ((0, 3), (3, 3), (stride - 1, 1), (0, stride)):
        found = listing.read(first, n)
        assert found.tobytes() == np.ascontiguousarray(content[order, first : first + n]).tobytes()
    if n_state == 2:
        steps = listing.read(stride - 1, 1).view(np.uint32).reshape(-1)
        assert dict(zip(listing.keys.tolist(), steps.tolist(), strict=True)) == {
            int(k): 2 if i < 4 else 1 for i, k in enumerate(KEYS)
        }


@pytest.mark.parametrize(
    ("model", "waits"), [(BSP(), True), (SSP(0), True), (SSP(1), False), (ASP(), False)], ids=str
)
def test_rows_are_those_of_the_workers_clock(model, waits):
    rig = Rig(rows(2, init="zeros", consistency=model), n_workers=2, n_slots=8)
    worker = rig.worker(timeout_s=0.05)
    worker.table("e").push(np.array([4]), -np.ones((1, 2), np.float32))
    worker.clock()
    if waits:
        with pytest.raises(
            StallError, match="server 0 has not answered a pull of all rows of table 'e'"
        ):
            worker.table("e").all_rows()
        assert rig.writers[1].tick(0)
    keys, _ = worker.table("e").all_rows()
    assert keys.tolist() == [4]


def test_places_behind_the_last_row_are_left_and_their_number_comes():
    rig, _ = filled()
    writer = rig.writers[0]
    out, n_rows = np.full(4, 99, np.int64), np.zeros(1, np.uint64)
    assert writer.pull_keys(0, 0, 9, out, n_rows, 0) == 4
    rig.drain()
    assert writer.collect() == 0
    assert out.tolist() == [*KEYS[9:].tolist(), 99, 99]
    assert n_rows.tolist() == [11]
    floats = np.full((2, 3), 9, np.float32)
    assert writer.pull_floats(0, 0, 2**64 - 1, 0, floats, n_rows, 0) == 2
    rig.drain()
    assert writer.collect() == 0
    assert (floats == 9).all()


def test_floats_that_a_row_does_not_have_are_refused():
    rig, _ = filled()
    assert rig.writers[0].pull_floats(
        0, 0, 0, 1, np.empty((1, 3), np.float32), np.zeros(1, np.uint64), 0
    )
    with pytest.raises(
        _native.ProtocolViolation, match=r"floats 1 to 4 of 3: its sizes do not agree"
    ):
        rig.drain()
    with pytest.raises(
        ValueError, match="a row of 100 floats does not fit into a reply slot; raise slot_kib"
    ):
        rig.writers[0].pull_floats(
            0, 0, 0, 0, np.empty((1, 100), np.float32), np.zeros(1, np.uint64), 0
        )


def test_rows_that_are_read_whole_are_no_hot_rows():
    rig, worker = filled()
    rig.server.observe_rows()
    worker.table("e").all_rows()
    found = rig.core.hot_rows(0, 8)
    assert found is None or not found[2]


@pytest.mark.parametrize("seed", range(3))
def test_replies_that_arrive_in_pieces_are_taken_whole(seed):
    rig = stored()
    worker = rig.worker(channel=remote(rig, seed=seed)[1])
    for step in range(4):
        keys, found = worker.table("e").all_rows()
        expected = {
            k: (np.array(v) - step).tolist() for k, v in zip(KEYS.tolist(), VALUES, strict=True)
        }
        assert dict(zip(keys.tolist(), found.tolist(), strict=True)) == expected
        worker.table("e").push(KEYS, np.ones((11, 3), np.float32)).wait()


def test_a_damaged_reply_is_an_error():
    rig = stored()
    _, channel = remote(rig, drain=False)
    out, n_rows = np.empty(2, np.int64), np.zeros(1, np.uint64)
    sequence = channel.writer.next_sequence
    channel.writer.pull_keys(0, 0, 0, out, n_rows, 0)
    channel.publish()
    rig.drain()
    ring = rig.layout.geometry
    at = (
        rig.layout.mailbox_offset(0)
        + ring.replies_offset
        + (sequence % ring.n_slots) * ring.slot_bytes
    )
    rig.region.view(at + 64, 1, True)[0] ^= 1
    with pytest.raises(RuntimeError, match=f"reply to pull {sequence} is damaged"):
        channel.wait_collected(sequence + 1, 10.0)


def test_rows_that_are_set_begin_with_the_state_of_new_rows():
    rig = Rig(rows(3, optimizer=Momentum(1.0, momentum=0.5)))
    rig.core.set_rows(0, KEYS, VALUES)
    keys, content = rig.core.embedding_content(0)
    assert np.array_equal(keys, KEYS)
    assert np.array_equal(content, np.hstack([VALUES, np.zeros((11, 3), np.float32)]))
    with pytest.raises(ValueError, match=r"values must have shape \(number of keys, dim\)"):
        rig.core.set_rows(0, KEYS, np.zeros((11, 2), np.float32))


def test_the_activity_of_a_worker_that_waits_for_rows_is_known(monkeypatch):
    rig = Rig(rows(2, init="zeros", consistency=BSP()), n_workers=2, n_slots=8)
    worker = rig.worker(timeout_s=0.05)
    control = connection_of(worker).control
    worker.clock()
    request = worker.table("e").prefetch(np.array([4]))
    assert control.state == "computing"
    with pytest.raises(StallError, match="server 0 has not answered a pull of table 'e'"):
        request.wait()
    assert control.state == "pulling 'e'"
    request = worker.table("e").prefetch(np.array([4]))
    # The other worker ends its clock while this one waits.
    monkeypatch.setattr(connection_of(worker), "poll", lambda: rig.writers[1].tick(0))
    request.wait(20.0)
    assert control.state == "computing"
