"""The length of a script's run, its losses and its rates, as workers report them."""

from __future__ import annotations

from typing import Any

import pytest

from mpips.mpi.messages import Report, ReportDetails
from mpips.mpi.reports import PendingReport
from mpips.rundir.files import RankPlace, StartPoint
from mpips.scheduler.rank_table import RankTable
from mpips.scheduler.recorder import recorded
from mpips.scheduler.reported import ReportedLength
from mpips.scheduler.run_tracker import RunTracker

PLACES = [RankPlace(rank=0, role="scheduler", host="here", pid=1)]


def tracker() -> RunTracker:
    return RunTracker(RankTable(PLACES), StartPoint(), 0.0)


def of(share: float, n_epochs: int = 4, **more: Any) -> ReportDetails:
    return ReportDetails(has_epoch=True, n_epochs=n_epochs, share=share, **more)


def test_the_share_is_the_mean_of_the_workers_and_the_rest_takes_as_long_at_their_rate() -> None:
    length = ReportedLength()
    assert (length.share, length.left_s(5.0)) == (0.0, None)
    length.note(0, 0, of(0.25), 10.0)
    length.note(1, 0, of(0.25), 10.0)
    assert length.left_s(20.0) is None
    length.note(0, 1, of(0.75), 20.0)
    assert (length.share, length.left_s(20.0)) == (0.5, 20.0)
    assert length.left_s(30.0) == 40.0
    for worker in (0, 1):
        length.note(worker, 3, of(1.0), 40.0)
    assert (length.share, length.left_s(40.0)) == (1.0, 0.0)


def test_a_run_that_another_loop_makes_longer_measures_its_rate_anew() -> None:
    length = ReportedLength()
    length.note(0, 0, of(0.5), 0.0)
    length.note(0, 0, of(1.0), 10.0)
    length.note(0, 4, of(0.5, n_epochs=8), 20.0)
    assert (length.n_epochs, length.share, length.left_s(30.0)) == (8, 0.5, None)
    # Another worker is still in the first loop.
    length.note(1, 3, of(1.0), 25.0)
    assert (length.n_epochs, length.share) == (8, 0.5)
    length.note(0, 5, of(0.75, n_epochs=8), 30.0)
    assert length.left_s(30.0) == 10.0


@pytest.mark.parametrize(
    ("epoch", "details", "known"),
    [
        (0, None, False),
        (1, None, True),
        (0, ReportDetails(), False),
        (0, ReportDetails(has_epoch=True), True),
    ],
)
def test_epochs_are_known_where_a_worker_counts_them(
    epoch: int, details: ReportDetails | None, known: bool
) -> None:
    seen = tracker()
    seen.note_details(0, epoch, details, 1.0)
    seen.note_details(0, 0, None, 1.0)
    seen.update(2.0, {})
    assert (seen.progress.has_epochs, seen.progress.n_epochs) == (known, 0)


def test_the_state_and_the_line_have_what_was_reported() -> None:
    seen = tracker()
    report = recorded(None, _Recorder(seen))
    assert report is not None
    report(0, Report(1, 4, 8, 12.0, 4, of(0.25, loss_weight=4, rates=[0.5])))
    report(1, Report(1, 4, 8, 0.0, 4, of(0.75, loss_weight=0)))
    assert seen.update(2.0, {})
    p = seen.progress
    assert (p.loss, p.samples, p.samples_per_s) == (3.0, 16, 8.0)
    assert (p.epoch, p.n_epochs, p.share, p.left_s) == (1, 4, 0.5, None)
    assert seen.line()["learning_rate"] == 0.5
    assert "learning_rates" not in seen.line()
    seen.begin_line(2.0)
    assert not seen.update(3.0, {})
    assert seen.progress.loss == 3.0

    # Samples whose losses are unknown, then losses without samples.
    seen.report(1, 4, 0.0, 0)
    assert seen.update(4.0, {})
    assert (seen.progress.loss, seen.progress.samples_per_s) == (None, 2.0)
    seen.begin_line(4.0)
    seen.report(1, 0, 6.0, 2)
    assert seen.update(5.0, {})
    assert (seen.progress.loss, seen.progress.samples_per_s) == (3.0, 0.0)


def test_a_line_has_all_rates_where_they_differ_and_none_where_they_are_unknown() -> None:
    seen = tracker()
    assert "learning_rate" not in seen.line()
    seen.note_details(0, 0, ReportDetails(rates=[0.5, float("nan")]), 1.0)
    line = seen.line()
    assert (line["learning_rate"], line["learning_rates"]) == (0.5, [0.5, None])


class _Recorder:
    """Passes reports to a tracker."""

    def __init__(self, seen: RunTracker) -> None:
        self.report = seen.report
        self._seen = seen

    def note_details(self, worker: int, epoch: int, details: ReportDetails | None) -> None:
        self._seen.note_details(worker, epoch, details, 1.0)


def test_reports_that_are_added_up_keep_the_weight_of_losses_and_the_newest_details() -> None:
    sent: list[Report] = []
    pending = PendingReport(1e9, sent.append)
    pending._next = 1e18
    for samples, details in (
        (8, None),
        (4, of(0.25, loss_weight=1, rates=[0.5])),
        (2, of(0.5, loss_weight=0)),
        (1, None),
    ):
        pending.add(Report(0, 1, samples, 1.0, 1, details))
    pending.flush()
    (report,) = sent
    assert (report.samples, report.loss_sum, report.loss_weight) == (15, 4.0, 10)
    assert report.details is not None
    assert report.details.share == 0.5
    assert Report(0, 1, 8, 1.0, 1).loss_weight == 8
