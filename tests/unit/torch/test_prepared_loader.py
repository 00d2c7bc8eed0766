"""A divided DataLoader as an iterator: its position, its children, its options, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from loader_rig import SEED, Numbers, as_list, epochs, loader_of, workers_of
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    TensorDataset,
)

from mpips.errors import ConfigError
from mpips.torch.sampling import PreparedLoader, split


class Draws(Dataset[Any]):
    """Sample i is i and a random number of each kind."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> list[float]:
        return [i, torch.rand(1).item(), random.random(), np.random.rand()]


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


@pytest.mark.parametrize(
    ("position", "n_complete"),
    [((2, 3), 2), ((1, 4), 2), ((0, 4), 1), ((1, 0), 1), ((0, 0), 0), ((0, 3), 0)],
)
def test_a_bare_next_says_that_an_epoch_was_complete_and_is_silent_at_another_end(
    position: tuple[int, int], n_complete: int
) -> None:
    (loader,) = workers_of(1, n=12)
    loader.resume(dict(zip(("epoch", "batch"), position, strict=True)))
    for epoch in range(n_complete):
        batches = iter(loader)
        for _ in range(2):
            with pytest.raises(
                StopIteration,
                match=f"^epoch {epoch} of the loader was complete before the restart and yields no batches: "
                r"call iter\(loader\) again for the next epoch, until one yields a batch, or loop",
            ):
                next(batches)
    batches = iter(loader)
    assert next(batches)
    assert list(batches) in ([], [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(1, 4)])
    with pytest.raises(StopIteration) as ended:
        next(batches)
    assert ended.value.value is None


def test_a_loader_without_samples_ends_without_a_message() -> None:
    with pytest.raises(StopIteration) as ended:
        next(iter(workers_of(1, n=0)[0]))
    assert ended.value.value is None


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


class OwnLoader(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([1])


class Unsized:
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


@pytest.mark.parametrize(
    ("make", "message"),
    [
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
