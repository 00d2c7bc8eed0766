"""A prepared loader continues with other workers: what they have left of an epoch is divided without loss."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

from loader_rig import SEED, flat, loader_of

from mpips.torch.loader import StartingLoader
from mpips.torch.schedules import Schedules
from mpips.torch.skips import Skips


class Job:
    """The workers of one job, each with a loader of the same samples."""

    def __init__(self, n_workers: int, before: Job | None = None, **options: Any) -> None:
        def nothing(*arguments: Any) -> None:
            pass

        self.loaders = []
        for rank in range(n_workers):
            script = SimpleNamespace(rank=rank, n_workers=n_workers)
            names = ("start", "settle", "arrive", "begin_epoch", "warn_of_late_changes")
            job: Any = SimpleNamespace(
                script=script,
                steps=0,
                announced=[],
                pipeline=rank,
                n_pipelines=n_workers,
                **dict.fromkeys(names, nothing),
            )
            job.skips, job.schedules = Skips(job), Schedules(warns=False)
            self.loaders.append(StartingLoader(loader_of(**options), job, SEED))
        self._iterators: list[Any] = [None] * n_workers
        self.read: list[tuple[int, int]] = []
        if before is not None:
            everyone = before.positions()
            for rank, loader in enumerate(self.loaders):
                same = len(everyone) == n_workers
                own = (
                    everyone[rank]
                    if same
                    else min(everyone, key=lambda p: (p["epoch"], p["batch"]))
                )
                loader.resume_among(own, everyone)

    def positions(self) -> list[dict[str, Any]]:
        return [loader.position() for loader in self.loaders]

    def step(self, rank: int) -> None:
        """Read one batch, or begin the next epoch."""
        loader = self.loaders[rank]
        if self._iterators[rank] is None:
            self._iterators[rank] = iter(loader)
        batch = next(self._iterators[rank], None)
        if batch is None:
            self._iterators[rank] = None
        else:
            self.read += [(loader.epoch, sample) for sample in batch]

    def steps(self, each: Sequence[int]) -> None:
        for rank, n in enumerate(each):
            for _ in range(n):
                self.step(rank)

    def finish(self, n_epochs: int) -> None:
        """Read to the end of so many epochs."""
        for rank, loader in enumerate(self.loaders):
            while self._iterators[rank] is not None or loader._begun < n_epochs:
                self.step(rank)


def counts(*jobs: Job) -> Counter[tuple[int, int]]:
    return Counter(flat(job.read for job in jobs))


def each_once(n: int, n_epochs: int) -> Counter[tuple[int, int]]:
    return Counter((epoch, sample) for epoch in range(n_epochs) for sample in range(n))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("places", "n_after", "size"),
    [
        ((3, 3), 3, 4),  # BSP: all at the same place
        ((3, 5), 3, 4),
        ((0, 7, 2), 2, 4),
        ((5, 1, 3), 1, 4),
        ((3, 1), 2, 6),  # as many workers, other batches
        ((14, 9), 4, 3),  # one is in the next epoch
        ((12, 13, 25), 2, 4),  # ends of epochs, and two epochs apart
    ],
)
def test_unequal_places_are_divided_without_loss(places, n_after, size, shuffle):
    n = 96
    before = Job(len(places), n=n, batch_size=4, shuffle=shuffle)
    before.steps(places)
    after = Job(n_after, before, n=n, batch_size=size, shuffle=shuffle)
    after.finish(4)
    # A last step that is not full is completed by samples of the same epoch that are read twice.
    found = counts(before, after)
    assert found.keys() == each_once(n, 4).keys()
    repeated = found - each_once(n, 4)
    per_epoch = Counter(epoch for epoch, _ in repeated.elements())
    assert all(number < n_after for number in per_epoch.values())


@pytest.mark.parametrize(
    ("n", "places", "n_after", "size"),
    [
        (10, (1, 1), 3, 8),
        (10, (1, 0), 1, 8),
        (10, (3, 3), 3, 8),  # in the next epoch
        (5, (1,), 1, 4),
        (1, (1, 0), 3, 8),
    ],
)
def test_an_epoch_of_less_than_one_step_is_divided_too(n, places, n_after, size):
    before = Job(len(places), n=n, batch_size=8, shuffle=True)
    before.steps(places)
    after = Job(n_after, before, n=n, batch_size=size, shuffle=True)
    after.finish(3)
    found = counts(before, after)
    assert found.keys() == each_once(n, 3).keys()
    repeated = found - each_once(n, 3)
    per_epoch = Counter(epoch for epoch, _ in repeated.elements())
    assert all(number < max(n_after, len(places)) for number in per_epoch.values())


def test_all_workers_make_equally_many_steps_of_equal_batches():
    before = Job(2, n=50, batch_size=4, shuffle=True)
    before.steps((1, 4))
    after = Job(3, before, n=50, batch_size=4, shuffle=True)
    batches = [list(loader) for loader in after.loaders]
    assert len({tuple(map(len, own)) for own in batches}) == 1


def test_a_job_that_continued_so_can_be_continued_so_again():
    chance = random.Random(5)
    jobs = [Job(4, n=240, batch_size=2, shuffle=True)]
    for n_workers in (3, 2, 5, 5, 1):
        last = jobs[-1]
        last.steps([chance.randrange(6) for _ in last.loaders])
        jobs.append(Job(n_workers, last, n=240, batch_size=2, shuffle=True))
    jobs[-1].finish(2)
    assert counts(*jobs) == each_once(240, 2)


def test_batches_of_a_batch_sampler_are_divided_too():
    sampler = [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(24)]

    def job(n_workers: int, before: Job | None = None) -> Job:
        return Job(n_workers, before, n=72, batch_size=1, batch_sampler=sampler)

    before = job(2)
    before.steps((5, 2))
    after = job(1, before)
    after.finish(1)
    assert counts(before, after) == each_once(72, 1)


def test_an_epoch_that_all_have_ended_stays_ended_with_what_drop_last_drops():
    before = Job(2, n=50, batch_size=4, drop_last=True)
    before.steps((6, 6))
    after = Job(3, before, n=50, batch_size=4, drop_last=True)
    assert [list(loader) for loader in after.loaders] == [[], [], []]
    assert all(len(list(loader)) == 4 for loader in after.loaders)
