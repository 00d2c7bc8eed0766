"""The NumPy models of the suite `train` do the same arithmetic as the tasks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mpips.bench.rank.workloads import job_config, timed_epochs
from mpips.config.options import SessionOptions
from mpips.data import Cursor, DataInfo, Loader, SparseData
from mpips.data.dataset import Dataset, DenseData
from mpips.mpi.one_rank import OneRank
from mpips.session.driver import run_alone
from mpips.tasks.linear import BIAS_KEY
from mpips.tasks.logistic import Logistic, LogisticOptions
from mpips.tasks.mlp import Mlp, MlpOptions
from mpips.training.epochs import Inputs, Result, train_epochs
from mpips.training.prepare import prepare, ready
from mpips.worker.worker import Worker
from tests.bench.plain import PlainLogistic, PlainMlp

N, D, BATCH, EPOCHS = 200, 17, 32, 4


def information(kind: str, n_classes: int) -> DataInfo:
    return DataInfo(
        kind=kind,
        n_local=N,
        n_samples_total=N,
        n_features=D,
        labels=tuple(float(c) for c in range(n_classes)),
    )


def sparse() -> SparseData:
    rng = np.random.default_rng(1)
    rows = [np.sort(rng.choice(D, rng.integers(0, 6), replace=False)) for _ in range(N)]
    indptr = np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64)
    indices = np.concatenate(rows).astype(np.int64)
    values = rng.normal(size=len(indices)).astype(np.float32)
    return SparseData(indptr, indices, values, rng.integers(0, 2, N), D)


def dense() -> DenseData:
    rng = np.random.default_rng(2)
    return DenseData(rng.normal(size=(N, D)).astype(np.float32), rng.integers(0, 3, N))


def inputs_of(task: Logistic | Mlp, information: DataInfo, data: Dataset) -> Inputs:
    return Inputs(information, task, task.tables(), EPOCHS, BATCH, data, None)


def test_plain_logistic_trains_like_the_task() -> None:
    info = information("sparse", 2)
    task = Logistic(info, LogisticOptions(l1=0.01), seed=0)
    data = sparse()
    inputs = inputs_of(task, info, data)

    def work(worker: Worker) -> np.ndarray:
        train_epochs(worker, inputs, ready(worker, inputs, 3), 0, Result())
        return worker.table("weight").pull(np.append(np.arange(D), BIAS_KEY))[:, 0]

    trained = run_alone(work, inputs.tables, SessionOptions()).value
    plain = PlainLogistic(data, LogisticOptions(), inputs.tables[0].optimizer)  # type: ignore[arg-type]
    for _, batch in Loader(data, N, 1, 0, BATCH, 3).until(EPOCHS):
        plain.step(batch)
    assert np.count_nonzero(trained) > D // 2
    np.testing.assert_allclose(plain.weights, trained, rtol=1e-3, atol=1e-5)


def test_plain_mlp_trains_like_the_task() -> None:
    info = information("dense", 3)
    options = MlpOptions(hidden=(8,))
    task = Mlp(info, options, seed=0)
    data = dense()
    inputs = inputs_of(task, info, data)
    names = [table.name for table in inputs.tables]

    def work(worker: Worker) -> list[list[np.ndarray]]:
        initial = [worker.table(name).pull() for name in names]
        train_epochs(worker, inputs, ready(worker, inputs, 3), 0, Result())
        return [initial, [worker.table(name).pull() for name in names]]

    initial, trained = run_alone(work, inputs.tables, SessionOptions()).value
    plain = PlainMlp(data, options, inputs.tables[0].optimizer, initial)  # type: ignore[arg-type]
    for _, batch in Loader(data, N, 1, 0, BATCH, 3).until(EPOCHS):
        plain.step(batch)
    for name, ours, theirs, before in zip(names, trained, plain.values, initial, strict=True):
        assert not np.array_equal(ours, before)
        np.testing.assert_allclose(theirs, ours, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("first", [0, 2])
def test_training_resumes_at_the_cursor_of_its_loader(first: int) -> None:
    info = information("dense", 3)
    task = Mlp(info, MlpOptions(hidden=(8,)), seed=0)
    inputs = inputs_of(task, info, dense())

    def work(worker: Worker) -> int:
        loader = ready(worker, inputs, 3)
        loader.cursor = Cursor(first, 0)
        result = Result()
        train_epochs(worker, replace(inputs, n_epochs=EPOCHS), loader, 0, result)
        return result.samples

    assert run_alone(work, inputs.tables, SessionOptions()).value == (EPOCHS - first) * N


def test_epochs_after_others_of_the_same_session_are_whole() -> None:
    """The measured epochs start at a clock above 0."""
    config = job_config("softmax", "digits")
    inputs = prepare(OneRank(), 1, config)
    outcome = run_alone(lambda w: timed_epochs(w, inputs, 2), inputs.tables, config.cluster)
    assert outcome.value.samples == 2 * inputs.info.n_samples_total
