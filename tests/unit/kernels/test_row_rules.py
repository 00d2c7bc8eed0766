"""Kernels of whole rows: row-wise Adagrad and the rounding of bf16, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from mpips import _native, kernels
from mpips.kernels import reference, reference_codecs
from mpips.model.optimizer import ROW_OPTIMIZERS, RowAdagrad
from mpips.model.row_values import bf16_bits, bf16_values

NAMES = kernels.available_kernels()
LENGTHS = [1, 2, 7, 8, 9, 15, 16, 17, 31, 64, 65, 1000]
RULES = {
    "plain": RowAdagrad(0.05),
    "clip": RowAdagrad(0.05, clip_value=0.25),
    "decay": RowAdagrad(0.05, weight_decay=0.1, initial_accumulator=0.5),
    "all": RowAdagrad(0.05, weight_decay=0.03, clip_value=0.5, eps=1e-3),
}
GREATEST = np.finfo(np.float32).max


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("isa", NAMES)
@pytest.mark.parametrize("n", LENGTHS)
def test_row_adagrad_has_the_bits_of_the_definition(n: int, isa: str, rule: RowAdagrad) -> None:
    config, rng = rule.native(), np.random.default_rng(n)
    found, expected = [], []
    for arrays in (found, expected):
        values = np.random.default_rng(n).normal(size=n).astype(np.float32)
        arrays += [values, np.full((1, 1), config.initial_state(0), np.float32)]
    for step in range(1, 5):
        gradient = (rng.normal(size=n) * 10.0 ** rng.integers(-6, 3, n)).astype(np.float32)
        kernels.update(config, *found, gradient, step, 0.5, 0.75, kernels=isa)
        reference.update(config, *expected, gradient, step, 0.5, 0.75)
        assert found[0].tobytes() == expected[0].tobytes()
        assert found[1].tobytes() == expected[1].tobytes()
    assert found[1][0, 0] > rule.initial_accumulator


def test_row_adagrad_is_the_formula_of_the_paper() -> None:
    rule = RowAdagrad(0.1, eps=1e-3)
    values, s = np.zeros(4, np.float32), np.zeros((1, 1), np.float32)
    w, accumulator = np.zeros(4), 0.0
    for gradient in np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32):
        kernels.update(rule.native(), values, s, gradient)
        accumulator += float(np.mean(gradient.astype(np.float64) ** 2))
        w -= 0.1 * gradient / (np.sqrt(accumulator) + 1e-3)
    assert np.allclose(values, w, rtol=0, atol=1e-6)
    assert np.isclose(s[0, 0], accumulator, rtol=1e-5)


def test_extreme_gradients_leave_finite_rows() -> None:
    rule = RowAdagrad(0.1)
    for size in (0.0, 1e-45, 1e-30, 1e30, GREATEST):
        values, s = np.ones(9, np.float32), np.zeros((1, 1), np.float32)
        for _ in range(3):
            kernels.update(rule.native(), values, s, np.full(9, size, np.float32))
        assert np.isfinite(values).all()
        assert np.isfinite(s).all()


def test_the_states_of_a_row_rule_are_checked() -> None:
    config = RowAdagrad().native()
    assert (config.n_state, config.n_row_state, config.uses_step) == (0, 1, False)
    assert {c.n_row_state for c in ROW_OPTIMIZERS.values()} == {1}
    values = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="row_adagrad needs 1 states, not 0"):
        kernels.update(config, values, [], values)
    with pytest.raises(ValueError, match="state0 has 4 values, expected 1"):
        kernels.update(config, values, [values], values)


def rounded(values: np.ndarray, key: int, isa: str | None = None) -> np.ndarray:
    out = np.zeros(len(values), np.uint16)
    _native.round_bf16(out, values, key, isa)
    return out


@pytest.mark.parametrize("isa", NAMES)
@pytest.mark.parametrize("n", LENGTHS)
def test_bf16_is_rounded_as_defined(n: int, isa: str) -> None:
    rng = np.random.default_rng(n)
    values = (rng.normal(size=n) * 10.0 ** rng.integers(-42, 38, n)).astype(np.float32)
    special = [0.0, -0.0, GREATEST, -GREATEST, np.inf, -np.inf, np.nan, 1e-45, -1.0]
    values[: len(special)] = special[:n]
    for key in (0, 1, 0x0123456789ABCDEF, 2**64 - 1):
        expected = reference_codecs.round_bf16(values, key)
        assert rounded(values, key, isa).tobytes() == expected.tobytes()


def test_bf16_is_one_of_the_two_nearest_and_the_mean_is_the_value() -> None:
    value = np.float32(1.0 + 0.3 / 128)  # 0.3 of the distance from 1 to the next number
    found = bf16_values(
        np.concatenate([rounded(np.full(64, value, np.float32), key) for key in range(500)])
    )
    assert set(found.tolist()) == {1.0, 1.0 + 1 / 128}
    # 32,000 draws: six standard deviations are 0.016.
    assert abs((found > 1).mean() - 0.3) < 0.016


def test_numbers_of_bf16_stay_as_they_are() -> None:
    codes = np.arange(2**16).astype(np.uint16)
    values = bf16_values(codes)
    finite = np.isfinite(values)
    for key in (3, 2**63):
        again = rounded(np.ascontiguousarray(values), key)
        assert (again[finite] == codes[finite]).all()
        assert np.isnan(bf16_values(again[np.isnan(values)])).all()
        assert (bf16_values(again)[np.isinf(values)] == values[np.isinf(values)]).all()
    assert (bf16_bits(values[finite]) == codes[finite]).all()


def test_finite_numbers_stay_finite() -> None:
    values = np.full(64, GREATEST, np.float32)
    for key in range(50):
        assert np.isfinite(bf16_values(rounded(values, key))).all()
    assert np.isfinite(bf16_values(bf16_bits(values))).all()


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="dst has 3 values, expected 4"):
        _native.round_bf16(np.zeros(3, np.uint16), np.zeros(4, np.float32), 0, None)
