"""An IterableDataset, divided among workers: each sample once, equal steps, restarts, random orders."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from loader_rig import SEED, as_list, flat
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, get_worker_info
from torch_rig import torch_job

import mpips.torch
from mpips.errors import ConfigError
from mpips.scheduler.sample_digests import SampleDigests
from mpips.torch.loader import StartingStream
from mpips.torch.sampling import PreparedStream, split
from mpips.torch.schedules import Schedules
from mpips.torch.skips import Skips


class Numbers(IterableDataset[int]):
    """The numbers 0 to n - 1, in order; n = None: without an end."""

    def __init__(self, n: int | None) -> None:
        self.n = n
        self.n_read = 0

    def __iter__(self) -> Iterator[int]:
        i = 0
        while self.n is None or i < self.n:
            self.n_read += 1
            yield i
            i += 1


class Parts(Numbers):
    """Divides itself among the children of a loader: child 0 has most samples."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        child, n = (info.id, info.num_workers) if info is not None else (0, 1)
        yield from (i for i in super().__iter__() if (i % (n + 1)) % n == child)


class Batched(Numbers):
    """A stream that makes batches itself, as those of webdataset do."""

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for i in super().__iter__():
            batch.append(i)
            if len(batch) == 4:
                yield batch
                batch = []


class Stage:
    """A stage of a pipeline, with a generator of its own: shuffles within a buffer, as webdataset does."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw
        self.rng = random.Random(3)
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __call__(self, samples: Iterator[int]) -> Iterator[int]:
        buffer: list[int] = []
        for sample in samples:
            buffer.append(sample)
            if len(buffer) == 10:
                yield buffer.pop(int((self.draw() + self.rng.random()) * 5))
        yield from buffer


class Pipeline(IterableDataset[int]):
    """A dataset of stages."""

    def __init__(self, n: int, draw: Callable[[], float]) -> None:
        self.stages = [Numbers(n), Stage(draw)]

    def __iter__(self) -> Iterator[int]:
        source, shuffled = self.stages
        return iter(shuffled(iter(source)))


def loader_of(dataset: IterableDataset[Any], size: int | None = 3, **options: Any) -> Any:
    return DataLoader(dataset, size, collate_fn=as_list, **options)


def workers_of(n_workers: int, make: Callable[[], Any]) -> list[PreparedStream]:
    """One prepared loader per worker, each of a loader of its own as in its own process."""
    return [split(make(), w, n_workers, SEED) for w in range(n_workers)]


def steps(loaders: list[PreparedStream]) -> list[list[Any]]:
    """Per step of an epoch, the batches of all workers."""
    return [list(pieces) for pieces in zip(*(list(one) for one in loaders), strict=True)]


@pytest.mark.parametrize("n", [0, 1, 2, 5, 11, 12, 23])
@pytest.mark.parametrize(("n_workers", "size"), [(1, 3), (2, 1), (3, 2), (4, 3)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_step_takes_what_one_process_takes_with_the_joined_batch(
    n: int, n_workers: int, size: int, drop_last: bool
) -> None:
    found = steps(workers_of(n_workers, lambda: loader_of(Numbers(n), size, drop_last=drop_last)))
    joined = size * n_workers
    expected = list(loader_of(Numbers(n), joined, drop_last=drop_last))
    assert len(found) == len(expected)
    for batches, whole in zip(found, expected, strict=True):
        # All workers have equally many; those of the beginning complete them.
        assert {len(batch) for batch in batches} == {-(-len(whole) // n_workers)}
        missing = -len(whole) % n_workers
        beginning = [i % n for i in range(missing)]
        assert Counter(flat(batches)) == Counter([*whole, *beginning])
        assert batches[0][0] == whole[0]


@pytest.mark.parametrize("n_workers", [1, 3])
def test_batches_of_a_stream_that_makes_them_are_divided(n_workers: int) -> None:
    found = steps(workers_of(n_workers, lambda: loader_of(Batched(28), None)))
    whole = list(loader_of(Batched(28), None))
    assert len(whole) == 7
    padded = whole if n_workers == 1 else [*whole, whole[0], whole[1]]
    assert flat(found) == padded


def test_an_endless_stream_is_read_as_far_as_its_batches() -> None:
    for worker, loader in enumerate(workers_of(2, lambda: loader_of(Numbers(None), 3))):
        batches = iter(loader)
        assert [next(batches) for _ in range(2)] == [
            [worker, 2 + worker, 4 + worker],
            [6 + worker, 8 + worker, 10 + worker],
        ]
        assert loader.dataset.n_read == 12
        assert loader.position() == {"epoch": 0, "batch": 2, "children": [2]}
        assert not loader.has_length
        with pytest.raises(TypeError, match="no len"):
            len(loader)


class Sized(Numbers):
    def __len__(self) -> int:
        assert self.n is not None
        return self.n


def test_the_length_is_that_of_the_dataset_divided() -> None:
    for n, drop_last, expected in ((23, False, 4), (23, True, 3), (24, False, 4)):
        (loader, _) = workers_of(2, lambda n=n, d=drop_last: loader_of(Sized(n), drop_last=d))
        assert loader.has_length
        assert len(loader) == len(list(loader)) == expected


@pytest.mark.parametrize("stays", [False, True])
def test_children_divide_their_parts_as_those_of_one_process_and_resume_there(
    stays: bool,
) -> None:
    def make(size: int = 2) -> Any:
        return loader_of(Parts(41), size, num_workers=2, persistent_workers=stays)

    whole = list(make(4))
    loaders = workers_of(2, make)
    found = [[], []]
    for loader, own in zip(loaders, found, strict=True):
        for _ in range(2):
            positions = []
            batches = []
            for batch in loader:
                batches.append(batch)
                positions.append(loader.position())
            own.append(batches)
    for epoch in range(2):
        pairs = list(zip(found[0][epoch], found[1][epoch], strict=True))
        assert len(pairs) == len(whole)
        for pair, joined in zip(pairs, whole, strict=True):
            assert set(flat(pair)) == set(joined) | (set(flat(pair)) & {0, 1})
    # Child 1 ends early; the rest comes from child 0, in the same order.
    assert positions[-1] == {"epoch": 1, "batch": len(whole), "children": [7, 4]}
    at = positions[3]
    assert at["children"] == [2, 2]
    resumed = split(make(), 1, 2, SEED)
    resumed.resume(positions[8])
    assert resumed.position() == positions[8]
    assert list(resumed) == []  # the complete epoch
    batches = iter(resumed)
    assert resumed.position() == positions[8]
    assert list(batches) == found[1][1][9:]
    assert resumed.position() == positions[-1]
    assert list(resumed) == found[1][0]


DRAWS: list[Callable[[], float]] = [random.random, np.random.rand, lambda: torch.rand(1).item()]


@pytest.mark.parametrize("draw", DRAWS)
def test_a_random_order_is_that_of_seed_and_epoch_on_all_workers(draw: Any) -> None:
    loaders = workers_of(2, lambda: loader_of(Pipeline(60, draw)))
    orders: list[list[Any]] = []
    for worker, loader in enumerate(loaders):
        epochs = []
        for _ in range(2):
            batches = []
            # The generators of the training step are others on each worker, and stay as they are.
            torch.manual_seed(worker)
            random.seed(worker)
            np.random.seed(worker)
            before = draw()
            torch.manual_seed(worker)
            random.seed(worker)
            np.random.seed(worker)
            for batch in loader:
                batches.append(batch)
                if len(batches) == 4:
                    assert draw() == before
            epochs.append(batches)
        orders.append(epochs)
        assert loader.dataset.stages[1].epochs == [0, 1]
    for epoch in range(2):
        assert sorted(flat(flat(own[epoch] for own in orders))) == list(range(60))
    first, second = (flat(orders[0][epoch]) for epoch in range(2))
    assert first != sorted(first)
    assert first != second
    # A restart draws the second epoch without the first one.
    resumed = split(loader_of(Pipeline(60, draw)), 0, 2, SEED)
    resumed.resume({"epoch": 1, "batch": 4, "children": [4]})
    assert list(resumed) == []
    assert list(resumed) == orders[0][1][4:]


def test_what_a_restart_drops_is_not_put_together() -> None:
    collated = []

    def collate(samples: list[int]) -> list[int]:
        collated.append(samples)
        return samples

    loader = split(DataLoader(Numbers(20), 3, collate_fn=collate), 1, 2, SEED)
    loader.resume({"epoch": 0, "batch": 2, "children": [2]})
    assert list(loader) == collated == [[13, 15, 17], [19]]


class Job:
    """The workers of one job, each with a loader of the same stream."""

    def __init__(
        self,
        n_workers: int,
        before: Job | None = None,
        size: int = 2,
        dataset: Any = None,
        **options: Any,
    ) -> None:
        self.read: list[tuple[int, int]] = []
        self.loaders = []
        names = ("start", "settle", "arrive", "begin_epoch", "warn_of_late_changes")
        for rank in range(n_workers):
            script = SimpleNamespace(
                rank=rank, n_workers=n_workers, compare_samples=lambda *note: None
            )
            job: Any = SimpleNamespace(
                script=script,
                steps=0,
                loaders=[],
                announced=[],
                pipeline=rank,
                n_pipelines=n_workers,
                **dict.fromkeys(names, lambda *arguments: None),
            )
            job.skips, job.schedules = Skips(job), Schedules(warns=False)
            plain = loader_of(dataset or Parts(75), size, **options)
            self.loaders.append(StartingStream(plain, job, SEED))
        if before is not None:
            everyone = [one.position() for one in before.loaders]
            same = len(everyone) == n_workers
            behind = min(everyone, key=lambda p: (p["epoch"], p["batch"]))
            for rank, loader in enumerate(self.loaders):
                loader.resume_among(everyone[rank] if same else behind, everyone)

    def run(self, n_batches: list[int | None], n_epochs: int) -> None:
        """Let each worker read so many batches, or (None) to the end of the epochs."""
        for loader, n in zip(self.loaders, n_batches, strict=True):
            while loader.n_begun < n_epochs:
                for batch in loader:
                    self.read += [(loader.epoch, sample) for sample in batch]
                    n = n if n is None else n - 1
                    if n == 0:
                        break
                if n == 0:
                    break


@pytest.mark.parametrize("n_children", [0, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("places", "n_after", "size"),
    [([5, 5], 3, 2), ([5, 9, 2], 2, 2), ([3, 1], 2, 3), ([21, 4], 1, 4), ([25, 22], 3, 2)],
)
def test_other_workers_divide_what_is_left_of_the_stream(
    places: list[Any], n_after: int, size: int, n_children: int
) -> None:
    before = Job(len(places), num_workers=n_children)
    before.run(places, 3)
    between = Job(n_after, before, size, num_workers=n_children)
    between.run([2] * n_after, 3)
    after = Job(4, between, num_workers=n_children)
    after.run([None] * 4, 3)
    found = Counter([*before.read, *between.read, *after.read])
    once = Counter((epoch, sample) for epoch in range(3) for sample in range(75))
    assert found.keys() == once.keys()
    repeated = Counter(epoch for epoch, _ in (found - once).elements())
    assert all(n <= 3 * max(n_children, 1) * 2 for n in repeated.values())


@pytest.mark.parametrize("n", [*range(12, 25, 3), 17])
@pytest.mark.parametrize("places", [[1, 1], [2, 2], [1, 2], [3, 3], [2, None], [None, None]])
def test_other_workers_train_no_samples_that_drop_last_has_dropped(
    n: int, places: list[int | None]
) -> None:
    before = Job(2, size=3, drop_last=True, dataset=Numbers(n))
    before.run(places, 1)
    after = Job(1, before, size=2, drop_last=True, dataset=Numbers(n))
    after.run([None], 1)
    found = Counter([*before.read, *after.read])
    assert max(found.values()) == 1
    n_steps = n // 6
    if all(k is None or k >= n_steps for k in places):
        # The epoch had ended.
        assert sorted(sample for _, sample in found) == list(range(6 * n_steps))
    else:
        assert len(found) == len(before.read) + (n - len(before.read)) // 2 * 2


def test_a_stream_trains_in_a_job_and_continues_in_the_middle_of_an_epoch() -> None:
    def train(n_steps: int) -> tuple[dict[str, Any], list[float]]:
        torch.manual_seed(1)
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = mpips.torch.prepare_loader(DataLoader(Numbers(30), 4))
        model, optimizer = mpips.torch.prepare(model, optimizer)
        read = []
        for batch in (batch for _ in range(3) for batch in loader):
            optimizer.zero_grad()
            model(batch.float()[:, None] / 30).sum().backward()
            optimizer.step()
            read.append(batch.tolist())
            if len(read) == n_steps:
                break
        mpips.torch.steps()
        return loader.position(), read

    with torch_job():
        position, read = train(11)
    assert position == {"epoch": 1, "batch": 3, "children": [3], "per_step": 4}
    assert read[8:] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize("depth", [1, 4])
def test_batches_that_are_read_ahead_do_not_count(depth: int) -> None:
    with torch_job() as script:
        model = mpips.torch.Embedding(2, optimizer=mpips.SGD(0.1))
        loader = mpips.torch.prepare_loader(DataLoader(Parts(40), 4, num_workers=2))
        model, _ = mpips.torch.prepare(model)
        ahead = mpips.torch.lookahead(loader, keys=lambda batch: batch, depth=depth)
        for n, batch in enumerate(ahead, start=1):
            model(batch)
            at = loader.position()
            assert at["batch"] == sum(at["children"]) == n
        assert script.worker is not None


def test_positions_of_other_loaders_are_refused() -> None:
    loader = split(loader_of(Numbers(9)), 0, 1, SEED)
    with pytest.raises(ConfigError, match=r"2 children read, and num_workers = 0 now"):
        loader.resume({"epoch": 0, "batch": 1, "children": [1, 0]})
    with pytest.raises(ConfigError, match="whose dataset has indices"):
        loader.resume({"epoch": 0, "batch": 1})
    next(iter(loader))
    with pytest.raises(ConfigError, match="iteration has begun"):
        loader.resume({"epoch": 0, "batch": 1, "children": [1]})


def test_a_data_pipe_with_children_is_refused() -> None:
    class Pipe(IterDataPipe[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(6))

    with pytest.raises(ConfigError, match="IterDataPipe, which divides itself"):
        split(DataLoader(Pipe(), 2, num_workers=1), 0, 2, SEED)
    assert flat(split(loader_of(Pipe(), 2), 1, 2, SEED)) == [1, 3, 5]


class Seeded(IterableDataset[int]):
    """An order by the seed of the child, as torch documents it; `begin` is set by `worker_init_fn`."""

    begin = 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        order = list(range(self.begin, 12))
        random.Random(info.seed).shuffle(order)
        yield from order


def begin_at_two(child: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.begin = info.dataset.begin + 2 + child


def test_children_of_all_workers_have_one_seed_and_the_dataset_of_the_script() -> None:
    found = []
    for worker in range(2):
        loader = DataLoader(Seeded(), batch_size=2, num_workers=1, worker_init_fn=begin_at_two)
        found += [int(x) for batch in split(loader, worker, 2, SEED) for x in batch]
    assert sorted(found) == list(range(2, 12))


def test_a_pipe_of_torch_has_no_length() -> None:
    class Pipe(IterDataPipe[int]):
        def __iter__(self) -> Iterator[int]:
            yield from range(3)

    assert not split(DataLoader(Pipe(), batch_size=1), 0, 1, SEED).has_length


class Reused(IterableDataset[torch.Tensor]):
    """Yields one tensor again and again, with other numbers."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        buffer = torch.empty(1)
        for i in range(11):
            yield buffer.fill_(i)


@pytest.mark.parametrize(
    ("size", "drop_last", "expected"),
    [
        (None, False, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0]),
        (1, False, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0]),
        (1, True, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_a_stream_may_write_a_sample_again_when_it_yields_the_next_one(
    size: int | None, drop_last: bool, expected: list[int]
) -> None:
    options = {"drop_last": drop_last} if size is not None else {}
    loaders = workers_of(3, lambda: DataLoader(Reused(), size, **options))
    found = [[int(batch) for batch in loader] for loader in loaders]
    assert [i for step in zip(*found, strict=True) for i in step] == expected


def test_a_worker_does_not_wait_for_the_batches_of_others() -> None:
    for worker, loader in enumerate(workers_of(3, lambda: loader_of(Batched(None), None))):
        batches = iter(loader)
        assert next(batches) == [4 * worker + i for i in range(4)]
        assert loader.dataset.n_read == 4 * (worker + 1)


class Drawing(IterableDataset[Any]):
    """Numbers in an order of a generator, which `draws` makes at the beginning of each epoch."""

    def __init__(self, draws: Callable[[], Any]) -> None:
        self.draws = draws

    def __iter__(self) -> Iterator[Any]:
        order = list(range(40))
        self.draws().shuffle(order)
        yield from ({"number": torch.tensor(i), "text": {str(i), "a", "b"}} for i in order)


def digests_of(
    make: Callable[[], Any], n_workers: int = 2, n_epochs: int = 2
) -> list[list[tuple[int, int, int, int]]]:
    """Return the digests that each worker passes on: epoch, child, step and digest."""
    every = []
    for loader in workers_of(n_workers, make):
        found: list[tuple[int, int, int, int]] = []
        loader.note_digest = lambda *note, found=found: found.append(note)  # type: ignore[method-assign]
        for _ in range(n_epochs):
            list(loader)
        every.append(found)
    return every


@pytest.mark.parametrize("n_children", [0, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("size", [None, 1, 2])
def test_digests_are_equal_where_streams_are(size: int | None, n_children: int) -> None:
    one, other = digests_of(
        lambda: loader_of(Drawing(lambda: random), size, num_workers=n_children)
    )
    places = [(e, c, s) for e in range(2) for s in (1, 8) for c in range(max(n_children, 1))]
    assert sorted(note[:3] for note in one) == sorted(places)
    assert one == other
    assert len({note[3] for note in one if note[1] == 0}) == 4


@pytest.mark.parametrize("size", [None, 1, 2])
def test_digests_differ_where_workers_draw_other_orders(size: int | None) -> None:
    seeds = iter(range(2))

    def make() -> Any:
        own = random.Random(next(seeds))
        return loader_of(Drawing(lambda: own), size)

    one, other = digests_of(make, n_epochs=1)
    assert [note[:3] for note in one] == [note[:3] for note in other] == [(0, 0, 1), (0, 0, 8)]
    assert all(a[3] != b[3] for a, b in zip(one, other, strict=True))


def test_a_stream_that_ends_early_has_another_digest() -> None:
    short, long = (
        digests_of(lambda n=n: loader_of(Numbers(n), 2), n_epochs=1)[0] for n in (13, 40)
    )
    assert [note[:3] for note in short] == [note[:3] for note in long] == [(0, 0, 1), (0, 0, 8)]
    assert short[0] == long[0]
    assert short[1] != long[1]


def test_one_worker_makes_no_digests() -> None:
    assert digests_of(lambda: loader_of(Numbers(40)), n_workers=1) == [[]]


def test_a_job_compares_the_samples_of_its_streams() -> None:
    found: list[tuple[str, int]] = []
    loader = Job(2).loaders[1]
    loader._job.loaders = [object(), loader]  # type: ignore[list-item]
    loader._job.script.compare_samples = lambda *note: found.append(note)
    list(loader)
    assert [place for place, _ in found] == [
        "the samples of the first step of epoch 0 of loader 1",
        "the samples of the first 8 steps of epoch 0 of loader 1",
        "the numbers of batches of epoch 0 of loader 1",
    ]
    assert found[-1][1] == 19


def test_the_scheduler_names_workers_that_read_different_streams() -> None:
    digests = SampleDigests(3)
    for worker, place, digest in [(0, "a", 4), (1, "a", 4), (0, "b", 8), (2, "a", 4), (2, "b", 8)]:
        digests.note(worker, place, digest)
    with pytest.raises(
        ConfigError, match=r"^workers 0, 2 and worker 1 read different streams: b differ"
    ):
        digests.note(1, "b", 7)
