"""Updates for codecs with a residual, and a push of one: what the tests of their kernels share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.kernels import reference_feedback as reference

Float32 = NDArray[np.float32]
KEY = 0x0123456789ABCDEF
FLT_MAX = np.finfo(np.float32).max
FIRST = 48  # number of the first value in its tensor
_TINY = np.float32(1.4e-45)


def tensors() -> dict[str, Float32]:
    """Return updates of lengths that are odd, and those of blocks, with easy and with difficult values."""
    rng = np.random.default_rng(5)
    normal = rng.standard_normal(1537).astype(np.float32)
    wide = (normal[:777] * 10.0 ** rng.integers(-44, 38, 777)).astype(np.float32)
    return {
        "none": np.zeros(0, np.float32),
        "one": np.array([0.1], np.float32),
        "block": normal[:512],
        "odd": normal,
        "wide": wide,
        "zeros": np.zeros(600, np.float32),
        "negative zeros": np.full(129, -0.0, np.float32),
        "equal": np.full(1025, -3.25, np.float32),
        "denormal": (rng.integers(-9, 9, 700) * _TINY).astype(np.float32),
        "largest": np.where(normal[:530] > 0, FLT_MAX, -FLT_MAX).astype(np.float32),
        "few": np.where(np.arange(900) % 300 == 7, np.float32(5), np.float32(0)),
        "sampled": (rng.standard_normal(70_001) * (1 + np.arange(70_001) % 7)).astype(np.float32),
        # A column of large values at the stride of a plain sample, and ties beyond the target.
        "columns": np.where(np.arange(131_072) % 8 == 0, 9.0, rng.random(131_072)).astype(
            np.float32
        ),
        "ties": np.sign(rng.standard_normal(200_000)).astype(np.float32),
        "spikes": np.where(np.arange(300_000) % 997 == 0, normal[0] * 100, 0).astype(np.float32),
    }


def pushed(
    feedback: _native.Feedback, update: Float32, key: int, capacity: int, number: int
) -> list[reference.Record]:
    """Return the records of a push, which ends in record `number`."""
    feedback.begin(update, key)
    records, done = [], 0
    while done < feedback.n:
        records.append(reference.Record(*feedback.encode(capacity)))
        done += records[-1].covered
    assert done == feedback.n
    feedback.close(number)
    return records
