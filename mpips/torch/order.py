"""The order of an epoch, and the part of it that each worker takes.

The order comes from the script's own sampler, drawn under a seed that is a mix of (seed, epoch). It is equal
on all workers, does not depend on their number, and any epoch can be drawn without those before it. The
sampler must be a function of random number generators: the default ones, or those of torch, NumPy or Python
that are attributes of the sampler or of a sampler within it. They are seeded for the drawing and restored
afterwards, so a seed that the script gave to a generator does not influence the order. A sampler with a
method `set_epoch` receives the number of the epoch.

Samples: with n workers and batch size b, step k takes order[k*b*n : (k+1)*b*n]; worker w takes the w-th piece
of b. So n workers with batch size b train on what one process with batch size n*b trains on. `drop_last`
drops the last step if it is incomplete. Otherwise its samples are divided into n equal pieces; if they do not
divide evenly, samples from the beginning of the order are repeated, as DistributedSampler does. All workers
make equally many steps, with equally long batches.

A job of another number of workers or another batch size that continues within an epoch divides what is left
of it in the same way: the items of the order, in their order, that no worker of the earlier job has read
(`EarlierShare`). Workers of the earlier job may have been at different places, as under SSP and ASP. Nothing
is lost, and nothing is read twice but what completes a last step.

Batches of a script's batch_sampler: step k gives batch k*n + w to worker w. The first batches are repeated to
complete the last step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import cycle, islice
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from mpips.torch.generators import GENERATOR_TYPES, ORDER_TAG, seeded

Int64 = npt.NDArray[np.int64]


class EarlierShare(NamedTuple):
    """The items of a loader that the workers of an earlier job have read.

    Attributes:
        per_step: Items that all of them took in one step.
        places: Epoch and step of each worker; of one that stands for all if they are equal.
    """

    per_step: int
    places: tuple[tuple[int, int], ...]

    def has_read(self, epoch: int) -> bool:
        """Return True if a worker has read of an epoch."""
        return max(self.places) > (epoch, 0)

    def left(self, items: Int64, epoch: int, drop_last: bool) -> Int64:
        """Return what is left of the items of an epoch that this job divided among its workers.

        Args:
            items: Places in the order of the epoch, int64, shape (n,).
            epoch: Number of the epoch.
            drop_last: An incomplete step is dropped.
        """
        n_workers, n = len(self.places), len(items)
        n_whole = n // self.per_step
        n_steps = n_whole if drop_last else -(-n // self.per_step)
        read = np.zeros(n, np.bool_)
        each = self.per_step // n_workers  # not -1: there may be no whole step
        steps = read[: n_whole * self.per_step].reshape(n_whole, n_workers, each)
        behind = 0
        for worker, (at, step) in enumerate(self.places):
            done = n_steps if at > epoch else min(step, n_steps) if at == epoch else 0
            behind += done < n_steps
            steps[:done, worker] = True
            if done > n_whole:
                share = share_of(range(n_whole * self.per_step, n), range(n), worker, n_workers)
                read[list(share)] = True
        # Where all are at the end of the epoch, what drop_last dropped is done, too.
        return items[~read] if behind else items[:0]


def earlier_share(per_step: int, places: Sequence[Sequence[int]]) -> EarlierShare:
    """Return an EarlierShare from plain lists, as cursors have it."""
    return EarlierShare(per_step, tuple((epoch, step) for epoch, step in places))


def share_of(
    items: Sequence[Any], order: Sequence[Any], worker: int, n_workers: int
) -> Sequence[Any]:
    """Return a worker's part of the items of a step, completed from the beginning of the order."""
    if missing := -len(items) % n_workers:
        items = [*items, *islice(cycle(order), missing)]
    each = len(items) // n_workers
    return items[worker * each : (worker + 1) * each]


class WorkerBatches:
    """The indices of one worker's batches: the batch sampler of its DataLoader.

    Attributes:
        start: (epoch, step) at which the next iterator begins.
        earlier: Items that earlier jobs have read, by job, the oldest first.
    """

    def __init__(self, loader: DataLoader[Any], worker: int, n_workers: int, seed: int) -> None:
        self.start = (0, 0)
        self.earlier: tuple[EarlierShare, ...] = ()
        self._source = source_of(loader)
        self._batch_size = loader.batch_size  # None: the source yields batches
        self._drop_last = loader.drop_last
        self._worker = worker
        self._n_workers = n_workers
        self._seed = seed

    @property
    def per_step(self) -> int:
        """Items of the source that all workers take in one step."""
        return (self._batch_size or 1) * self._n_workers

    def __len__(self) -> int:
        length = len(cast(Sized, self._source))
        return length // self.per_step if self._drop_last else -(-length // self.per_step)

    def n_samples(self, first: int, last: int) -> int:
        """Return the number of this worker's samples in steps `first` to `last` - 1 of an epoch.

        0: unknown, since the script's batch sampler forms the batches. In an epoch that an earlier job has
        begun, an incomplete last step counts as a whole one.
        """
        size = self._batch_size
        if size is None:
            if type(self._source) is not BatchSampler:
                return 0
            size = self._source.batch_size
        n = max(last - first, 0) * size
        n_whole, rest = divmod(len(cast(Sized, self._source)), self.per_step)
        if rest and first <= n_whole < last and not self.earlier and self._batch_size is not None:
            n -= size - -(-rest // self._n_workers)
        return n

    def left(self, epoch: int) -> Int64 | None:
        """Return the places in the order of an epoch that this job divides; None: all."""
        found = None
        for share in self.earlier:
            if share.has_read(epoch):
                before = np.arange(len(cast(Sized, self._source))) if found is None else found
                found = share.left(before, epoch, self._drop_last)
        return found

    def n_steps(self, epoch: int) -> int:
        """Return the number of steps of an epoch in this job; equal on all workers."""
        left = self.left(epoch)
        if left is None:
            return len(self)
        return len(left) // self.per_step if self._drop_last else -(-len(left) // self.per_step)

    def __iter__(self) -> Iterator[Any]:
        # The body of a generator runs at the first `next`, when `start` can be that of a newer iterator.
        return self._from(*self.start)

    def _from(self, epoch: int, first: int) -> Iterator[Any]:
        order = draw(self._source, self._seed, epoch)
        if (left := self.left(epoch)) is not None:
            order = [order[i] for i in left]
        for begin in range(first * self.per_step, len(order), self.per_step):
            items = order[begin : begin + self.per_step]
            if len(items) < self.per_step and self._drop_last:
                return
            own = share_of(items, order, self._worker, self._n_workers)
            yield own[0] if self._batch_size is None else list(own)


def source_of(loader: DataLoader[Any]) -> Iterable[Any]:
    """Return the script's batch sampler, or its sampler if torch makes batches of `batch_size` from it."""
    found = loader.batch_sampler if loader.batch_size is None else loader.sampler
    return cast(Iterable[Any], found)


def nested(source: object) -> list[Any]:
    """Return a sampler and the samplers within it (attributes `sampler` and `batch_sampler`)."""
    found: list[Any] = []
    waiting = [source]
    while waiting:
        sampler = waiting.pop()
        if sampler is not None and all(sampler is not one for one in found):
            found.append(sampler)
            waiting += [getattr(sampler, "sampler", None), getattr(sampler, "batch_sampler", None)]
    return found


def draw(source: Iterable[Any], seed: int, epoch: int) -> Sequence[Any]:
    """Return what a sampler yields in an epoch; the states of generators do not change.

    Args:
        source: A sampler of indices or of batches.
        seed: Seed of the run.
        epoch: Number of the epoch, from 0.
    """
    if type(source) is SequentialSampler:
        return range(len(cast(Sized, source)))
    samplers = nested(source)
    attributes = [value for one in samplers for value in getattr(one, "__dict__", {}).values()]
    own = [value for value in attributes if isinstance(value, GENERATOR_TYPES)]
    with seeded(ORDER_TAG, seed, epoch, own=own):
        for sampler in samplers:
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch)
        # A batch sampler can change a list after it has yielded it.
        return [item.copy() if isinstance(item, list) else item for item in source]
