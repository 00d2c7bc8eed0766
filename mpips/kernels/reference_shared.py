"""The definition of codec shared_int8 and of its scales, in NumPy: the same bytes as the C++ code.

The codec is in native/src/ring/feedback.hpp, the scales are in native/src/server/scale_shard.hpp.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpips.kernels.reference_codecs import Float32, mix, random_bits
from mpips.kernels.reference_feedback import Record, add

_STEP, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1
MOST_EXPONENT = 248


def scale_of(exponents: NDArray[np.uint8]) -> Float32:
    """Return the scales of exponents: 2^(e - 127), and 0 for e = 0."""
    found: Float32 = (exponents.astype(np.uint32) << 23).view(np.float32)
    return found


def exponent_for(values: Float32) -> int:
    """Return the exponent that values ask for: their greatest has the least scale 96 times at most."""
    most = np.abs(values).max(initial=np.float32(0))
    for exponent in range(1, MOST_EXPONENT):
        if np.float64(most) <= 96 * 2.0 ** (exponent - 127):
            return exponent if np.float64(most) > 96 * 2.0**-127 else 0
    return MOST_EXPONENT


def next_exponents(exponents: NDArray[np.uint8], wanted: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the exponents of the next clock; `wanted`: the greatest ones that any push has asked for."""
    found: NDArray[np.uint8] = np.maximum(wanted, np.maximum(exponents, 1) - 1)
    return found


def push(
    block: int,
    exponents: NDArray[np.uint8],
    residual: Float32,
    update: Float32,
    first: int,
    key: int,
    capacity: int,
) -> tuple[list[Record], Float32]:
    """Return the records of a push, and the residual after it.

    Args:
        block: Values that share a scale.
        exponents: Exponents of the blocks, uint8.
        residual: The residual before the push.
        update: The update.
        first: Number of its first value in the tensor, a multiple of `block`.
        key: Key of the push's random numbers.
        capacity: Bytes of a record, at most.
    """
    sums, n = add(residual, update), len(update)
    codes, rest = np.zeros(n, np.int8), np.zeros(n, np.float32)
    for number in range(-(-n // block)):
        own = slice(number * block, min(n, (number + 1) * block))
        codes[own], rest[own] = _encode(sums[own], exponents[number], first // block + number, key)
    records, done = [], 0
    while done < n:
        skew = done % block
        whole = capacity // (2 + block)
        room = whole * block - skew if whole else min(block - skew, capacity - 2)
        stop = min(n, done + room)
        blocks = range(done // block, -(-stop // block))
        wanted = [
            exponent_for(sums[max(done, b * block) : min(stop, (b + 1) * block)]) for b in blocks
        ]
        payload = exponents[list(blocks)].tobytes() + bytes(wanted) + codes[done:stop].tobytes()
        records.append(Record(stop - done, np.frombuffer(payload, np.uint8)))
        done = stop
    return records, rest


def _encode(
    sums: Float32, exponent: np.uint8, number: int, key: int
) -> tuple[NDArray[np.int8], Float32]:
    """Return the codes of a block, and what they do not contain."""
    scale = scale_of(np.array([exponent], np.uint8))[0]
    factor = np.float32(1) / scale if scale else np.float32(0)
    counter = np.arange(len(sums), dtype=np.uint32)
    random = random_bits(counter, mix((key + (number + 1) * _STEP) & _MASK))
    u = (random >> np.uint32(16)).astype(np.float32) * np.float32(2.0**-16)
    with np.errstate(over="ignore"):
        bounded = np.clip(sums * factor, np.float32(-127), np.float32(127))
    codes = np.floor(bounded + u)
    return codes.astype(np.int8), (sums - codes * scale).astype(np.float32)
