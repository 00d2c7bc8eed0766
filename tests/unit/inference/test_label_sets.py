"""Several labels of a sample in LIBSVM text: lists in front of the lines, from the reader to the metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from model_rig import several_csv, several_svm

import mpips
from mpips.cli.evaluate import command as evaluate_command
from mpips.cli.predict import command as predict_command
from mpips.config.schema import load_config
from mpips.data import DataInfo, ReadOptions, SparseData, combine, read
from mpips.data.by_content import format_of
from mpips.data.info import align
from mpips.data.label_sets import LabelSets
from mpips.data.stream import conversion
from mpips.errors import ConfigError, DataError
from mpips.training.train import train
from tests.support.streaming import streamed, whole

pytest.importorskip("h5py")

SEVERAL = ReadOptions(wants="several")


def lines_of(n: int, seed: int) -> list[str]:
    """Lines with up to four of seven labels and up to five features, in any order, and with comments."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(n):
        labels = rng.permutation([0, 1, 3, 7, 12, 100, 4096])[: rng.integers(0, 5)]
        keys = rng.permutation(np.arange(1, 30))[: rng.integers(0 if len(labels) else 1, 6)]
        query = "qid:5 " if rng.random() < 0.2 else ""
        pairs = " ".join(f"{key}:{rng.integers(1, 9)}" for key in keys)
        comment = " # 9,9 1:1" if rng.random() < 0.2 else ""
        lines.append(f"{','.join(map(str, labels))} {query}{pairs}{comment}")
    return lines


def reference(lines: list[str]) -> list[tuple[set[int], dict[int, float]]]:
    """The labels and the features of each line, in plain Python."""
    found = []
    for line in lines:
        tokens = [t for t in line.split("#")[0].split() if not t.startswith("qid:")]
        labels = {int(x) for t in tokens if ":" not in t for x in t.split(",")}
        pairs = (t.split(":") for t in tokens if ":" in t)
        found.append((labels, {int(key): float(value) for key, value in pairs}))
    return found


def samples(
    data: Any, names: tuple[str, ...], base: int
) -> list[tuple[set[int], dict[int, float]]]:
    """Samples with labels of shape (n, k), in the form of `reference`."""
    assert isinstance(data, SparseData)
    assert data.fields is None
    found = []
    for i in range(data.n):
        row = slice(data.indptr[i], data.indptr[i + 1])
        keys = (data.indices[row] + base).tolist()
        labels = {int(n) for n, y in zip(names, data.labels[i].tolist(), strict=True) if y}
        found.append((labels, dict(zip(keys, data.values[row].tolist(), strict=True))))
    return found


@pytest.mark.parametrize("n_workers", [1, 3])
@pytest.mark.parametrize("n_files", [1, 2])
def test_all_workers_find_the_labels_and_samples_of_the_lines(
    n_workers: int, n_files: int, tmp_path: Path
) -> None:
    lines = lines_of(200, 1)
    rest = "\n# none\n\n"
    for i in range(n_files):
        part = lines[i * 200 // n_files : (i + 1) * 200 // n_files]
        (tmp_path / f"{i}.svm").write_text(rest.join(part) + "\n")
    shares = [
        read(tmp_path / "*.svm", stride=n_workers, offset=w, options=SEVERAL)
        for w in range(n_workers)
    ]
    info = combine([share.info for share in shares])
    expected = reference(lines)
    counts = {
        y: sum(y in labels for labels, _ in expected) for labels, _ in expected for y in labels
    }
    assert dict(zip(info.labels, info.counts, strict=True)) == counts
    sets = LabelSets.of(info)
    assert sets is not None
    assert sets.names == tuple(map(str, sorted(counts)))
    for w, share in enumerate(shares):
        data = align(sets.taken_out(share.data), info)
        assert samples(data, sets.names, info.index_base) == expected[w::n_workers]


@pytest.mark.parametrize("n_workers", [1, 3])
@pytest.mark.parametrize(("base", "low"), [("auto", 0), ("auto", 1), (0, 0), (0, 1), (1, 1)])
def test_a_cache_has_the_labels_and_features_of_the_lines(
    base: Any, low: int, n_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces do not know the base of the whole; features are numbered by it, and labels are not."""
    monkeypatch.setattr(conversion, "_LEAST_PIECE", 300)
    lines = [*lines_of(200, 3), f"1,0 {low}:7 40:1"]
    path = tmp_path / "a.svm"
    path.write_text("\n".join(lines) + "\n")
    options = ReadOptions(wants="several", index_base=base)
    shares = streamed(
        [path], tmp_path / "cache", options=options, n_workers=n_workers, memory=1 << 12
    )
    index = shares[0].index
    assert len(index.pieces) > 3
    assert index.index_base == (low if base == "auto" else base)
    sets = LabelSets.of(index.info())
    assert sets is not None
    found = samples(sets.taken_out(whole(shares)), sets.names, index.index_base)
    assert found == reference(lines)


def test_a_part_of_the_lines_may_have_a_feature_0(tmp_path: Path) -> None:
    """The base is that of all files, and labels have none."""
    (tmp_path / "a.svm").write_text("1,2 1:5\n")
    (tmp_path / "b.svm").write_text("0 0:5\n")
    part = read(tmp_path / "*.svm", options=SEVERAL)
    sets = LabelSets.of(part.info)
    assert sets is not None
    found = samples(sets.taken_out(part.data), sets.names, 0)
    assert found == [({1, 2}, {1: 5.0}), ({0}, {0: 5.0})]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("1,2 1:1\n1,,2 1:1\n", r"a\.svm:2:3: found '': expected several labels: whole numbers"),
        ("1, 1:1\n", r"a\.svm:1:3: found '': expected several labels"),
        ("-1 1:1\n", "found '-1': expected several labels: whole numbers of 0 or more"),
        ("1,x 1:1\n", r"a\.svm:1:3: found 'x'"),
        ("1,1.5 1:1\n", "found '1.5'"),
        ("1,9007199254740992 1:1\n", "found '9007199254740992'"),
        ("3,1,3 1:1\n", r"a\.svm:1:5: found '3': expected each label once per sample"),
        (" 1:1 1:2\n", r"a\.svm:1:6: found '1': expected each index once per sample"),
        ("1,2 1:1 3,4\n", "found '3,4': expected index:value"),
    ],
)
def test_a_wrong_line_is_named(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "a.svm"
    path.write_text(text)
    with pytest.raises(DataError, match=complaint):
        read(path, options=SEVERAL)


@pytest.mark.parametrize("line", ["1,3,7 5:0.2 9:1", " 5:0.2 9:1", "5:0.2"])
@pytest.mark.parametrize("task", ["mlp", "logistic", "fm", "softmax"])
def test_without_the_option_one_sentence_says_what_to_do(
    line: str, task: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.svm"
    path.write_text(f"1 1:1\n0 2:1\n{line}\n")
    config = load_config(None, [("task", task), ("data.train", str(path))])
    complaint = (
        r"a\.svm:3:\d: found '\S+': expected a label: one finite number .*; lines with several labels, "
        r"or none, are for task 'mlp' with options.labels = 'several'$"
    )
    with pytest.raises(DataError, match=complaint):
        train(config, "none", False)


def test_the_form_is_known_by_the_content(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("1,3 5:0.2\n 5:0.2 9:1\n7\n# x\n12,0 1:1 # y\n")
    assert read(path, options=SEVERAL).info.labels == (0, 1, 3, 7, 12)
    path.write_text("1,3\n2,4\n")  # CSV
    assert format_of(path) == "csv"


def job(file: Path, *more: tuple[str, Any]) -> Any:
    pairs = [("task", "mlp"), ("data.train", str(file)), ("options.labels", "several")]
    return load_config(None, [*pairs, ("train.epochs", 6), ("options.hidden", [16]), *more])


def run(config: Any) -> dict[str, float]:
    metrics: dict[str, float] = train(config, "none", False).value.metrics
    return metrics


class Trained:
    """A model, with its metrics and files."""

    def __init__(self, folder: Path) -> None:
        self.train = several_svm(folder / "train.svm", 1600, 1)
        self.test = several_svm(folder / "test.svm", 400, 2)
        self.path = folder / "checkpoints"
        more = (("data.test", str(self.test)), ("checkpoint.folder", str(self.path)))
        self.metrics = run(job(self.train, *more))
        self.model = mpips.load(self.path)
        table = np.loadtxt(self.test.with_suffix(".csv"), delimiter=",", skiprows=1)
        self.y = table[:, [3, 1, 4]].astype(int)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("sets"))


def test_predictions_have_a_column_for_each_label(trained: Trained, tmp_path: Path) -> None:
    model = trained.model
    p, labels = model.predict_proba(trained.test), model.predict(trained.test)
    assert (p.dtype, p.shape, labels.dtype) == (np.float32, (400, 3), np.int64)
    assert model.classes.tolist() == ["2", "5", "30"]
    # The labels of a file that is predicted are not read: none, one or others give the same.
    bare = [re.sub(r"^\S*", "", line) for line in trained.test.read_text().splitlines()]
    for first in ("", "1", "8,9"):
        (tmp_path / "bare.svm").write_text("".join(f"{first}{line}\n" for line in bare))
        assert model.predict_proba(tmp_path / "bare.svm").tobytes() == p.tobytes()
    out = tmp_path / "out.csv"
    arguments = [str(trained.path), "--data", str(trained.test), "--out", str(out)]
    result = CliRunner().invoke(predict_command, arguments)
    assert result.exit_code == 0, result.output
    header, *rows = out.read_text().splitlines()
    assert header == "2,5,30,probability_2,probability_5,probability_30"
    assert [list(map(int, row.split(",")[:3])) for row in rows] == labels.tolist()
    # The known model draws a and b by chance; its log-loss is 0.376, that of the base rates 0.53.
    loss = -np.where(trained.y == 1, np.log(p), np.log1p(-p)).mean()
    assert loss < 0.42
    assert trained.metrics["log_loss"] == pytest.approx(loss, abs=1e-4)


def test_evaluate_equals_the_metrics_of_the_training(trained: Trained) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    found = trained.model.evaluate(trained.test)
    assert found == {name: v for name, v in trained.metrics.items() if name != "loss"}
    labels = trained.model.predict(trained.test)
    micro = metrics.f1_score(trained.y, labels, average="micro")
    assert found["micro_f1"] == pytest.approx(micro, abs=1e-6)
    arguments = [str(trained.path), "--data", str(trained.test), "--json"]
    result = CliRunner().invoke(evaluate_command, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["macro_f1"] == found["macro_f1"]


def test_labels_and_features_that_were_not_trained_are_left_out(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = tmp_path / "new.svm"
    test.write_text("".join(f"9,{line} 50:1\n" for line in trained.test.read_text().splitlines()))
    lines = test.read_text().replace("9, ", "9 ")
    test.write_text(lines)
    model = mpips.load(trained.path)
    assert model.evaluate(test) == trained.model.evaluate(trained.test)
    note = f"{test}: left out labels that no training sample has: 9"
    assert model.notes == (note,)
    config = job(trained.train, ("data.test", str(test)))
    assert train(config, "none", True).value.metrics == trained.metrics
    assert note in capsys.readouterr().err


def test_windows_patterns_held_out_samples_and_bad_lines(tmp_path: Path) -> None:
    """The cache has the labels, too; features count from 1, labels are what they are."""
    lines = several_svm(tmp_path / "raw.svm", 1400, 1).read_text().splitlines(keepends=True)
    whole, bad = tmp_path / "whole.svm", tmp_path / "bad.svm"
    whole.write_text("".join(lines))
    for i in range(2):
        (tmp_path / f"part{i}.svm").write_text("".join(lines[i * 700 : (i + 1) * 700]))
    bad.write_text("".join([*lines[:300], "1,x 1:1\n", *lines[300:]]))
    test = several_svm(tmp_path / "test.svm", 400, 2)

    def of(name: str, *more: tuple[str, Any]) -> dict[str, float]:
        folder = tmp_path / f"{name.replace('*', '')}-{'-'.join(key for key, _ in more)}"
        found = run(job(tmp_path / name, ("checkpoint.folder", str(folder)), *more))
        model = mpips.load(folder)
        assert model.classes.tolist() == ["2", "5", "30"]
        assert model.evaluate(test)["log_loss"] < 0.45
        return found

    held = of("whole.svm", ("data.validation", 0.2))
    assert of("part*.svm", ("data.validation", 0.2)) == held
    windows = of("whole.svm", ("data.validation", 0.2), ("data.memory_mib", 0.01))
    assert windows["log_loss"] == pytest.approx(held["log_loss"], abs=0.05)
    tested = ("data.test", str(test))
    assert of("bad.svm", tested, ("data.on_bad", "skip")) == of("whole.svm", tested)
    with pytest.raises(DataError, match=r"bad\.svm:301:3: found 'x'"):
        run(job(bad))


def test_a_restart_goes_on_with_the_same_labels_only(trained: Trained, tmp_path: Path) -> None:
    file = trained.train

    def until(epochs: int, folder: str, path: Path = file) -> dict[str, float]:
        more = (("train.epochs", epochs), ("checkpoint.folder", str(tmp_path / folder)))
        return run(job(path, ("data.test", str(trained.test)), *more))

    until(2, "twice")
    assert until(4, "twice") == until(4, "once")
    other = tmp_path / "other.svm"
    other.write_text(file.read_text() + "6 1:1\n")
    with pytest.raises(ConfigError, match="trained on labels 2, 5, 30, the training data now has"):
        until(6, "once", other)


def test_a_matrix_and_labels_of_shape_n_k_are_fitted(tmp_path: Path) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    table = np.loadtxt(several_csv(tmp_path / "a.csv", 900, 1, False), delimiter=",", skiprows=1)
    x, y = np.zeros((900, 4)), table[:, [3, 1, 4]].astype(int)
    x[:, [1, 3]] = table[:, [0, 2]]  # the first column is empty
    x[5] = y[5] = 0  # a sample without features and labels
    matrix = sparse.csr_matrix(x)
    settings = {"options.hidden": [16]}
    found = mpips.fit("mlp", (matrix, y), (matrix, y.astype(bool)), epochs=6, settings=settings)
    assert found.model.classes.tolist() == ["0", "1", "2"]
    assert found.model.info.n_samples_total == 900
    p = found.model.predict_proba(matrix)
    assert p.shape == y.shape
    loss = -np.where(y == 1, np.log(p), np.log1p(-p)).mean()
    assert found.metrics["log_loss"] == pytest.approx(loss, abs=1e-4)
    assert loss < 0.42
    wrong = y.copy()
    wrong[7, 1] = 2
    with pytest.raises(
        DataError, match="the train data has the label 2: several labels are 0 or 1"
    ):
        mpips.fit("mlp", (matrix, wrong))
    wrong[:, 1] = 0
    with pytest.raises(DataError, match="column 1 of the labels is 0 in all of them: leave"):
        mpips.fit("mlp", (matrix, wrong))


def test_requests_are_answered_with_the_labels_that_are_1(trained: Trained) -> None:
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    pytest.importorskip("starlette", reason="starlette is not installed")
    pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
    from serving_rig import served

    table = np.loadtxt(trained.test.with_suffix(".csv"), delimiter=",", skiprows=1)[:20]
    rows = [{"1": size, "3": age} for size, _, age, _, _ in table.tolist()]
    labels, p = trained.model.predict(trained.test), trained.model.predict_proba(trained.test)
    with served(trained.path) as (client, _):
        status, found = client.json("POST", "/predict", {"rows": rows})
    assert status == 200, found
    assert found["classes"] == ["2", "5", "30"]
    names = trained.model.classes
    assert found["predictions"] == [names[row == 1].tolist() for row in labels[:20]]
    assert np.allclose(found["probabilities"], p[:20], atol=1e-6)


def test_rows_of_matrices_are_predicted(trained: Trained) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    table = np.loadtxt(trained.test.with_suffix(".csv"), delimiter=",", skiprows=1)
    x = np.zeros((400, 3))
    x[:, [0, 2]] = table[:, [0, 2]]
    p = trained.model.predict_proba(trained.test)
    assert np.allclose(trained.model.predict_proba(sparse.csr_matrix(x)), p, atol=1e-6)
    assert np.allclose(trained.model.predict_proba(x), p, atol=1e-6)


def test_bad_use_is_named(trained: Trained, tmp_path: Path) -> None:
    table = several_csv(tmp_path / "a.csv", 30, 1)
    with pytest.raises(ConfigError, match=r"is for LIBSVM text.*csv has several labels in columns"):
        run(job(table))
    # With the columns, the option says what they mean anyway.
    assert "micro_f1" in run(
        job(
            table,
            ("data.label", ["a", "b"]),
            ("data.ignore", ["colour"]),
            ("data.test", str(table)),
        )
    )
    with pytest.raises(ConfigError, match=r"has no named columns.*leave data.label out"):
        run(job(trained.train, ("data.label", ["2", "5"])))
    none = tmp_path / "none.svm"
    none.write_text(" 1:1\n 2:1\n")
    with pytest.raises(DataError, match="no sample of the training data has a label"):
        run(job(none))
    for task in ("wide_deep", "deepfm", "dcnv2"):
        with pytest.raises(DataError, match="use task 'mlp' for numbers"):
            run(job(trained.train, ("task", task)))
    with pytest.raises(ConfigError, match=r"is for LIBSVM text.*csv has several labels in columns"):
        trained.model.evaluate(table)
    with pytest.raises(DataError, match=r"a\.csv: has named columns, the training data lists"):
        trained.model.predict(table)


def test_the_description_of_earlier_columns_is_no_list() -> None:
    info = DataInfo(9, 9, 4, (), "sparse", wants="several", columns=("a",), label_names=("x",))
    assert LabelSets.of(info) is None
