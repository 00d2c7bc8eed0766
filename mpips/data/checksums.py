"""The CRC-32 of bytes that several processes read, from those of their parts.

The algorithm is `crc32_combine` of zlib: a CRC is a polynomial modulo P over GF(2), and n more bytes multiply
it by x^(8 n).
"""

from __future__ import annotations

from collections.abc import Iterable

_P = 0xEDB88320  # the polynomial of CRC-32; bit 31 is the coefficient of x^0
_ONE = 1 << 31


def joined_crc(parts: Iterable[tuple[int, int]]) -> int:
    """Return the CRC-32 of consecutive parts.

    Args:
        parts: CRC-32 and number of bytes of each, in order.
    """
    crc = 0
    for own, n_bytes in parts:
        crc = _product(_power(8 * n_bytes), crc) ^ own
    return crc


def _product(a: int, b: int) -> int:
    """Return a b modulo P."""
    found = 0
    bit = _ONE
    while bit:
        if a & bit:
            found ^= b
        bit >>= 1
        b = (b >> 1) ^ _P if b & 1 else b >> 1
    return found


def _power(n: int) -> int:
    """Return x^n modulo P."""
    found, square = _ONE, _ONE >> 1
    while n:
        if n & 1:
            found = _product(square, found)
        square = _product(square, square)
        n >>= 1
    return found
