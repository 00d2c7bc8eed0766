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
    found = {"has_epoch": True, "n_epochs": n_epochs, "share": share, "by_library": True}
    return ReportDetails(**{**found, **more})


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
    assert p.learning_rate == seen.line()["learning_rate"] == 0.5
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


def of_library(loss_sum: float, weight: int, samples: int = 4, **more: Any) -> Report:
    return Report(0, 1, samples, loss_sum, 1, of(0.5, loss_weight=weight, **more))


def of_script(loss_sum: float, weight: int) -> Report:
    return Report(0, 1, 0, loss_sum, 1, ReportDetails(loss_weight=weight))


def test_losses_of_the_script_on_one_worker_replace_those_that_libraries_find_on_all() -> None:
    seen = tracker()
    report = recorded(None, _Recorder(seen))
    assert report is not None
    report(0, of_library(12.0, 4))
    report(1, of_library(12.0, 4))
    report(0, of_script(50.0, 5))
    report(1, of_library(12.0, 4))
    assert seen.update(2.0, {})
    assert (seen.progress.loss, seen.progress.samples) == (10.0, 12)
    seen.begin_line(2.0)
    # Between two reports of the script the loss is the newest that is known, and there is no line.
    report(1, of_library(12.0, 4))
    assert not seen.update(3.0, {})
    assert (seen.progress.loss, seen.progress.samples_per_s) == (10.0, 4.0)
    report(0, of_script(2.0, 1))
    assert seen.update(4.0, {})
    assert (seen.progress.loss, seen.progress.samples_per_s) == (2.0, 2.0)


def test_losses_of_a_program_without_a_library_always_count() -> None:
    seen = tracker()
    report = recorded(None, _Recorder(seen))
    assert report is not None
    report(0, of_script(6.0, 2))
    report(1, Report(0, 1, 2, 2.0, 1))
    seen.update(2.0, {})
    assert seen.progress.loss == 2.0


@pytest.mark.parametrize("script_first", [False, True])
def test_of_reports_that_are_added_up_the_losses_of_the_script_count(script_first: bool) -> None:
    first, last = of_library(12.0, 4, rates=[0.5]), of_script(9.0, 3)
    if script_first:
        first, last = last, first
    last.add(first)
    assert last.details is not None
    assert (last.samples, last.loss_sum, last.loss_weight, last.is_by_library) == (4, 9.0, 3, False)
    d = last.details
    assert (d.rates, d.n_epochs, d.share, d.has_epoch) == ([0.5], 4, 0.5, True)
    of_two = of_library(12.0, 4)
    of_two.add(of_library(4.0, 2))
    assert (of_two.loss_sum, of_two.loss_weight, of_two.is_by_library) == (16.0, 6, True)


def test_rates_alone_make_a_line_of_a_script_whose_losses_are_unknown() -> None:
    seen = tracker()
    report = recorded(None, _Recorder(seen))
    assert report is not None
    report(0, of_library(0.0, 0, samples=0))
    assert not seen.update(2.0, {})
    report(0, of_library(0.0, 0, samples=0, rates=[0.5]))
    assert seen.update(2.0, {})
    assert (seen.line()["loss"], seen.line()["learning_rate"]) == (None, 0.5)
    seen.begin_line(2.0)
    assert not seen.update(3.0, {})


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
