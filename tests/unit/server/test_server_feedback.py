"""Pushes with a residual: what arrives and the residual are the sum of what was pushed."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from crash_rig import crash
from harness import Rig, dense, floats
from ring_attack import BASE, FIRST, LAST, PUSH_DENSE, Attack

from mpips import _native
from mpips.errors import MpipsError
from mpips.kernels import reference_feedback as reference
from mpips.model.codec import Codec, OneBit, RandomK, TopK
from mpips.model.consistency import ASP, BSP, SSP
from mpips.worker.feedback.residuals import Residuals, residual_layout

CODECS = [TopK(0.1), TopK(1.0), RandomK(0.2), OneBit()]
EXACT = (TopK, RandomK)


def residuals_of(rig: Rig, halves: int = 1) -> Residuals:
    """Return new residuals of a worker of a rig."""
    _, n_bytes = residual_layout(rig.tables, rig.placement, halves)
    memory = _native.SharedMemory.anonymous(n_bytes, 0)
    found = Residuals(memory, rig.tables, rig.placement, halves)
    found.fill({})
    return found


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("n", [1, 15, 513, 4001])
@pytest.mark.parametrize("model", [ASP(), SSP(1), BSP(reduce="sum")], ids=str)
def test_arrived_and_residual_are_the_sum_of_the_updates(
    codec: Codec, n: int, model: object
) -> None:
    """A record has 960 bytes here, and the ring four slots, so a push takes several records and waits."""
    rig = Rig(dense(n, consistency=model, compression=codec), n_slots=4)
    residuals = residuals_of(rig)
    worker = rig.worker(residuals=residuals)
    handle, total = worker.table("w"), np.zeros(n)
    for clock in range(4):
        for number in range(2):
            update = floats(n, 10 * clock + number)
            handle.push(update)
            total += update
            update[...] = np.nan  # free at return
        worker.clock()
    assert handle.paths == ["feedback"]
    found = residuals.values()["w"] - handle.pull()
    assert np.abs(found - total).max() <= (0 if isinstance(codec, EXACT) else 1e-6 * 200)
    if n == 4001 and getattr(codec, "fraction", 0.0) < 1:
        assert np.abs(residuals.values()["w"]).max() > 0


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_a_push_arrives_as_the_definition_says(codec: Codec) -> None:
    """On two tables, whose pushes have keys of their own."""
    rig = Rig(dense(700, compression=codec), dense(900, "v", compression=codec), n_slots=8)
    worker = rig.worker(residuals=residuals_of(rig))
    share = getattr(codec, "fraction", 1.0)
    for name, n in (("w", 700), ("v", 900)):
        handle, values, residual = (
            worker.table(name),
            np.zeros(n, np.float32),
            np.zeros(n, np.float32),
        )
        for number in range(3):
            update = np.random.default_rng(number).standard_normal(n).astype(np.float32)
            key = handle._random_key()
            handle._encoded = (0, number - 1)  # the push draws this key again
            records, residual = reference.push(codec.name, share, residual, update, 0, key, 960)
            kind = codec.native().kind
            values -= np.concatenate([reference.decode(kind, record) for record in records])
            handle.push(update)
            assert handle.pull().tobytes() == values.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_changes_no_residual(bad: float) -> None:
    rig = Rig(dense(600, compression=OneBit()))
    residuals = residuals_of(rig)
    handle = rig.worker(residuals=residuals).table("w")
    handle.push(floats(600))
    before, update = residuals.values()["w"].tobytes(), floats(600)
    update[599] = bad
    with pytest.raises(ValueError, match="position 599 of 600; nothing was sent"):
        handle.push(update)
    assert residuals.values()["w"].tobytes() == before


def test_several_workers_have_residuals_of_their_own() -> None:
    table = dense(2000, consistency=BSP(reduce="sum"), compression=TopK(0.05))
    rig = Rig(table, n_workers=2, n_slots=8)
    residuals = [residuals_of(rig) for _ in range(2)]
    workers = [rig.worker(w, residuals=residuals[w]) for w in range(2)]
    total = np.zeros(2000)
    for clock in range(3):
        for w in range(2):
            update = floats(2000, 2 * clock + w)
            workers[w].table("w").push(update)
            total += update
            workers[w].clock()
    rest = sum(found.values()["w"] for found in residuals)
    assert (rest - workers[0].table("w").pull() == total).all()
    assert (residuals[0].values()["w"] != residuals[1].values()["w"]).any()


@pytest.mark.sampled
@pytest.mark.parametrize("load", ["feedback-bsp", "feedback-asp"])
def test_killed_at_many_points_values_and_residuals_are_those_of_an_undisturbed_run(
    load: str,
) -> None:
    """Of the first life every few points, the second life at another one; the third comes to the end."""
    _, tried, kills = crash(load, "everywhere", 23)
    assert kills > tried


def payload_of(codec: Codec, n: int) -> bytes:
    """Return the payload of one record that covers n values."""
    rig = Rig(dense(n, compression=codec))
    feedback = residuals_of(rig).feedback(0, 0)
    feedback.begin(np.arange(1, n + 1, dtype=np.float32), 7)
    covered, payload = feedback.encode(960)
    assert covered == n
    return payload.tobytes()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"codec": 0}, "a push with codec 0, its table has codec"),
        ({"codec": 3}, "a push with codec 3, its table has codec"),
        ({"skew": 1}, "a push that begins outside its block"),
        ({"count": 2**32 - 1}, "a record of 4294967295 values, of which at most 262144"),
        ({"count": 2**18 + 1}, "a record of 262145 values"),
        ({"flags": FIRST | LAST | BASE}, "flags that exclude each other"),
        ({"flags": LAST}, "out of order"),
        ({"offset": 1}, "out of order"),
    ],
    ids=str,
)
@pytest.mark.parametrize("codec", [TopK(0.1), OneBit()], ids=str)
def test_a_forged_header_is_a_violation(codec: Codec, fields: dict, message: str) -> None:
    attack = Attack(dense(600, compression=codec))
    kind = 5 if isinstance(codec, OneBit) else 4
    given = dict(fields)
    word = {"codec": given.pop("codec", kind) | given.pop("skew", 0) << 4}
    attack.forge(0, payload_of(codec, 600), kind=PUSH_DENSE, **{"count": 600, **word, **given})
    attack.refused(message)


@pytest.mark.parametrize("codec", [TopK(0.1), OneBit()], ids=str)
def test_random_records_are_applied_or_refused(codec: Codec) -> None:
    """A fuzzer over payloads and sizes: a server ends with ProtocolViolation, or has finite values."""
    rng = np.random.default_rng(3)
    good, refused = payload_of(codec, 600), 0
    kind = 5 if isinstance(codec, OneBit) else 4
    for _ in range(150):
        payload = np.frombuffer(good, np.uint8).copy()
        for _ in range(rng.integers(0, 3)):
            payload[rng.integers(0, len(payload))] = rng.integers(0, 256)
        payload = payload[: len(payload) - int(rng.integers(0, 2) * rng.integers(0, len(payload)))]
        count = int(rng.choice([600, 600, 600, 599, 601, 0, 1, 262_144]))
        attack = Attack(dense(600, compression=codec))
        attack.forge(0, payload.tobytes(), kind=PUSH_DENSE, count=count, codec=kind)
        with contextlib.suppress(_native.ProtocolViolation):
            attack.rig.drain()
            continue
        refused += 1
        assert (attack.rig.values() == 0).all()
    assert 30 < refused < 149


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_after_an_interrupted_push_the_next_one_is_refused(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that catches Ctrl-C must not send the rest of the old update in place of a new one."""
    rig = Rig(dense(40_001, compression=codec), n_slots=4)
    worker = rig.worker(residuals=residuals_of(rig))
    handle = worker.table("w")

    def interrupt(server: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(worker._connection, "wait_credit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            handle.push(np.ones(40_001, np.float32))
    writer = worker._connection.channels[0].writer
    before = writer.next_sequence
    assert before > 0
    with pytest.raises(
        MpipsError, match=r"an earlier push to table 'w' was interrupted .* server 0"
    ):
        handle.push(np.ones(40_001, np.float32))
    assert writer.next_sequence == before


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_a_push_overwrites_no_half_before_the_push_before_it_has_arrived(codec: Codec) -> None:
    """Until then the half that the next push overwrites may be the only one that stays valid."""
    rig = Rig(dense(40, compression=codec), n_slots=8)
    residuals = residuals_of(rig, halves=2)
    worker = rig.worker(residuals=residuals)
    connection, waits = worker._connection, []

    def wait_for(server: int, sequence: int) -> None:
        feedback = residuals.feedback(0, server)
        # The halves are as the push before has left them.
        waits.append((server, sequence, feedback.is_open, feedback.residual.tobytes()))

    connection.arrivals.wait_for = wait_for
    before = []
    for number in range(3):
        before.append(residuals.values()["w"].tobytes())
        worker.table("w").push(floats(40, number))
    ends = [0, *(w[1] for w in waits[1:])]
    assert ends == sorted(set(ends))
    assert [(s, opened, text) for s, _, opened, text in waits] == [(0, False, b) for b in before]
