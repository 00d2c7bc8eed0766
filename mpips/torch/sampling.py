"""A DataLoader of a plain torch script, divided among workers.

`mpips.torch.order` defines the order of an epoch and the batches of each worker. The worker's DataLoader has
the options of the script's; only its batch sampler and its generator differ. `mpips.torch.streams` divides
datasets that have no indices (IterableDataset).

Random numbers in child processes (num_workers > 0) depend on (seed, epoch, worker, child). An epoch that a
restart enters in its middle draws them from the beginning, for other batches. Children of a loader with
persistent_workers are seeded in their first epoch only. With num_workers = 0 a restart repeats the draws
exactly, if each step calls `mpips.torch.generators.reseed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, IterDataPipe

from mpips.errors import ConfigError
from mpips.torch.generators import CHILDREN_TAG, mix
from mpips.torch.order import WorkerBatches, nested, source_of
from mpips.torch.streams import ChildSteps, Numbered, WorkerStream

# Arguments that the DataLoader of a worker has in common with the script's; in_order: from torch 2.6.
_SAME = (
    "dataset",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


def split(loader: DataLoader[Any], worker: int, n_workers: int, seed: int) -> PreparedLoader:
    """Return a loader of the batches of one worker. Not collective; does not block or draw numbers.

    Args:
        loader: The loader of the plain script; the same on all workers. It stays as it is.
        worker: Rank among the workers, 0 to n_workers - 1.
        n_workers: Number of workers.
        seed: Seed of the run, the same on all workers.

    Raises:
        ConfigError: The loader cannot be split; the message gives the reason and the remedy.
    """
    check_loader(loader)
    if isinstance(loader.dataset, IterableDataset):
        return PreparedStream(loader, worker, n_workers, seed)
    prepared = PreparedLoader(loader, worker, n_workers, seed)
    if len(prepared) == 0 and len(loader) > 0:
        raise ConfigError(
            f"drop_last = True drops all {len(cast(Sized, loader.sampler))} samples: a step of {n_workers} "
            f"workers takes {loader.batch_size} x {n_workers}; use a smaller batch_size or drop_last = False"
        )
    return prepared


class PreparedLoader:
    """An iterable of one worker's batches, in place of the script's DataLoader.

    The n-th call of `iter` begins epoch n, counted from 0, even if the loop before it was left by `break`.
    The newer one of two iterators defines `epoch`, `batch` and `position`. With persistent_workers the older
    one cannot be used any more. With in_order=False torch yields batches in the order in which children
    finish them, so a resumed epoch can repeat or omit batches.

    Attributes that this class does not have are those of the script's DataLoader (batch_size, dataset,
    sampler ...).
    """

    __slots__ = (
        "__weakref__",
        "_batch",
        "_begun",
        "_epoch",
        "_inner",
        "_n_workers",
        "_own",
        "_resumed",
        "_script",
        "_seeds",
    )

    def __init__(self, loader: DataLoader[Any], worker: int, n_workers: int, seed: int) -> None:
        self._script = loader
        self._n_workers = n_workers
        self._own: Any
        self._inner: DataLoader[Any]
        self._divide(worker, seed)
        self._seeds = (seed, self._seed_of_children(worker))
        self._begun = 0  # number of calls of iter
        self._epoch = 0
        self._batch = 0
        self._resumed = (0, 0)

    def _divide(self, worker: int, seed: int) -> None:
        """Make the batches of this worker, and its DataLoader."""
        self._own = WorkerBatches(self._script, worker, self._n_workers, seed)
        same = {name: getattr(self._script, name) for name in _SAME if hasattr(self._script, name)}
        self._inner = DataLoader(batch_sampler=self._own, generator=torch.Generator(), **same)

    @staticmethod
    def _seed_of_children(worker: int) -> int:
        """Return what distinguishes the random numbers of a worker's children from those of others."""
        return worker

    @property
    def epoch(self) -> int:
        """Number of the current epoch, from 0: that of the newest iterator."""
        return self._epoch

    @property
    def batch(self) -> int:
        """Number of batches of this epoch that were yielded, including those before `resume`."""
        return self._batch

    @property
    def n_workers(self) -> int:
        """Number of workers that share the samples."""
        return self._n_workers

    @property
    def has_length(self) -> bool:
        """True: `len` is known before the end of the epoch."""
        return True

    @property
    def n_undivided(self) -> int:
        """Length of the script's DataLoader, which has the samples of all workers."""
        return len(self._script)

    @property
    def n_begun(self) -> int:
        """Number of epochs that have begun: calls of `iter`, and those that `seek` passed over."""
        return self._begun

    def seek(self, n_begun: int) -> None:
        """Let the next call of `iter` begin epoch `n_begun`. Call it after `resume`, if at all."""
        self._begun, self._epoch, self._batch = n_begun, max(n_begun - 1, 0), 0

    @property
    def first(self) -> int:
        """Number of batches of the current epoch that a restart has passed over."""
        return self._own.start[1] if self._own.start[0] == self._epoch else 0

    def n_samples(self, first: int, last: int) -> int:
        """Return this worker's samples in batches `first` to `last` - 1 of the epoch; 0: unknown."""
        n: int = self._own.n_samples(first, last)
        return n

    def count_used(self, batch: int) -> None:
        """Let `batch` be the number of batches of this epoch that count as yielded, after reading ahead."""
        self._batch = batch

    def position(self) -> dict[str, int]:
        """Return {"epoch": e, "batch": k} after k batches of epoch e were yielded, for `resume`.

        Batches that children have loaded in advance do not count. While the epochs before the position of
        `resume` pass, this is that position. Not collective; does not block.
        """
        epoch, batch = max(self._resumed, (self._epoch, self._batch))
        return {"epoch": epoch, "batch": batch}

    def resume(self, position: Mapping[str, int]) -> None:
        """Begin at a position, before the first iteration. Not collective; does not block.

        Epochs before it yield nothing. Its epoch begins behind its first batches, and yields nothing if these
        are all. Later epochs are whole. `len` is always the length of a whole epoch. The StopIteration of an
        epoch that yields nothing has a message, for scripts that call `next` themselves.

        Args:
            position: The value of `position` on this worker, in a run with equally many workers, the same
                seed and the same loader.

        Raises:
            ConfigError: Iteration has begun, or no epoch of this loader has such a position.
        """
        if self._begun:
            raise ConfigError("the loader's iteration has begun: call resume before the first loop")
        valid = position.keys() == {"epoch", "batch"} and all(
            type(number) is int and number >= 0 for number in position.values()
        )
        if not valid or position["batch"] > len(self):
            raise ConfigError(
                f"position {dict(position)} of a loader: must have epoch, 0 or more, and batch, 0 to "
                f"{len(self)}; use the data, the batch size and the number of workers with which it was saved"
            )
        self._resumed = (position["epoch"], position["batch"])

    def __len__(self) -> int:
        """Return the number of steps of a whole epoch; equal on all workers."""
        return len(self._own)

    def __iter__(self) -> Iterator[Any]:
        epoch, (resumed, done) = self._begun, self._resumed
        first = done if epoch == resumed else 0
        n_steps = self._own.n_steps(epoch)
        is_complete = epoch < resumed or (first >= n_steps and (first > 0 or len(self) > 0))
        batches: Iterator[Any] = _CompleteEpoch(epoch)
        if not is_complete:
            self._own.start = (epoch, first)
            batches = _EpochBatches(self, self._begin(epoch), epoch, first)
        self._begun += 1
        self._epoch, self._batch = epoch, first
        return batches

    def _begin(self, epoch: int) -> Iterator[Any]:
        """Begin an epoch of this worker's DataLoader."""
        cast(torch.Generator, self._inner.generator).manual_seed(
            mix(CHILDREN_TAG, self._seeds[0], epoch, self._seeds[1])
        )
        # torch draws a seed from this generator into a tensor of the default device, which a script may
        # have set to an accelerator.
        with torch.device("cpu"):
            return iter(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self._script, name)


class PreparedStream(PreparedLoader):
    """An iterable of one worker's batches of an IterableDataset; see mpips.torch.streams.

    `len` is that of the dataset, if it has one, divided among the workers: an estimate where several children
    end with incomplete batches, as in plain torch.
    """

    def _divide(self, worker: int, seed: int) -> None:
        script = self._script
        self._own = WorkerStream(script, worker, self._n_workers, seed)
        same = {name: getattr(script, name) for name in _SAME if hasattr(script, name)}
        same.update(dataset=self._own, collate_fn=Numbered(same["collate_fn"]))
        self._inner = DataLoader(batch_size=script.batch_size, generator=torch.Generator(), **same)
        self._begins = (0,) * max(script.num_workers, 1)
        self._resumed_steps = self._begins  # of each child
        self._children = ChildSteps(self._begins, 0)

    @staticmethod
    def _seed_of_children(worker: int) -> int:
        # The children of all workers must read the same stream, also one that uses their seed.
        return 0

    @property
    def has_length(self) -> bool:
        """True if the dataset has a length."""
        try:
            len(cast(Sized, self._script.dataset))
        except TypeError:
            return False  # also where `__len__` exists, as in a pipe of torch
        return True

    @property
    def first(self) -> int:
        """Number of batches of the current epoch that a restart has passed over."""
        return self._resumed[1] if self._resumed[0] == self._epoch else 0

    def n_samples(self, first: int, last: int) -> int:
        """Return this worker's samples in batches `first` to `last` - 1, if all are whole."""
        return (last - first) * (self._own.batch_size or 1)

    def __len__(self) -> int:
        """Return the number of steps of a whole epoch.

        Raises:
            TypeError: The dataset has no length.
        """
        length, per_step = len(cast(Sized, self._script.dataset)), self._own.per_step
        return int(length // per_step if self._script.drop_last else -(-length // per_step))

    def count_used(self, batch: int) -> None:
        """Let `batch` be the number of batches of this epoch that count as yielded, after reading ahead."""
        super().count_used(batch)
        self._children.use(batch)

    def position(self) -> dict[str, Any]:
        """Return the place as that of a PreparedLoader, with the steps in the stream of each child."""
        self._children.use(self._batch)
        is_before = (self._epoch, self._batch) < self._resumed
        steps = self._resumed_steps if is_before else self._children.steps
        return {**super().position(), "children": list(steps)}

    def resume(self, position: Mapping[str, Any]) -> None:
        """Begin at a position, before the first iteration. Not collective; does not block.

        Args:
            position: The value of `position` on this worker, in a run with equally many workers, the same
                seed and the same loader.

        Raises:
            ConfigError: Iteration has begun, or the position is of a loader with other children.
        """
        if self._begun:
            raise ConfigError("the loader's iteration has begun: call resume before the first loop")
        self._resumed_steps = self._steps_of(position)
        self._resumed = (position["epoch"], position["batch"])

    def note_digest(self, epoch: int, child: int, step: int, digest: int) -> None:
        """Receive the digest of the samples of all workers up to a step, from 1, in the stream of a child."""

    def note_end(self, epoch: int, n_batches: int) -> None:
        """Note that the streams of an epoch have ended after some batches of this worker."""

    def _steps_of(self, position: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the steps of each child at a position; {}: at the beginning of the run.

        Raises:
            ConfigError: It is of a loader with another number of children, or of indices.
        """
        if position and "children" not in position:
            raise ConfigError(
                "the checkpoint is of a loader whose dataset has indices, and this one has an "
                "IterableDataset: use the same script, or resume='never'"
            )
        steps = tuple(position.get("children", self._begins))
        if len(steps) != len(self._begins):
            raise ConfigError(
                f"the checkpoint is of a loader whose stream {len(steps)} children read, and num_workers = "
                f"{self._script.num_workers} now: each child reads a stream of its own, so use the same "
                "num_workers as before, or resume='never'"
            )
        return steps

    def __iter__(self) -> Iterator[Any]:
        epoch, (resumed, done) = self._begun, self._resumed
        is_resumed = epoch == resumed
        first = done if is_resumed else 0
        self._children = ChildSteps(self._resumed_steps if is_resumed else self._begins, first)
        batches: Iterator[Any] = _CompleteEpoch(epoch)
        if epoch >= resumed:
            # Children receive both when they start; those that stay count epochs themselves.
            self._own.epoch = epoch
            self._own.dropped = self._resumed_steps if is_resumed else self._begins
            batches = _StreamBatches(self, self._begin(epoch), epoch, first)
        self._begun += 1
        self._epoch, self._batch = epoch, first
        return batches


class _CompleteEpoch(Iterator[Any]):
    """An epoch that was complete before the restart."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def __next__(self) -> Any:
        # A for loop drops the message; Python prints it where `next` of a script raises.
        raise StopIteration(
            f"epoch {self._epoch} of the loader was complete before the restart and yields no batches: call "
            "iter(loader) again for the next epoch, until one yields a batch, or loop over the loader by for"
        )


class _EpochBatches(Iterator[Any]):
    """The batches of one epoch; counts those that it yields.

    `first` is the number of batches of the epoch that come before.
    """

    def __init__(
        self, loader: PreparedLoader, batches: Iterator[Any], epoch: int, first: int
    ) -> None:
        self._loader = loader
        self._batches = batches
        self._epoch = epoch
        self._count = first

    def __next__(self) -> Any:
        newest = self._epoch == self._loader._epoch
        if not newest and self._loader._inner.persistent_workers:
            raise ConfigError(
                "two iterators of one loader with persistent_workers = True share their children: "
                "finish one before the next, or use persistent_workers = False"
            )
        batch = self._read()
        self._count += 1
        if newest:
            self._loader._batch = self._count
        return batch

    def _read(self) -> Any:
        """Return the next batch of the DataLoader."""
        return next(self._batches)


class _StreamBatches(_EpochBatches):
    """The batches of one epoch of a stream. Those before `first` are read once more, and dropped."""

    def __init__(
        self, loader: PreparedStream, batches: Iterator[Any], epoch: int, first: int
    ) -> None:
        super().__init__(loader, batches, epoch, first)
        self._stream = loader
        self._n_dropped = first

    def _read(self) -> Any:
        while self._n_dropped:
            child, digest, _ = next(self._batches)
            if digest is not None:
                self._stream.note_digest(self._epoch, child, *digest)
            self._n_dropped -= 1
        try:
            child, digest, batch = next(self._batches)
        except StopIteration:
            self._stream.note_end(self._epoch, self._count)
            raise
        if digest is not None:
            self._stream.note_digest(self._epoch, child, *digest)
        if self._epoch == self._stream._epoch:
            self._stream._children.read(child)
        return batch


def check_loader(loader: DataLoader[Any]) -> None:
    """Raise ConfigError for a loader that cannot be split."""
    cls = type(loader)
    name = f"{cls.__module__}.{cls.__qualname__}"
    if not isinstance(loader, DataLoader):
        hint = ""
        if isinstance(loader, torch.optim.Optimizer):
            hint = "; prepare takes one optimizer: prepare each module that has its own by itself"
        raise ConfigError(f"loader of class {name}: must be a torch.utils.data.DataLoader{hint}")
    if cls.__iter__ is not DataLoader.__iter__ or cls._get_iterator is not DataLoader._get_iterator:
        raise ConfigError(
            f"loader of class {name}: its own iteration cannot be split; use torch.utils.data.DataLoader"
        )
    if isinstance(loader.dataset, IterDataPipe) and loader.num_workers > 0:
        raise ConfigError(
            f"dataset of class {type(loader.dataset).__qualname__} is an IterDataPipe, which divides itself "
            "among the children of a loader: use num_workers = 0, or an IterableDataset"
        )
    if isinstance(loader.dataset, IterableDataset):
        return
    if loader.batch_size is None and loader.batch_sampler is None:
        raise ConfigError(
            "batch_size = None: must be 1 or more, or give the loader a batch_sampler"
        )
    source = source_of(loader)
    if any(isinstance(part, DistributedSampler) for part in nested(source)):
        raise ConfigError(
            "sampler = DistributedSampler: pass an ordinary sampler; prepare splits it"
        )
    try:
        len(cast(Sized, source))
    except (TypeError, NotImplementedError):
        raise ConfigError(
            f"sampler of class {type(source).__qualname__} has no length: define __len__, so that all "
            "workers make equally many steps"
        ) from None
