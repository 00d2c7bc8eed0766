"""The tables of one model of a torch script, and when their values are pulled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

from mpips.errors import MpipsError
from mpips.torch.by_use import UseWaits, in_order_of_use, is_seen
from mpips.torch.device_table import DeviceTable
from mpips.torch.job import TorchJob
from mpips.torch.parameters import ParameterTable
from mpips.torch.skips import Skipping
from mpips.torch.watching import Watch
from mpips.worker.by_use import PullsByUse
from mpips.worker.worker import Worker, connection_of


class Pulled(Protocol):
    """A table whose values a forward pass needs."""

    def open(self, worker: Worker) -> None:
        """Take the table's handle at the start of the job."""

    def pull(self) -> None:
        """Fetch the values. Blocks."""


class ModelPart:
    """The tables of one model.

    Attributes:
        is_stale: True if a step has changed values since the newest pull.
        is_accumulating: True within `no_sync`.
        optimizers: The prepared optimizers of the model.
        waits: The waits of the forward pass that is running, if it waits by use; None: it does not.
    """

    def __init__(
        self, job: TorchJob, pulled: Sequence[Pulled], by_use: Sequence[ParameterTable] = ()
    ) -> None:
        """Take the tables.

        Args:
            job: The script's job.
            pulled: All of them, in the order in which they are pulled.
            by_use: Those that a forward pass may wait for by use, in the order of the model.
        """
        self.is_stale = True
        self.is_accumulating = False
        self.optimizers: list[Skipping] = []
        self.waits: UseWaits | None = None
        self._job = job
        self._pulled = pulled
        self._on_devices = [table for table in pulled if isinstance(table, DeviceTable)]
        self._watch = Watch([table for table in pulled if isinstance(table, ParameterTable)])
        self._by_use: list[ParameterTable] = list(by_use)

    @property
    def is_started(self) -> bool:
        """True from the first pull of the job on."""
        return self._job.has_started

    def may_wait_by_use(self, model: torch.nn.Module) -> bool:
        """Return True if a forward pass of the model that begins now may wait by use."""
        is_due = bool(self._by_use) and self.is_stale and self.waits is None
        return is_due and is_seen(model)

    @property
    def by_use(self) -> Sequence[ParameterTable]:
        """Tables in the order of use of the newest forward pass that has waited by use."""
        return self._by_use

    def refresh(self) -> None:
        """Pull all values, if a step has been made since the newest pull. Blocks then.

        The last layers come first: servers have their updates first.
        """
        if self.waits is not None:
            self.waits.finish()
        if self.is_stale:
            self._job.start()
            self._job.settle()
            self._watch.next()
            for table in reversed(self._pulled):
                table.pull()
            self.is_stale = False
        else:
            self.follow_stream()

    def follow_stream(self) -> None:
        """Let the current streams of devices wait for the newest values, pulled on these or on others."""
        for table in self._on_devices:
            table.follow_stream()

    def note_forward(self, is_training: bool) -> None:
        """Note a forward pass before its pull. `is_training`: it records gradients."""
        self._job.skips.note_forward(is_training)

    def dropping(self, sets_to_none: bool) -> AbstractContextManager[None]:
        """Return a block that drops the gradients of the model."""
        self._job.progress.losses.drop()
        return self._job.skips.dropping(self.optimizers, sets_to_none)

    def check_unchanged(self) -> None:
        """Raise ConfigError if the script has changed a parameter since the newest pull. Cheap."""
        if self.is_started and not self.is_stale:
            for table in self._pulled:
                if isinstance(table, ParameterTable):
                    table.check_unchanged()

    @contextmanager
    def waiting_by_use(self) -> Iterator[None]:
        """Ask for values, and within the block wait for each where it is used; see mpips.torch.by_use.

        All values are there at the end of the block. Values on this node are pulled before it.
        """
        worker = self._job.start()
        self._job.settle()
        asked = {table.name: (table, what) for table in self._by_use if (what := table.ask())}
        wanted = {name: what for name, (_, what) in asked.items()}
        if not asked:
            self.refresh()
            yield
            return
        self._watch.next()
        pulls = PullsByUse.asked(connection_of(worker), wanted)
        for table in reversed(self._pulled):
            if not isinstance(table, ParameterTable) or table.name not in asked:
                table.pull()
        self.is_stale = False
        self.waits = waits = UseWaits([table for table, _ in asked.values()], pulls)
        connection_of(worker).leave()
        try:
            with waits:
                yield
            waits.finish()
            self._by_use = in_order_of_use(self._by_use, waits.used)
        except BaseException as error:
            self.is_stale = True  # some values may not be there
            # Nothing must arrive in the parameters after this block. What arrives now counts as a change, so
            # that no graph that was recorded before is used with it.
            if isinstance(error, Exception) and not isinstance(error, MpipsError):
                waits.finish()
                pulls.finish()
            raise
        finally:
            self.waits = None

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within the block the values are those of the last outer step; see mpips.torch.averaged."""
        worker = self._job.start()
        self._job.settle()
        with worker.averaged():
            self.is_stale = True
            try:
                yield
            finally:
                self.is_stale = True
