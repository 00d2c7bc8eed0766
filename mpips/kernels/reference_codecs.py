"""The definition of every codec (native/src/ring/codec.hpp), in NumPy. The C++ code gives the same bytes.

Values are float32 and finite. `key` is the key of a push's random numbers, a whole number below 2^64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]

FLT_MAX = np.finfo(np.float32).max
_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    """Return the finaliser of SplitMix64 of a number below 2^64."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def random_key(seed: int, worker: int, clock: int, number: int) -> int:
    """Return the key of a push: `number` counts the worker's pushes to the table in its clock."""
    key = mix((seed + _STEP) & _MASK)
    for word in (worker, clock, number):
        key = mix(((key ^ word) + _STEP) & _MASK)
    return key


def random_bits(counter: NDArray[np.uint32], key: int) -> NDArray[np.uint32]:
    """Return 32 random bits for each counter, with the key of a block."""
    x = counter + np.uint32(key & 0xFFFFFFFF)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= (x >> np.uint32(15)) ^ np.uint32(key >> 32)
    x *= np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def encode_bf16(values: Float32) -> NDArray[np.uint16]:
    """Round to bfloat16, to nearest, ties to even; never to infinity."""
    bits = values.view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    rounded = (magnitude + np.uint32(0x7FFF) + ((magnitude >> 16) & 1)) >> 16
    finite = np.minimum(rounded, np.uint32(0x7F7F))
    codes: NDArray[np.uint16] = (finite | ((bits & np.uint32(0x80000000)) >> 16)).astype(np.uint16)
    return codes


def round_bf16(values: Float32, key: int) -> NDArray[np.uint16]:
    """Round to bfloat16 at random, up with the probability of the part cut off; infinity and NaN stay."""
    bits = values.view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    random = random_bits(np.arange(len(values), dtype=np.uint32), key) >> np.uint32(16)
    finite = np.minimum((magnitude + random) >> np.uint32(16), np.uint32(0x7F7F))
    other = np.where(np.isnan(values), np.uint32(0x7FC0), np.uint32(0x7F80))
    result = np.where(np.isfinite(values), finite, other)
    codes: NDArray[np.uint16] = (result | ((bits & np.uint32(0x80000000)) >> 16)).astype(np.uint16)
    return codes


def decode_bf16(codes: NDArray[np.uint16]) -> Float32:
    """Return the values of bfloat16 numbers."""
    return (codes.astype(np.uint32) << 16).view(np.float32)


def scale_fp16(values: Float32) -> tuple[np.float32, np.float32]:
    """Return the factor and the scale of a block: powers of two that bring its greatest value near 2^15."""
    _, exponent = np.frexp(np.abs(values).max())
    # frexp gives 0.5 <= m < 1; the exponent of denormal numbers counts as that of the least normal ones.
    shift = min(14 - max(int(exponent) - 1, -127), 126) if np.any(values) else 126
    return np.float32(2.0**shift), np.float32(2.0**-shift)


def scale_int8(values: Float32) -> tuple[np.float32, np.float32]:
    """Return the factor and the scale of a block: the greatest magnitude becomes 127."""
    most = np.abs(values).max()
    with np.errstate(divide="ignore", over="ignore"):
        factor = np.float32(127) / most
    if not np.isfinite(factor):
        return np.float32(0), np.float32(0)
    scale = most / np.float32(127)
    with np.errstate(over="ignore"):
        is_above = not np.isfinite(scale * np.float32(127))
    return factor, np.nextafter(scale, np.float32(0)) if is_above else scale


def encode_int8(values: Float32, factor: np.float32, key: int, first: int) -> NDArray[np.int8]:
    """Round values * factor down after adding a random number from 0 to 1; see codec_loops.hpp."""
    counter = np.arange(first, first + len(values), dtype=np.uint32)
    u = (random_bits(counter, key) >> np.uint32(16)).astype(np.float32) * np.float32(2.0**-16)
    return np.clip(np.floor(values * factor + u), -127, 127).astype(np.int8)


def encode(kind: str, block: int, tensor: Float32, begin: int, end: int, key: int) -> Bytes:
    """Encode values [begin, end) of a flat tensor."""
    if kind == "bf16":
        return encode_bf16(tensor[begin:end]).view(np.uint8)
    scales, codes = [], []
    if begin == end:
        return np.zeros(0, np.uint8)
    for number in range(begin // block, -(-end // block)):
        start, stop = number * block, min((number + 1) * block, len(tensor))
        part = tensor[max(start, begin) : min(stop, end)]
        scale, code = _encode_block(
            kind, tensor[start:stop], part, max(begin - start, 0), key, number
        )
        scales.append(scale)
        codes.append(code)
    return np.concatenate([np.array(scales, np.float32).view(np.uint8), *codes])


def encode_nearest(kind: str, block: int, values: Float32) -> Bytes:
    """Encode flat values of whole blocks, each value rounded to the nearest; as pulls are encoded.

    Infinity and NaN stay what they are in bf16; in int8 they make their whole block NaN.
    """
    if kind == "bf16":
        with np.errstate(all="ignore"):
            codes = encode_bf16(values)
        special = values.view(np.uint32) >> 16 | np.where(np.isnan(values), 0x40, 0)
        return np.where(np.isfinite(values), codes, special).astype(np.uint16).view(np.uint8)
    if kind != "int8":
        return encode(kind, block, values, 0, len(values), 0)
    scales, parts = [], []
    for start in range(0, len(values), block):
        part = values[start : start + block]
        if not np.isfinite(part).all():
            scales.append(np.float32(np.nan))
            parts.append(np.zeros(len(part), np.uint8))
            continue
        factor, scale = scale_int8(part)
        scales.append(scale)
        rounded = np.floor(part * factor + np.float32(0.5))
        parts.append(np.clip(rounded, -127, 127).astype(np.int8).view(np.uint8))
    return np.concatenate([np.array(scales, np.float32).view(np.uint8), *parts])


def encode_rows(kind: str, rows: Float32, keys: NDArray[np.int64], key: int) -> Bytes:
    """Encode rows, each a block whose number is its key."""
    if kind == "bf16":
        return encode_bf16(rows.reshape(-1)).view(np.uint8)
    found = [
        _encode_block(kind, row, row, 0, key, int(number) & _MASK)
        for row, number in zip(rows, keys, strict=True)
    ]
    scales = np.array([scale for scale, _ in found], np.float32)
    return np.concatenate([scales.view(np.uint8), *(code for _, code in found)])


def _encode_block(
    kind: str, whole: Float32, part: Float32, place: int, key: int, number: int
) -> tuple[np.float32, Bytes]:
    """Return the scale of a block, and the codes of a part of it that begins at `place`."""
    if kind == "fp16":
        factor, scale = scale_fp16(whole)
        return scale, (part * factor).astype(np.float16).view(np.uint8)
    factor, scale = scale_int8(whole)
    block_key = mix((key + (number + 1) * _STEP) & _MASK)
    return scale, encode_int8(part, factor, block_key, place).view(np.uint8)


def decode(kind: str, block: int, encoded: Bytes, skew: int, count: int) -> Float32:
    """Decode `count` values; `skew`: place of the first one in its block."""
    if kind == "bf16":
        return decode_bf16(encoded.view(np.uint16))
    n_blocks = -(-(skew + count) // block) if count else 0
    scales = encoded[: 4 * n_blocks].view(np.float32)
    codes = encoded[4 * n_blocks :].view(np.float16 if kind == "fp16" else np.int8)
    places = (skew + np.arange(count)) // block
    with np.errstate(over="ignore"):
        values = codes.astype(np.float32) * scales[places]
    # A half that was rounded up from the greatest float would be infinite.
    finite: Float32 = np.clip(values, -FLT_MAX, FLT_MAX)
    return finite
