"""Samples per batch that a task chooses: for the number of workers of the job, and kept over restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from thread_ranks import prepared

from mpips.checkpoint import open_checkpoint
from mpips.checkpoint.folder import list_checkpoints
from mpips.checkpoint.structure import hdf5_kind
from mpips.config.schema import JobConfig, load_config
from mpips.data import Sampling
from mpips.model.table import EmbeddingTable
from mpips.plan.planning import read_inputs
from mpips.tasks import logistic
from mpips.training.train import rehearse, train

N = 160
needs_hdf5 = pytest.mark.skipif(hdf5_kind() == "none", reason="checkpoints need h5py")


@pytest.fixture(autouse=True)
def few_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few updates suffice: batches have 160 * epochs / (10 * workers) samples, or the power below."""
    monkeypatch.setattr(logistic, "_LEAST_UPDATES", 10)


@pytest.fixture
def svm(tmp_path: Path) -> Path:
    path = tmp_path / "a.svm"
    path.write_text("".join(f"{i % 2} {1 + i % 7}:1 {9 + i % 5}:1\n" for i in range(N)))
    return path


def job(svm: Path, epochs: int, *more: tuple[str, Any]) -> JobConfig:
    first = [("task", "logistic"), ("data.train", str(svm)), ("train.epochs", epochs)]
    return load_config(None, [*first, ("options.l1", 2.0), *more])


@pytest.fixture
def saved(svm: Path, tmp_path: Path) -> tuple[str, Any]:
    """The folder of a run of 4 epochs of one worker, which has batches of 64."""
    folder = ("checkpoint.folder", str(tmp_path / "run"))
    assert train(job(svm, 4, folder), "none", verbose=False).value.steps == 4 * 3
    return folder


def batches(config: JobConfig, n_workers: int) -> int:
    """Samples per batch on every worker of a job that is about to start."""
    (size,) = {inputs.batch_size for inputs in prepared(config, n_workers)}
    return size


@needs_hdf5
def test_more_epochs_leave_the_batches_of_the_checkpoint(svm: Path, saved: tuple[str, Any]) -> None:
    outcome = train(job(svm, 16, saved), "none", verbose=False)
    assert outcome.value.steps == 16 * 3  # 256 samples would be one step per epoch
    with open_checkpoint(list_checkpoints(Path(saved[1]))[-1].path) as checkpoint:
        manifest = checkpoint.manifest
    sampling = Sampling.from_config(manifest.sampling)
    assert (sampling.shape.batch_size, sampling.legs) == (64, ())
    # The penalty is that of the batches which the run has.
    assert manifest.table("weight").optimizer["l1"] == 2.0 * 16 / 64


@needs_hdf5
def test_the_task_chooses_unless_there_are_batches_to_keep(
    svm: Path, saved: tuple[str, Any], tmp_path: Path
) -> None:
    path = ("checkpoint.resume", str(list_checkpoints(Path(saved[1]))[-1].path))
    assert batches(job(svm, 16), 1) == 256
    assert batches(job(svm, 16, saved), 1) == batches(job(svm, 16, path), 1) == 64
    assert batches(job(svm, 16, saved), 2) == batches(job(svm, 16, path), 2) == 128
    assert batches(job(svm, 16, saved, ("checkpoint.resume", "never")), 1) == 256
    assert batches(job(svm, 16, saved, ("train.batch_size", 32)), 1) == 32
    assert batches(job(svm, 16, ("checkpoint.folder", str(tmp_path / "new"))), 1) == 256
    planned = read_inputs(job(svm, 16, saved), 1)
    assert [planned.for_workers(n).batch_size for n in (1, 2)] == [64, 128]


@needs_hdf5
def test_kept_batches_are_named(svm: Path, saved: tuple[str, Any]) -> None:
    kept = "64 samples per batch, as in the checkpoint; a new run would have 256 (train.batch_size)"
    assert kept in prepared(job(svm, 16, saved), 1)[0].notes
    for config in (job(svm, 4, saved), job(svm, 16)):
        assert not [note for note in prepared(config, 1)[0].notes if "as in the checkpoint" in note]


@pytest.mark.parametrize("n_workers", [1, 2, 5])
def test_inputs_for_so_many_workers_are_those_of_their_job(svm: Path, n_workers: int) -> None:
    config = job(svm, 16)
    found, real = read_inputs(config, 1).for_workers(n_workers), prepared(config, n_workers)[0]
    assert (found.batch_size, found.tables) == (real.batch_size, real.tables)
    assert found.tables == found.task.tables()


@pytest.mark.parametrize(("n_ranks", "n_workers"), [(1, 1), (2, 1), (4, 2), (9, 6)])
def test_a_dry_run_asks_for_the_batches_of_its_workers(
    svm: Path, monkeypatch: pytest.MonkeyPatch, n_ranks: int, n_workers: int
) -> None:
    schedules = []
    monkeypatch.setattr(logistic.Logistic, "schedule", lambda _, found: schedules.append(found))
    monkeypatch.setattr(logistic.Logistic, "tables", lambda self: [EmbeddingTable("w", 1)])
    rehearse(job(svm, 16), n_ranks)
    last = schedules[-1]
    assert (last.n_workers, last.batch_size) == (n_workers, batches(job(svm, 16), n_workers))
