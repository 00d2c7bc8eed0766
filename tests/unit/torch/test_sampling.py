"""A DataLoader divided among workers: which samples, in which order, and from which position."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from mpips.errors import ConfigError
from mpips.torch.sampling import PreparedLoader, split

SEED = 7


class Numbers(Dataset[int]):
    """Sample i is i; counts what is read in this process."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.n_read = 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        self.n_read += 1
        return i


class Draws(Dataset[Any]):
    """Sample i is i and a random number of each kind."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> list[float]:
        return [i, torch.rand(1).item(), random.random(), np.random.rand()]


def as_list(batch: Any) -> Any:
    return batch


def loader_of(n: int, batch_size: int | None = 3, **options: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(n), batch_size, collate_fn=as_list, **options)


def workers_of(n_workers: int, seed: int = SEED, **options: Any) -> list[PreparedLoader]:
    """One prepared loader per worker, each from a loader of its own as in its own process."""
    return [split(loader_of(**options), w, n_workers, seed) for w in range(n_workers)]


def flat(batches: Iterable[Any]) -> list[Any]:
    return list(chain.from_iterable(batches))


def epochs(loader: PreparedLoader, n: int) -> list[list[Any]]:
    return [list(loader) for _ in range(n)]


def steps(loaders: list[PreparedLoader]) -> list[list[Any]]:
    """Per step of one epoch, the samples of all workers in the order of workers."""
    return [flat(pieces) for pieces in zip(*(list(one) for one in loaders), strict=True)]


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


@pytest.mark.parametrize("n_children", [0, 2])
def test_position_counts_yielded_batches_and_resumes_there(n_children: int) -> None:
    def make() -> PreparedLoader:
        plain = loader_of(40, 2, shuffle=True, num_workers=n_children)
        return split(plain, 1, 2, SEED)

    loader = make()
    assert loader.position() == {"epoch": 0, "batch": 0}
    whole, positions = [], []
    for _ in range(2):
        whole.append([])
        for batch in loader:
            whole[-1].append(batch)
            positions.append(loader.position())
            assert (loader.epoch, loader.batch) == (len(whole) - 1, len(whole[-1]))
    assert positions == [{"epoch": e, "batch": k} for e in (0, 1) for k in range(1, 11)]

    for position in [positions[0], positions[9], positions[14], positions[19]]:
        resumed = make()
        resumed.resume(position)
        assert resumed.position() == position
        assert len(resumed) == 10
        epoch, done = position["epoch"], position["batch"]
        expected = [[], whole[1]] if epoch else whole
        expected = [e[done:] if i == epoch else e for i, e in enumerate(expected)]
        assert epochs(resumed, 2) == expected
        assert resumed.position() == positions[19]


def test_a_skipped_epoch_keeps_the_position_and_reads_nothing() -> None:
    plain = loader_of(12)
    loader = split(plain, 0, 1, SEED)
    loader.resume({"epoch": 2, "batch": 3})
    for epoch in range(2):
        assert list(loader) == []
        assert loader.epoch == epoch
        assert loader.position() == {"epoch": 2, "batch": 3}
    batches = iter(loader)
    assert (loader.epoch, loader.batch) == (2, 3)
    assert next(batches) == [9, 10, 11]
    assert plain.dataset.n_read == 3
    assert loader.position() == {"epoch": 2, "batch": 4}


def test_leaving_a_loop_ends_its_epoch() -> None:
    (loader,) = workers_of(1, n=20, shuffle=True)
    (other,) = workers_of(1, n=20, shuffle=True)
    expected = epochs(other, 2)
    for batch in loader:
        assert batch == expected[0][0]
        break
    assert loader.position() == {"epoch": 0, "batch": 1}
    assert list(loader) == expected[1]


def test_the_newest_of_two_iterators_defines_the_position() -> None:
    (loader,) = workers_of(1, n=20, shuffle=True)
    (other,) = workers_of(1, n=20, shuffle=True)
    expected = epochs(other, 2)
    old, new = iter(loader), iter(loader)
    assert [next(old), next(old)] == expected[0][:2]
    assert loader.position() == {"epoch": 1, "batch": 0}
    assert next(new) == expected[1][0]
    assert next(old) == expected[0][2]
    assert loader.position() == {"epoch": 1, "batch": 1}


def test_resume_refuses_wrong_positions_and_times() -> None:
    (loader,) = workers_of(1, n=12)
    for wrong in [{"epoch": 0}, {"epoch": -1, "batch": 0}, {"epoch": 0, "batch": 1.5}]:
        with pytest.raises(ConfigError, match="must have epoch, 0 or more, and batch, 0 to 4"):
            loader.resume(wrong)
    with pytest.raises(ConfigError, match="batch, 0 to 4"):
        loader.resume({"epoch": 0, "batch": 5})
    iter(loader)
    with pytest.raises(ConfigError, match="iteration has begun"):
        loader.resume({"epoch": 0, "batch": 1})


def draws(worker: int, seed: int = SEED, skipped: int = 0, **options: Any) -> list[list[Any]]:
    """Batches of epoch 1."""
    loader = split(
        DataLoader(Draws(), 3, collate_fn=as_list, num_workers=2, **options), worker, 2, seed
    )
    if skipped:
        loader.resume({"epoch": skipped, "batch": 0})
    return epochs(loader, 2)[1]


def test_children_draw_by_seed_epoch_and_worker() -> None:
    # A random state of the parent and of the script's generator must not matter.
    base = draws(0)
    torch.manual_seed(5)
    assert draws(0, skipped=1, generator=torch.Generator().manual_seed(5)) == base

    def random_numbers(batches: list[list[Any]]) -> set[float]:
        return {number for batch in batches for sample in batch for number in sample[1:]}

    assert len(random_numbers(base)) == 18
    assert not random_numbers(base) & random_numbers(draws(1))
    assert not random_numbers(base) & random_numbers(draws(0, seed=8))


def test_spawned_children_read_the_same_batches() -> None:
    data = TensorDataset(torch.arange(20))

    def found(**options: Any) -> list[Any]:
        loader = split(DataLoader(data, 2, shuffle=True, **options), 0, 2, SEED)
        loader.resume({"epoch": 0, "batch": 2})
        return [batch[0].tolist() for batch in loader]

    assert len(found()) == 3
    assert found(num_workers=1, multiprocessing_context="spawn") == found()


def test_persistent_children_read_all_epochs() -> None:
    (loader,) = workers_of(1, n=20, shuffle=True, num_workers=1, persistent_workers=True)
    (other,) = workers_of(1, n=20, shuffle=True)
    expected = epochs(other, 3)
    old = iter(loader)
    assert next(old) == expected[0][0]
    assert epochs(loader, 2) == expected[1:]
    assert loader.position() == {"epoch": 2, "batch": 7}
    with pytest.raises(ConfigError, match=r"two iterators .* persistent_workers"):
        next(old)


def test_all_other_options_remain() -> None:
    plain = loader_of(
        12,
        shuffle=True,
        num_workers=2,
        timeout=30,
        worker_init_fn=print,
        multiprocessing_context="fork",
        prefetch_factor=3,
        persistent_workers=True,
        in_order=False,
    )
    inner = split(plain, 0, 2, SEED)._inner
    names = ["dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn"]
    names += ["multiprocessing_context", "prefetch_factor", "persistent_workers", "in_order"]
    for name in names:
        assert getattr(inner, name) is getattr(plain, name), name


def test_other_attributes_are_those_of_the_loader() -> None:
    plain = loader_of(12, 3, shuffle=True)
    loader = split(plain, 0, 2, SEED)
    assert loader.dataset is plain.dataset
    assert loader.batch_size == 3
    assert loader.sampler is plain.sampler
    with pytest.raises(AttributeError, match="no_such"):
        loader.no_such  # noqa: B018
    with pytest.raises(AttributeError, match="collate_fn"):
        loader.collate_fn = list  # type: ignore[attr-defined]


def test_an_error_of_the_dataset_does_not_end_the_epoch() -> None:
    def refuse_odd(batch: list[int]) -> list[int]:
        if batch == [1]:
            raise ValueError("odd")
        return batch

    batches = iter(split(DataLoader(Numbers(3), collate_fn=refuse_odd), 0, 1, SEED))
    assert next(batches) == [0]
    with pytest.raises(ValueError, match="odd"):
        next(batches)
    assert next(batches) == [2]


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class OwnLoader(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([1])


class Unsized:
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: DataLoader(Endless()),
            r"Endless is an IterableDataset.*split it by mpips.rank\(\)",
        ),
        (lambda: DataLoader(Numbers(5), batch_size=None), "batch_size = None: must be 1 or more"),
        (
            lambda: DataLoader(Numbers(5), sampler=DistributedSampler(Numbers(5), 2, 0)),
            "DistributedSampler: pass an ordinary sampler; prepare splits it",
        ),
        (
            lambda: DataLoader(
                Numbers(5),
                batch_sampler=BatchSampler(DistributedSampler(Numbers(5), 2, 0), 2, False),
            ),
            "DistributedSampler: pass an ordinary sampler; prepare splits it",
        ),
        (lambda: DataLoader(Numbers(5), sampler=Unsized()), "Unsized has no length"),
        (lambda: DataLoader(Numbers(5), batch_sampler=Unsized()), "Unsized has no length"),
        (lambda: OwnLoader(Numbers(5)), "OwnLoader: its own iteration cannot be split"),
        (lambda: [1, 2], "builtins.list: must be a torch.utils.data.DataLoader"),
    ],
)
def test_a_loader_that_cannot_be_split_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        split(make(), 0, 2, SEED)


def test_a_subclass_with_torch_iteration_is_split() -> None:
    class Named(DataLoader[Any]):
        title = "numbers"

    loader = split(Named(Numbers(5), 5, collate_fn=as_list), 0, 1, SEED)
    assert list(loader) == [[0, 1, 2, 3, 4]]
    assert loader.title == "numbers"
