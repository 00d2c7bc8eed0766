"""The rules that divide the samples of a file among workers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from mpips.data import DenseData, Loader, ReadOptions, Sampling, Shape, read
from mpips.data.metrics import EvalShare, merge
from mpips.data.options import Share
from mpips.data.shares import Shares, counts, numbers, owners

RULES: tuple[Shares, ...] = ("interleaved", "mixed")


@pytest.mark.parametrize("shares", RULES)
@pytest.mark.parametrize("n_workers", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [0, 1, 6, 7, 100])
def test_each_sample_has_one_owner_and_blocks_are_spread_evenly(
    n: int, n_workers: int, shares: Shares
) -> None:
    owned = owners(np.arange(n), n_workers, shares)
    parts = [numbers(n, n_workers, w, shares) for w in range(n_workers)]
    assert [part.tolist() for part in parts] == [
        np.flatnonzero(owned == w).tolist() for w in range(n_workers)
    ]
    assert counts(n, n_workers, shares) == tuple(len(part) for part in parts)
    for part in parts:
        # Loaders and metrics need that the j-th sample of a worker is in block j.
        assert (part // n_workers).tolist() == list(range(len(part)))
        flags = [
            kept for _, kept in zip(range(n), Share(n_workers, 0, shares).flags(), strict=False)
        ]
        assert np.flatnonzero(flags).tolist() == parts[0].tolist()


def test_mixed_rule_gives_the_values_that_checkpoints_and_the_parser_rely_on() -> None:
    # SplitMix64 from 0 begins with 0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f.
    turns = [(0xE220A839 * 3) >> 32, (0x6E789E6A * 3) >> 32, (0x06C45D18 * 3) >> 32]
    expected = [(i + turns[i // 3]) % 3 for i in range(9)]
    assert owners(np.arange(9), 3, "mixed").tolist() == expected == [2, 0, 1, 1, 2, 0, 0, 1, 2]


@pytest.mark.parametrize("n_workers", [2, 3, 4])
@pytest.mark.parametrize("period", [1, 2, 3, 8])
def test_a_file_that_repeats_gives_each_worker_all_its_classes(n_workers: int, period: int) -> None:
    n_classes, n = n_workers, 6000
    labels = np.arange(n) // period % n_classes
    for worker in range(n_workers):
        own = labels[numbers(n, n_workers, worker, "mixed")]
        found = np.bincount(own, minlength=n_classes) / len(own)
        # Allow five standard deviations of the share of a random sample.
        room = 5 * math.sqrt(1 / n_classes * (1 - 1 / n_classes) / len(own))
        np.testing.assert_allclose(found, 1 / n_classes, atol=room)


def save(path: Path, n: int) -> np.ndarray:
    y = np.arange(n)
    if path.suffix == ".npz":
        np.savez(path, x=y[:, None], y=y)
    elif path.suffix == ".h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            file["x"], file["y"] = y[:, None].astype(float), y
    else:
        line = "{0} 1:{0}" if path.suffix == ".svm" else "{0},{0}"
        header = "" if path.suffix == ".svm" else "label,a\n"
        path.write_text(header + "".join(line.format(i) + "\n" for i in y))
    return y


@pytest.mark.parametrize("ending", [".svm", ".csv", ".npz", ".h5"])
@pytest.mark.parametrize("shares", RULES)
def test_readers_of_all_formats_keep_the_same_samples(
    tmp_path: Path, ending: str, shares: Shares, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpips.data.arrays.BLOCK_BYTES", 40)
    monkeypatch.setattr("mpips.data.options._CHUNK", 7)
    path = tmp_path / f"data{ending}"
    y = save(path, 41)
    for n_workers in (1, 3, 5):
        for worker in range(n_workers):
            part = read(path, stride=n_workers, offset=worker, shares=shares)
            assert part.data.labels.tolist() == y[numbers(41, n_workers, worker, shares)].tolist()
    for worker in range(3):
        options = ReadOptions(categorical=("a",))
        if ending == ".csv":
            part = read(path, stride=3, offset=worker, options=options, shares=shares)
            assert part.data.labels.tolist() == numbers(41, 3, worker, shares).tolist()


def test_digits_are_divided_by_the_same_rule() -> None:
    whole = read("digits").data
    part = read("digits", stride=3, offset=1, shares="mixed").data
    assert part.labels.tolist() == whole.labels[numbers(whole.n, 3, 1, "mixed")].tolist()


def test_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="'mixd': must be one of interleaved, mixed"):
        Share(2, 0, "mixd")  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [1, 23, 24])
def test_loaders_of_mixed_shares_read_each_sample_once(n: int) -> None:
    for n_workers in (1, 2, 5):
        sampling = Sampling(Shape(n, n_workers, 4, 1, "mixed"))
        seen: list[int] = []
        for worker in range(n_workers):
            own = numbers(n, n_workers, worker, "mixed")
            data = DenseData(own[:, None].astype(np.float32), own)
            loader = Loader(data, n, n_workers, worker, 4, 1, sampling=sampling)
            seen += [label for _, batch in loader.until(1) for label in batch.labels.tolist()]
        assert sorted(seen) == list(range(n))


def test_merged_metrics_of_mixed_shares_have_the_bits_of_one_worker() -> None:
    generator = np.random.default_rng(3)
    scores, labels = generator.random(37), generator.integers(0, 2, 37)
    whole = merge([EvalShare(scores, labels)])
    for n_workers in (2, 3, 5, 40):
        own = [numbers(37, n_workers, w, "mixed") for w in range(n_workers)]
        shares = [EvalShare(scores[rows], labels[rows]) for rows in own]
        assert merge(shares) == whole
