"""What a JAX script reports by itself: steps and learning rates."""

from __future__ import annotations

import pytest
from report_rig import Reports, collected, observed_script

pytest.importorskip("jax", reason="jax is not installed")

import jax.numpy as jnp

import mpips
import mpips.jax
from mpips.model.python_rule import replace_values


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    return collected(monkeypatch)


def test_steps_report_the_rates_by_which_they_were_made_and_no_loss(reports: Reports) -> None:
    rules = {"a": mpips.SGD(0.5), "b": mpips.Adam(0.25), "c": mpips.SGD(0.5)}
    with observed_script():
        model = mpips.jax.declare(
            dict.fromkeys(rules, jnp.zeros(2)), optimizer=lambda leaf: rules[leaf]
        )
        one = mpips.jax.declare({"w": jnp.zeros(2)}, optimizer=mpips.SGD(0.25), name="one")
        for step in range(3):
            if step == 1:
                one.set_optimizer(mpips.SGD(0.125))
            model.push(model.pull())
            one.push(one.pull())
            mpips.jax.step()
    assert [r.details.rates for r in reports if r.details] == [
        [0.5, 0.25, 0.25],
        [0.5, 0.25, 0.125],
        [0.5, 0.25, 0.125],
    ]
    assert [r.step for r in reports] == [1, 2, 3]
    assert reports.total() == (0, 0.0, 0)
    assert not any(r.details.has_epoch for r in reports if r.details)


def test_rules_in_python_have_no_rate_and_the_script_reports_its_loss(reports: Reports) -> None:
    with observed_script():
        rule = mpips.PythonRule(replace_values)
        model = mpips.jax.declare({"w": jnp.zeros(2)}, optimizer=rule)
        model.push(model.pull())
        mpips.jax.step()
        mpips.report(loss=2.0, samples=4, epoch=3)
    assert [r.details.rates for r in reports if r.details] == [[], []]
    assert [(r.epoch, r.is_by_library) for r in reports] == [(0, True), (3, False)]
    assert reports.total() == (4, 8.0, 4)
