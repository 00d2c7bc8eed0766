"""Evaluation and prediction of files block by block: the bits of the whole file, in bounded memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_rig import ENDING, JOBS, dense_csv, make, svm

from mpips import load
from mpips.config.schema import load_config
from mpips.data import Batch, Dataset, read
from mpips.data import file_blocks as blocks_module
from mpips.data.metrics import MORE_BINARY, merge
from mpips.data.ranking import Ranking, pairs_of
from mpips.errors import DataError
from mpips.inference import evaluating
from mpips.inference import model as model_module
from mpips.inference.evaluating import batches_in
from mpips.inference.model import Model
from mpips.training.evaluation import batches_of, scored
from mpips.training.train import train

pytest.importorskip("h5py")


def whole(model: Model, path: Path, size: int, more: tuple[str, ...]) -> dict[str, float]:
    """Return the metrics of a file that is read as a whole and evaluated in batches of `size`."""
    from mpips.data.info import align, matching_labels, relabel

    part = read(path, options=model._options, like=model.info)
    data = align(relabel(part.data, matching_labels(model.info, part.info)), model.info)
    shares = [scored(model.tables, model.task, batch) for batch in batches_of(data, size)]
    return merge(shares, more)


REGRESSION = """
import numpy as np
from mpips import DenseTable
from mpips.tasks import StepResult, Task

class Sums(Task):
    name = "sums"
    labels = "targets"

    def __init__(self, info, options, seed):
        self.d = info.n_features

    def tables(self):
        return [DenseTable("w", (self.d,), init="normal(1)")]

    def step(self, worker, batch):
        worker.table("w").push(np.ones(self.d, np.float32))
        return StepResult(0.0, batch.n)

    def predict(self, worker, batch):
        return batch.x @ worker.table("w").pull()
"""


def a_model(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Model, Path]:
    """Return a trained model and a file to evaluate."""
    if name != "regression":
        make(name, folder)
        return load(folder / "checkpoints"), folder / f"test.{ENDING[JOBS[name][1]]}"
    (folder / "sums_task.py").write_text(REGRESSION)
    monkeypatch.syspath_prepend(folder)
    rng = np.random.default_rng(1)
    np.savez(folder / "d.npz", x=rng.normal(size=(90, 3)), y=rng.normal(size=90))
    pairs: list[tuple[str, Any]] = [
        ("task", "sums_task:Sums"),
        ("data.train", str(folder / "d.npz")),
        ("train.epochs", 1),
        ("checkpoint.folder", str(folder / "checkpoints")),
    ]
    train(load_config(None, pairs), "none", verbose=False)
    return load(folder / "checkpoints"), folder / "d.npz"


@pytest.mark.parametrize("name", ["softmax", "logistic", "hashed fm", "wide_deep", "regression"])
def test_blocks_give_the_bits_of_the_whole_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, test = a_model(name, tmp_path, monkeypatch)
    more = MORE_BINARY if len(model.classes) == 2 else ("mae",)
    asked = () if name == "softmax" else more
    expected, predicted = whole(model, test, 32, more), model.predict(test)
    assert model.evaluate(test, asked) == whole(model, test, 4096, more)
    # Blocks of some samples, which are no multiple of a batch.
    monkeypatch.setattr(blocks_module, "_PIECE_BYTES", 300)
    monkeypatch.setattr(blocks_module, "_MOST_ROWS", 23)
    assert len([*model.blocks_of(str(test), 0, 1, print)]) >= 3
    assert model.predict(test).tolist() == predicted.tolist()
    monkeypatch.setattr(
        model_module, "batches_in", lambda blocks, source: batches_in(blocks, source, 32)
    )
    assert model.evaluate(test, asked) == expected


def test_no_more_than_a_block_and_a_batch_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("logistic", tmp_path)
    model = load(tmp_path / "checkpoints")
    monkeypatch.setattr(blocks_module, "_PIECE_BYTES", 1 << 14)
    monkeypatch.setattr(
        model_module, "batches_in", lambda blocks, source: batches_in(blocks, source, 256)
    )
    text = (tmp_path / "test.svm").read_text()
    peaks = []
    for copies in (100, 1000):
        path = tmp_path / "long.svm"
        path.write_text(text * copies)
        for work in (model.evaluate, model.predict):
            work(tmp_path / "test.svm")
            tracemalloc.start()
            work(path)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    # 81,000 samples more. As lists of features they are 100 bytes each or more; scores and labels are 16.
    for few, many in zip(peaks[:2], peaks[2:], strict=True):
        assert many - few <= 81_000 * 18


def test_batches_do_not_depend_on_blocks(tmp_path: Path) -> None:
    data = read(svm(tmp_path / "a.svm", 100, 3)).data
    expected = [*batches_of(data, 16)]
    for sizes in ([100], [1] * 100, [16, 0, 17, 3, 64], [0, 99, 1, 0]):
        found = [*batches_in(parts(data, sizes), "a.svm", 16)]
        assert len(found) == len(expected)
        for batch, other in zip(found, expected, strict=True):
            assert arrays(batch) == arrays(other)
    for sizes in ([], [0, 0]):
        with pytest.raises(DataError, match=r"^a.svm: contains no samples$"):
            list(batches_in(parts(data, sizes), "a.svm"))


def parts(data: Dataset, sizes: list[int]) -> Iterator[Dataset]:
    """Yield consecutive parts of data."""
    import msgspec

    start = 0
    for size in sizes:
        taken = data.take(np.arange(start, start + size))
        yield msgspec.structs.replace(
            data,
            indptr=taken.indptr,
            indices=taken.keys,
            values=taken.values,
            labels=taken.labels,
        )
        start += size


def arrays(batch: Batch) -> list[list[float]]:
    return [getattr(batch, name).tolist() for name in ("indptr", "keys", "values", "labels")]


@pytest.mark.parametrize("chunk", [1, 2, 7, 1 << 16])
@pytest.mark.parametrize("seed", range(6))
def test_pairs_of_scores_are_those_of_a_ranking(
    seed: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpips.data.ranking._CHUNK", chunk)
    rng = np.random.default_rng(seed)
    n = int(rng.integers(0, 60))
    # Many ties, both zeros, infinities.
    scores = rng.choice([-np.inf, -0.0, 0.0, 1e-300, 0.25, 0.5, np.inf, *rng.random(9)], n)
    positive = rng.random(n) < rng.choice([0, 0.1, 0.5, 1])
    expected = Ranking.of(scores, positive).pairs()
    assert pairs_of(scores[positive], scores[~positive]) == expected


def test_scores_that_are_nan_make_the_metrics_nan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("logistic", tmp_path)
    model = load(tmp_path / "checkpoints")

    def some_nan(*arguments: Any) -> Any:
        import msgspec

        share = scored(*arguments)
        return msgspec.structs.replace(share, scores=np.append(share.scores[:-1], np.nan))

    monkeypatch.setattr(evaluating, "scored", some_nan)
    found = model.evaluate(tmp_path / "test.svm", ["pr_auc"])
    assert set(found) == {"accuracy", "auc", "log_loss", "pr_auc"}
    assert all(map(np.isnan, found.values()))


def test_several_files_and_one_without_samples(tmp_path: Path) -> None:
    make("softmax", tmp_path)
    model = load(tmp_path / "checkpoints")
    lines = (tmp_path / "test.csv").read_text().splitlines()
    for i, own in enumerate((lines[1:30], [], lines[30:])):
        (tmp_path / f"part{i}.csv").write_text("\n".join([lines[0], *own]) + "\n")
    assert model.evaluate(tmp_path / "part*.csv") == model.evaluate(tmp_path / "test.csv")
    expected = model.predict_proba(tmp_path / "test.csv")
    assert model.predict_proba(tmp_path / "part*.csv").tobytes() == expected.tobytes()
    for work in (model.evaluate, model.predict):
        with pytest.raises(DataError, match=r"part1.csv: contains no samples"):
            work(tmp_path / "part1.csv")


def test_notes_are_those_of_the_last_file(tmp_path: Path) -> None:
    make("softmax", tmp_path)
    model = load(tmp_path / "checkpoints")
    lines = dense_csv(tmp_path / "b.csv", 20, 4).read_text().splitlines()
    (tmp_path / "b.csv").write_text("\n".join([f"more,{lines[0]}", *(f"1,{x}" for x in lines[1:])]))
    for work in (model.evaluate, model.predict):
        work(tmp_path / "b.csv")
        assert [*model.notes] == [
            f"{tmp_path}/b.csv: column 'more' not in the training data: left out"
        ]
        work(tmp_path / "test.csv")
        assert not model.notes
