"""How lost and doubled updates are counted, and who may be killed."""

from __future__ import annotations

import numpy as np
import pytest

from mpips.bench import kills
from mpips.bench.rank.counted import COPIES, DIM


def counted(n: int, **changes: float) -> dict[str, bytes]:
    """Tables in which each of n samples is there as often as it should, but for these."""
    seen = np.full((COPIES, n), kills.EPOCHS, np.float32)
    rows = np.full((n, DIM), kills.EPOCHS, np.float32)
    seen[1, 3] += changes.get("seen", 0)
    rows[5] += changes.get("rows", 0)
    keys = np.arange(n)[: n - int(changes.get("absent", 0))]
    return {
        "/tables/seen/values": seen.tobytes(),
        "/tables/rows/keys": keys.tobytes(),
        "/tables/rows/values": rows[keys].tobytes(),
    }


@pytest.mark.parametrize(
    ("changes", "lost", "double"),
    [
        ({}, 0, 0),
        ({"seen": -2}, 2, 0),
        ({"rows": 1}, 0, DIM),
        ({"seen": 3, "rows": -1}, DIM, 3),
        ({"absent": 1}, DIM * kills.EPOCHS, 0),
    ],
)
def test_every_lost_and_doubled_update_is_counted(
    changes: dict[str, float], lost: int, double: int
) -> None:
    n = kills.n_samples(share=2)
    assert kills.audit(counted(n, **changes), share=2) == (lost, double)
