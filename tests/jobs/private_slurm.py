"""A private Slurm for the length of a fixture, with a look whether all of it is gone afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import processes
import pytest
import slurm
from slurm import Slurm

MARK = "MPIPS_TEST_SLURM"


def private_slurm(patch: pytest.MonkeyPatch, *args: object, **kwargs: object) -> Iterator[Slurm]:
    """A Slurm, and a look whether all of it is gone afterwards."""
    if reason := slurm.why_not():
        pytest.skip(reason)
    value = uuid.uuid4().hex
    patch.setenv(MARK, value)
    with Slurm(*args, **kwargs) as cluster:  # type: ignore[arg-type]
        patch.undo()
        yield cluster
        cluster.cancel_all()
        left = [cluster.nodes.segments(i) for i in range(len(cluster.nodes))]
        assert not any(left), f"shared memory left behind on nodes: {left}"
    mark = f"{MARK}={value}"
    assert processes.until(lambda: not processes.marked(mark)), processes.describe(
        processes.marked(mark)
    )
