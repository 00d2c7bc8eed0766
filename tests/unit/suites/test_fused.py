"""The suite `fused`: it compares all rules that torch has, and its baseline computes the right values."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from mpips import kernels
from mpips.model.optimizer import OPTIMIZERS
from tests.bench import fused
from tests.bench.bars import BARS
from tests.bench.fused import FUSED_RULES, fused_step
from tests.bench.options import SuiteOptions

QUICK = SuiteOptions(repetitions=2, quick=True)
RATIOS = {f"{rule}_vs_torch_fused" for rule in FUSED_RULES}


def test_every_rule_is_compared_or_skipped_with_a_reason() -> None:
    found = fused.run("fused", QUICK, 0)
    measured = {c.name for c in found.comparisons}
    assert measured | found.skipped.keys() == RATIOS <= BARS.keys()
    assert not measured & found.skipped.keys()
    assert all(len(c.ratios) == 2 and c.ratio > 0 for c in found.comparisons)


def test_without_torch_all_rules_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = fused.run("fused", QUICK, 0)
    assert not found.comparisons
    assert found.skipped == dict.fromkeys(RATIOS, "torch is not installed: pip install torch")


@pytest.mark.parametrize("rule", FUSED_RULES)
def test_a_fused_step_does_what_the_kernel_does(rule: str) -> None:
    pytest.importorskip("torch")
    config = OPTIMIZERS[rule](lr=0.01).native()
    n, rng = 1000, np.random.default_rng(7)
    start = rng.standard_normal(n, np.float32)
    gradient = rng.standard_normal(n, np.float32)
    values, states = start.copy(), np.zeros((config.n_state, n), np.float32)
    step = fused_step(rule, values, states, gradient, 0.01)
    step()
    expected, expected_states = start.copy(), np.zeros_like(states)
    for count in (1, 2):
        kernels.update(config, expected, expected_states, gradient, count)
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(states, expected_states, rtol=1e-5, atol=1e-7)
