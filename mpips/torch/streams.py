"""A DataLoader over an IterableDataset, divided among workers.

Each worker iterates the whole dataset and takes its own samples: with n workers, sample i of the stream is
that of worker i mod n. So a dataset needs no division of its own, no index and no length, and all workers
find its end without a message. With batch size b, step k takes samples k*b*n to (k+1)*b*n - 1, as one process
with batch size n*b does. `drop_last` drops the last step if it is incomplete. Otherwise its samples are
divided equally, and samples from the beginning of the stream complete it; all workers make equally many steps
with equally long batches. A dataset that yields batches (batch_size = None) is divided by these.

Children (num_workers > 0) each iterate a dataset of their own, as in plain torch: one that divides itself by
`torch.utils.data.get_worker_info` yields a part in each of them, any other one all of its samples in each.
The samples of a child are a stream, which is divided as above.

The stream must be the same on all workers. It may depend on random number generators: the default ones, or
those of torch, NumPy or Python that are attributes of the dataset or of a dataset within it. Each stream has
states of its own, which only (seed, epoch, child) determine; the generators of the training step do not
change. A dataset with a method `set_epoch` receives the number of the epoch.

A restart reads the samples before its place once more and drops them; they are not put together to batches.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from mpips.torch.generators import (
    GENERATOR_TYPES,
    STREAM_TAG,
    mix,
    restore_defaults,
    seed_defaults,
    seed_one,
)

_DROPPED: Any = object()  # of a batch that was read before the restart


class EarlierStream(NamedTuple):
    """The samples of a stream that the workers of an earlier job have read.

    Attributes:
        per_step: Samples that all of them took in one step of a child.
        places: Epoch of each worker, and its steps in the stream of each child.
    """

    per_step: int
    places: tuple[tuple[int, tuple[int, ...]], ...]

    def has_read(self, epoch: int) -> bool:
        """Return True if a worker has read of an epoch."""
        return any(at > epoch or (at == epoch and any(steps)) for at, steps in self.places)

    def left(self, samples: Iterator[Any], epoch: int, child: int) -> Iterator[Any]:
        """Yield the samples of a child's stream that no worker has read."""
        n_workers = len(self.places)
        for i, sample in enumerate(samples):
            at, steps = self.places[i % n_workers]
            if at < epoch or (at == epoch and i // self.per_step >= steps[child]):
                yield sample


def earlier_stream(per_step: int, places: Sequence[Sequence[Any]]) -> EarlierStream:
    """Return an EarlierStream from plain lists, as cursors have it."""
    return EarlierStream(per_step, tuple((at, tuple(steps)) for at, steps in places))


# Attributes of the next class; all others are those of the script's dataset.
_OWN = frozenset(("dataset", "batch_size", "epoch", "dropped", "earlier", "per_step"))


class WorkerStream(IterableDataset[Any]):
    """One worker's samples of a stream.

    Attributes:
        epoch: Number of the epoch that the next iterator begins. Children that stay count for themselves.
        dropped: Steps of each child at the beginning of the next epoch, whose samples are read and dropped;
            each then yields as many elements as its batch has.
        earlier: Samples that earlier jobs have read, by job, the oldest first.
    """

    def __getattr__(self, name: str) -> Any:
        # A `worker_init_fn` reads and sets attributes of the dataset, which it takes this for.
        if name.startswith("_") or name in _OWN:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in _OWN:
            super().__setattr__(name, value)
        else:
            setattr(self.dataset, name, value)

    def __init__(self, loader: DataLoader[Any], worker: int, n_workers: int, seed: int) -> None:
        """Take the dataset of a script's loader."""
        self.dataset = cast("IterableDataset[Any]", loader.dataset)
        self.batch_size = loader.batch_size
        self.epoch = 0
        self.dropped: tuple[int, ...] = ()
        self.earlier: tuple[EarlierStream, ...] = ()
        self._drop_last = loader.drop_last
        self._worker, self._n_workers = worker, n_workers
        self._seed = seed

    @property
    def per_step(self) -> int:
        """Samples that all workers take in one step."""
        return (self.batch_size or 1) * self._n_workers

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        child = info.id if info is not None else 0
        epoch, self.epoch = self.epoch, self.epoch + 1
        dropped, self.dropped = self.dropped, ()
        # Children that stay have no steps to drop in later epochs.
        return self._from(epoch, child, dropped[child] if dropped else 0)

    def _from(self, epoch: int, child: int, n_dropped: int) -> Iterator[Any]:
        draws = _Draws(STREAM_TAG, self._seed, epoch, child)
        with draws.own():
            samples = _begin(self.dataset, draws, epoch)
        for share in self.earlier:
            if share.has_read(epoch):
                samples = share.left(samples, epoch, child)
        beginning: list[Any] = []  # of the stream: at most one sample less than workers
        step = 0
        while True:
            with draws.own():
                own, n_read = self._read(samples, beginning)
            if n_read < self.per_step:
                own = self._completed(own, n_read, beginning)
            # A batch that is dropped has as many elements, since torch counts them.
            yield from own if step >= n_dropped else [_DROPPED] * len(own)
            if n_read < self.per_step:
                return
            step += 1

    def _read(self, samples: Iterator[Any], beginning: list[Any]) -> tuple[list[Any], int]:
        """Read the samples of a step; return those of this worker, and the number of all."""
        own, n_read = [], 0
        for sample in islice(samples, self.per_step):
            if len(beginning) < self._n_workers - 1:
                beginning.append(sample)
            if n_read % self._n_workers == self._worker:
                own.append(sample)
            n_read += 1
        return own, n_read

    def _completed(self, own: list[Any], n_read: int, beginning: list[Any]) -> list[Any]:
        """Return this worker's samples of the last step, of which there are `n_read` for all workers."""
        if self._drop_last or not n_read:
            return []
        place = n_read % self._n_workers
        if 0 < place <= self._worker:
            own.append(next(islice(cycle(beginning), self._worker - place, None)))
        return own


class _Draws:
    """States of the default generators in which one stream draws."""

    def __init__(self, *numbers: int) -> None:
        """Take integers that determine the states at the beginning; a tag first."""
        self.numbers = numbers
        self._states: tuple[Any, Any, Any] | None = None

    @contextmanager
    def own(self) -> Iterator[None]:
        """Run a block in the states of the stream; restore those of the process afterwards."""
        with ExitStack() as stack:
            restore_defaults(stack)
            if self._states is None:
                seed_defaults(*self.numbers)
            else:
                of_torch, of_python, of_numpy = self._states
                torch.default_generator.set_state(of_torch)
                random.setstate(of_python)
                np.random.set_state(of_numpy)
            try:
                yield
            finally:
                of_torch = torch.default_generator.get_state()
                self._states = of_torch, random.getstate(), np.random.get_state()


def _begin(dataset: IterableDataset[Any], draws: _Draws, epoch: int) -> Iterator[Any]:
    """Begin an epoch of a dataset, whose own generators depend only on the epoch then."""
    parts = nested_datasets(dataset)
    own = [
        value
        for one in parts
        for value in getattr(one, "__dict__", {}).values()
        if isinstance(value, GENERATOR_TYPES)
    ]
    word = mix(*draws.numbers)
    for number, generator in enumerate({id(one): one for one in own}.values(), start=1):
        seed_one(ExitStack(), generator, mix(word, number))
    for one in parts:
        if callable(getattr(one, "set_epoch", None)):
            one.set_epoch(epoch)
    return iter(dataset)


def nested_datasets(dataset: object) -> list[Any]:
    """Return a dataset and the stages within it: its attributes, or those in lists, that can be iterated."""
    found: list[Any] = []
    waiting = [dataset]
    while waiting:
        one = waiting.pop(0)
        if any(one is other for other in found):
            continue
        found.append(one)
        for value in getattr(one, "__dict__", {}).values():
            inner = value if isinstance(value, list | tuple) else [value]
            waiting += [part for part in inner if _is_stage(part)]
    return found


def _is_stage(value: object) -> bool:
    """Return True for an object of a Python class, with attributes, that yields samples."""
    if isinstance(value, (type, torch.Tensor, Mapping, *GENERATOR_TYPES)):
        return False
    yields = hasattr(type(value), "__iter__") or callable(value)
    return yields and hasattr(value, "__dict__") and not callable(getattr(value, "__code__", None))


class Numbered:
    """The function that puts samples together to a batch, which also returns the number of the child."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        """Take the function of the script's loader."""
        self._collate = collate

    def __call__(self, samples: Any) -> tuple[int, Any]:
        """Return the child, and the batch; None for one that was read before the restart."""
        info = get_worker_info()
        child = info.id if info is not None else 0
        first = samples[0] if isinstance(samples, list) and samples else samples
        return child, None if first is _DROPPED else self._collate(samples)


class ChildSteps:
    """The steps that were made in the stream of each child, behind the batches that count as yielded."""

    def __init__(self, steps: Sequence[int], n_batches: int) -> None:
        """Continue behind some batches of an epoch. `steps`: those of each child."""
        self.steps = list(steps)
        self._n_used = n_batches
        self._read: deque[int] = deque()  # children of batches that do not count yet

    def read(self, child: int) -> None:
        """Note the child of the batch that was read."""
        self._read.append(child)

    def use(self, n_batches: int) -> None:
        """Let the first batches of the epoch count as yielded."""
        while self._n_used < n_batches and self._read:
            self.steps[self._read.popleft()] += 1
            self._n_used += 1
