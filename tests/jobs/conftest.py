"""Fixtures for the batch scripts: one private Slurm for all tests, and nothing left behind by any."""

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


@pytest.fixture(scope="session")
def script() -> Callable[[str], Path]:
    """The path of a script in jobs/."""
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
    """The checkpoint of the same job, with as many workers, run in one go without Slurm."""
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
