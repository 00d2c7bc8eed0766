"""Metrics of an epoch: all states are summed, whatever starts the job; results have any shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from keras_rig import data, keras, make_model
from script_rig import script_job

import mpips.keras
from mpips.errors import ConfigError
from mpips.keras.metrics import ROOM, MetricSums
from mpips.session.script import Script

N = 50


def summed(script: Script, table: str = "net.epoch_metrics") -> list[float]:
    """Return what the newest epoch has put into the table, without the digest."""
    assert script.worker is not None
    found = script.worker.table(table).pull()[:-1]
    return [float(x) for x in found[: np.flatnonzero(found).max() + 1]]


@pytest.mark.parametrize("start", ["fit", "predict", "train_on_batch", "steps"])
def test_states_of_metrics_that_the_start_of_the_job_did_not_know_are_summed(start: str) -> None:
    x, y = data(N)
    with script_job() as script:
        model = mpips.keras.prepare(make_model("sgd"))
        if start == "predict":
            model.predict(x[:3], verbose=0)
        elif start == "train_on_batch":
            model.train_on_batch(x[:3], y[:3])
        elif start == "steps":
            mpips.keras.steps()
        history = model.fit(x, y, verbose=0).history
        loss, n_rows, correct, n_judged = summed(script)
        assert (n_rows, n_judged) == (N, N)
        assert history["loss"] == [np.float32(loss / N)]
        assert history["accuracy"] == [np.float32(correct / N)]


def test_each_of_two_models_has_the_sums_of_its_metrics() -> None:
    x, y = data(N)
    with script_job() as script:
        models = []
        for name in ("net", "other"):
            model = make_model("sgd", name=name)
            models.append(mpips.keras.prepare(model))
        for model in models:
            model.fit(x, y, verbose=0)
            assert summed(script, f"{model.name}.epoch_metrics")[3] == N


def test_more_states_than_the_table_has_room_for_are_an_error() -> None:
    x, y = data(N)
    with script_job():
        large = keras.metrics.SpecificityAtSensitivity(0.5, num_thresholds=ROOM, name="large")
        model = make_model("sgd", metrics=())
        model.compile("sgd", "mse", metrics=[large])
        model = mpips.keras.prepare(model)
        model.predict(x[:3], verbose=0)
        with pytest.raises(ConfigError, match=r"have \d+ states, and the job started"):
            model.fit(x, np.eye(2, dtype=np.float32)[y], verbose=0)


def test_results_that_are_no_numbers_are_logged_as_by_keras() -> None:
    class Both(keras.metrics.Mean):
        def result(self) -> Any:
            return {"once": super().result(), "twice": 2 * super().result()}

    x, y = data(N)
    labels = np.eye(2, dtype=np.float32)[y]

    def history(prepare: Any) -> dict[str, Any]:
        model = make_model("sgd", metrics=())
        made = [keras.metrics.F1Score(), keras.metrics.R2Score()]
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=made)
        found: dict[str, Any] = (
            prepare(model).fit(x, labels, epochs=2, shuffle=False, verbose=0).history
        )
        return found

    wanted = history(lambda model: model)
    with script_job():
        found = history(mpips.keras.prepare)
    assert found.keys() == wanted.keys()
    for name, logs in wanted.items():
        np.testing.assert_allclose(np.array(found[name]), np.array(logs), rtol=1e-4)


class Sums:
    """A table of many workers, all with one digest."""

    def __init__(self, n_workers: int) -> None:
        self._n_workers = n_workers

    def push(self, values: Any) -> None:
        total = np.zeros_like(values)
        for _ in range(self._n_workers):
            total += values
        self._total = total

    def pull(self) -> Any:
        return self._total


@pytest.mark.parametrize("n_workers", [1, 3, 255, 300, 10_000])
def test_the_digests_of_any_number_of_workers_add_up_exactly(n_workers: int) -> None:
    sums = MetricSums("m", [])
    handle: Any = Sums(n_workers)
    sums._handle, sums._n_workers = handle, n_workers
    for digest in (0xFFFF, 2**64 - 1, 2**24 // n_workers - 1, 0):
        sums.push(digest)
        sums.pull(digest)
        with pytest.raises(ConfigError, match="read different batches"):
            sums.pull(digest + 1)
