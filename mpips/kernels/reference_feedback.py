"""The definition of the codecs with a residual (native/src/ring/feedback.hpp), in NumPy: the same bytes.

Values are float32 and finite. `key` is the key of a push's random numbers, a whole number below 2^64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpips.kernels.reference_codecs import FLT_MAX, Bytes, Float32, random_bits

SIGN_BLOCK = 512
_LANES = 16
_MOST_COVERED = 1 << 18  # values of a record
_LEAST_SAMPLE = 16384
_LEAST_HITS = 256.0
_LEAST_STRIDE = 64
_MOST_BYTES = 8  # of a value and its distance, for which a record must have room
_ZERO = np.uint32(0)


class Record(NamedTuple):
    """A record: the number of values that it covers, and its payload."""

    covered: int
    payload: Bytes


def add(residual: Float32, update: Float32) -> Float32:
    """Return the sum; beyond float32 it is the greatest number."""
    with np.errstate(over="ignore"):
        found: Float32 = np.clip(residual + update, -FLT_MAX, FLT_MAX)
    return found


def magnitudes(values: Float32) -> NDArray[np.uint32]:
    """Return the magnitudes as the bits of float32, which have the same order."""
    return values.view(np.uint32) & np.uint32(0x7FFFFFFF)


def target_of(share: float, n: int) -> int:
    """Return how many of n values are to be sent."""
    return min(max(math.floor(share * n + 0.5), 1), n)


def is_near(count: int, target: int) -> bool:
    """Return whether a count is at most 30 % from the target."""
    return 7 * target <= 10 * count <= 13 * target


def chosen_topk(values: Float32, share: float) -> NDArray[np.bool_]:
    """Return which values are sent: about `share` of them, of the greatest magnitudes, and no zeros."""
    n, found = len(values), magnitudes(values)
    target = target_of(share, n)
    wanted = max(_LEAST_SAMPLE, min(int(_LEAST_HITS / share), n // _LEAST_STRIDE))
    stride = max(n // wanted, 1)
    places = np.arange(0, n, stride)
    if stride > 1:
        numbers = (np.arange(len(places)) * 0x9E3779B1) & 0xFFFFFFFF
        places = places + ((numbers * stride) >> 32)
        past = np.flatnonzero(places >= n)
        places = places[: past[0]] if len(past) else places
    low = np.uint32(1)
    if len(places):
        sample = np.sort(found[places])[::-1]
        rank = target if stride == 1 else target_of(share, len(sample))
        low = max(sample[rank - 1], low)
    count = int((found >= low).sum())
    if is_near(count, target) or (count < target and low == 1):
        return found >= low
    return _chosen_by_histogram(found, target)


def _chosen_by_histogram(found: NDArray[np.uint32], target: int) -> NDArray[np.bool_]:
    bins = np.bincount(found[found > 0] >> 16, minlength=1 << 15)
    from_top = np.cumsum(bins[::-1])[::-1]  # values in a bin and above it
    reached = np.flatnonzero(from_top >= target)
    bin = int(reached[-1]) if len(reached) else 0
    low = max(np.uint32(bin << 16), np.uint32(1))
    whole = int(from_top[bin])
    if whole <= target or is_near(whole, target):
        return found >= low
    sure = found >= np.uint32((bin + 1) << 16)
    others = np.flatnonzero((found >= low) & ~sure)
    sure[others[: target - int(sure.sum())]] = True
    return sure


def chosen_randomk(n: int, first: int, share: float, key: int) -> NDArray[np.bool_]:
    """Return which of the values `first` ... `first + n` of a tensor are sent."""
    counter = (np.arange(first, first + n) & 0xFFFFFFFF).astype(np.uint32)
    below = np.uint32(min(share * 2.0**32, 2.0**32 - 1))
    found: NDArray[np.bool_] = random_bits(counter, key) < below
    return found


def encode_sparse(
    values: Float32, chosen: NDArray[np.bool_], capacity: int
) -> tuple[list[Record], Float32]:
    """Return the records of the chosen values, and the residual.

    Args:
        values: Sum of residual and update.
        chosen: Which of them are sent.
        capacity: Bytes of a record, at most.
    """
    records, n, done = [], len(values), 0
    while done < n:
        stop = min(n, done + _MOST_COVERED)
        places = np.flatnonzero(chosen[done:stop]) + done
        taken: list[int] = []
        codes, covered, last = bytearray(), stop, done
        for place in places.tolist():
            if 4 + 4 * len(taken) + len(codes) + _MOST_BYTES > capacity:
                covered = last
                break
            distance = place - last
            while distance >= 128:
                codes.append(distance & 127 | 128)
                distance >>= 7
            codes.append(distance)
            taken.append(place)
            last = place + 1
        else:
            if 4 + 4 * len(taken) + len(codes) + _MOST_BYTES > capacity and last < stop:
                covered = last
        payload = np.uint32(len(taken)).tobytes() + values[taken].tobytes() + bytes(codes)
        records.append(Record(covered - done, np.frombuffer(payload, np.uint8)))
        done = covered
    return records, np.where(chosen, np.float32(0), values)


def encode_onebit(values: Float32, capacity: int) -> tuple[list[Record], Float32]:
    """Return the records of the signs of all values, and the residual; `capacity`: bytes of a record."""
    n = len(values)
    padded = np.zeros(-(-n // SIGN_BLOCK) * SIGN_BLOCK, np.float32)
    padded[:n] = values
    payloads, rest = [], []
    for start in range(0, n, SIGN_BLOCK):
        here = min(n - start, SIGN_BLOCK)
        block = padded[start : start + SIGN_BLOCK]
        magnitude = _fold(block)
        if here < SIGN_BLOCK:
            with np.errstate(over="ignore"):
                magnitude = min(magnitude * (np.float32(SIGN_BLOCK) / np.float32(here)), FLT_MAX)
        negative = np.signbit(block)
        bits = (
            negative.reshape(-1, _LANES).astype(np.uint64)
            << np.arange(32, dtype=np.uint64)[:, None]
        )
        words = bits.sum(axis=0).astype(np.uint32)
        payloads.append(np.float32(magnitude).tobytes() + words.tobytes())
        rest.append(block - np.where(negative, -magnitude, magnitude).astype(np.float32))
    step = min(capacity // 68, _MOST_COVERED // SIGN_BLOCK)
    records = [
        Record(
            min(n - first * SIGN_BLOCK, step * SIGN_BLOCK),
            np.frombuffer(b"".join(payloads[first : first + step]), np.uint8),
        )
        for first in range(0, len(payloads), step)
    ]
    return records, np.concatenate([*rest, np.zeros(0, np.float32)])[:n].astype(np.float32)


def _fold(block: Float32) -> np.float32:
    """Return the mean magnitude of a block, added in the order of the kernels."""
    lanes = np.abs(block) * np.float32(1 / SIGN_BLOCK)
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = lanes[:half] + lanes[half:]
    return np.float32(lanes[0])


def push(
    kind: str, share: float, residual: Float32, update: Float32, first: int, key: int, capacity: int
) -> tuple[list[Record], Float32]:
    """Return the records of a push, and the residual after it.

    Args:
        kind: "topk", "randomk" or "onebit".
        share: Share of the values that are sent.
        residual: The residual before the push.
        update: The update.
        first: Number of its first value in the tensor.
        key: Key of the push's random numbers.
        capacity: Bytes of a record, at most.
    """
    values = add(residual, update)
    if kind == "onebit":
        return encode_onebit(values, capacity)
    chosen = (
        chosen_topk(values, share)
        if kind == "topk"
        else chosen_randomk(len(values), first, share, key)
    )
    return encode_sparse(values, chosen, capacity)


def decode(kind: str, record: Record) -> Float32:
    """Return the values that a record contains; `kind`: "sparse" or "onebit"."""
    count, payload = record
    out = np.zeros(count, np.float32)
    if kind == "onebit":
        blocks = payload.reshape(-1, 68)
        scales = blocks[:, :4].copy().view(np.float32)[:, 0]
        words = blocks[:, 4:].copy().view(np.uint32)
        negative = (words[:, None, :] >> np.arange(32, dtype=np.uint32)[:, None]) & 1
        signed: Float32 = np.where(
            negative.reshape(len(blocks), -1), -scales[:, None], scales[:, None]
        )
        return signed.reshape(-1)[:count].astype(np.float32)
    n = int(payload[:4].view(np.uint32)[0])
    values, codes = payload[4 : 4 + 4 * n].view(np.float32), payload[4 + 4 * n :].tolist()
    at = place = 0
    for value in values:
        distance = shift = 0
        while True:
            distance |= (codes[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if codes[at - 1] < 128:
                break
        place += distance
        out[place] = value
        place += 1
    return out


def difference(
    kind: str, share: float, values: Float32, common: Float32
) -> tuple[list[Record], Float32]:
    """Return the parts of a difference for pulls, and the common copy after it.

    Args:
        kind: "topk" or "onebit".
        share: Share of the values that are sent.
        values: Values of the server's part of the table.
        common: The common copy before.
    """
    parts, _ = push(kind, share, -common, values, 0, 0, 1 << 40)
    codec = "onebit" if kind == "onebit" else "sparse"
    found: Float32 = common + np.concatenate([decode(codec, part) for part in parts])
    return parts, found


def difference_bytes(parts: list[Record]) -> int:
    """Return the bytes of a difference: each part behind its length."""
    return sum(4 + part.payload.nbytes for part in parts)
