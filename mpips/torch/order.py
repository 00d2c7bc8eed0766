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

Batches of a script's batch_sampler: step k gives batch k*n + w to worker w. The first batches are repeated to
complete the last step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import cycle, islice
from typing import Any, cast

from torch.utils.data import DataLoader, SequentialSampler

from mpips.torch.generators import GENERATOR_TYPES, ORDER_TAG, seeded


class WorkerBatches:
    """The indices of one worker's batches: the batch sampler of its DataLoader.

    Attributes:
        start: (epoch, step) at which the next iterator begins.
    """

    def __init__(self, loader: DataLoader[Any], worker: int, n_workers: int, seed: int) -> None:
        self.start = (0, 0)
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

    def __iter__(self) -> Iterator[Any]:
        # The body of a generator runs at the first `next`, when `start` can be that of a newer iterator.
        return self._from(*self.start)

    def _from(self, epoch: int, first: int) -> Iterator[Any]:
        order = draw(self._source, self._seed, epoch)
        for begin in range(first * self.per_step, len(order), self.per_step):
            items = order[begin : begin + self.per_step]
            if len(items) < self.per_step:
                if self._drop_last:
                    return
                items = [*items, *islice(cycle(order), -len(items) % self._n_workers)]
            share = len(items) // self._n_workers
            own = items[self._worker * share : (self._worker + 1) * share]
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
