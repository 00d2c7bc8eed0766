"""The parts of a Keras script in its job: models, their fits, and the clock that they share.

    start      at the beginning of the first fit, evaluation or prediction: the job starts
    begin      at each training step: all values of the model are pulled
    push       as the step applies its gradients, and after it for states such as those of batch normalisation
    settle     at the end of the batch, behind the callbacks: the cursor is set and the worker's clock ends
    collect    at the end of an epoch: the sums of the metrics are those of all workers (see metrics.py)

The cursor has the number of steps, the place in the fits of the script, the learning rates, the metrics of
the epoch, and the numbers of Keras' own callbacks (see callback_states.py). A restart runs the script from
its beginning: complete fits train nothing, and the fit of the restart begins with its epoch, whose complete
batches are read and not computed.

Random numbers: an epoch sets the default generators to a function of (seed, fit, epoch), equal on all
workers, so that they shuffle alike. A step computes with generators that depend on (seed, worker, step).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from mpips.errors import ConfigError
from mpips.keras.callback_states import set_states, states_of
from mpips.keras.progress import FitProgress
from mpips.session.script import Script
from mpips.session.script_job import Opened, ScriptJob


class KerasPart(Opened, Protocol):
    """A prepared model."""

    def declare(self) -> None:
        """Declare the tables, directly before the job starts."""

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


class KerasJob(ScriptJob):
    """All prepared models of the script. Make it by `KerasJob.of_script`.

    Attributes:
        place: The place of the script in its fits.
        resumed: The place of the restart; None: there was no restart, or the script has passed it.
        callbacks: Callbacks that the script gave the current fit.
        progress: Automatic reports of the script.
    """

    library = "mpips.keras"
    progress: FitProgress
    first_use = "the first fit, evaluation or prediction"

    def __init__(self, script: Script) -> None:
        """Prepare nothing yet."""
        super().__init__(script)
        self.place = FitPlace()
        self.resumed: FitPlace | None = None
        self.progress = FitProgress(script)
        self.callbacks: list[Any] = []
        self._models: list[KerasPart] = []
        self._rates: list[Any] = []  # of each model, at the place of the restart
        self._metrics: list[Any] = []
        self._callback_states: Mapping[str, Any] = {}

    def add_model(self, model: KerasPart) -> None:
        """Add a prepared model."""
        self._models.append(model)
        self.add(model)

    def declare(self) -> None:
        """Declare the tables of all models."""
        for model in self._models:
            model.declare()

    def position(self) -> dict[str, Any]:
        """Return the steps, the place in the fits, and the learning rates and metrics of all models."""
        place = self.place
        states = states_of(self.callbacks) if place.is_within else {}
        return {
            **super().position(),
            "fit": place.fit,
            "within": place.is_within,
            "epoch": place.epoch,
            "batch": place.batch,
            "collected": place.has_collected,
            "rates": [model.rates() for model in self._models],
            "metrics": [model.metrics() for model in self._models],
            **({"callbacks": states} if states else {}),
        }

    def resume(self, cursor: Mapping[str, Any]) -> None:
        """Take the place of the checkpoint or of the launch before."""
        if len(cursor["rates"]) != len(self._models):
            raise ConfigError(
                f"the checkpoint is of a script that prepared {len(cursor['rates'])} models with "
                f"mpips.keras, this one prepares {len(self._models)}: use the same script, or resume='never'"
            )
        super().resume(cursor)
        names = ("fit", "within", "epoch", "batch", "collected")
        self.resumed = FitPlace(*(cursor[name] for name in names))
        self._rates, self._metrics = list(cursor["rates"]), list(cursor["metrics"])
        # Cursors of earlier versions have none.
        self._callback_states = cursor.get("callbacks") or {}
        # Once more at the beginning of the epoch: callbacks of a fit set rates, too.
        for model, rates in zip(self._models, self._rates, strict=True):
            model.set_rates(rates)

    def end_clock(self) -> None:
        """End a clock that is not a step. Not collective."""
        self.settle()
        self.is_open = True
        self.settle()

    def begin_fit(self, first: int, n_epochs: int, n_batches: int | None) -> int | None:
        """Begin a fit; return the epoch at which a restart continues it.

        None: the fit begins at its beginning. -1: it was complete before the restart. The arguments are those
        of FitProgress.begin_fit.
        """
        self.settle()
        self.progress.begin_fit(first, n_epochs, n_batches)
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
        self.progress.end_fit()
        if not self.place.is_within:
            return
        self.place.is_within = False
        self.end_clock()
        self.script.compare_steps(f"the end of fit {self.place.fit}", self.steps)

    def begin_epoch(self, epoch: int) -> int:
        """Begin an epoch of the fit; return the number of its batches that were complete before a restart."""
        self.settle()
        self.place.epoch, self.place.batch, self.place.has_collected = epoch, 0, False
        resumed = self.resumed
        if resumed is None or (resumed.fit, resumed.epoch) != (self.place.fit, epoch):
            return 0
        for model, rates, metrics in zip(self._models, self._rates, self._metrics, strict=True):
            model.set_rates(rates)
            model.set_metrics(metrics)
        set_states(self.callbacks, self._callback_states)
        self.place.has_collected = resumed.has_collected
        self.resumed = None
        return resumed.batch


def steps() -> int:
    """Return the number of steps that this worker has made since the beginning of the run.

    After a restart a loop of `train_on_batch` continues there; `fit` continues by itself. The first call
    starts the job: it is collective over all ranks and blocks, and all models have been built before it.

    Raises:
        ConfigError: `mpips.init` has not been called, or a model has not been built.
    """
    return KerasJob.of_script("mpips.keras.steps").settled_steps()
