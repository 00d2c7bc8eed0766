"""The image of a dense shard in the codec of its pulls: where it lies in a region, and how it is decoded.

The image of each block of BLOCK_FLOATS values begins at a multiple of a stride, and the version word of the
block guards it like the values (native/src/ring/dense_view.hpp).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpips import _native

Float32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def image_bytes(layout: _native.Layout, table: int, n: int) -> int:
    """Return the bytes that a pull of `n` values reads: those of the image, where there is one."""
    image = layout.dense_image(table)
    if image is None:
        return 4 * n
    _, stride, codec = image
    whole, rest = divmod(n, _native.BLOCK_FLOATS)
    return whole * stride + _native.encoded_bytes(codec, 0, rest)


def decode_image(codec: _native.Codec, image: Bytes, stride: int, out: Float32) -> None:
    """Decode the image of a shard into `out`.

    Args:
        codec: Codec of the image.
        image: uint8; the image of block i begins at i * stride.
        stride: Bytes from block to block.
        out: float32, shape (n,).
    """
    for i, start in enumerate(range(0, out.size, _native.BLOCK_FLOATS)):
        part = out[start : start + _native.BLOCK_FLOATS]
        n_bytes = _native.encoded_bytes(codec, 0, part.size)
        _native.decode(codec, image[i * stride : i * stride + n_bytes], 0, part)
