"""What a worker takes over of the residuals that the launch before has left on its node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness import dense

from mpips.model.codec import TopK
from mpips.model.placement import place
from mpips.recovery.memory import Memory
from mpips.recovery.saving import Saving
from mpips.transport.region import Regions, new_token, persistent, unlink_job
from mpips.worker.feedback import start as residuals
from mpips.worker.feedback.residuals import Residuals
from mpips.worker.start import MadeParts

TABLES = [dense(200, compression=TopK(0.1)), dense(90, "v", compression=TopK(0.1))]


@pytest.fixture
def token() -> Iterator[str]:
    found = persistent(new_token())
    yield found
    unlink_job(found)


def launch(token: str, generation: int, served: int) -> Residuals:
    """Start as worker 1 in the memory of a run of two servers; the second attempt and later ones go on."""
    placement = place(TABLES, 2, 2, 4, 1024, [[0, 1], [0, 1]], 0)
    memory = Memory(generation=0, served=served, tables="", shape=(2, 2))
    saving: Any = Saving(None, token)
    if generation:
        saving = replace(saving, places=(object(),), origin=memory)
    parts: Any = SimpleNamespace(
        cluster=SimpleNamespace(worker=1, assignment=SimpleNamespace(workers=(2, 3))),
        saving=saving, run=None, tables=TABLES, placement=placement, warm=True,
        regions=Regions(token, True, True),
        generation=generation, made=MadeParts(), at=[SimpleNamespace(sequence=0)] * 2,
        groups=(), grouped_tables={},
    )  # fmt: skip
    lost = residuals._make(parts)
    found: Residuals = parts.made.residuals
    assert lost == found.settle([0, 0])
    return found


def test_residuals_of_the_last_launch_go_on_and_older_ones_are_lost(token: str) -> None:
    first = launch(token, 0, 0)
    values = {t.name: np.arange(1, 1 + t.n_elements, dtype=np.float32) for t in TABLES}
    first.fill(values)
    del first
    again = launch(token, 1, 0)
    assert again.lost == 0
    assert again.generation == 1
    assert {n: v.tolist() for n, v in again.values().items()} == {
        n: v.tolist() for n, v in values.items()
    }
    del again
    # Launch 2, on other nodes, has come to work since.
    late = launch(token, 3, 2)
    assert late.lost == 2 * len(TABLES)
    assert all((v == 0).all() for v in late.values().values())
    assert late.generation == 3
