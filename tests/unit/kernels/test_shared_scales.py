"""Codec shared_int8: every instruction set gives the bytes of the NumPy definition; nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest
from feedback_rig import FIRST, FLT_MAX, KEY, Float32, pushed, tensors
from kernel_digests import assert_same_bytes

from mpips import _native
from mpips.kernels import available_kernels
from mpips.kernels import reference_shared as reference

BLOCKS = [16, 24]  # FIRST is a multiple of both


def made(n: int, block: int, halves: int = 2) -> _native.Feedback:
    memory = _native.SharedMemory.anonymous(_native.Feedback.n_bytes(n, halves), 0)
    feedback = _native.Feedback(memory, 0, n, FIRST, halves, "shared_int8", 1.0, block)
    assert feedback.settle(0)
    return feedback


def exponents_for(update: Float32, block: int, seed: int) -> np.ndarray:
    """Return exponents that fit, saturate, lose everything, or are 0."""
    fitting = [
        reference.exponent_for(update[at : at + block]) for at in range(0, len(update), block)
    ]
    moved = np.array(fitting) + np.random.default_rng(seed).choice(
        [0, 0, -3, 5, -300], len(fitting)
    )
    return np.clip(moved, 0, reference.MOST_EXPONENT).astype(np.uint8)


def decoded(block: int, record, start: int) -> Float32:
    out = np.full(record.covered, np.nan, np.float32)
    codec = _native.Codec("shared_int8", block)
    _native.decode(codec, record.payload, start % block, out)
    return out


BEST = available_kernels()[-1]  # by day


@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", tensors())
def test_records_and_residuals_are_those_of_the_definition(
    name: str, block: int, halves: int
) -> None:
    update = tensors()[name][:20_000]
    feedback, residual = made(len(update), block, halves), np.zeros(len(update), np.float32)
    for number in range(3):
        exponents = exponents_for(update, block, number)
        feedback.set_scales(exponents)
        capacity = (960, 4032, 256)[number]
        found = pushed(feedback, update, KEY + number, capacity, number)
        expected, residual = reference.push(
            block, exponents, residual, update, FIRST, KEY + number, capacity
        )
        assert [r.covered for r in found] == [r.covered for r in expected]
        start = 0
        for mine, wanted in zip(found, expected, strict=True):
            assert mine.payload.tobytes() == wanted.payload.tobytes()
            assert np.isfinite(decoded(block, mine, start)).all()
            start += mine.covered
        assert feedback.residual.tobytes() == residual.tobytes()
        assert np.isfinite(residual).all()


@pytest.mark.parametrize(
    "kernels",
    [pytest.param(k, marks=[] if k == BEST else [pytest.mark.long]) for k in available_kernels()],
)
def test_every_instruction_set_gives_the_same_bytes(kernels: str) -> None:
    assert_same_bytes(
        kernels,
        "test_shared_scales",
        """
for x in t.tensors().values():
    f = t.made(len(x), 24)
    for number in range(2):
        f.set_scales(t.exponents_for(x, 24, number))
        start = 0
        for r in t.pushed(f, x, number, 4032, number):
            digest.update(r.payload.tobytes() + t.decoded(24, r, start).tobytes())
            start += r.covered
        digest.update(f.residual.tobytes())
""",
    )


def test_what_arrived_and_the_residual_are_exactly_the_sum_of_the_updates() -> None:
    """Also where values saturate and where the scale is 0."""
    rng = np.random.default_rng(2)
    n, block = 20_011, 16
    feedback, arrived, total = made(n, block), np.zeros(n), np.zeros(n)
    for number in range(12):
        update = rng.integers(-2000, 2001, n).astype(np.float32)
        total += update
        exponents = rng.choice([0, 120, 127, 129, 131], -(-n // block)).astype(np.uint8)
        feedback.set_scales(exponents)
        start = 0
        for record in pushed(feedback, update, number, 4032, number):
            arrived[start : start + record.covered] += decoded(block, record, start)
            start += record.covered
        assert (arrived + feedback.residual == total).all()
    assert np.abs(feedback.residual).max() > 2000  # something saturated


def test_rounding_has_the_mean_of_the_values() -> None:
    n, block = 4096, 16
    update = np.full(n, 0.3, np.float32)
    total = np.zeros(n)
    for number in range(50):
        feedback = made(n, block)
        feedback.set_scales(np.full(n // block, 127, np.uint8))
        start = 0
        for record in pushed(feedback, update, number, 4032, number):
            total[start : start + record.covered] += decoded(block, record, start)
            start += record.covered
    assert abs(total.mean() / 50 - 0.3) < 4 * 0.46 / np.sqrt(n * 50)


@pytest.mark.parametrize(
    "most", [0, 1e-45, 1e-38, 9.0e-37, 1, 1.5, 1.5000001, 96, 97, 3e38, FLT_MAX]
)
def test_a_scale_leaves_room_for_a_third_more(most: float) -> None:
    update = np.zeros(16, np.float32)
    update[3] = -most
    feedback = made(16, 16)
    (record,) = pushed(feedback, update, 0, 960, 0)
    assert record.payload[0] == 0
    exponent = int(record.payload[1])
    assert exponent == reference.exponent_for(update)
    if 0 < exponent < reference.MOST_EXPONENT:
        assert 48 <= float(np.abs(update).max()) / 2.0 ** (exponent - 127) <= 96


def test_scales_of_another_number_are_refused() -> None:
    with pytest.raises(ValueError, match="3 scales: expected 2"):
        made(20, 16).set_scales(np.zeros(3, np.uint8))
    memory = _native.SharedMemory.anonymous(4096, 0)
    with pytest.raises(ValueError, match=r"block = 24: must be 1 to 4096 and divide first"):
        _native.Feedback(memory, 0, 20, 16, 1, "shared_int8", 1.0, 24)
