"""Tasks that read their files themselves and have metrics of their own, from the file to predictions."""

from __future__ import annotations

import random
import sys
import types
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpips
from mpips.config.schema import load_config
from mpips.data.options import Share
from mpips.data.quotients import Quotients
from mpips.data.rows import Arrays, Purpose, RowBatch, RowData, TaskPart, describe_samples
from mpips.data.vocabulary import Vocabulary
from mpips.errors import ConfigError, DataError
from mpips.mpi.messages import Attachment
from mpips.snapshot.attachments import Attachments, parts
from mpips.tasks import StepResult, Task, load_task
from mpips.training.train import rehearse, train


class WordCounts(Task):
    """Learns how often each word occurs: a row of one value per word, which each occurrence lowers."""

    name = "words"
    labels = "none"
    default_epochs = 1
    metrics = ("seen",)
    own_metrics = {"seen": "higher", "mean": "lower", "length": "none"}  # noqa: RUF012

    @classmethod
    def read(
        cls, path: str, options: Any, share: Share, like: Arrays | None, purpose: Purpose
    ) -> TaskPart:
        words = Path(path).read_text().split()
        arrays: dict[str, Any] = {}
        if like is None:
            arrays = {"vocabulary/words": Vocabulary.of(words).to_array()}
            arrays["task/lengths"] = np.array(
                [len(w) for w in Vocabulary.of(words).names], np.int32
            )
        known = Vocabulary.from_array((like or arrays)["vocabulary/words"])
        ids = known.keys(words)[:, np.newaxis]
        own = ids[share.numbers(0, len(ids))]
        info = describe_samples(len(ids), len(own), path, arrays)
        return TaskPart(RowData(own), info, arrays, (f"{purpose}: {len(words)} words",))

    def __init__(self, info: Any, options: Any, seed: int) -> None:
        self.n_words = info.size("words")

    def tables(self) -> list[Any]:
        return [mpips.EmbeddingTable("count", 1, optimizer=mpips.SGD(lr=1.0), init="zeros")]

    def receive(self, arrays: Arrays) -> None:
        self.words = Vocabulary.from_array(arrays["vocabulary/words"])
        self.lengths = arrays["task/lengths"]
        assert len(self.words) == self.n_words == len(self.lengths)

    def step(self, worker: Any, batch: RowBatch) -> StepResult:
        keys, n = np.unique(batch.ids[:, 0], return_counts=True)
        worker.table("count").push(keys, n.astype(np.float32)[:, np.newaxis])
        return StepResult(0.0, batch.n)

    def _counts(self, worker: Any, batch: RowBatch) -> Any:
        keys = np.maximum(batch.ids[:, 0], 0)
        return np.where(batch.ids[:, 0] < 0, 0, -worker.table("count").pull(keys)[:, 0])

    def measure(self, worker: Any, batch: RowBatch) -> Any:
        counts = self._counts(worker, batch)
        return {
            "seen": (counts > 0, np.ones(batch.n)),
            "mean": (counts / 4, np.ones(batch.n)),
            "length": (float(self.lengths[np.maximum(batch.ids[:, 0], 0)].sum()), float(batch.n)),
        }

    def columns(self, worker: Any, batch: RowBatch) -> dict[str, Any]:
        names = np.array([self.words.names[i] if i >= 0 else "?" for i in batch.ids[:, 0]])
        return {"word": names, "count": self._counts(worker, batch)}


@pytest.fixture
def words_task(monkeypatch: pytest.MonkeyPatch) -> str:
    module = types.ModuleType("own_words_task")
    module.WordCounts = WordCounts  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_words_task", module)
    return "own_words_task:WordCounts"


def job(task: str, folder: Path, *more: tuple[str, Any]) -> Any:
    (folder / "train.txt").write_text("a b a c ä a b")
    (folder / "test.txt").write_text("b x a\n")
    pairs = [
        ("task", task),
        ("data.train", str(folder / "train.txt")),
        ("data.test", str(folder / "test.txt")),
        ("checkpoint.folder", str(folder / "c")),
    ]
    return load_config(None, [*pairs, *more])


def test_a_model_of_a_task_that_reads_its_files_needs_no_training_data(
    words_task: str, tmp_path: Path
) -> None:
    config = job(words_task, tmp_path, ("train.metrics", ["mean"]))
    rehearse(config)
    result = train(config, "none", verbose=False).value
    assert result.metrics["seen"] == 2 / 3
    assert result.metrics["mean"] == 1.25 / 3
    assert "length" not in result.metrics
    (tmp_path / "train.txt").unlink()
    model = mpips.load(tmp_path / "c")
    assert model.info.size("words") == 4
    assert model.evaluate(tmp_path / "test.txt", ["length"]) == {
        **{name: result.metrics[name] for name in ("seen", "mean")},
        "length": 1.0,
    }
    found = model.columns(tmp_path / "test.txt")
    assert found is not None
    assert found["word"].tolist() == ["b", "?", "a"]
    assert found["count"].tolist() == [2, 0, 3]
    assert model.notes == ("predict: 3 words",)
    with pytest.raises(DataError, match="reads its files itself; give a path"):
        model.predict(np.zeros((2, 2)))
    with pytest.raises(ConfigError, match=r"predicts columns: use `mpips predict` or columns"):
        model.predict(tmp_path / "test.txt")
    pytest.importorskip("starlette", reason="the server needs it")
    from mpips.inference.parsing import RequestRefused, samples_in

    with pytest.raises(RequestRefused, match="reads lines of its own: send"):
        samples_in([[1.0]], model)


def test_a_job_does_not_continue_with_the_rows_of_other_words(
    words_task: str, tmp_path: Path
) -> None:
    train(job(words_task, tmp_path), "none", verbose=False)
    longer = job(words_task, tmp_path, ("train.epochs", 2))
    (tmp_path / "train.txt").write_text("a b a c d a b")
    with pytest.raises(ConfigError, match=r"was trained with other names \(.*4 words.*"):
        train(longer, "none", verbose=False)
    (tmp_path / "train.txt").write_text("ä c b a")
    assert train(longer, "none", verbose=False).value.epochs == 2


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (
            ("data.label", "y"),
            "data.label = 'y' has no effect: task 'own_words_task:WordCounts' reads",
        ),
        (
            ("train.metrics", ["auc"]),
            "train.metrics: 'auc' is unknown: must be some of .*, seen, mean",
        ),
        (
            ("train.metrics", ["mae"]),
            "metric 'mae': this task has none of this name; it has seen, mean",
        ),
    ],
)
def test_what_such_a_task_does_not_have_is_refused(
    words_task: str, tmp_path: Path, pair: tuple[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(job(words_task, tmp_path, pair), "none", verbose=False)


def test_early_stopping_watches_a_metric_of_the_task(words_task: str, tmp_path: Path) -> None:
    more = [("train.epochs", 9), ("train.patience", 2)]
    result = train(job(words_task, tmp_path, *more), "none", verbose=False).value
    assert result.stopped.startswith(
        "after epoch 3: seen did not improve in 2 evaluations (best 0.6667"
    )
    more = [*more, ("train.metric", "mean"), ("checkpoint.folder", "")]
    result = train(job(words_task, tmp_path, *more), "none", verbose=False).value
    assert "mean did not improve in 2 evaluations (best 0.4167 after epoch 1)" in result.stopped


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"own_metrics": {"seen": "up"}},
            r"own_metrics\['seen'\] = 'up': must be one of higher, lower",
        ),
        ({"measure": Task.measure}, "has own_metrics and no method measure"),
        ({"own_metrics": {}}, "labels = 'none' and no own_metrics"),
        (
            {"own_metrics": {"epochs": "none"}},
            r"own_metrics\['epochs'\]: the name has another meaning",
        ),
    ],
)
def test_a_wrong_declaration_of_metrics_is_refused(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    module = types.ModuleType("own_words_task")
    module.Wrong = type("Wrong", (WordCounts,), changes)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_words_task", module)
    with pytest.raises(ConfigError, match=message):
        load_task("own_words_task:Wrong")


def test_quotients_have_the_same_bits_however_the_samples_are_divided() -> None:
    values = np.random.default_rng(1).lognormal(0, 20, 300) * 1e-3
    pair = (values, np.arange(1.0, 301.0))
    exact = float(sum(map(Fraction, values.tolist()), Fraction()) / Fraction(300 * 301, 2))
    order = list(range(300))
    for seed in range(3):
        random.Random(seed).shuffle(order)
        total = Quotients.zero(("x",))
        for part in np.array_split(np.array(order), 1 + 3 * seed):
            own = Quotients.of(("x",), {"x": (pair[0][part], pair[1][part])})
            total += Quotients.unpack(("x",), own.pack())
        assert total.values() == {"x": exact}
    assert np.isnan(Quotients.zero(("x",)).values()["x"])
    with pytest.raises(ValueError, match="metric 'y' is missing: found x"):
        Quotients.of(("y",), {"x": (1, 1)})


@pytest.mark.parametrize("dtype", ["u1", ">i4", "<f8"])
def test_arrays_of_any_type_arrive_in_parts(dtype: str) -> None:
    array = (np.arange(3000) % 251).astype(dtype).reshape(3, 1000)
    received = Attachments(["task/x"])
    sent: list[Attachment] = list(parts("task/x", array))
    assert len(sent) > 0
    for part in sent:
        assert received.missing == ["task/x"]
        received.take(part)
    assert received.missing == []
    np.testing.assert_array_equal(received.complete["task/x"], array)
    assert received.complete["task/x"].dtype.itemsize == array.dtype.itemsize


def test_a_vocabulary_survives_its_array_and_knows_no_other_names() -> None:
    vocabulary = Vocabulary.of(["b", "ä b", "b", "\t"])
    again = Vocabulary.from_array(vocabulary.to_array())
    assert again.names == vocabulary.names == ("\t", "b", "ä b")
    assert again.keys(["ä b", "x", "b"]).tolist() == [2, -1, 1]
    assert Vocabulary.from_array(Vocabulary([]).to_array()).names == ()
    with pytest.raises(DataError, match=r"name 'a\\nb': must be text without line breaks"):
        Vocabulary(["a\nb"])
