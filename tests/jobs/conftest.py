"""Fixtures for the batch scripts: one private Slurm for all tests, checked for remains after each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import launcher
import pytest
from paced_jobs import JOB, PACED, RANKS, write_data
from private_slurm import private_slurm
from slurm import Slurm


@pytest.fixture(scope="session")
def shared_slurm() -> Iterator[Slurm]:
    """A Slurm of four nodes, for all tests that break none of them."""
    with pytest.MonkeyPatch.context() as patch:
        yield from private_slurm(patch)


@pytest.fixture
def cluster(shared_slurm: Slurm) -> Iterator[Slurm]:
    """The shared Slurm; jobs that a test leaves are cancelled after it."""
    yield shared_slurm
    shared_slurm.cancel_all()


@pytest.fixture
def make_slurm() -> Iterator[Callable[..., Slurm]]:
    """A function that makes a Slurm for one test."""
    made: list[Iterator[Slurm]] = []
    with pytest.MonkeyPatch.context() as patch:

        def make(*args: object, **kwargs: object) -> Slurm:
            made.append(private_slurm(patch, *args, **kwargs))
            return next(made[-1])

        yield make
        for one in made:
            assert next(one, None) is None


@pytest.fixture(scope="session")
def script() -> Callable[[str], Path]:
    """A function that returns the path of a script in jobs/."""
    return lambda name: launcher.REPOSITORY / "jobs" / name


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples to train on."""
    return write_data(tmp_path_factory.mktemp("data") / "made.npz")


@pytest.fixture(scope="session")
def job(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job for one server and two workers."""
    path = tmp_path_factory.mktemp("paced") / "job.toml"
    path.write_text(JOB.replace("DATA", str(data)))
    return path


@pytest.fixture(scope="session")
def undisturbed(job: Path) -> Path:
    """The checkpoint of `job` with as many workers, run without Slurm and without a disturbance."""
    command = [
        "python",
        "-m",
        "mpips",
        "train",
        str(job),
        "--quiet",
        "--save",
        f"{job.parent}/saved",
    ]
    with launcher.launch(RANKS, command, env={"PYTHONPATH": str(PACED)}) as launched:
        assert launched.wait() == 0, launched.tail()
    return job.parent / "saved/latest"
