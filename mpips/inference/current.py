"""The newest model of a folder, replaced while it is in use: what `mpips serve` predicts with."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mpips.checkpoint.find import choose_checkpoint
from mpips.errors import CheckpointError, ConfigError, MpipsError
from mpips.inference.loading import load
from mpips.inference.model import Model
from mpips.inference.stored_tables import OnMissing


class NoModelYet(Exception):
    """The run has no checkpoint from which a model can be loaded. The message is the reason."""


class CurrentModel:
    """A model that follows the newest checkpoint of a run. Thread-safe.

    A use of the model takes the reference once, so all of its results are of one checkpoint. A model is used
    by one thread at a time. A new one is loaded beside it and takes its place by an assignment under the same
    lock, which later uses see.

    Attributes:
        path: Path that the user gave: a checkpoint, a folder of checkpoints, a run directory.
        loaded_s: Unix time at which the present model was loaded; 0: none is loaded.
        failure: Reason why a newer checkpoint could not be loaded; "": none failed since the last success.
    """

    def __init__(
        self,
        path: Path,
        best: bool = False,
        on_missing: OnMissing = "initial",
        needed: bool = True,
    ) -> None:
        """Load the model. Blocks.

        Args:
            path: See the class.
            best: Follow the best checkpoint of the run instead of the newest one.
            on_missing: Values of keys without a row; see `mpips.load`.
            needed: False: if no model can be loaded, the reason is in `failure`, and `follow` tries again.

        Raises:
            MpipsError: There is no model, or it is damaged; see `mpips.load`.
        """
        self.path = path
        self.failure = ""
        self.loaded_s = 0.0
        self._best = best
        self._on_missing: OnMissing = on_missing
        self._model: Model | None = None
        self._lock = threading.Lock()  # held by the thread that uses the model
        try:
            self._model = load(path, best=best, on_missing=on_missing)
            self.loaded_s = time.time()
        except (CheckpointError, ConfigError) as error:
            if needed:
                raise
            self.failure = str(error)

    @contextmanager
    def use(self) -> Iterator[Model]:
        """Give the present model to one thread, until the end of the block. Blocks while another uses it.

        Raises:
            NoModelYet: None is loaded.
        """
        with self._lock:
            if self._model is None:
                raise NoModelYet("the run has no checkpoint with a model yet")
            yield self._model

    @property
    def name(self) -> str:
        """Name of the checkpoint that is loaded; "": none is."""
        model = self._model
        return "" if model is None else model.path.name

    @property
    def step(self) -> int:
        """Step of the run that the model has; 0: none is loaded."""
        model = self._model
        return 0 if model is None else model.manifest.step

    def follow(self) -> bool:
        """Load a newer checkpoint if there is one; return True if the model was replaced.

        Not to be called by two threads at a time.

        A checkpoint that cannot be loaded leaves the present model in place; `failure` gives the reason.
        """
        try:
            newest = choose_checkpoint(self.path, self._best)
            if self._model is not None and newest == self._model.path:
                return False
            model = load(newest, on_missing=self._on_missing)
        except MpipsError as error:
            self.failure = str(error)
            return False
        except Exception as error:
            # A task of the user predicts the example of the checkpoint, and may raise anything.
            self.failure = f"{type(error).__name__}: {error}"
            return False
        with self._lock:
            self._model, self.loaded_s, self.failure = model, time.time(), ""
        return True
