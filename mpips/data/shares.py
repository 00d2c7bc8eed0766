"""The rule by which the samples of a file are divided among workers.

Both rules give worker w of W exactly one sample of every W consecutive ones (a block; the last block of a
file may be shorter). The j-th sample that a worker keeps comes from block j.

- "interleaved": sample i belongs to worker i % W. A file that repeats with a period of W (class 0, class 1,
  class 0, class 1 for two workers) gives each worker samples of one class only.
- "mixed": in block b the samples are dealt out from worker h(b) on: sample i belongs to worker
  (i + h(i // W)) % W, where h(b) is the leading half of SplitMix64's b-th output (Steele, Lea and Flood,
  OOPSLA 2014), scaled to 0..W-1. For a single worker, and within every block, each position is equally
  likely and independent of the order of the file, so a share is a stratified random sample of it.

`mpips train` divides by "mixed". Checkpoints of earlier versions count by "interleaved". The C++ parser of
LIBSVM text has the same arithmetic (native/src/data/libsvm.cpp).
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Shares: TypeAlias = Literal["interleaved", "mixed"]

_STEP = np.uint64(0x9E3779B97F4A7C15)


def check_shares(shares: str) -> None:
    """Refuse an unknown rule.

    Raises:
        ValueError: `shares` is no rule; lists them.
    """
    if shares not in get_args(Shares):
        raise ValueError(f"shares {shares!r}: must be one of {', '.join(get_args(Shares))}")


def owners(samples: Int64, n_workers: int, shares: Shares) -> Int64:
    """Return the worker that each sample (int64 numbers in the file, any shape) belongs to."""
    if shares == "interleaved":
        return samples % n_workers
    return (samples + _turns(samples // n_workers, n_workers)) % n_workers


def numbers(n_total: int, n_workers: int, worker: int, shares: Shares) -> Int64:
    """Return the numbers of a worker's samples in the file, ascending, int64, shape (n_own,)."""
    blocks = np.arange(-(-n_total // n_workers), dtype=np.int64)
    turns = _turns(blocks, n_workers) if shares == "mixed" else np.zeros_like(blocks)
    samples = blocks * n_workers + (worker - turns) % n_workers
    # Only the last block may be short.
    return samples[:-1] if len(samples) and samples[-1] >= n_total else samples


def counts(n_total: int, n_workers: int, shares: Shares) -> tuple[int, ...]:
    """Return how many samples each worker has; they differ by one at most."""
    n_blocks, n_last = divmod(n_total, n_workers)
    last = np.arange(n_blocks * n_workers, n_blocks * n_workers + n_last, dtype=np.int64)
    more = np.bincount(owners(last, n_workers, shares), minlength=n_workers)
    return tuple((n_blocks + more).tolist())


def _turns(blocks: Int64, n_workers: int) -> Int64:
    """Return h(b) in 0..n_workers-1 for each block."""
    x = (blocks.astype(np.uint64) + np.uint64(1)) * _STEP
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return ((x >> np.uint64(32)) * np.uint64(n_workers) >> np.uint64(32)).astype(np.int64)
