"""What a worker reads from remote memory while the server writes there: nothing torn or old is believed."""

from __future__ import annotations

import numpy as np
import pytest
from fake_network import KINDS, remote
from harness import Rig, dense, rows

from mpips import _native
from mpips.model.consistency import ASP, SSP


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", KINDS)
def test_reply_of_the_round_before_is_never_taken_for_the_new_one(seed, kind):
    # All replies use one slot and have one size; header and rows arrive in pieces of two replies.
    rig = Rig(rows(2, consistency=ASP()), n_slots=2)
    worker = rig.worker(channel=remote(rig, seed=seed, kind=kind)[1])
    keys = np.arange(7)
    for step in range(30):
        assert (worker.table("e").pull(keys) == -step).all()
        worker.table("e").push(keys, np.ones((7, 2), np.float32))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("codec", [None, "int8"])
def test_dense_pull_never_mixes_two_versions_of_a_block(seed, codec):
    blocks = 5
    n = blocks * _native.BLOCK_FLOATS - 100
    table = dense(n, pull_compression=codec)
    rig = Rig(table, n_workers=2, staging_bytes=4 * n + 4096)
    network, channel = remote(rig, seed=seed, drain=False)
    rig.staging[1].view(0, 4 * n, True).view(np.float32)[:] = 1.0
    updates = [0]

    def update():
        if network.rng.random() < 0.25:
            assert rig.writers[1].push_staged(0, 0, 0, None, n)
            updates[0] += rig.drain()

    network.on_piece = update
    out, mixed = np.empty(n, np.float32), 0
    for _ in range(20):
        before = updates[0]
        while not channel.read_dense(0, out, 1.0):
            pass
        # Int8 decodes a whole number as one that differs by a rounding.
        assert np.allclose(out, np.rint(out), rtol=0, atol=1e-4)
        np.rint(out, out)
        for block in range(blocks):
            values = out[block * _native.BLOCK_FLOATS : (block + 1) * _native.BLOCK_FLOATS]
            assert (values == values[0]).all()
            assert -updates[0] <= values[0] <= -before
        mixed += len(np.unique(out)) > 1
        assert before <= channel.writer.base_version(0) <= -out.max()
    assert mixed > 0


def test_dense_pull_gives_up_on_a_block_that_is_being_written():
    rig = Rig(dense(3))
    _, channel = remote(rig)
    version = rig.region.view(rig.layout.dense_offsets(0)[0], 16, True).view(np.uint64)
    odd = np.array([7, 2**64 - 1 - 7], np.uint64)
    version[:] = odd
    assert not channel.read_dense(0, np.empty(3, np.float32), 0.01)
    version[:] = odd + np.array([1, -1], np.int64).view(np.uint64)
    assert channel.read_dense(0, np.empty(3, np.float32), 0.01)


@pytest.mark.parametrize("pair", [0, 1])
def test_torn_head_is_not_believed(pair):
    rig = Rig(dense(3, consistency=SSP()))
    _, channel = remote(rig, drain=False)
    head = rig.region.view(rig.layout.head_offset(0), 64, True).view(np.uint64)
    head[2 * pair] += np.uint64(50)
    assert not channel.wait_head(0, int(pair == 0), int(pair == 1), 0.0)
    head[2 * pair + 1] -= np.uint64(50)
    assert channel.wait_head(0, 50 * (pair == 0), 50 * (pair == 1), 0.0)


def test_torn_acknowledgement_is_not_believed():
    rig = Rig(dense(3))
    _, channel = remote(rig, drain=False)
    channel.writer.push_dense(0, 0, np.ones(3, np.float32), None, 0)
    channel.publish()
    rig.drain()
    ack = rig.region.view(rig.layout.mailbox_offset(0), 16, True).view(np.uint64)
    held = ack[1]
    ack[1] = np.uint64(2**64 - 1)
    assert not channel.wait_applied(1, 0.0)
    ack[1] = held
    assert channel.wait_applied(1, 0.0)


def test_acknowledgement_without_its_result_is_not_believed():
    rig = Rig(dense(3))
    _, channel = remote(rig, drain=False)
    channel.writer.push_dense(0, 0, np.ones(3, np.float32), None, 0)
    channel.publish()
    rig.drain()
    mailbox = rig.layout.mailbox_offset(0)
    # Find the result beside the acknowledgement, which has two words, and in the list of results.
    places = [
        rig.region.view(mailbox + at, 8, True) for at in (16, rig.layout.geometry.results_offset)
    ]
    held = [place.copy() for place in places]
    for place in places:
        place[:] = 0
    assert not channel.wait_applied(1, 0.0)
    # One of the two is enough.
    places[0][:] = held[0]
    assert channel.wait_applied(1, 0.0)


def test_result_that_is_no_longer_beside_the_acknowledgement_is_found_in_the_list():
    rig = Rig(dense(3), n_slots=8)
    _, channel = remote(rig, drain=False)
    for _ in range(6):
        channel.writer.push_dense(0, 0, np.ones(3, np.float32), None, 0)
    channel.publish()
    rig.drain()
    assert channel.wait_applied(6, 0.0)
    assert channel.writer.result(0)[0] == _native.Outcome.APPLIED


def test_damaged_reply_is_an_error():
    rig = Rig(rows(2))
    _, channel = remote(rig, drain=False)
    out = np.empty((1, 2), np.float32)
    channel.writer.pull_rows(0, 0, np.array([5]), out, 0)
    channel.publish()
    rig.drain()
    at = rig.layout.mailbox_offset(0) + rig.layout.geometry.replies_offset
    rig.region.view(at + 64, 1, True)[0] ^= 1
    # At first the reply counts as late.
    assert not channel.wait_collected(1, 0.0)
    with pytest.raises(RuntimeError, match="reply to pull 0 is damaged"):
        channel.wait_collected(1, 10.0)
