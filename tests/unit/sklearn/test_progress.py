"""What a script with fits reports by itself: epoch, samples, rate and loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from report_rig import Reports, collected, observed_script

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

import mpips
from mpips.session import library_progress
from mpips.sklearn import MpipsRegressor
from mpips.worker.worker import Worker

pytestmark = pytest.mark.filterwarnings("ignore:max_iter = .* epochs")


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    return collected(monkeypatch)


def fitted(n_epochs: int, **more: Any) -> MpipsRegressor:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(20, 3))
    named = {"optimizer": "sgd", "learning_rate": 0.25, "batch_size": 8, "alpha": 0.5}
    model = MpipsRegressor(max_iter=n_epochs, tol=None, random_state=1, **{**named, **more})
    return model.fit(x, x[:, 0])


def test_each_step_is_reported_and_the_losses_of_an_epoch_are_those_of_the_curve(
    reports: Reports,
) -> None:
    with observed_script():
        model = fitted(2)
    assert [(r.epoch, r.samples, r.loss_weight) for r in reports] == [
        (0, 8, 8),
        (0, 8, 8),
        (0, 4, 4),
        (1, 8, 8),
        (1, 8, 8),
        (1, 4, 4),
    ]
    for epoch, loss in enumerate(model.loss_curve_):
        own = Reports(r for r in reports if r.epoch == epoch)
        assert own.total()[1] / 20 == pytest.approx(loss, rel=1e-5)
    details = [
        (r.details.has_epoch, r.details.n_epochs, r.details.rates) for r in reports if r.details
    ]
    assert details == 6 * [(True, 0, [0.25])]


def test_epochs_of_fits_add_up_and_the_end_of_a_fit_sends_the_rest(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_progress, "INTERVAL_S", 1e9)
    seen: list[int] = []
    monkeypatch.setattr(Worker, "report_metrics", lambda *_: seen.append(len(reports)))
    with observed_script():
        fitted(2)
        fitted(1, learning_rate=0.5)
    assert [(r.epoch, r.samples) for r in reports] == [(1, 40), (2, 20)]
    assert [r.details.rates for r in reports if r.details] == [[0.25], [0.5]]
    # The metrics of a fit come behind its progress.
    assert seen == [1, 2]


def test_samples_of_a_worker_without_a_share_wait_for_its_next_ones() -> None:
    with observed_script() as script:
        from mpips.sklearn.progress import FitsProgress

        progress = FitsProgress(script)
        progress.note_step(0, 0, 0.5, 0.25)
        assert progress.known() == library_progress.Known(0, rates=[0.25])
        progress.note_step(0, 2, 3.5, 0.25)
        assert progress.known() == library_progress.Known(0, samples=2, loss=2.0, rates=[0.25])


def test_losses_that_the_script_reports_count_instead(reports: Reports) -> None:
    with observed_script():
        fitted(1)
        mpips.report(loss=7.0)
        fitted(1)
    assert [(r.samples, r.loss_weight) for r in reports] == [
        *[(8, 8), (8, 8), (4, 4)],
        (0, 1),
        *[(8, 0), (8, 0), (4, 0)],
    ]
