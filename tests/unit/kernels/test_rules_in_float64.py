"""The kernels follow the papers: each rule against float64, as in torch, over thousands of updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mpips.kernels import available_kernels, update
from mpips.model.optimizer import FTRL, OPTIMIZERS

Float64 = npt.NDArray[np.float64]

N, N_STEPS = 64, 3000
DECAY = 0.01
Step = Callable[[int, Float64, list[Float64], Float64], None]


def sgd(t: int, w: Float64, s: list[Float64], g: Float64) -> None:
    w -= 0.01 * g


def momentum(t: int, w: Float64, s: list[Float64], g: Float64) -> None:
    s[0][:] = 0.9 * s[0] + g
    w -= 0.01 * s[0]


def nesterov(t: int, w: Float64, s: list[Float64], g: Float64) -> None:
    s[0][:] = 0.9 * s[0] + g
    w -= 0.01 * (g + 0.9 * s[0])


def delayed_nesterov(t: int, w: Float64, s: list[Float64], g: Float64) -> None:
    s[1][:] += g
    w -= 0.01 * g / 4
    if t % 4 == 0:
        s[0][:] = 0.9 * s[0] + s[1] / 4
        w -= 0.01 * 0.9 * s[0]
        s[1][:] = 0


def adagrad(t: int, w: Float64, s: list[Float64], g: Float64) -> None:
    s[0] += g**2
    w -= 0.01 * g / (np.sqrt(s[0]) + 1e-10)


def rmsprop(t: int, w: Float64, s: list[Float64], g: Float64) -> None:
    s[0][:] = 0.9 * s[0] + 0.1 * g**2
    w -= 0.01 * g / (np.sqrt(s[0]) + 1e-8)


def adam(t: int, w: Float64, s: list[Float64], g: Float64) -> None:
    s[0][:] = 0.9 * s[0] + 0.1 * g
    s[1][:] = 0.999 * s[1] + 0.001 * g**2
    w -= 0.01 * (s[0] / (1 - 0.9**t)) / (np.sqrt(s[1] / (1 - 0.999**t)) + 1e-8)


RULES: dict[str, Step] = {
    "sgd": sgd,
    "momentum": momentum,
    "nesterov": nesterov,
    "delayed_nesterov": delayed_nesterov,
    "adagrad": adagrad,
    "rmsprop": rmsprop,
    "adam": adam,
    "adamw": adam,
}


def of_a_quadratic(w: Any, noise: Any) -> Any:
    """Return a noisy gradient that moves each weight towards a value of its own."""
    return (w - np.linspace(-2, 2, N)) * np.linspace(0.1, 3, N) + noise


@pytest.mark.parametrize("isa", available_kernels())
@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_its_formula_over_thousands_of_updates(name: str, isa: str) -> None:
    every = {"every": 4} if name == "delayed_nesterov" else {}
    config = OPTIMIZERS[name](lr=0.01, weight_decay=DECAY, **every).native()
    rng = np.random.default_rng(1)
    values = rng.normal(size=N).astype(np.float32)
    exact = values.astype(np.float64)
    state = np.zeros((config.n_state, N), np.float32)
    exact_state = [np.zeros(N) for _ in range(config.n_state)]
    for t in range(1, N_STEPS + 1):
        noise = rng.normal(size=N)
        gradient = of_a_quadratic(exact, noise).astype(np.float32)
        update(config, values, state, gradient, t, kernels=isa)
        whole = gradient.astype(np.float64)
        if name == "adamw":
            exact -= 0.01 * DECAY * exact
        else:
            whole = whole + DECAY * exact
        RULES[name](t, exact, exact_state, whole)
    # Allow for two roundings to float32 in each of 3,000 updates; the weights are up to 2.
    assert np.abs(values - exact).max() < 2e-5


@pytest.mark.parametrize("isa", available_kernels())
@pytest.mark.parametrize("l1", [0.0, 0.5])
def test_ftrl_is_the_papers_over_thousands_of_updates(l1: float, isa: str) -> None:
    alpha, beta, l2 = 0.1, 1.0, 0.01
    config = FTRL(alpha, beta=beta, l1=l1, l2=l2).native()
    rng = np.random.default_rng(2)
    values, state = np.zeros(N, np.float32), np.zeros((2, N), np.float32)
    w, z, n = (np.zeros(N) for _ in range(3))
    for t in range(1, N_STEPS + 1):
        gradient = of_a_quadratic(w, rng.normal(size=N)).astype(np.float32)
        update(config, values, state, gradient, t, kernels=isa)
        g = gradient.astype(np.float64)
        sigma = (np.sqrt(n + g**2) - np.sqrt(n)) / alpha
        z += g - sigma * w
        n += g**2
        w = np.where(
            np.abs(z) <= l1, 0.0, -(z - np.sign(z) * l1) / ((beta + np.sqrt(n)) / alpha + l2)
        )
    assert np.abs(values - w).max() < 2e-5 * np.abs(w).max()


@pytest.mark.parametrize("name", ["sgd", "adagrad", "rmsprop", "adam", "adamw"])
def test_a_scaled_rate_is_a_smaller_lr_at_that_update(name: str) -> None:
    config = OPTIMIZERS[name](lr=0.01).native()
    rng = np.random.default_rng(3)
    decay = 0.01 if name == "adamw" else 0.0
    values, exact = np.zeros(N, np.float32), np.zeros(N)
    state = np.zeros((config.n_state, N), np.float32)
    exact_state = [np.zeros(N) for _ in range(config.n_state)]
    for t in range(1, 301):
        rate = 1 / (1 + rng.integers(8))
        gradient = of_a_quadratic(exact, rng.normal(size=N)).astype(np.float32)
        update(config, values, state, gradient, t, rate_scale=rate)
        before = exact - rate * 0.01 * decay * exact
        after = before.copy()
        RULES[name](t, after, exact_state, gradient.astype(np.float64))
        exact = before + rate * (after - before)
    assert np.abs(values - exact).max() < 6e-6
