"""The parts of a Keras script in its job: models, their fits, and the clock that they share.

    start      at the beginning of the first fit, evaluation or prediction: the job starts
    begin      at each training step: all values of the model are pulled
    push       as the step applies its gradients, and after it for states such as those of batch normalisation
    settle     at the end of the batch, behind the callbacks: the cursor is set and the worker's clock ends
    collect    at the end of an epoch: the sums of the metrics are those of all workers (see metrics.py)

The cursor has the number of steps, the place in the fits of the script, the learning rates and the metrics of
the epoch. A restart runs the script from its beginning: complete fits train nothing, and the fit of the
restart begins with its epoch, whose complete batches are read and not computed.

Random numbers: an epoch sets the default generators to a function of (seed, fit, epoch), equal on all
workers, so that they shuffle alike. A step computes with generators that depend on (seed, worker, step).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from mpips.errors import ConfigError
from mpips.mpi.messages import END_OF_SCRIPT
from mpips.session.init import current
from mpips.session.script import Script
from mpips.worker.worker import Worker


class KerasPart(Protocol):
    """A prepared model."""

    def declare(self) -> None:
        """Declare the tables, directly before the job starts."""

    def open(self, worker: Worker) -> None:
        """Take the handles at the start of the job."""

    def rates(self) -> list[Any]:
        """Return the optimizer's step and its learning rate, if the script can set it."""

    def set_rates(self, rates: Sequence[Any]) -> None:
        """Set them."""

    def metrics(self) -> list[float]:
        """Return the metrics' states, if they are few."""

    def set_metrics(self, values: Sequence[float]) -> None:
        """Set them."""


class FitPlace(msgspec.Struct):
    """A place in the fits of a script.

    Attributes:
        fit: Number of the current fit, from 1, or of the newest one; 0: none has begun.
        is_within: True within a fit.
        epoch: The current epoch of the fit.
        batch: Number of its complete batches.
        has_collected: True if the metrics of the epoch have been pushed.
    """

    fit: int = 0
    is_within: bool = False
    epoch: int = 0
    batch: int = 0
    has_collected: bool = False


class KerasJob:
    """All prepared models of the script. Make it by `keras_job`.

    Attributes:
        script: The script.
        place: The place of the script in its fits.
        resumed: The place of the restart; None: there is none, or the script has passed it.
        steps: Number of steps that this worker has made since the beginning of the run.
        is_open: True if a step has pushed, and its clock has not ended.
    """

    def __init__(self, script: Script) -> None:
        """Prepare nothing yet."""
        script.own_cursor("mpips.keras")
        self.script = script
        self.place = FitPlace()
        self.resumed: FitPlace | None = None
        self.steps = 0
        self.is_open = False
        self._parts: list[KerasPart] = []
        self._rates: list[Any] = []  # of each part, at the place of the restart
        self._metrics: list[Any] = []
        self._worker: Worker | None = None

    @property
    def has_started(self) -> bool:
        """True from the beginning of the first fit, evaluation or prediction on."""
        return self._worker is not None

    def add(self, part: KerasPart) -> None:
        """Add a prepared model."""
        self._parts.append(part)

    def start(self) -> Worker:
        """Return the worker; start the job at the first call. Collective over all ranks then; blocks."""
        if self._worker is None:
            for part in self._parts:
                part.declare()
            worker = self.script.start()
            self._worker = worker
            for part in self._parts:
                part.open(worker)
            self._resume()
            self.script.before_end.append(self._end)
        return self._worker

    def settle(self) -> None:
        """Set the cursor and end the clock of the newest step, if it has not ended. Not collective."""
        if self.is_open:
            worker = self.start()
            place = self.place
            worker.set_cursor(
                {
                    "keras": 1,
                    "steps": self.steps,
                    "fit": place.fit,
                    "within": place.is_within,
                    "epoch": place.epoch,
                    "batch": place.batch,
                    "collected": place.has_collected,
                    "rates": [part.rates() for part in self._parts],
                    "metrics": [part.metrics() for part in self._parts],
                }
            )
            worker.clock()
            self.is_open = False

    def _end(self) -> None:
        self.settle()
        self.script.compare_steps(END_OF_SCRIPT, self.steps)

    def begin_fit(self) -> int | None:
        """Begin a fit; return the epoch at which a restart continues it.

        None: the fit begins at its beginning. -1: it was complete before the restart.
        """
        self.settle()
        self.place = FitPlace(self.place.fit + 1, True)
        resumed = self.resumed
        if resumed is not None and resumed.fit < self.place.fit:
            self.resumed = resumed = None  # the restart is between two fits
        if resumed is None:
            return None
        if resumed.fit > self.place.fit or not resumed.is_within:
            self.place.is_within = False
            return -1
        return resumed.epoch

    def end_fit(self) -> None:
        """End a fit with a clock of its own: a restart does not repeat what callbacks decided in it.

        A fit that was complete before the restart has no clock: workers continue in different fits, and all
        must end the same clocks at the same places, where tables take the sum of a clock's pushes.
        """
        self.settle()
        if not self.place.is_within:
            return
        self.place.is_within = False
        self.is_open = True
        self.settle()
        self.script.compare_steps(f"the end of fit {self.place.fit}", self.steps)

    def begin_epoch(self, epoch: int) -> int:
        """Begin an epoch of the fit; return the number of its batches that were complete before a restart."""
        self.settle()
        self.place.epoch, self.place.batch, self.place.has_collected = epoch, 0, False
        resumed = self.resumed
        if resumed is None or (resumed.fit, resumed.epoch) != (self.place.fit, epoch):
            return 0
        for part, rates, metrics in zip(self._parts, self._rates, self._metrics, strict=True):
            part.set_rates(rates)
            part.set_metrics(metrics)
        self.place.has_collected = resumed.has_collected
        self.resumed = None
        return resumed.batch

    def _resume(self) -> None:
        """Take the place of the checkpoint or of the launch before, if there is one."""
        cursor = self.script.cursor
        if not cursor:
            return
        if cursor.get("keras") != 1 or len(cursor["rates"]) != len(self._parts):
            raise ConfigError(
                "the checkpoint is of a script that prepared other models, or none, with mpips.keras: use "
                "the same script, or resume='never'"
            )
        self.steps = int(cursor["steps"])
        self.resumed = FitPlace(
            cursor["fit"],
            cursor["within"],
            cursor["epoch"],
            cursor["batch"],
            cursor["collected"],
        )
        self._rates, self._metrics = list(cursor["rates"]), list(cursor["metrics"])
        # Once more at the beginning of the epoch: callbacks of a fit set rates, too.
        for part, rates in zip(self._parts, self._rates, strict=True):
            part.set_rates(rates)


def keras_job(what: str) -> KerasJob:
    """Return the Keras job of this script. `what` names the caller in errors.

    Raises:
        ConfigError: `mpips.init` has not been called.
    """
    return current(what).part(KerasJob)


def steps() -> int:
    """Return the number of steps that this worker has made since the beginning of the run.

    After a restart a loop of `train_on_batch` continues there; `fit` continues by itself. The first call
    starts the job: it is collective over all ranks and blocks, and all models have been built before it.

    Raises:
        ConfigError: `mpips.init` has not been called, or a model has not been built.
    """
    job = keras_job("mpips.keras.steps")
    job.start()
    job.settle()
    return job.steps
