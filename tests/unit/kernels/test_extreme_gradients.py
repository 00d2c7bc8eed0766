"""Gradients whose squares exceed float32: they act as large ones, and later gradients still count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import Rig, dense, rows

from mpips.kernels import available_kernels, compensate, reference, update
from mpips.model.consistency import ASP, BSP, Compensate
from mpips.model.optimizer import FTRL, OPTIMIZERS, Adam, RMSProp

SQUARING = ["adagrad", "adam", "adamw", "ftrl", "rmsprop"]
LARGE = [1e19, 2e19, 1e38, 1.7e38]
LR = 0.01


def applied(config: Any, gradients: Any, isa: str | None = None) -> tuple[Any, Any]:
    """Return value and state after these gradients; float32, shape (3,)."""
    values, state = np.zeros(3, np.float32), np.zeros((config.n_state, 3), np.float32)
    for step, gradient in enumerate(gradients, 1):
        update(config, values, state, np.full(3, gradient, np.float32), step, kernels=isa)
    return values, state


def exact(name: str, gradients: Any, lr: float = LR) -> float:
    """Return the same in float64, computed as in the papers."""
    w = m = v = 0.0
    root = np.sqrt
    for t, g in enumerate(gradients, 1):
        if name == "sgd":
            w -= lr * g
        elif name in ("momentum", "nesterov", "delayed_nesterov"):
            m = 0.9 * m + g
            w -= lr * (m if name == "momentum" else g + 0.9 * m)
        elif name == "adagrad":
            v += g * g
            w -= lr * g / (root(v) + 1e-10)
        elif name == "rmsprop":
            v = 0.9 * v + 0.1 * g * g
            w -= lr * g / (root(v) + 1e-8)
        elif name in ("adam", "adamw"):
            w -= lr * 0.01 * w if name == "adamw" else 0.0
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            w -= lr * (m / (1 - 0.9**t)) / (root(v / (1 - 0.999**t)) + 1e-8)
        else:
            sigma = (root(v + g * g) - root(v)) / lr
            m, v = m + g - sigma * w, v + g * g
            w = -m / ((1 + root(v)) / lr)
    return float(w)


@pytest.mark.parametrize("isa", available_kernels())
@pytest.mark.parametrize("gradient", [*LARGE, 1e-39, 1e-44])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_first_update_is_the_papers_whatever_the_size(name: str, gradient: float, isa: str) -> None:
    config = OPTIMIZERS[name](lr=LR).native()
    values, state = applied(config, [gradient], isa)
    wanted = exact(name, [float(np.float32(gradient))])
    # Denormal numbers have few bits, and eps in the divisor magnifies the error.
    assert values == pytest.approx(wanted, rel=3e-6, abs=1e-33)
    assert np.isfinite(state).all()


@pytest.mark.parametrize("gradient", [*LARGE, 3.4e38])
@pytest.mark.parametrize("name", SQUARING)
def test_states_stay_finite_under_many_large_gradients(name: str, gradient: float) -> None:
    config = OPTIMIZERS[name](lr=LR, weight_decay=0.1).native()
    # Keep one sign for long enough that a mean of squares reaches its limit.
    values, state = applied(config, [gradient] * 20000)
    assert np.isfinite(values).all()
    assert np.isfinite(state).all()


@pytest.mark.parametrize("gradient", LARGE)
@pytest.mark.parametrize("rule", [Adam(LR, beta1=0.5, beta2=0.9), RMSProp(LR)])
def test_a_mean_of_squares_forgets_a_large_gradient(rule: Any, gradient: float) -> None:
    later = [1.0] * 2000
    values, _ = applied(rule.native(), [gradient, *later])
    before, _ = applied(rule.native(), [gradient, *later[:-100]])
    # Each of the last hundred updates moves by lr again; with infinity in the state none would.
    assert before - values == pytest.approx(100 * LR, rel=1e-3)


@pytest.mark.parametrize("name", SQUARING)
def test_gradients_of_an_ordinary_size_are_not_bounded(name: str) -> None:
    config = OPTIMIZERS[name](lr=LR).native()
    gradients = [1e14, -1e15, 2e14, 1.0]
    assert applied(config, gradients)[0] == pytest.approx(exact(name, gradients), rel=1e-5)


@pytest.mark.parametrize("name", SQUARING)
def test_nan_is_still_seen(name: str) -> None:
    config = OPTIMIZERS[name](lr=LR).native()
    assert np.isnan(applied(config, [np.nan])[0]).all()


def test_ftrl_goes_on_after_a_large_gradient() -> None:
    values, state = applied(FTRL(LR, l1=0.1, l2=0.1).native(), [1e38, 1.0, -1e38, 0.0])
    assert np.isfinite(values).all()
    assert np.isfinite(state).all()


# Sums that overflow on the server, and delay compensation.


def test_a_sum_of_workers_beyond_float32_counts_as_a_large_gradient() -> None:
    rig = Rig(dense(optimizer=Adam(LR), consistency=BSP("sum")), n_workers=2)
    for writer in rig.writers:
        assert writer.push_dense(0, 0, np.full(8, 3e38, np.float32), None, 0) == 8
        assert writer.tick(0)
    rig.drain()
    assert rig.values() == pytest.approx(-LR, rel=1e-5)


@pytest.mark.parametrize("table", [dense, rows])
@pytest.mark.parametrize("gradient", [1e19, 1e20, 1e38])
def test_compensation_without_movement_adds_nothing(table: Any, gradient: float) -> None:
    rig = Rig(table(optimizer=Adam(LR), consistency=ASP(policy=Compensate(0.04))))
    worker = rig.worker()

    def push(value: float) -> None:
        if table is dense:
            update = np.full(8, value, np.float32)
            worker.table("w").push(update, base=np.zeros_like(update)).wait()
        else:
            update = np.full((1, 4), value, np.float32)
            worker.table("e").push(np.array([1]), update, base=np.zeros_like(update)).wait()

    push(0.0)
    push(gradient)  # stale by one update, and the values have not changed
    assert rig.core.stats(0)["compensated"] == 1
    found = rig.values() if table is dense else np.array(rig.table_rows()[1])
    assert np.isfinite(found).all()
    assert (found < 0).all()


@pytest.mark.parametrize("gradient", [1e19, 1e25, -1e38])
def test_compensation_beyond_float32_is_the_largest_float(gradient: float) -> None:
    out = np.full(4, gradient, np.float32)
    moved = np.array([0.0, 1.0, -1.0, 1e-30], np.float32)
    with np.errstate(over="ignore"):
        reference.compensate(out, out.copy(), moved, np.zeros(4, np.float32), 0.04)
    g = np.full(4, gradient, np.float32).astype(np.float64)
    wanted = np.clip(g + np.float32(0.04) * g * g * moved, -3.4028235e38, 3.4028235e38)
    assert out == pytest.approx(wanted, rel=1e-6)
    for isa in available_kernels():
        found = np.full(4, gradient, np.float32)
        compensate(found, found, moved, np.zeros(4, np.float32), 0.04, isa)
        assert found.tobytes() == out.tobytes()
