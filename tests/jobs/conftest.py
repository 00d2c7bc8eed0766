"""Fixtures for the batch scripts: one private Slurm for all tests, and nothing left behind by any."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import launcher
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


@pytest.fixture(scope="session")
def shared_slurm() -> Iterator[Slurm]:
    """Four nodes, for every test that breaks none."""
    with pytest.MonkeyPatch.context() as patch:
        yield from private_slurm(patch)


@pytest.fixture
def cluster(shared_slurm: Slurm) -> Iterator[Slurm]:
    """The shared Slurm; jobs that a test leaves are cancelled."""
    yield shared_slurm
    shared_slurm.cancel_all()


@pytest.fixture
def make_slurm() -> Iterator[Callable[..., Slurm]]:
    """Makes a Slurm of a test's own."""
    made: list[Iterator[Slurm]] = []
    with pytest.MonkeyPatch.context() as patch:

        def make(*args: object, **kwargs: object) -> Slurm:
            made.append(private_slurm(patch, *args, **kwargs))
            return next(made[-1])

        yield make
        for one in made:
            assert next(one, None) is None


@pytest.fixture
def script() -> Callable[[str], Path]:
    """The path of a script in jobs/."""
    return lambda name: launcher.REPOSITORY / "jobs" / name
