"""A private Slurm for the duration of a fixture, with a check that nothing of it remains afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import processes
import pytest
import slurm
from slurm import Slurm

MARK = "MPIPS_TEST_SLURM"


def private_slurm(patch: pytest.MonkeyPatch, *args: object, **kwargs: object) -> Iterator[Slurm]:
    """Yield a private Slurm; then stop it and check that no process or shared memory remains."""
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
