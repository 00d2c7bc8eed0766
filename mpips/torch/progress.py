"""The automatic reports of a torch script: epoch, part of the run that is done, samples, rates, loss.

A step notes its loss and its place in the data; see mpips.session.library_progress for when they are sent.
Nothing is noted in a job whose reports have no reader, and no loss once the script reports its own by
`mpips.report`. The loss is explained in losses.py.

    epoch       of the loop over mpips.torch.epochs; else of the first prepared loader; else unknown
    n_epochs    of all loops over mpips.torch.epochs so far; unknown in a loop over `range`
    samples     of the first prepared loader, in batches up to the newest step
    rates       of the param groups at the newest step; not of groups with embeddings alone, which have a
                rule of their own
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from mpips.session.library_progress import MOST_RATES, Known, LibraryProgress
from mpips.session.script import Script
from mpips.torch.losses import MOST, Losses, WaitingLosses
from mpips.worker.worker import Worker


class CountedLoader(Protocol):
    """A prepared loader."""

    @property
    def epoch(self) -> int:
        """Number of the current epoch."""

    @property
    def batch(self) -> int:
        """Number of batches of the epoch that were yielded, or passed over by a restart."""

    @property
    def first(self) -> int:
        """Number of batches of the epoch that a restart has passed over."""

    @property
    def n_begun(self) -> int:
        """Number of its iterations that have begun."""

    @property
    def has_length(self) -> bool:
        """True if `len` is known before the end of the epoch."""

    def n_samples(self, first: int, last: int) -> int:
        """Return this worker's samples in batches `first` to `last` - 1 of the epoch; 0: unknown."""

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""


class CountedLoops(Protocol):
    """The loops over mpips.torch.epochs."""

    def count(self) -> tuple[int, int, Sequence[int]] | None:
        """Return epoch, number of epochs, and iterations of each loader before the epoch; None: no loop."""


class ScriptProgress(LibraryProgress):
    """The reports of one torch script. No method blocks, but for a device whose losses are read."""

    def __init__(
        self,
        script: Script,
        loops: CountedLoops,
        loaders: Sequence[CountedLoader],
        n_optimizers: Callable[[], int],
    ) -> None:
        """Report nothing yet.

        Args:
            script: The script.
            loops: Its loops over mpips.torch.epochs.
            loaders: Its prepared loaders; the list grows.
            n_optimizers: Returns the number of prepared optimizers.
        """
        super().__init__(script)
        self.losses = Losses()
        self.counts = True  # samples and losses; False: another worker of the pipeline counts them
        self._loops = loops
        self._loaders = loaders
        self._n_optimizers = n_optimizers
        self._waiting = WaitingLosses()
        self._samples = 0  # of passes that have ended since then
        # Pass over the loader, its batches that were reported, and those up to the newest step.
        self._pass = self._reported = self._batch = 0
        self._n_passes = 1  # most of an epoch so far
        self._newest: torch.optim.Optimizer | None = None  # that has made a step
        self._stepped: list[torch.optim.Optimizer] = []  # all that have
        self._groups: list[tuple[torch.optim.Optimizer, int]] = []  # param groups with a rate
        self._rates: list[Any] = []  # rates of the newest step: numbers, or tensors
        self._with_loss: torch.optim.Optimizer | None = None  # the one whose steps have losses

    def begin(self, worker: Worker) -> None:
        """Begin at the start of the job, if the reports have a reader."""
        super().begin(worker)
        if self.is_observed:
            self._script.before_unmap(lambda _: self.losses.end())
        if self.wants_loss:
            self.losses.begin()

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note a step of a prepared optimizer, also one that pushes nothing. GradScaler may make it."""
        if not self.is_observed:
            return
        self.n_steps += 1
        if optimizer is not self._newest:
            self._note_optimizer(optimizer)
        # A scheduler sets the rates of the next step before this one is reported.
        self._rates = [one.param_groups[i]["lr"] for one, i in self._groups]
        if self._loaders:
            loader = self._loaders[0]
            if loader.n_begun != self._pass:
                self._samples += loader.n_samples(self._reported, self._batch)
                self._pass, self._reported = loader.n_begun, loader.first
            self._batch = loader.batch
        if self.losses.is_wanted:
            self._take_loss(optimizer)

    def _note_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._newest = optimizer
        if all(one is not optimizer for one in self._stepped):
            self._stepped.append(optimizer)
            self._groups += [(optimizer, i) for i in _trained_groups(optimizer)]
            del self._groups[MOST_RATES:]

    def _take_loss(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the loss of a step, if it is known."""
        terms = self.losses.take(is_scaled=getattr(optimizer, "found_inf", None) is not None)
        if not terms:
            return
        if self._with_loss is not None and self._with_loss is not optimizer:
            # The script has several losses: none of them is the loss.
            self._end_losses()
            return
        self._with_loss = optimizer
        self._waiting.add(terms)
        self.losses.is_wanted = self._waiting.n_steps < MOST

    def _end_losses(self) -> None:
        self.losses.end()
        self._waiting.clear()

    def known(self) -> Known:
        """See LibraryProgress."""
        if not self.wants_loss:
            self._end_losses()
        samples = self._take_samples() if self.counts else 0
        # Until every optimizer has made a step it is not known whether another one has a loss of its own.
        is_alone = len(self._stepped) >= self._n_optimizers()
        loss = self._waiting.read() if is_alone and self.counts else None
        self.losses.is_wanted = True
        return Known(*self._place(), samples, loss, [float(rate) for rate in self._rates])

    def _take_samples(self) -> int:
        """Return the samples of the batches since the report before, and count them as reported."""
        samples, self._samples = self._samples, 0
        if self._loaders:
            samples += self._loaders[0].n_samples(self._reported, self._batch)
        self._reported = self._batch
        return samples

    def _place(self) -> tuple[int | None, int, float]:
        """Return epoch (None: unknown), number of epochs (0: unknown) and the part that is done."""
        loader = self._loaders[0] if self._loaders else None
        counted = self._loops.count()
        if counted is None:
            return (loader.epoch if loader is not None and loader.n_begun else None), 0, 0.0
        epoch, n_epochs, begun = counted
        if not n_epochs:
            return None, 0, 0.0
        part = 0.0
        # An epoch may pass over the loader more often, or not at all. Its passes are those of epochs before.
        n_passes = loader.n_begun - begun[0] if loader is not None and begun else 0
        if loader is not None and n_passes and loader.has_length and len(loader):
            self._n_passes = max(self._n_passes, n_passes)
            part = (n_passes - 1 + min(loader.batch / len(loader), 1.0)) / self._n_passes
        return min(epoch, n_epochs - 1), n_epochs, min((epoch + part) / n_epochs, 1.0)


def _trained_groups(optimizer: torch.optim.Optimizer) -> list[int]:
    """Return the param groups with a parameter that the optimizer's rule trains."""
    rows = {id(layer.weight) for layer in getattr(optimizer, "_mpips_embeddings", ())}
    return [
        i
        for i, group in enumerate(optimizer.param_groups)
        if any(id(p) not in rows for p in group["params"])
    ]
