"""Rules that divide the samples of a file among workers.

A block is a group of W consecutive samples, W being the number of workers; the last block of a file can be
shorter. Both rules give each worker exactly one sample of every block. The j-th sample of a worker is in
block j.

- "interleaved": sample i belongs to worker i % W. A file that repeats with a period of W (class 0, class 1,
  class 0, class 1 for two workers) gives each worker samples of one class only.
- "mixed": the assignment in block b is rotated by h(b): sample i belongs to worker (i + h(i // W)) % W, where
  h(b) is the leading half of SplitMix64's b-th output (Steele, Lea and Flood, OOPSLA 2014), scaled to 0..W-1.
  For a given worker, each position in a block is equally likely and independent of the order of the file, so
  a share is a stratified random sample of the file.

`mpips train` uses "mixed". Checkpoints of earlier versions use "interleaved". The C++ parser of LIBSVM text
has the same arithmetic (native/src/data/libsvm.cpp).
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Shares: TypeAlias = Literal["interleaved", "mixed"]

_STEP = np.uint64(0x9E3779B97F4A7C15)


def check_shares(shares: str) -> None:
    """Raise ValueError, which lists the rules, if `shares` is not one of them."""
    if shares not in get_args(Shares):
        raise ValueError(f"shares {shares!r}: must be one of {', '.join(get_args(Shares))}")


def owners(samples: Int64, n_workers: int, shares: Shares) -> Int64:
    """Return the worker of each sample, int64.

    Args:
        samples: Numbers of samples in the file, int64, any shape.
        n_workers: Number of workers.
        shares: The rule.
    """
    if shares == "interleaved":
        return samples % n_workers
    return (samples + rotations(samples // n_workers, n_workers)) % n_workers


def numbers(n_total: int, n_workers: int, worker: int, shares: Shares) -> Int64:
    """Return the numbers in the file of a worker's samples, ascending, int64, shape (n_own,)."""
    blocks = np.arange(-(-n_total // n_workers), dtype=np.int64)
    turned = rotations(blocks, n_workers) if shares == "mixed" else np.zeros_like(blocks)
    samples = blocks * n_workers + (worker - turned) % n_workers
    # Drop the sample of the last block if that block is too short.
    return samples[:-1] if len(samples) and samples[-1] >= n_total else samples


def counts(n_total: int, n_workers: int, shares: Shares) -> tuple[int, ...]:
    """Return the number of samples of each worker; the numbers differ by at most one."""
    n_blocks, n_last = divmod(n_total, n_workers)
    last = np.arange(n_blocks * n_workers, n_blocks * n_workers + n_last, dtype=np.int64)
    more = np.bincount(owners(last, n_workers, shares), minlength=n_workers)
    return tuple((n_blocks + more).tolist())


def rotations(blocks: Int64, n_workers: int) -> Int64:
    """Return h(b), int64 in 0..n_workers-1, for each block b; see the top of this module."""
    x = (blocks.astype(np.uint64) + np.uint64(1)) * _STEP
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return ((x >> np.uint64(32)) * np.uint64(n_workers) >> np.uint64(32)).astype(np.int64)


def bounds(n: int, worker: int, n_workers: int) -> tuple[int, int]:
    """Return the first row of a worker's share of a batch of `n` rows, and the row behind its last.

    Shares are contiguous. The first workers have one row more where the number does not divide.
    """
    each, more = divmod(n, n_workers)
    first = worker * each + min(worker, more)
    return first, first + each + (worker < more)
