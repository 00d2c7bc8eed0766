"""Outputs of networks: their losses count samples by weight, and gradients are those of the losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpips.data import DataInfo
from mpips.tasks.outputs import outputs_of

N = 6
INFOS: dict[str, tuple[DataInfo, bool, Any]] = {
    "several": (
        DataInfo(N, N, 2, (), "dense", wants="several", label_names=("a", "b", "c")),
        False,
        np.random.default_rng(1).integers(0, 2, (N, 3)),
    ),
    "targets": (
        DataInfo(N, N, 2, (), "dense", wants="targets", target_range=(0.0, 5.0)),
        False,
        np.arange(N, dtype=np.float64),
    ),
    "classes": (DataInfo(N, N, 2, (0.0, 1.0, 2.0), "dense"), False, np.arange(N) % 3),
    "two classes": (DataInfo(N, N, 2, (0.0, 1.0), "dense"), True, np.arange(N) % 2),
}


@pytest.mark.parametrize("name", INFOS)
def test_a_weight_of_k_is_k_samples_in_loss_and_gradient(name: str) -> None:
    info, one_logit, labels = INFOS[name]
    outputs = outputs_of(info, "mlp", one_logit)
    values = np.random.default_rng(2).normal(size=(N, outputs.n)).astype(np.float32)
    times = np.array([1, 0, 3, 2, 1, 5])
    loss, gradient = outputs.loss(values.copy(), labels, times.astype(np.float32))
    rows = np.repeat(np.arange(N), times)
    expected, each = outputs.loss(values[rows], labels[rows], None)
    assert loss == pytest.approx(expected, rel=1e-6)
    sums = np.zeros_like(values)
    np.add.at(sums, rows, each)
    assert np.allclose(gradient, sums, atol=1e-5)
    assert outputs.loss(values.copy(), labels, None)[0] != pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize("name", INFOS)
def test_the_gradient_is_that_of_the_weighted_loss(name: str) -> None:
    info, one_logit, labels = INFOS[name]
    outputs = outputs_of(info, "mlp", one_logit)
    values = np.random.default_rng(3).normal(size=(N, outputs.n)).astype(np.float32)
    weights = np.array([0.5, 2, 0, 1, 7, 0.25], np.float32)
    _, gradient = outputs.loss(values.copy(), labels, weights)
    step = np.float32(2.0**-6)
    for place in np.ndindex(values.shape):
        ends = []
        for sign in (-1, 1):
            moved = values.copy()
            moved[place] += sign * step
            ends.append(outputs.loss(moved, labels, weights)[0])
        assert gradient[place] == pytest.approx((ends[1] - ends[0]) / (2 * step), abs=2e-3)
