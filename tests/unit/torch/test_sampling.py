"""A DataLoader divided among workers: which samples, and in which order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from loader_rig import SEED, Numbers, as_list, epochs, flat, loader_of, steps, workers_of
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from mpips.errors import ConfigError
from mpips.torch.sampling import PreparedLoader, split


def states() -> list[Any]:
    name, keys, *rest = np.random.get_state()
    return [torch.get_rng_state().tolist(), random.getstate(), name, keys.tolist(), rest]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("n", [1, 11, 12, 13])
def test_one_worker_sees_the_batches_of_the_plain_loader(n: int, drop_last: bool) -> None:
    plain = loader_of(n, 3, drop_last=drop_last)
    prepared = split(plain, 0, 1, SEED)
    assert epochs(prepared, 2) == [list(plain)] * 2
    assert len(prepared) == len(plain)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("n_workers", [2, 3, 4, 6])
def test_workers_together_see_what_one_process_with_their_batches_sees(
    n_workers: int, shuffle: bool
) -> None:
    many = workers_of(n_workers, n=36 + 12, batch_size=12 // n_workers, shuffle=shuffle)
    one = workers_of(1, n=36 + 12, batch_size=12, shuffle=shuffle)
    for _ in range(3):
        assert steps(many) == steps(one)


def test_an_epoch_has_every_sample_and_epochs_differ() -> None:
    (loader,) = workers_of(1, n=50, shuffle=True)
    first, second = (flat(epoch) for epoch in epochs(loader, 2))
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    (other,) = workers_of(1, seed=SEED + 1, n=50, shuffle=True)
    assert flat(other) != first


def test_a_loader_that_seeks_an_epoch_is_at_its_beginning() -> None:
    (first, *_), (second, *_) = (workers_of(2, n=8, shuffle=True) for _ in range(2))
    expected = epochs(first, 3)[-1]
    second.seek(2)
    assert second.position() == {"epoch": 1, "batch": 0}
    assert epochs(second, 1) == [expected]


def test_an_incomplete_step_is_divided_and_completed_from_the_beginning() -> None:
    # 17 = 12 + 5: the last step has 5 samples and one repeated for 3 workers.
    loaders = workers_of(3, n=17, batch_size=4)
    assert [list(one)[-1] for one in loaders] == [[12, 13], [14, 15], [16, 0]]
    assert [len(one) for one in loaders] == [2, 2, 2]


def test_a_step_with_fewer_samples_than_workers_repeats_them() -> None:
    loaders = workers_of(5, n=2, batch_size=4)
    assert [list(one) for one in loaders] == [[[0]], [[1]], [[0]], [[1]], [[0]]]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("n", range(12, 40, 5))
def test_workers_make_equal_steps_of_equal_batches(n: int, shuffle: bool) -> None:
    for drop_last in (False, True):
        loaders = workers_of(3, n=n, batch_size=4, shuffle=shuffle, drop_last=drop_last)
        sizes = [[len(batch) for batch in one] for one in loaders]
        assert sizes[0] == sizes[1] == sizes[2]
        assert len(sizes[0]) == len(loaders[0]) == (n // 12 if drop_last else -(-n // 12))
    seen = flat(steps(workers_of(3, n=n, batch_size=4, shuffle=shuffle)))
    assert set(seen) == set(range(n))
    assert len(seen) - n < 3


def test_drop_last_that_drops_everything_is_refused() -> None:
    with pytest.raises(ConfigError, match="drops all 11 samples: a step of 3 workers takes 4 x 3"):
        workers_of(3, n=11, batch_size=4, drop_last=True)


def test_drawing_leaves_the_states_of_all_generators() -> None:
    own = torch.Generator().manual_seed(3)
    before, own_before = states(), own.get_state().tolist()
    for options in ({"shuffle": True}, {"shuffle": True, "generator": own}):
        (loader,) = workers_of(1, n=20, **options)
        epochs(loader, 2)
    assert states() == before
    assert own.get_state().tolist() == own_before


@pytest.mark.parametrize("make", [lambda seed: None, torch.Generator().manual_seed])
def test_the_order_does_not_depend_on_states_or_other_epochs(make: Any) -> None:
    (loader,) = workers_of(1, n=20, shuffle=True, generator=make(1))
    whole = epochs(loader, 4)
    torch.manual_seed(99)
    (other,) = workers_of(1, n=20, shuffle=True, generator=make(2))
    other.resume({"epoch": 3, "batch": 0})
    assert epochs(other, 4)[3] == whole[3]


class Drawing:
    """A sampler with a generator of its own that it does not seed again."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[int]:
        kind = type(self.generator)
        draw = self.generator.randrange if kind is random.Random else self.generator.integers
        return iter([int(draw(1000)) for _ in range(20)])


class Unseeded:
    """A sampler that draws from the default generators."""

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[int]:
        for _ in range(10):
            yield random.randrange(1000)
            yield int(np.random.randint(1000))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Drawing(np.random.default_rng()),
        lambda: Drawing(random.Random()),
        Unseeded,
        lambda: RandomSampler(range(1000), replacement=True, num_samples=20),
        lambda: SubsetRandomSampler(range(20), generator=torch.Generator()),
        lambda: WeightedRandomSampler([1.0] * 100, 20, generator=torch.Generator()),
    ],
    ids=["numpy", "python", "default", "replacement", "subset", "weighted"],
)
def test_any_random_sampler_is_reproducible(make: Any) -> None:
    many = [split(loader_of(1000, 5, sampler=make()), w, 2, SEED) for w in range(2)]
    one = split(loader_of(1000, 10, sampler=make()), 0, 1, SEED)
    first, second = steps(many), steps(many)
    assert first == list(one)
    assert second == list(one)
    assert first != second


def test_a_sampler_receives_the_epoch() -> None:
    class Rotating(SequentialSampler):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            return iter([self.epoch] * len(self))

    loader = split(loader_of(4, 2, sampler=Rotating(range(4))), 0, 1, SEED)
    loader.resume({"epoch": 1, "batch": 0})
    assert epochs(loader, 3) == [[], [[1, 1], [1, 1]], [[2, 2], [2, 2]]]


def batches_of(n: int, n_workers: int, **options: Any) -> list[PreparedLoader]:
    def make() -> DataLoader[Any]:
        sampler = RandomSampler(range(n)) if options.get("shuffle") else SequentialSampler(range(n))
        batches = BatchSampler(sampler, 2, drop_last=False)
        return DataLoader(Numbers(n), batch_sampler=batches, collate_fn=as_list)

    return [split(make(), w, n_workers, SEED) for w in range(n_workers)]


def test_batches_of_a_batch_sampler_are_dealt_in_turn() -> None:
    loaders = batches_of(9, 2)
    assert [list(one) for one in loaders] == [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [0, 1]]]
    assert [len(one) for one in loaders] == [3, 3]
    assert [list(one) for one in batches_of(3, 5)] == [[[0, 1]], [[2]], [[0, 1]], [[2]], [[0, 1]]]


def test_a_batch_sampler_can_draw_and_resume() -> None:
    whole = [epochs(one, 3) for one in batches_of(20, 2, shuffle=True)]
    seen = [flat(one[epoch]) for one in whole for epoch in range(3)]
    assert sorted(seen[0] + seen[3]) == list(range(20))
    assert seen[0] != seen[1]
    for worker, loader in enumerate(batches_of(20, 2, shuffle=True)):
        loader.resume({"epoch": 1, "batch": 2})
        assert epochs(loader, 3) == [[], whole[worker][1][2:], whole[worker][2]]


def test_a_batch_sampler_can_yield_one_list_again_and_again() -> None:
    class Reusing:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[list[int]]:
            batch = [0]
            for i in range(3):
                batch[0] = i
                yield batch

    loader = DataLoader(Numbers(3), batch_sampler=Reusing(), collate_fn=as_list)
    assert list(split(loader, 0, 1, SEED)) == [[0], [1], [2]]
