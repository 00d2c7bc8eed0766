"""Shares of batches, and the metrics of all workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from keras_rig import data, keras, make_model

from mpips import _native
from mpips.data.shares import bounds
from mpips.errors import ConfigError
from mpips.keras.metrics import MetricSums
from mpips.keras.shares import add_to_hash, n_rows, share


@given(st.integers(0, 200), st.integers(1, 20))
def test_shares_are_all_rows_once_and_differ_by_one_at_most(n: int, n_workers: int) -> None:
    found = [bounds(n, worker, n_workers) for worker in range(n_workers)]
    assert [first for first, _ in found] == [0, *(last for _, last in found[:-1])]
    assert found[-1][1] == n
    assert {last - first for first, last in found} <= {n // n_workers, n // n_workers + 1}


def test_a_share_has_the_rows_of_all_arrays() -> None:
    batch = ({"a": torch.arange(6.0), "b": np.arange(12).reshape(6, 2)}, torch.arange(6), None)
    assert n_rows(batch) == 6
    inputs, labels, nothing = share(batch, 2, 4)
    assert inputs["a"].tolist() == labels.tolist() == [2, 3]
    assert inputs["b"].tolist() == [[4, 5], [6, 7]]
    assert nothing is None


def test_a_number_among_arrays_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"arrays of \[0, 3\] rows"):
        n_rows((torch.zeros(3), torch.tensor(1.0)))


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"arrays of \[3, 4\] rows"):
        n_rows((torch.zeros(3), torch.zeros(4)))


def test_a_digest_depends_on_values_and_order() -> None:
    def digest(*batches: Any) -> int:
        hashing = _native.Xxh3()
        for batch in batches:
            add_to_hash(hashing, batch)
        return hashing.digest()

    first, second = torch.arange(4.0), torch.arange(8.0).reshape(2, 4).T
    assert digest(first, (second, None)) == digest(first, (second.numpy().copy(),))
    assert digest(first, second) != digest(second, first)


def states(*metrics: Any) -> MetricSums:
    return MetricSums("m", [v for metric in metrics for v in metric.variables])


class FakeHandle:
    """A table that sums what workers push, with its own copies."""

    def __init__(self) -> None:
        self.pushed: list[Any] = []

    def push(self, values: Any) -> None:
        self.pushed.append(values.copy())

    def pull(self) -> Any:
        return np.sum(self.pushed, axis=0, dtype=np.float32)


def test_sums_over_workers_are_the_metrics_of_all_rows() -> None:
    _, y = data(60)
    scores = np.random.default_rng(0).random(60).astype(np.float32)

    def metrics() -> list[Any]:
        return [keras.metrics.AUC(num_thresholds=20), keras.metrics.MeanSquaredError()]

    whole = metrics()
    for metric in whole:
        metric.update_state(y, scores)
    handle: Any = FakeHandle()
    found = []
    for worker in range(3):
        own = metrics()
        first, last = bounds(60, worker, 3)
        for metric in own:
            metric.update_state(y[first:last], scores[first:last])
        sums = states(*own)
        sums._handle, sums._n_workers = handle, 3
        sums.push(77)
        found.append((own, sums))
    for own, sums in found:
        sums.pull(77)
        for metric, wanted in zip(own, whole, strict=True):
            np.testing.assert_allclose(float(metric.result()), float(wanted.result()), rtol=1e-6)
        with pytest.raises(ConfigError, match="read different batches"):
            sums.pull(76)
        sums.pull(None)


def test_states_in_a_cursor() -> None:
    mean = keras.metrics.Mean()
    mean.update_state([1.0, 3.0])
    sums = states(mean)
    assert sums.values() == [4.0, 2.0]
    mean.reset_state()
    sums.set_values([6.0, 2.0])
    assert float(mean.result()) == 3.0
    assert states(keras.metrics.AUC()).values() == []
    mean.update_state(float("inf"))
    assert sums.values() == []


def test_a_model_without_metrics_has_the_sum_of_its_loss() -> None:
    model = make_model("sgd", metrics=())
    x, y = data()
    model.fit(x, y, verbose=0)
    assert MetricSums("m", model.metrics_variables).values()[1] == 50
