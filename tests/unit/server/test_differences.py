"""Pulls as differences: all workers have the bits of the server's common copy, which follows the values."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest
from crash_rig import crash
from fake_network import KINDS, remote
from harness import Rig, dense, rows

from mpips import _native
from mpips.errors import ConfigError, ProtocolError
from mpips.kernels import reference_feedback as reference
from mpips.model.codec import Auto, OneBit, TopK
from mpips.model.consistency import ASP, BSP, SSP, DiLoCo
from mpips.model.optimizer import Adam, Momentum, PythonRule
from mpips.transport import common_copies
from mpips.worker.worker import Worker, connection_of

Codec = OneBit | TopK
CODECS = [OneBit(), TopK(0.1), TopK(1.0)]


def table(n: int, codec: Codec, **options: object) -> object:
    return dense(
        n, **{"optimizer": Momentum(0.2), "consistency": BSP(), "pull_compression": codec} | options
    )


def noise(n: int, *seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


class Definition:
    """The common copy by its definition, from the values after each clock with a push."""

    def __init__(self, codec: Codec, values: np.ndarray) -> None:
        self._codec, self.values = codec, values.copy()
        self.parts: list[reference.Record] = []

    def follow(self, values: np.ndarray) -> None:
        share = getattr(self._codec, "fraction", 1.0)
        found = reference.difference(self._codec.name, share, values, self.values)
        self.parts, self.values = found


def clock(workers: Sequence[Worker], n: int, number: int, pushes: Sequence[int] = ()) -> None:
    """Let workers end a clock, in which the given ones push."""
    for worker in workers:
        if worker.index in pushes:
            worker.table("w").push(noise(n, worker.index, number))
        worker.clock()


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize(
    ("n", "n_workers"), [(1, 1), (15, 2), (513, 3), (4001, 1), (4001, 3), ((1 << 18) + 700, 2)]
)
def test_workers_have_the_bits_of_the_definition_however_often_they_pull(
    codec: Codec, n: int, n_workers: int
) -> None:
    """Worker w pulls in every clock, every second one, or every third one; in clock 4 nobody pushes."""
    rig = Rig(table(n, codec, init="normal(1.0)"), n_workers=n_workers, slot_bytes=1 << 14)
    workers = [rig.worker(w) for w in range(n_workers)]
    expected = Definition(codec, rig.values())
    for number in range(9):
        for w, worker in enumerate(workers):
            if number % (w + 1) == 0:
                out = np.full(n, np.nan, np.float32)
                assert worker.table("w").pull(out).tobytes() == expected.values.tobytes()
                assert worker.table("w").pull().tobytes() == expected.values.tobytes()
        clock(workers, n, number, () if number == 4 else range(n_workers))
        if number != 4:
            expected.follow(rig.values())
    assert rig.core.dense_state(0, 1).tobytes() == expected.values.tobytes()
    if n > 1 and codec != TopK(1.0):
        assert expected.values.tobytes() != rig.values().tobytes()


@pytest.mark.parametrize("codec", [OneBit(), TopK(0.05)], ids=str)
def test_what_a_difference_leaves_out_follows_with_later_ones(codec: Codec) -> None:
    """Updates of zero bring the copy to the values: nothing is lost."""
    n = 3000
    rig = Rig(table(n, codec, optimizer=dense().optimizer))
    worker = rig.worker()
    worker.table("w").push(noise(n, 1))
    worker.clock()
    far = np.abs(rig.values() - worker.table("w").pull()).mean()
    for _ in range(40):
        worker.table("w").push(np.zeros(n, np.float32))
        worker.clock()
    near = np.abs(rig.values() - worker.table("w").pull()).mean()
    assert 0 < near < far / 20 if isinstance(codec, OneBit) else near == 0 < far


def test_bytes_are_those_of_what_is_read() -> None:
    """Whole at the first pull and behind two updates, nothing without an update, else a difference."""
    n = 40_000
    for codec in (OneBit(), TopK(0.01)):
        rig = Rig(table(n, codec), n_workers=2, slot_bytes=1 << 16)
        workers = [rig.worker(w) for w in range(2)]
        expected = Definition(codec, rig.values())

        def pulled(w: int, rig: Rig = rig, workers: list[Worker] = workers) -> int:
            before = rig.writers[w].counters()["pulled_bytes"]
            workers[w].table("w").pull()
            return rig.writers[w].counters()["pulled_bytes"] - before

        assert [pulled(0), pulled(0), pulled(1)] == [4 * n, 0, 4 * n]
        for number in range(3):
            clock(workers, n, number, [0, 1])
            expected.follow(rig.values())
            size = reference.difference_bytes(expected.parts)
            assert pulled(0) == size < 4 * n * (0.034 if codec == OneBit() else 0.02)
        assert [pulled(1), pulled(1), pulled(0)] == [4 * n, 0, 0]


@pytest.mark.parametrize("codec", [OneBit(), TopK(0.2)], ids=str)
def test_a_rule_in_python_and_values_that_are_set(codec: Codec) -> None:
    def halve(values, state, update, step):
        values[:] = values / 2 - update

    rig = Rig(table(600, codec, optimizer=PythonRule(halve)))
    rig.core.set_dense(0, noise(600, 3))
    worker = rig.worker()
    expected = Definition(codec, noise(600, 3))
    for number in range(3):
        assert worker.table("w").pull().tobytes() == expected.values.tobytes()
        clock([worker], 600, number, [0])
        expected.follow(rig.values())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", [OneBit(), TopK(0.1)], ids=str)
def test_bits_over_a_bad_network(seed: int, kind: str, codec: Codec) -> None:
    n, near, copies = 5000, Rig(table(5000, codec)), []
    local = near.worker()
    for number in range(8):
        copies.append(local.table("w").pull().tobytes())
        clock([local], n, number, [0])
    rig = Rig(table(n, codec), n_slots=3)
    worker = rig.worker(channel=remote(rig, seed=seed, kind=kind)[1])
    for number in range(8):
        if number not in (0, 4):  # the pulls after clocks 0 and 4 are the first one, and behind
            assert worker.table("w").pull().tobytes() == copies[number]
        clock([worker], n, number, [0])
    connection_of(worker).finish()


@pytest.mark.parametrize("seed", range(4))
def test_a_read_never_mixes_two_updates(seed: int) -> None:
    """Backup workers let clocks close while a late worker reads over a network, piece by piece."""
    n = 3 * _native.BLOCK_FLOATS - 100
    rig = Rig(table(n, TopK(1.0), consistency=BSP(backup=1)), n_workers=2, slot_bytes=1 << 18)
    network, channel = remote(rig, seed=seed, drain=False)
    updates, most = [0], 60
    expected = {0: rig.values().tobytes()}
    fast = rig.writers[1]

    def update() -> None:
        if network.rng.random() < 0.2 and updates[0] < most:
            assert fast.push_dense(0, updates[0], np.ones(n, np.float32), None, 0) == n
            assert fast.tick(updates[0])
            rig.drain()
            updates[0] += 1
            expected[updates[0]] = rig.core.dense_state(0, 1).tobytes()

    network.on_piece = update
    out, seen = np.empty(n, np.float32), []
    while updates[0] < most:
        before = updates[0]
        if channel.read_dense(0, out, 0.05):
            number = next(k for k in range(before, updates[0] + 1) if expected[k] == out.tobytes())
            seen.append(number)
    assert len(set(seen)) > 3


def test_a_read_in_memory_never_mixes_two_updates() -> None:
    """Readers follow the copy, or read it whole, while a server changes it; it always has equal values."""
    n, n_clocks = 400_000, 40
    rig = Rig(
        table(n, OneBit(), optimizer=dense().optimizer),
        slot_bytes=1 << 16,
        staging_bytes=8 * n,
    )
    ended, mixed = threading.Event(), []

    def read(follows: bool) -> None:
        copy, number = np.zeros(n, np.float32), None
        while not ended.is_set():
            known = number if follows else None
            found = _native.read_common(rig.region, rig.layout, 0, known, copy, 5.0, True)
            assert found is not None
            number = found[0]
            if (copy != copy[0]).any():
                mixed.append((follows, number))

    readers = [threading.Thread(target=read, args=(follows,)) for follows in (False, True)]
    with rig.serving():
        worker = rig.worker(local=False)
        for reader in readers:
            reader.start()
        try:
            for _ in range(n_clocks):
                worker.table("w").push(np.ones(n, np.float32))
                worker.clock()
            connection_of(worker).flush()
        finally:
            ended.set()
            for reader in readers:
                reader.join()
    assert mixed == []
    assert (worker.table("w").pull() == -n_clocks).all()


def test_a_read_gives_up_on_a_copy_that_is_being_written() -> None:
    rig = Rig(table(30, OneBit()))
    out = np.empty(30, np.float32)
    place = rig.layout.dense_common(0)
    assert place is not None
    word = rig.region.view(place[0], 16, True).view(np.uint64)
    before = word.copy()
    channels = [remote(rig)[1], rig.channel(0, True)]
    assert all(channel.read_dense(0, out, 1.0) for channel in channels)
    word[:] = [7, 2**64 - 1 - 7]
    assert not any(channel.read_dense(0, out, 0.01) for channel in channels)
    word[:] = before
    assert all(channel.read_dense(0, out, 1.0) for channel in channels)


def test_a_copy_of_which_a_part_was_read_is_read_whole_again() -> None:
    rig = Rig(table(30, OneBit()))
    copies, out = common_copies.CommonCopies(rig.layout, rig.writers[0]), np.empty(30, np.float32)
    numbers = []

    def follow(number: int | None, copy: np.ndarray) -> tuple[int, int] | None:
        numbers.append(number)
        copy[:] = len(numbers)
        if len(numbers) == 3:
            raise KeyboardInterrupt
        return None if len(numbers) == 2 else (7, 0)

    assert copies.read(0, out, follow)
    assert not copies.read(0, out, follow)
    with pytest.raises(KeyboardInterrupt):
        copies.read(0, out, follow)
    assert (out == 1).all()
    assert copies.read(0, out, follow)
    assert copies.read(0, out, follow)
    assert numbers == [None, 7, None, None, 7]


@pytest.mark.parametrize("codec", [OneBit(), TopK(0.1)], ids=str)
def test_a_damaged_difference_is_refused(codec: Codec) -> None:
    n, rng = 2000, np.random.default_rng(5)
    parts, _ = reference.difference(
        codec.name, getattr(codec, "fraction", 1.0), noise(n, 1), np.zeros(n, np.float32)
    )
    payload = parts[0].payload
    whole = np.concatenate([np.array([payload.nbytes], np.uint32).view(np.uint8), payload])
    native = codec.native()
    assert _native.add_difference(native, whole, np.zeros(n, np.float32))
    for _ in range(200):
        bad = whole.copy()
        bad[rng.integers(0, 12)] ^= rng.integers(1, 256)
        bad = bad[: len(bad) - int(rng.integers(0, 9))]
        _native.add_difference(native, bad, np.zeros(n, np.float32))  # must not crash
    for bad in (whole[:-1], whole[:3], np.append(whole, np.uint8(0))):
        with pytest.raises(ProtocolError, match="is not one of 2000 values"):
            common_copies.add(native, bad, np.zeros(n, np.float32))


@pytest.mark.parametrize("is_remote", [False, True], ids=["near", "remote"])
@pytest.mark.parametrize("codec", [OneBit(), TopK(0.1)], ids=str)
def test_infinity_and_nan_arrive_as_they_are(codec: Codec, is_remote: bool) -> None:
    """And finite values afterwards arrive, too."""

    def become(values, state, update, step):
        values[:] = update

    n = 600
    rig = Rig(table(n, codec, optimizer=PythonRule(become), check_finite=False))
    worker = rig.worker(channel=remote(rig)[1] if is_remote else None)
    for number, value in enumerate((1.0, np.inf, -np.inf, np.nan)):
        update = noise(n, number)
        update[number] = value
        worker.table("w").push(update)
        worker.clock()
        found = worker.table("w").pull()
        assert found.tobytes() == update.tobytes() or number == 0
    worker.table("w").push(noise(n, 9))
    worker.clock()
    assert worker.table("w").pull().tobytes() == noise(n, 9).tobytes()
    worker.table("w").push(noise(n, 10))
    worker.clock()
    assert worker.table("w").pull().tobytes() != noise(n, 10).tobytes()


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_finite_values_arrive_finite_however_great(codec: Codec) -> None:
    """A copy plus the mean of a block could exceed what float32 represents."""

    def become(values, state, update, step):
        values[:] = update

    n, found = 1100, []
    rig = Rig(table(n, codec, optimizer=PythonRule(become)))
    worker = rig.worker()
    for number in range(8):
        update = noise(n, number)
        worker.table("w").push(update * np.float32(3.0e38 / np.abs(update).max()))
        worker.clock()
        found.append(worker.table("w").pull())
    assert np.isfinite(found).all()
    for number in range(3):
        worker.table("w").push(noise(n, number))
        worker.clock()
        found.append(worker.table("w").pull())
    # Nothing of the great values is left when values of a usual size follow.
    assert np.abs(found[-1]).max() < 20


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("load", "stride"),
    [("differences-bsp", 41), ("differences-backup", 53), ("differences-pair", 97)],
)
def test_killed_at_many_points_the_copy_is_that_of_an_undisturbed_run(
    load: str, stride: int
) -> None:
    """In the last load each life goes on in a replica, since the server's own memory is lost."""
    _, tried, kills = crash(load, "everywhere", stride)
    assert kills > tried


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dense(consistency=ASP(), pull_compression="topk"), "needs consistency = 'bsp'"),
        (lambda: dense(consistency=SSP(), pull_compression="onebit"), "needs consistency = 'bsp'"),
        (
            lambda: dense(consistency=DiLoCo(), pull_compression="onebit"),
            "needs consistency = 'bsp'",
        ),
        (
            lambda: rows(consistency=BSP(), pull_compression="onebit"),
            "table 'e': pull_compression = OneBit.* is for dense tables",
        ),
        (
            lambda: dense(consistency=BSP(), placement="replicated", pull_compression="onebit"),
            "with placement = 'replicated'",
        ),
        (
            lambda: dense(consistency=BSP(), pull_compression="randomk"),
            "pull_compression = 'randomk': must be 'bf16', 'int8', 'topk', 'onebit' or 'none'",
        ),
        (lambda: dense(pull_compression=Auto("bf16", "onebit")), "does not choose it by speed"),
    ],
)
def test_what_has_no_common_copy_is_refused_in_one_sentence(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


def test_values_cannot_be_viewed() -> None:
    rig = Rig(table(40, OneBit(), optimizer=Adam(0.1)))
    handle = rig.worker().table("w")
    assert handle.ready_views() is None
    assert "direct" not in handle.paths
    with pytest.raises(ConfigError, match=r"has pull_compression = OneBit.*use pull"):
        handle.view()
