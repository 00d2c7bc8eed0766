"""The newest model of a folder, replaced while it is in use: what `mpips serve` predicts with."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mpips.checkpoint.find import choose_checkpoint
from mpips.errors import MpipsError
from mpips.inference.loading import load
from mpips.inference.model import Model
from mpips.inference.stored_tables import OnMissing


class CurrentModel:
    """A model that follows the newest checkpoint of a run. Thread-safe.

    A use of the model takes the reference once, so all of its results are of one checkpoint. A model is used
    by one thread at a time. A new one is loaded beside it and takes its place by an assignment under the same
    lock, which later uses see.

    Attributes:
        path: Path that the user gave: a checkpoint, a folder of checkpoints, a run directory.
        loaded_s: Unix time at which the present model was loaded.
        failure: Reason why a newer checkpoint could not be loaded; "": none failed since the last success.
    """

    def __init__(
        self,
        path: Path,
        best: bool = False,
        on_missing: OnMissing = "initial",
    ) -> None:
        """Load the model. Blocks.

        Args:
            path: See the class.
            best: Follow the best checkpoint of the run instead of the newest one.
            on_missing: Values of keys without a row; see `mpips.load`.

        Raises:
            MpipsError: There is no model, or it is damaged; see `mpips.load`.
        """
        self.path = path
        self.failure = ""
        self._best = best
        self._on_missing: OnMissing = on_missing
        self._model = load(path, best=best, on_missing=on_missing)
        self._lock = threading.Lock()  # held by the thread that uses the model
        self.loaded_s = time.time()

    @contextmanager
    def use(self) -> Iterator[Model]:
        """Give the present model to one thread, until the end of the block. Blocks while another uses it."""
        with self._lock:
            yield self._model

    @property
    def name(self) -> str:
        """Name of the checkpoint that is loaded."""
        return self._model.path.name

    @property
    def step(self) -> int:
        """Step of the run that the model has."""
        return self._model.manifest.step

    def follow(self) -> bool:
        """Load a newer checkpoint if there is one; return True if the model was replaced.

        Not to be called by two threads at a time.

        A checkpoint that cannot be loaded leaves the present model in place; `failure` gives the reason.
        """
        try:
            newest = choose_checkpoint(self.path, self._best)
            if newest == self._model.path:
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
