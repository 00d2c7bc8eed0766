"""The moments of the training data of all workers, combined along the tree of the workers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mpips.data import Dataset, Moments
from mpips.data.stream import StreamedData
from mpips.training.halving import sum_by_key

if TYPE_CHECKING:
    from mpips.worker.collectives import AnyArray, Collectives


def moments_of(data: Dataset | StreamedData, targets: bool = False) -> Moments:
    """Return the moments of one worker's samples, in one pass over them. Not collective.

    Args:
        data: The samples.
        targets: Their labels also have moments; see `Moments.of`.
    """
    if not isinstance(data, StreamedData):
        return Moments.of(data, targets)
    total: Moments | None = None
    for part in data.parts():
        found = Moments.of(part, targets)
        total = found if total is None else Moments.combine([total, found])
    return total if total is not None else Moments.of(data.read(np.zeros(0, np.int64))[0], targets)


def combine_moments(collectives: Collectives, local: Moments, name: str = "moments") -> Moments:
    """Combine the moments of all workers; of hashed keys, only those in this worker's data. Collective.

    The moments of two workers at a time are combined along the tree, so a worker needs memory for a few,
    whatever the number of workers.

    Args:
        collectives: Gathers and reductions of this worker.
        local: Moments of this worker's samples.
        name: Name of the exchange.
    """
    if local.targets is not None:
        numbers = combine_moments(collectives, local.targets, f"{name} of targets")
        features = combine_moments(collectives, replace(local, targets=None), name)
        return replace(features, targets=numbers)
    if not local.n_features:
        count = collectives.reduce(f"{name}: samples", np.array([local.count]))
        assert count is not None
        sums = sum_by_key(collectives, name, local.keys, local.present.astype(np.int64))
        columns = local.columns
        if columns is not None:
            columns = combine_moments(collectives, columns, f"{name} of columns")
        return replace(local, count=int(count[0]), present=sums.astype(np.float64), columns=columns)
    whole = collectives.reduce(name, _pack_moments(local), _combine_two)
    assert whole is not None
    return _unpack_moments(whole)


def _combine_two(low: AnyArray, high: AnyArray) -> AnyArray:
    return _pack_moments(Moments.combine([_unpack_moments(low), _unpack_moments(high)]))


def _pack_moments(m: Moments) -> AnyArray:
    """Return the moments of features as float64 values; the number of samples is exact below 2**53."""
    return np.concatenate([[float(m.count)], m.present, m.mean, m.squares])


def _unpack_moments(array: AnyArray) -> Moments:
    """Return the moments that `_pack_moments` packed."""
    present, mean, squares = array[1:].reshape(3, -1)
    return Moments(int(array[0]), present, mean, squares)
