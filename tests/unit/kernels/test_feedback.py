"""Codecs with a residual: every instruction set gives the bytes of the NumPy definition; nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest
from feedback_rig import FIRST, KEY, pushed, tensors
from kernel_digests import assert_same_bytes

from mpips import _native
from mpips.kernels import available_kernels
from mpips.kernels import reference_feedback as reference

CODECS = [
    ("topk", 0.01),
    ("topk", 0.3),
    ("topk", 1.0),
    ("randomk", 0.05),
    ("randomk", 1.0),
    ("onebit", 1.0),
]
PUSHES = 3


def made(n: int, kind: str, share: float, halves: int = 2) -> _native.Feedback:
    memory = _native.SharedMemory.anonymous(_native.Feedback.n_bytes(n, halves), 0)
    feedback = _native.Feedback(memory, 0, n, FIRST, halves, kind, share)
    assert feedback.settle(0)
    return feedback


def wire(kind: str) -> str:
    return "onebit" if kind == "onebit" else "sparse"


@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize("name", tensors())
@pytest.mark.parametrize(("kind", "share"), CODECS)
def test_records_and_residuals_are_those_of_the_definition(
    kind: str, share: float, name: str, halves: int
) -> None:
    update = tensors()[name]
    feedback, residual = made(len(update), kind, share, halves), np.zeros(len(update), np.float32)
    capacity = 960 if len(update) < 10_000 else 65_472
    for number in range(PUSHES):
        found = pushed(feedback, update, KEY + number, capacity, number)
        expected, residual = reference.push(
            kind, share, residual, update, FIRST, KEY + number, capacity
        )
        assert [r.covered for r in found] == [r.covered for r in expected]
        for mine, wanted in zip(found, expected, strict=True):
            assert mine.payload.tobytes() == wanted.payload.tobytes()
            out = np.full(mine.covered, np.nan, np.float32)
            assert _native.decode_biased(wire(kind), mine.payload, out)
            assert out.tobytes() == reference.decode(wire(kind), wanted).tobytes()
        assert feedback.residual.tobytes() == residual.tobytes()
        assert np.isfinite(residual).all()
        assert feedback.pushed == number + 1


@pytest.mark.parametrize("kernels", available_kernels())
def test_every_instruction_set_gives_the_same_bytes(kernels: str) -> None:
    assert_same_bytes(
        kernels,
        "test_feedback",
        """
for kind, share in t.CODECS:
    for x in t.tensors().values():
        f = t.made(len(x), kind, share)
        for number in range(2):
            for count, payload in t.pushed(f, x, number, 4032, number):
                out = t.np.empty(count, t.np.float32)
                assert t._native.decode_biased(t.wire(kind), payload, out)
                digest.update(payload.tobytes() + out.tobytes())
            digest.update(f.residual.tobytes())
""",
    )


@pytest.mark.parametrize(("kind", "share"), CODECS)
def test_what_arrived_and_the_residual_are_the_sum_of_the_updates(kind: str, share: float) -> None:
    """Exactly for whole numbers with topk and randomk; onebit rounds."""
    rng = np.random.default_rng(2)
    n = 20_011
    feedback, arrived, total = made(n, kind, share), np.zeros(n), np.zeros(n)
    for number in range(20):
        update = rng.integers(-20, 21, n).astype(np.float32)
        total += update
        for record, start in _with_starts(pushed(feedback, update, number, 4032, number)):
            out = np.empty(record.covered, np.float32)
            assert _native.decode_biased(wire(kind), record.payload, out)
            arrived[start : start + record.covered] += out
    error = np.abs(arrived + feedback.residual - total)
    assert error.max() <= (1e-6 * np.abs(total).max() * 20 if kind == "onebit" else 0)
    if share < 1:
        assert np.abs(feedback.residual).max() > 0


def _with_starts(records: list[reference.Record]) -> list[tuple[reference.Record, int]]:
    starts = np.cumsum([0, *(record.covered for record in records)])
    return list(zip(records, starts.tolist(), strict=False))


@pytest.mark.parametrize("share", [0.001, 0.01, 0.2])
@pytest.mark.parametrize("name", ["odd", "equal", "sampled", "columns", "ties", "wide"])
def test_topk_sends_its_share_within_30_percent(name: str, share: float) -> None:
    update = tensors()[name]
    feedback = made(len(update), "topk", share)
    records = pushed(feedback, update, 0, 4032, 0)
    count = sum(int(record.payload[:4].view(np.uint32)[0]) for record in records)
    target = max(1, share * len(update))
    assert 0.69 * target <= count <= 1.31 * target
    # The least value that was sent is as great as the greatest one that was not, within a bin of 2^-7.
    sent = np.concatenate(
        [
            record.payload[4 : 4 + 4 * int(record.payload[:4].view(np.uint32)[0])]
            for record in records
        ]
    )
    assert np.abs(sent.view(np.float32)).min() >= np.abs(feedback.residual).max() * (1 - 2.0**-6)


def test_every_value_is_sent_some_time() -> None:
    """Values that are small at each push add up until they are sent; equal ones take turns."""
    for kind, share in (("topk", 0.1), ("randomk", 0.1)):
        feedback, seen = made(300, kind, share), np.zeros(300, bool)
        update = np.ones(300, np.float32)
        for number in range(80):
            before = feedback.residual + update
            pushed(feedback, update, number * 77, 960, number)
            seen |= (before != 0) & (feedback.residual == 0)
        assert seen.all(), kind


def test_randomk_does_not_depend_on_where_a_tensor_is_cut() -> None:
    update = tensors()["odd"]
    whole = reference.chosen_randomk(1537, 0, 0.1, KEY)
    parts = [reference.chosen_randomk(b - a, a, 0.1, KEY) for a, b in ((0, 512), (512, 1537))]
    assert (np.concatenate(parts) == whole).all()
    assert abs(whole.mean() - 0.1) < 0.03
    assert (reference.chosen_randomk(len(update), 0, 0.1, KEY + 1) != whole).any()


def test_of_two_halves_the_one_whose_record_is_there_counts() -> None:
    """The tag of a half is one more than the record that ended its push."""
    n, update = 600, tensors()["odd"][:600].copy()
    for next_record, valid in ((5, 5), (4, 2), (2, 2), (9, 5)):
        memory = _native.SharedMemory.anonymous(_native.Feedback.n_bytes(n, 2), 0)
        first = _native.Feedback(memory, 0, n, 0, 2, "topk", 0.1)
        first.settle(0)
        residuals = {}
        for number in (1, 4):
            pushed(first, update, 0, 960, number)
            residuals[number + 1] = first.residual.tobytes()
        # A push that is not complete changes the older half alone.
        if next_record == 9:
            first.begin(update, 0)
            first.encode(960)
        again = _native.Feedback(memory, 0, n, 0, 2, "topk", 0.1)
        assert again.is_valid(next_record)
        assert again.settle(next_record)
        assert again.pushed == valid
        assert again.residual.tobytes() == residuals[valid]
        # A half of a record that was not there stays forgotten when others get its number.
        if next_record == 4:
            later = _native.Feedback(memory, 0, n, 0, 2, "topk", 0.1)
            assert later.settle(100)
            assert later.pushed == 2


def test_without_a_valid_half_the_residual_is_lost() -> None:
    memory = _native.SharedMemory.anonymous(_native.Feedback.n_bytes(40, 2), 0)
    feedback = _native.Feedback(memory, 0, 40, 0, 2, "topk", 0.1)
    feedback.fill(np.ones(40, np.float32))
    for number in (6, 8):
        pushed(feedback, np.ones(40, np.float32), 0, 960, number)
    assert not feedback.is_valid(6)
    assert not feedback.settle(6)
    assert (feedback.residual == 0).all()
    assert feedback.settle(6)


def test_forged_records_are_refused_and_write_nothing_outside() -> None:
    """Random changes of a valid record, and random bytes: refused, or decoded inside of its values."""
    rng = np.random.default_rng(11)
    counts = {True: 0, False: 0}
    for kind, share in (("topk", 0.2), ("onebit", 1.0)):
        feedback = made(1000, kind, share)
        record = pushed(feedback, tensors()["odd"][:1000].copy(), 0, 4032, 0)[0]
        for trial in range(4000):
            payload = record.payload.copy()
            for _ in range(rng.integers(1, 4)):
                payload[rng.integers(0, len(payload))] = rng.integers(0, 256)
            if trial % 3 == 0:
                payload = payload[: rng.integers(0, len(payload) + 1)]
            elif trial % 3 == 1:
                payload = np.concatenate([payload, rng.integers(0, 256, 3).astype(np.uint8)])
            whole = np.full(1200, 7, np.float32)
            counts[_native.decode_biased(wire(kind), payload, whole[100:1100])] += 1
            assert (whole[:100] == 7).all()
            assert (whole[1100:] == 7).all()
    assert counts[True] > 100
    assert counts[False] > 1000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: made(5, "zip", 0.1), "codec = 'zip': must be one of topk, randomk, onebit"),
        (lambda: made(5, "topk", 0.0), "must be above 0"),
        (lambda: made(5, "topk", 1.5), "at most 1"),
        (lambda: made(5, "topk", 0.5, 3), "halves = 3"),
        (lambda: made(5, "topk", 0.5).begin(np.zeros(4, np.float32), 0), "has 4 values"),
        (lambda: made(5, "topk", 0.5).encode(960), "a push that has begun"),
        (
            lambda: _native.encode(_native.Codec("sparse", 1), np.zeros(4, np.float32), 0, 4, 0),
            "codec sparse needs a residual",
        ),
        (
            lambda: _native.decode_biased("int8", np.zeros(4, np.uint8), np.zeros(4, np.float32)),
            "codec int8 has no residual",
        ),
    ],
)
def test_wrong_arguments_are_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
