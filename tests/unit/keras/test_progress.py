"""What a Keras script reports by itself: epoch, length of the run, samples, rate and loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from keras_rig import data, keras, make_model
from report_rig import Reports, collected, observed_script

import mpips
import mpips.keras
from mpips.worker.worker import Worker

SGD = keras.optimizers.SGD
NAMED: dict[str, Any] = {"batch_size": 16, "shuffle": False, "verbose": 0}


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    return collected(monkeypatch)


def prepared(rate: Any = 0.0, **more: Any) -> Any:
    return mpips.keras.prepare(make_model(SGD(rate), **more))


def places(reports: Reports) -> list[tuple[int, int, float]]:
    """Return epoch, number of epochs and share of each report."""
    return [(r.epoch, r.details.n_epochs, r.details.share) for r in reports if r.details]


def test_a_fit_reports_each_step_and_its_loss_is_that_of_the_history(reports: Reports) -> None:
    x, y = data(40)
    with observed_script():
        history = prepared(0.5).fit(x, y, epochs=2, **NAMED).history
    assert [(r.step, r.samples, r.loss_weight) for r in reports][:3] == [
        (1, 16, 16),
        (2, 16, 16),
        (3, 8, 8),
    ]
    thirds = [1 / 3, 2 / 3, 1, 4 / 3, 5 / 3, 2]
    assert places(reports) == [
        (int(i > 2), 2, pytest.approx(part / 2)) for i, part in enumerate(thirds)
    ]
    for epoch in (0, 1):
        own = Reports(r for r in reports if r.epoch == epoch)
        samples, loss_sum, weight = own.total()
        assert (samples, weight) == (40, 40)
        assert loss_sum / weight == pytest.approx(history["loss"][epoch], rel=1e-5)
    assert {tuple(r.details.rates) for r in reports if r.details} == {(0.5,)}
    assert all(r.is_by_library for r in reports)


def test_the_rate_of_a_schedule_is_that_of_the_step(reports: Reports) -> None:
    x, y = data(40)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    with observed_script():
        prepared(schedule).fit(x, y, epochs=1, **NAMED)
    assert [r.details.rates for r in reports if r.details] == [[0.5], [0.25], [0.125]]


def test_an_evaluation_of_an_epoch_comes_behind_all_of_its_steps(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mpips.session import library_progress

    x, y = data(40)
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(library_progress, "INTERVAL_S", 1e9)
    monkeypatch.setattr(
        Worker, "report_metrics", lambda *given: seen.append((given[1], reports.total()[0]))
    )
    with observed_script():
        prepared().fit(x, y, epochs=2, validation_data=(x, y), **NAMED)
    assert seen == [(1, 40), (2, 80)]
    assert len(reports) == 2


def test_fits_add_up_unless_they_continue_the_count(reports: Reports) -> None:
    x, y = data(16)
    with observed_script():
        model = prepared()
        model.fit(x, y, epochs=2, **NAMED)
        model.fit(x, y, epochs=3, initial_epoch=2, **NAMED)
        model.fit(x, y, epochs=1, **NAMED)
    assert places(reports) == [(0, 2, 0.5), (1, 2, 1.0), (2, 3, 1.0), (3, 4, 1.0)]


def test_without_a_fit_epochs_are_unknown(reports: Reports) -> None:
    x, y = data(8)
    with observed_script():
        model = prepared()
        logs = model.train_on_batch(x, y, return_dict=True)
    (report,) = reports
    assert report.details is not None
    assert (report.samples, report.details.has_epoch, report.details.n_epochs) == (8, False, 0)
    assert report.loss_sum / 8 == pytest.approx(float(logs["loss"]), rel=1e-5)


def test_losses_of_evaluations_and_of_steps_that_compute_several_are_not_reported(
    reports: Reports,
) -> None:
    class Twice(keras.Sequential):
        """Computes its loss twice in a step."""

        def train_step(self, data: Any) -> Any:
            self.compute_loss(*data, self(data[0]))
            return super().train_step(data)

    x, y = data(8)
    with observed_script():
        model = Twice([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile(SGD(0.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        mpips.keras.prepare(model).fit(x, y, epochs=1, **NAMED)
        model.evaluate(x, y, verbose=0)
    assert reports.total() == (8, 0.0, 0)


def test_of_two_models_that_step_in_turns_none_has_the_loss_and_samples_count_once(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = data(8)
    with observed_script():
        one, two = prepared(0.5, name="one"), prepared(0.25, name="two")
        for _ in range(2):
            one.train_on_batch(x, y)
            two.train_on_batch(x, y)
        two.fit(x, y, epochs=1, **NAMED)
    # The other model is not known at the first step.
    assert [(r.samples, r.loss_weight) for r in reports] == [(8, 8), (0, 0), (8, 0), (0, 0), (8, 8)]
    assert [r.details.rates for r in reports if r.details] == [[0.5]] + 3 * [[0.5, 0.25]] + [[0.25]]


def test_losses_that_the_script_reports_replace_those_of_its_steps(reports: Reports) -> None:
    x, y = data(32)

    class Reporting(keras.callbacks.Callback):
        """Reports a loss of its own behind the first batch."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 0:
                mpips.report(loss=7.0)

    with observed_script():
        prepared().fit(x, y, epochs=1, callbacks=[Reporting()], **NAMED)
    assert [(r.samples, r.loss_weight, r.is_by_library) for r in reports] == [
        (16, 16, True),
        (0, 1, False),
        (16, 0, True),
    ]


def test_a_job_without_a_reader_reports_nothing(reports: Reports) -> None:
    from script_rig import script_job

    x, y = data(16)
    with script_job():
        model = prepared()
        model.fit(x, y, epochs=1, **NAMED)
        assert not model._mpips_part.job.progress._waiting.n_steps
    assert not reports
    assert np.isfinite(model.get_weights()[0]).all()
