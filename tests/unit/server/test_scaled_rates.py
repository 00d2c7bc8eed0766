"""Scale(): a stale update is applied with a smaller learning rate, under every rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import Rig, dense, rows

from mpips.model.consistency import ASP, SSP, Scale
from mpips.model.optimizer import OPTIMIZERS, AdamW, Momentum, Optimizer, PythonRule

STALENESS = 9  # a rate of a tenth
N_PUSHES = 20


def pushed(rule: Any, staleness: int, gradients: Any, table: Any = dense) -> np.ndarray:
    """Return the values after these pushes, computed on values that are so many updates old."""
    rig = Rig(table(optimizer=rule, consistency=ASP(policy=Scale())))
    worker = rig.worker()
    for gradient in gradients:
        rig.drain()
        missed = min(staleness, rig.core.version(0))
        rig.writers[0].set_base_version(0, rig.core.version(0) - missed)
        if table is dense:
            worker.table("w").push(np.full(8, gradient, np.float32)).wait()
        else:
            worker.table("e").push(np.array([5]), np.full((1, 4), gradient, np.float32)).wait()
    return rig.values() if table is dense else np.array(rig.table_rows()[5])


def warm(rule: Optimizer, staleness: int, table: Any) -> float:
    """Return the change of a value by N_PUSHES stale pushes, after ten pushes of zeros."""
    found = pushed(rule, staleness, [0.0] * 10 + [3.0] * N_PUSHES, table)
    return float(np.abs(found).max())


@pytest.mark.parametrize("table", [dense, rows])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_stale_pushes_move_a_tenth_as_far(name: str, table: Any) -> None:
    rule = OPTIMIZERS[name](lr=1e-3)
    fresh, stale = warm(rule, 0, table), warm(rule, STALENESS, table)
    assert stale == pytest.approx(fresh / (1 + STALENESS), rel=2e-3)


def test_a_stale_gradient_counts_less_for_good_with_momentum() -> None:
    rule = Momentum(lr=0.1)
    # Apply eleven fresh pushes of zeros, then one gradient, then its velocity alone.
    quiet: list[float] = [0.0] * 11
    fresh = pushed(rule, 0, [*quiet, 1.0, *[0.0] * 200])
    stale = pushed(rule, STALENESS, [*quiet, 1.0, *[0.0] * 200])
    assert fresh == pytest.approx(-1.0, rel=1e-5)
    assert stale == pytest.approx(fresh / (1 + STALENESS), rel=1e-5)


def test_decay_of_a_stale_update_is_as_small_as_its_rate() -> None:
    for rule in (AdamW(0.1, weight_decay=0.5), *(cls(0.1, weight_decay=0.5) for cls in COUPLED)):
        found = []
        for staleness in (0, STALENESS):
            init = np.full(8, 2.0, np.float32)
            rig = Rig(dense(optimizer=rule, consistency=ASP(policy=Scale()), init=init))
            writer = rig.writers[0]
            # Pushes of zeros would decay values, so make the pushes stale by updates of another launch.
            for _ in range(STALENESS):
                writer.set_base_version(0, rig.core.version(0))
                rig.worker().table("w").push(np.zeros(8, np.float32)).wait()
            before = rig.values()
            writer.set_base_version(0, rig.core.version(0) - staleness)
            rig.worker().table("w").push(np.zeros(8, np.float32)).wait()
            found.append(float((before - rig.values())[0]))
        assert found[1] == pytest.approx(found[0] / (1 + STALENESS), rel=1e-4), rule


COUPLED = [OPTIMIZERS[name] for name in ("sgd", "adagrad", "rmsprop")]


def test_clip_value_bounds_the_gradient_and_not_the_scaled_one() -> None:
    found = [
        pushed(OPTIMIZERS[name](lr=1.0, clip_value=0.5), 1, [0.0, 8.0])
        for name in ("sgd", "momentum", "nesterov")
    ]
    assert found[0] == pytest.approx(-0.25)
    assert found[1] == pytest.approx(-0.25)
    assert found[2] == pytest.approx(-0.25 * 1.9)


@pytest.mark.parametrize("table", [dense, rows])
def test_what_a_python_rule_changes_counts_in_part(table: Any) -> None:
    seen: list[float] = []

    def rule(values: Any, state: Any, gradient: Any, step: int) -> None:
        seen.append(float(gradient[0]))
        state[0][:] += gradient
        values -= np.sign(gradient)

    found = pushed(PythonRule(rule, n_state=1), 1, [4.0, 4.0, 4.0], table)
    assert seen == [4.0, 4.0, 4.0]
    assert found == pytest.approx(-2.0)  # 1, then two halves


def test_a_fresh_update_has_the_bits_of_accept() -> None:
    for name in OPTIMIZERS:
        rule = OPTIMIZERS[name](lr=0.05, weight_decay=0.1)
        gradients = np.random.default_rng(1).normal(size=7)
        expected = Rig(dense(optimizer=rule, consistency=SSP()))
        for gradient in gradients:
            expected.worker().table("w").push(np.full(8, gradient, np.float32)).wait()
        assert pushed(rule, 0, gradients).tobytes() == expected.values().tobytes()
