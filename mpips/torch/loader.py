"""The loader of a torch script in its job: the clock of a step ends before the next batch is read.

`StartingLoader` is what `prepare` and `prepare_loader` return: mpips.torch.sampling divides the data, and
here are the start of the job and the place of a restart. `lookahead` reads batches in advance and uses them
one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset

from mpips.errors import ConfigError
from mpips.torch.generators import AHEAD_TAG, seeded
from mpips.torch.job import TorchJob
from mpips.torch.order import earlier_share
from mpips.torch.sampling import PreparedLoader, PreparedStream, split
from mpips.torch.skips import BatchClocks
from mpips.torch.stage_cut import Stages, n_stages_of
from mpips.torch.streams import earlier_stream
from mpips.worker.ahead.lookahead import Keys
from mpips.worker.ahead.lookahead import lookahead as rows_ahead

Batch = TypeVar("Batch")
_END: Any = object()


class StartingLoader(PreparedLoader):
    """A prepared loader whose first iteration starts the job: a restart continues at a place in the data.

    Attributes:
        came_first: True if `prepare_loader` made it, so that schedulers could be made from its length.
    """

    __slots__ = ("_job", "came_first")

    def __init__(
        self, loader: DataLoader[Any], job: TorchJob, seed: int, came_first: bool = False
    ) -> None:
        """Split `loader` for this worker.

        Raises:
            ConfigError: The loader cannot be split; see `split`.
        """
        part, n_parts = job.pipeline, job.n_pipelines
        split(loader, part, n_parts, seed)
        super().__init__(loader, part, n_parts, seed)
        self._job = job
        self.came_first = came_first

    def is_in(self, job: TorchJob) -> bool:
        """Return True if it was prepared for this job."""
        return self._job is job

    def divides(self, loader: object) -> bool:
        """Return True if it divides this DataLoader."""
        return self._script is loader

    @property
    def has_arrived(self) -> bool:
        """True from the beginning of the epoch of the restart on."""
        begins = self._resumed == (0, 0) and not self._own.earlier
        return begins or (self._begun > 0 and self._epoch >= self._resumed[0])

    def position(self) -> dict[str, Any]:
        """Return the place after the batches that were yielded, with the samples of a step.

        It has what earlier jobs have read, as long as that is of an epoch that has not passed.
        """
        at = super().position()
        earlier = [share for share in self._own.earlier if share.has_read(at["epoch"])]
        found: dict[str, Any] = {**at, "per_step": self._own.per_step, "steps": len(self)}
        return {**found, "earlier": [list(share) for share in earlier]} if earlier else found

    def n_left(self, epoch: int) -> int:
        """Return the number of batches of the epoch of the restart that were left."""
        done = self._resumed[1] if epoch == self._resumed[0] else 0
        return int(self._own.n_steps(epoch)) - done

    def resume_among(self, own: Mapping[str, Any], everyone: Sequence[Mapping[str, Any]]) -> None:
        """Continue where the workers of a run stood.

        If their number or the number of samples of a step differs, this job divides what they have left of
        the epoch; see mpips.torch.order.

        Args:
            own: Position of this worker, or of any if their number differs.
            everyone: Positions of all workers of the run; {}: at its beginning.
        """
        size = own["per_step"]
        same = size == self._own.per_step and len(everyone) == self._job.n_pipelines
        places = [(p.get("epoch", 0), p.get("batch", 0)) for p in everyone]
        epoch, batch = (own["epoch"], own["batch"]) if same else min(places)
        first = own if same else everyone[places.index((epoch, batch))]
        earlier = [earlier_share(*share) for share in first.get("earlier", ())]
        if not same:
            together = len(set(places)) == 1
            done, rest = divmod(batch * size, self._own.per_step)
            # Whole steps of this job keep their numbers.
            if together and not rest and not earlier and batch < own["steps"]:
                batch = done
            else:
                earlier.append(earlier_share(size, places[:1] if together else places))
                batch = 0
        self._own.earlier = tuple(earlier)
        self.resume({"epoch": epoch, "batch": batch})

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch. The first call is collective over all ranks and blocks: it starts the job.

        Rows of layers that find their keys in batches come in advance; see mpips.torch.NgramEmbedding.
        """
        batches, worker = self.reading(), self._job.start()
        depths = [(layer, layer.depth(worker)) for layer in self._job.announced]
        layers, depth = [layer for layer, n in depths if n], max([n for _, n in depths], default=0)
        if not depth:
            return _SettlingBatches(self._job, self, batches)

        def keys(batch: Any) -> dict[str, Any]:
            return {name: k for one in layers for name, k in one.keys_of_batch(batch).items()}

        return _ahead(self._job, self, batches, keys, depth)

    def seeded_reading(self, number: int) -> AbstractContextManager[None]:
        """Return a block that reads batch `number` of the epoch, from 1, before the step before it.

        Numbers that the dataset draws from the default generators depend on the batch. A restart repeats
        them, though it reads other batches between two steps.
        """
        if self._script.num_workers:
            return nullcontext()  # children have generators of their own
        job = self._job
        return seeded(AHEAD_TAG, job.script.seed, job.pipeline, self.epoch, number)

    def reading(self) -> Iterator[Any]:
        """Begin an epoch, as `iter` does. The caller ends the clocks of the batches that it uses."""
        self._job.start()
        self._job.settle()
        batches = super().__iter__()
        self._job.arrive()
        if (self._epoch, 0) >= self._resumed and self._batch == 0:
            self._job.begin_epoch(self)
        return batches


class StartingStream(StartingLoader, PreparedStream):
    """A prepared loader of an IterableDataset whose first iteration starts the job."""

    def n_left(self, epoch: int) -> int:
        """Return an estimate of the number of batches of the epoch of the restart that were left."""
        return max(len(self) - (self._resumed[1] if epoch == self._resumed[0] else 0), 0)

    def position(self) -> dict[str, Any]:
        """Return the place after the batches that were yielded, as that of a StartingLoader."""
        at = PreparedStream.position(self)
        earlier = [share for share in self._own.earlier if share.has_read(at["epoch"])]
        found: dict[str, Any] = {**at, "per_step": self._own.per_step}
        return {**found, "earlier": [list(share) for share in earlier]} if earlier else found

    def note_digest(self, epoch: int, child: int, step: int, digest: int) -> None:
        """Let the scheduler compare the digests of all workers."""
        children = f" in child {child}" if self._script.num_workers > 1 else ""
        steps = "the first step" if step == 1 else f"the first {step} steps"
        place = f"the samples of {steps} of epoch {epoch}{self._number()}{children}"
        self._job.script.compare_samples(place, digest)

    def note_end(self, epoch: int, n_batches: int) -> None:
        """Let the scheduler compare the numbers of batches of all workers."""
        place = f"the numbers of batches of epoch {epoch}{self._number()}"
        self._job.script.compare_samples(place, n_batches)

    def _number(self) -> str:
        """Return the number of the loader, for errors, where the script has several."""
        loaders = self._job.loaders
        return f" of loader {loaders.index(self)}" if len(loaders) > 1 else ""

    def resume_among(self, own: Mapping[str, Any], everyone: Sequence[Mapping[str, Any]]) -> None:
        """Continue where the workers of a run stood, as a StartingLoader does."""
        size = own["per_step"]
        same = size == self._own.per_step and len(everyone) == self._job.n_pipelines
        places = [(p.get("epoch", 0), self._steps_of(p)) for p in everyone]
        at = own if same else min(everyone, key=lambda p: (p.get("epoch", 0), p.get("batch", 0)))
        earlier = [earlier_stream(*share) for share in at.get("earlier", ())]
        if not same:
            earlier.append(earlier_stream(size, places))
            at = {"epoch": min(places)[0], "batch": 0, "children": self._begins}
        self._own.earlier = tuple(earlier)
        self.resume(at)


class _SettlingBatches(Iterator[Any]):
    """The batches of one epoch. The clock of a step ends before the next batch."""

    def __init__(self, job: TorchJob, loader: StartingLoader, batches: Iterator[Any]) -> None:
        self._job = job
        self._batches = batches
        self._clocks = BatchClocks(job.skips)
        self._checks = StepChecks(job, loader)

    def __next__(self) -> Any:
        if self._clocks.next():
            self._checks.between()
        self._job.settle()
        try:
            return next(self._batches)
        except StopIteration:
            self._clocks.end()
            raise


class StepChecks:
    """The checks between two batches of a pass: of schedulers, and of states of the script."""

    def __init__(self, job: TorchJob, loader: StartingLoader) -> None:
        """Begin a pass, when the loader has arrived at its place."""
        self._job = job
        self._steps = job.steps
        self._schedules = job.schedules.watch(loader)

    def between(self) -> None:
        """Check what the script did with the newest batch."""
        # Behind a batch without a step (in an evaluation, or of accumulated gradients) nothing is late: a
        # scheduler, or a state, may be changed after the end of the clock of the last step.
        before, self._steps = self._steps, self._job.steps
        if self._steps != before:
            self._job.warn_of_late_changes()
        if self._schedules is not None and not self._schedules.next():
            self._schedules = None


def prepare_loader(loader: DataLoader[Any], *, stages: Stages | None = None) -> StartingLoader:
    """Divide a DataLoader among the workers, before `prepare`. Not collective; does not block.

    `len` of the result is the number of batches, and so of steps, of each worker in an epoch: make
    learning-rate schedulers from it, then call `prepare` with them, which needs no `loader` then.

    Args:
        loader: See `prepare`. Prepare loaders of training data only: with a divided one, each worker
            validates on a part of the samples.
        stages: The argument `stages` of `prepare`: the loader is then divided among the pipelines, and all
            workers of a pipeline have the same batches. None: the model is not divided.

    Returns:
        The loader, as `prepare` returns it.

    Raises:
        ConfigError: The loader is not accepted, or has been prepared; `mpips.init` has not been called; or
            the job has started.
    """
    job = TorchJob.of_script("mpips.torch.prepare_loader")
    job.check_time("mpips.torch.prepare_loader", "; prepare all loaders before it")
    if stages is not None:
        job.divide(n_stages_of(stages))
    made = divided(job, loader, came_first=True)
    job.add_loader(made)
    return made


def divided(job: TorchJob, loader: Any, came_first: bool) -> StartingLoader:
    """Return the prepared loader of a DataLoader, or of one that `prepare_loader` returned.

    Args:
        job: The script's job.
        loader: The loader.
        came_first: See StartingLoader.

    Raises:
        ConfigError: The loader cannot be split, or has been prepared.
    """
    if isinstance(loader, StartingLoader) and loader.is_in(job) and not came_first:
        return loader
    known = [one for one in job.loaders if isinstance(one, StartingLoader)]
    is_same = any(one.came_first and one.divides(loader) for one in known)
    if isinstance(loader, StartingLoader) or is_same:
        raise ConfigError(
            "the loader has been prepared already: call mpips.torch.prepare_loader once for each loader, and "
            "use what it returns"
        )
    is_stream = isinstance(getattr(loader, "dataset", None), IterableDataset)
    made = StartingStream if is_stream else StartingLoader
    return made(loader, job, job.script.seed, came_first)


def lookahead(loader: Iterable[Batch], *, keys: Keys, depth: int = 8) -> Iterator[Batch]:
    """Yield the batches of a loader; fetch the rows of the next one meanwhile. See mpips.lookahead.

    Use it in place of the loader: `for x, y in mpips.torch.lookahead(loader, keys=lambda batch: batch[0])`.
    Layers mpips.torch.Embedding then find their rows in this process. Under BSP training has the same bits.
    The first call is collective over all ranks and blocks: it starts the job. A restart continues behind the
    last batch that was used, not behind the last one that was read. A prepared loader without children reads
    each batch with random numbers of its own.

    Args:
        loader: The prepared loader, or any iterable of batches.
        keys: Called once with each batch, when it is read. Returns a dict from names of embedding tables to
            int64 ids of any shape, or these ids if the job has one embedding table. Ids on a device are
            copied to the host, for which the call waits.
        depth: Batches that are known in advance, 1 or more.

    Raises:
        ConfigError: As mpips.lookahead, or `mpips.init` has not been called.
    """
    job = TorchJob.of_script("mpips.torch.lookahead")
    job.start()
    return _ahead(job, loader, None, keys, depth)


def _ahead(
    job: TorchJob, loader: Iterable[Batch], read: Iterator[Batch] | None, keys: Keys, depth: int
) -> Iterator[Batch]:
    """Yield the batches of a loader with a look-ahead.

    Args:
        job: The script's job, which has started.
        loader: The prepared loader, or any iterable of batches.
        read: Its iterator; None: the first batch begins one.
        keys: As of `lookahead`.
        depth: Batches that are known in advance, 1 or more.
    """

    def counted() -> Iterator[tuple[int, Batch]]:
        batches = read
        if batches is None:
            batches = loader.reading() if isinstance(loader, StartingLoader) else iter(loader)
        if not isinstance(loader, StartingLoader):
            for batch in batches:
                yield (loader.batch if isinstance(loader, PreparedLoader) else 0), batch
            return
        # Each read batch counts as yielded until `count_used`.
        for number in itertools.count(loader.batch + 1):
            with loader.seeded_reading(number):
                batch = next(batches, _END)
            if batch is _END:
                return
            yield number, batch

    ahead: Any = rows_ahead(
        counted(),
        keys=lambda numbered: _on_host(keys(numbered[1])),
        worker=job.start(),
        depth=depth,
    )
    return _settled(job, loader, ahead)


def _on_host(keys: Any) -> Any:
    """Return keys, or a dict of keys, with those that are tensors on the CPU."""
    if isinstance(keys, Mapping):
        return {name: _on_host(part) for name, part in keys.items()}
    return keys.cpu() if isinstance(keys, torch.Tensor) else keys


def _settled(job: TorchJob, loader: Any, ahead: Iterator[tuple[int, Batch]]) -> Iterator[Batch]:
    """Yield batches; end the clock of each step before its successor's rows are asked for."""
    clocks = BatchClocks(job.skips) if isinstance(loader, PreparedLoader) else None
    checks: StepChecks | None = None
    while True:
        if clocks is not None and clocks.next() and checks is not None:
            checks.between()
        job.settle()
        numbered = next(ahead, None)
        if numbered is None:
            return
        if checks is None and isinstance(loader, StartingLoader):
            checks = StepChecks(job, loader)
        if isinstance(loader, PreparedLoader):
            # The cursor of the next clock has the batches that were used, not those that were read.
            loader.count_used(numbered[0])
        yield numbered[1]
