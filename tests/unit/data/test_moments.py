"""Means and deviations of features over the shares of all workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpips.data import (
    DenseData,
    Moments,
    ReadOptions,
    SparseData,
)

HASH = ReadOptions(categorical=("C*",))


def moments_of(x: np.ndarray[Any, Any], *, as_sparse: bool, n_workers: int = 3) -> Moments:
    parts = []
    for own in (x[w::n_workers].astype(np.float32) for w in range(n_workers)):
        rows, columns = np.nonzero(own)
        labels = np.zeros(len(own))
        indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=len(own)))))
        entries = SparseData(indptr, columns, own[rows, columns], labels, x.shape[1])
        parts.append(Moments.of(entries if as_sparse else DenseData(own, labels)))
    return Moments.combine(parts)


@pytest.mark.parametrize("as_sparse", [False, True])
def test_moments_of_shares_give_mean_and_deviation_of_all(as_sparse: bool) -> None:
    x = np.random.default_rng(5).normal(3, 2, (5000, 4)).astype(np.float32)
    x[:, 1] = 0
    x[:, 2] = 7.3
    x[::2, 3] = 0
    moments = moments_of(x, as_sparse=as_sparse)
    mean, scale = moments.standardise()
    wide = x.astype(np.float64)
    np.testing.assert_allclose(mean, wide.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(scale[[0, 3]], 1 / wide.std(axis=0)[[0, 3]], rtol=1e-9)
    assert scale[[1, 2]].tolist() == [0, 0]
    assert moments.count == 5000


def test_sparse_scale_leaves_absent_entries_and_flags_alone() -> None:
    x = np.zeros((8, 4))
    x[:4, 0] = 1
    x[:, 1] = np.arange(8) + 100
    x[1::2, 2] = [3, 3, 4, 4]
    shift, scale = moments_of(x, as_sparse=True).standardise_present()
    np.testing.assert_allclose(shift, [0, 103.5, 0, 0])
    np.testing.assert_allclose(scale, [1, 1 / np.arange(8).std(), 12.5**-0.5, 1])


def test_moments_are_not_taken_of_hashed_keys() -> None:
    empty = np.zeros(0, dtype=np.int64)
    data = SparseData(np.zeros(1, np.int64), empty, np.zeros(0, np.float32), empty, 1 << 62)
    assert Moments.of(data).n_features == 0


@pytest.mark.parametrize("as_sparse", [False, True])
@pytest.mark.parametrize("offset", [1e4, 1e7, -3e6])
def test_a_small_deviation_beside_a_large_mean_is_kept(offset: float, as_sparse: bool) -> None:
    steps = np.random.default_rng(1).integers(0, 8, (3000, 1))
    x = np.concatenate([offset + steps, np.full((3000, 1), offset)], axis=1).astype(np.float32)
    moments = moments_of(x, as_sparse=as_sparse)
    assert moments.constant().tolist() == [False, True]
    mean, scale = moments.standardise()
    wide = x[:, 0].astype(np.float64)
    assert mean[0] == pytest.approx(wide.mean(), rel=1e-15)
    assert scale[0] == pytest.approx(1 / wide.std(), rel=1e-12)


def test_a_share_without_samples_changes_nothing() -> None:
    data = DenseData(np.array([[1.0], [3.0]], np.float32), np.zeros(2))
    nothing = DenseData(np.zeros((0, 1), np.float32), np.zeros(0))
    for parts in ([data, nothing], [nothing, data]):
        moments = Moments.combine([Moments.of(part) for part in parts])
        assert moments.standardise() == (np.array([2.0]), np.array([1.0]))
