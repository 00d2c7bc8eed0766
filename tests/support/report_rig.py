"""The reports that the library of a script sends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from script_rig import script_job

from mpips.mpi.messages import Report
from mpips.scheduler.own_worker import OwnWorker
from mpips.session import library_progress
from mpips.session.script import Script


class Reports(list[Report]):
    """The reports of a script."""

    def total(self) -> tuple[int, float, int]:
        """Return samples, sum of losses and their weight of all reports."""
        losses = sum(r.loss_sum for r in self), sum(r.loss_weight for r in self)
        return sum(r.samples for r in self), *losses


def collected(monkeypatch: pytest.MonkeyPatch) -> Reports:
    """Return the list of what scripts send from now on: a report behind each step."""
    found = Reports()

    def send(_: Any, epoch: int, step: int, samples: int, loss_sum: float, details: Any) -> None:
        found.append(Report(epoch, step, samples, loss_sum, 0, details))

    monkeypatch.setattr(OwnWorker, "report", send)
    monkeypatch.setattr(library_progress, "INTERVAL_S", 0.0)
    return found


@contextmanager
def observed_script() -> Iterator[Script]:
    """Do what `script_job` does, in a job whose reports have a reader."""
    with script_job() as script:
        script.is_observed = True
        yield script
