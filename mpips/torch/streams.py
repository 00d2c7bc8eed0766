"""A DataLoader over an IterableDataset, divided among workers.

Each worker iterates the whole dataset and takes its own samples: with n workers, sample i of the stream is
that of worker i mod n. So a dataset needs no division of its own, no index and no length, and all workers
find its end without a message. With batch size b, step k takes samples k*b*n to (k+1)*b*n - 1, as one process
with batch size n*b does. `drop_last` drops the last step if it is incomplete. Otherwise its samples are
divided equally, and samples from the beginning of the stream complete it; all workers make equally many steps
with equally long batches. A dataset that yields batches (batch_size = None) is divided by these.

A dataset that yields one object again and again, with other contents, needs batch_size = None or 1, as in
plain torch. There a worker passes its sample on before it reads the next one.

Children (num_workers > 0) each iterate a dataset of their own, as in plain torch: one that divides itself by
`torch.utils.data.get_worker_info` yields a part in each of them, any other one all of its samples in each.
The samples of a child are a stream, which is divided as above.

The stream must be the same on all workers. It may depend on random number generators: the default ones, or
those of torch, NumPy or Python that are attributes of the dataset or of a dataset within it. Each stream has
states of its own, which only (seed, epoch, child) determine; the generators of the training step do not
change. A dataset with a method `set_epoch` receives the number of the epoch. Workers make digests of the
samples of the first steps of each stream (sample_digests.py), which the scheduler compares.

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
from mpips.torch.sample_digests import FirstSamples

_DROPPED: Any = object()  # of a batch that was read before the restart
_END: Any = object()  # of a stream

Digest = tuple[int, int]  # step of a stream, from 1, and digest of the samples up to it


class WithDigest(NamedTuple):
    """The first sample of a batch with a digest of the stream, on its way to the process of the worker."""

    digest: Digest
    sample: Any


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

    def left(
        self, samples: Iterator[Any], epoch: int, child: int, drop_last: bool
    ) -> Iterator[Any]:
        """Yield the samples of a child's stream that no worker has read.

        Args:
            samples: The stream.
            epoch: Number of the epoch.
            child: Number of the child.
            drop_last: An incomplete step is dropped: where all workers had read all whole steps, the rest is
                not left.
        """
        n_workers = len(self.places)
        done = [
            steps[child] if at == epoch else 0 if at < epoch else None for at, steps in self.places
        ]
        # The first step that a worker has not read. Its samples wait until it is known to be whole.
        behind = min((step for step in done if step is not None), default=0)
        whole_at = (behind + 1) * self.per_step - 1 if drop_last else 0
        waiting: list[Any] = []
        for i, sample in enumerate(samples):
            step = done[i % n_workers]
            is_left = step is not None and i // self.per_step >= step
            if i < whole_at:
                waiting += [_copy(sample)] * is_left
                continue
            yield from waiting
            waiting.clear()
            if is_left:
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
                samples = share.left(samples, epoch, child, self._drop_last)
        reader = _Reader(samples, self.per_step, self._worker, self._n_workers)
        one_by_one = (self.batch_size or 1) == 1 and not self._drop_last
        step, is_last = 0, False
        while not is_last:
            with draws.own():
                own = reader.next_sample() if one_by_one else reader.step()
            is_last = reader.has_ended
            if is_last:
                own = [] if self._drop_last else reader.completed(own)
            # A batch that is dropped has as many elements, since torch counts them.
            batch = own if step >= n_dropped else [_DROPPED] * len(own)
            if batch and reader.digest is not None:
                batch[0], reader.digest = WithDigest(reader.digest, batch[0]), None
            yield from batch
            step += 1


class _Reader:
    """Reads one stream for a worker.

    Attributes:
        has_ended: True when the stream has ended.
        digest: Digest of the samples of the first steps, until it has been passed on; None: there is no new
            one.
    """

    def __init__(self, samples: Iterator[Any], per_step: int, worker: int, n_workers: int) -> None:
        """Take the stream. `per_step`: samples that all workers take in one step."""
        self.has_ended = False
        self.digest: Digest | None = None
        self._per_step = per_step
        self._worker, self._n_workers = worker, n_workers
        self._n_read = 0  # samples of the current step
        self._beginning: list[Any] = []  # of the stream: at most one sample less than workers
        self._samples = self._noted(samples) if n_workers > 1 else samples

    def _noted(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Yield all samples; make digests of those of the first steps, and copies of the very first ones."""
        first, n = FirstSamples(), 0
        while not first.is_over or n < self._n_workers - 1:
            sample = next(samples, _END)
            if sample is _END:
                if n % self._per_step:
                    self.digest = first.end_step(is_last=True) or self.digest
                return
            n += 1
            if n < self._n_workers:
                self._beginning.append(_copy(sample))
            first.add(sample)
            if n % self._per_step == 0:
                self.digest = first.end_step(is_last=False) or self.digest
            yield sample
        yield from samples

    def step(self) -> list[Any]:
        """Read the samples of a step; return those of this worker."""
        own, self._n_read = [], 0
        for sample in islice(self._samples, self._per_step):
            if self._n_read % self._n_workers == self._worker:
                # A batch of one sample is right in plain torch also if the next one overwrites it.
                own.append(_copy(sample) if self._per_step == self._n_workers else sample)
            self._n_read += 1
        self.has_ended = self._n_read < self._per_step
        return own

    def next_sample(self) -> list[Any]:
        """Read up to the next sample of this worker, where that is a step; return it if there is one."""
        for sample in self._samples:
            self._n_read += 1
            if self._n_read % self._n_workers == (self._worker + 1) % self._n_workers:
                return [sample]
        self.has_ended = True
        return []

    def completed(self, own: list[Any]) -> list[Any]:
        """Return this worker's samples of the last step, with one of the beginning where it has too few."""
        place = self._n_read % self._n_workers
        if 0 < place <= self._worker:
            own.append(next(islice(cycle(self._beginning), self._worker - place, None)))
        return own


def _copy(sample: Any) -> Any:
    """Return a sample with copies of its tensors and arrays, which the dataset may write again."""
    if isinstance(sample, torch.Tensor | np.ndarray):
        return sample.clone() if isinstance(sample, torch.Tensor) else sample.copy()
    if type(sample) is dict:
        return {key: _copy(one) for key, one in sample.items()}
    if type(sample) is list:
        return [_copy(one) for one in sample]
    if isinstance(sample, tuple) and (type(sample) is tuple or hasattr(sample, "_fields")):
        parts = [_copy(one) for one in sample]
        return type(sample)(*parts) if hasattr(sample, "_fields") else tuple(parts)
    return sample


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
    found: dict[int, Any] = {}  # by identity, which `found` keeps in use
    waiting = deque([dataset])
    while waiting:
        one = waiting.popleft()
        if id(one) in found:
            continue
        found[id(one)] = one
        for value in getattr(one, "__dict__", {}).values():
            inner = value if isinstance(value, list | tuple) else [value]
            waiting.extend(part for part in inner if _is_stage(part))
    return list(found.values())


def _is_stage(value: object) -> bool:
    """Return True for an object of a Python class, with attributes, that yields samples."""
    if isinstance(value, (type, torch.Tensor, Mapping, *GENERATOR_TYPES)):
        return False
    yields = hasattr(type(value), "__iter__") or callable(value)
    return yields and hasattr(value, "__dict__") and not callable(getattr(value, "__code__", None))


class Numbered:
    """The function that puts samples together to a batch, which also returns what the worker must know."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        """Take the function of the script's loader."""
        self._collate = collate

    def __call__(self, samples: Any) -> tuple[int, Digest | None, Any]:
        """Return the child, a new digest of its stream, and the batch.

        The batch is None if it was read before the restart, and the digest where there is no new one.
        """
        info = get_worker_info()
        child = info.id if info is not None else 0
        is_batch = isinstance(samples, list) and len(samples) > 0
        first, digest = samples[0] if is_batch else samples, None
        if isinstance(first, WithDigest):
            digest, first = first
            samples = [first, *samples[1:]] if is_batch else first
        return child, digest, None if first is _DROPPED else self._collate(samples)


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
