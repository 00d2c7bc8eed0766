"""Divide the scores or keys of all workers among the workers, by recursive halving.

The workers 0 .. P-1, P being the largest power of two up to their number, own a range each. First every other
worker sends all it has to the worker P below it. Then, for each bit of an index from the highest to the
lowest, a worker exchanges with the worker whose index differs in that bit: it sends what belongs to the half
of ranges of the other one, and merges what it receives. In the end each owner has all that belongs to its
range.

A worker sends and receives log2(P) + 1 messages, whatever the number of workers. In each step it sends about
half of its data. Its data stays about the size of one share, or of two if P is less than the number of
workers, and becomes smaller where workers have equal keys or scores. So a worker sends about log2(P) / 2
times its share: with 10,000 workers 7 times. One rank that received all would receive 10,000 shares.

Numbers of samples are int64: exact, and equal for every division of the samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data.ranking import Float64, Ranking

if TYPE_CHECKING:
    from mpips.worker.collectives import AnyArray, Collectives

Int64: TypeAlias = npt.NDArray[np.int64]
UInt64: TypeAlias = npt.NDArray[np.uint64]

_PER_WORKER = 32  # scores that a worker contributes to the choice of the ranges
_MOST_SAMPLES = 1 << 18  # scores from which the ranges are chosen, 2 MiB
_KEYS_PER_ROUND = (
    1 << 19
)  # keys of a worker that are exchanged at a time: about 150 MiB for 10,000 workers


def n_ranges(n_workers: int) -> int:
    """Return the number of workers that own a range."""
    return 1 << (n_workers.bit_length() - 1)


def spread_ranking(collectives: Collectives, name: str, own: Ranking) -> Ranking:
    """Return the ranking of all samples with scores in this worker's range. Collective; blocks.

    Workers with greater indices have ranges of greater scores; a worker without a range has no samples.
    The ranges are chosen from samples of the scores, so that each contains about as many scores.

    Args:
        collectives: Gathers and reductions of this worker.
        name: Name of the exchange.
        own: Ranking of this worker's samples.
    """
    index, n_workers = collectives.index, collectives.n_workers
    if n_workers == 1:
        return own
    bounds = _bounds(collectives, name, own.scores)
    n_owners = n_ranges(n_workers)
    nothing = own.part(0, 0)

    def exchange(step: str, partner: int, mine: Ranking, other: Ranking) -> Ranking:
        found = collectives.swap(f"{name}: {step}", other.to_array(), partner)
        return mine.merge(Ranking.from_array(found))

    held = own
    if n_owners < n_workers:
        mine, other = (nothing, held) if index >= n_owners else (held, nothing)
        held = exchange("scores", _partner(index, n_owners, n_workers), mine, other)
    for bit in reversed(range(n_owners.bit_length() - 1)):
        partner, mine, other = index, held, nothing
        if index < n_owners:
            # Range r contains the scores from bounds[r - 1] up to, but not including, bounds[r].
            partner, middle = index ^ (1 << bit), (index >> bit | 1) << bit
            place = int(np.searchsorted(held.scores, bounds[middle - 1]))
            mine, other = held.part(0, place), held.part(place, len(held.scores))
            if index >> bit & 1:
                mine, other = other, mine
        held = exchange(f"scores {bit}", partner, mine, other)
    return held


def sum_above(collectives: Collectives, name: str, own: Int64) -> Int64:
    """Return the sum over the workers that own greater ranges. Collective; blocks.

    In step b a worker exchanges the sum of its group of 2**b owners with the partner in the next group, as in
    a scan on a hypercube (Blelloch, "Prefix Sums and Their Applications", 1990).

    Args:
        collectives: Gathers and reductions of this worker.
        name: Name of the exchange.
        own: int64, shape (k,).
    """
    index, n_owners = collectives.index, n_ranges(collectives.n_workers)
    above, total = np.zeros_like(own), own.copy()
    for bit in range(n_owners.bit_length() - 1):
        partner = index ^ (1 << bit) if index < n_owners else index
        found = collectives.swap(f"{name}: above {bit}", total, partner)
        if partner > index:
            above += found
        if partner != index:
            total = total + found
    return above


def _bounds(collectives: Collectives, name: str, scores: Float64) -> Float64:
    """Return the bounds of the ranges, equal on all workers, shape (n_ranges - 1,)."""
    # Take other quantiles on each worker, since the scores of all workers have about the same quantiles.
    count = min(len(scores), _PER_WORKER)
    offset = (collectives.index + 0.5) / collectives.n_workers
    places = ((np.arange(count) + offset) * (len(scores) / max(count, 1))).astype(np.int64)
    samples = collectives.reduce(f"{name}: ranges", scores[places], _sorted_samples)
    assert samples is not None
    n_owners = n_ranges(collectives.n_workers)
    if not len(samples):
        return np.zeros(n_owners - 1)
    ranks = np.arange(1, n_owners) * len(samples) // n_owners
    bounds: Float64 = np.sort(samples)[ranks]
    return bounds


def _sorted_samples(low: AnyArray, high: AnyArray) -> AnyArray:
    """Return the samples of both, ascending; every second one if there are too many."""
    both = np.sort(np.concatenate([low, high]))
    return both if len(both) <= _MOST_SAMPLES else both[::2]


def sum_by_key(collectives: Collectives, name: str, keys: Int64, counts: Int64) -> Int64:
    """Return the sum over all workers of the counts of each of this worker's keys. Collective; blocks.

    A hash of the key gives its owner, which adds up the counts. The sums go back on the same way. Keys are
    exchanged in rounds, which bounds the memory: a worker stores what it held before each step of a round.

    Args:
        collectives: Gathers and reductions of this worker.
        name: Name of the exchange.
        keys: int64, shape (n,), ascending and unique.
        counts: int64, shape (n,).
    """
    if collectives.n_workers == 1:
        return counts.copy()
    most = collectives.reduce(f"{name}: rounds", np.array([len(keys)]), "max")
    assert most is not None
    n_rounds = -(-int(most[0]) // _KEYS_PER_ROUND)
    rounds = (_mix(keys) >> np.uint64(32)) % np.uint64(max(n_rounds, 1))
    sums = np.empty_like(counts)
    for i in range(n_rounds):
        mine = rounds == i
        sums[mine] = _sum_round(collectives, f"{name}, round {i}", keys[mine], counts[mine])
    return sums


def _sum_round(collectives: Collectives, name: str, keys: Int64, counts: Int64) -> Int64:
    """Return the sums of one round; the arguments are those of `sum_by_key`."""
    index, n_workers = collectives.index, collectives.n_workers
    n_owners = n_ranges(n_workers)
    # For each step: partner, the keys held before it, those of them that were sent, and the keys received.
    done: list[tuple[int, Int64, npt.NDArray[np.bool_], Int64]] = []

    def exchange(partner: int, goes: npt.NDArray[np.bool_]) -> tuple[Int64, Int64]:
        rows = np.stack([keys[goes], counts[goes]])
        found = collectives.swap(f"{name}: keys {len(done)}", rows, partner).reshape(2, -1)
        done.append((partner, keys, goes, found[0].copy()))
        rows = np.concatenate([np.stack([keys[~goes], counts[~goes]]), found], axis=1)
        return _summed(rows[0], rows[1])

    if n_owners < n_workers:
        goes = np.full(len(keys), index >= n_owners)
        keys, counts = exchange(_partner(index, n_owners, n_workers), goes)
    for bit in reversed(range(n_owners.bit_length() - 1)):
        partner = index ^ (1 << bit) if index < n_owners else index
        owner_bits = _mix(keys) >> np.uint64(bit) & np.uint64(1)
        goes = (owner_bits != (index >> bit & 1)) & (index < n_owners)
        keys, counts = exchange(partner, goes)
    while done:
        partner, before, goes, received = done.pop()
        back = counts[np.searchsorted(keys, received)]
        found = collectives.swap(f"{name}: sums {len(done)}", back, partner)
        sums = np.empty(len(before), np.int64)
        sums[~goes] = counts[np.searchsorted(keys, before[~goes])]
        sums[goes] = found
        keys, counts = before, sums
    return counts


def _partner(index: int, bit: int, n_workers: int) -> int:
    """Return the worker whose index differs in a bit, or the same worker if no such worker exists."""
    other = index ^ bit
    return other if other < n_workers else index


def _summed(keys: Int64, counts: Int64) -> tuple[Int64, Int64]:
    """Return the distinct keys, ascending, each with the sum of its counts."""
    if not len(keys):
        return keys, counts
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[starts], np.add.reduceat(counts[order], starts)


def _mix(keys: Int64) -> UInt64:
    """Return a hash of each key: SplitMix64's output function (Steele, Lea and Flood, OOPSLA 2014)."""
    x = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: UInt64 = x ^ (x >> np.uint64(31))
    return mixed
