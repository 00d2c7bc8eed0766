"""Loaders of torch whose samples are numbers, divided among workers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from torch.utils.data import DataLoader, Dataset

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
