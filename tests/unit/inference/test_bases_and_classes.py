"""Features have one number in files and arrays, and every class has a name of its own in all outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import mpips
from mpips.cli.predict import command as predict
from mpips.data import DataInfo, ReadOptions, read
from mpips.data.info import label_text
from mpips.errors import ConfigError, DataError

sparse = pytest.importorskip("scipy.sparse")
N, D = 120, 6


def samples() -> tuple[Any, Any]:
    """Return samples of which each has one feature, and the label says whether that is odd."""
    places = np.arange(N) % D
    x = sparse.csr_matrix((np.ones(N), (np.arange(N), places)), (N, D))
    return x, (places % 2).astype(np.int64)


def write(path: Path, x: Any, y: Any, base: int) -> str:
    lines = (
        " ".join(
            [str(label), *(f"{j + base}:{v:g}" for j, v in zip(r.indices, r.data, strict=True))]
        )
        for r, label in zip(x, y, strict=True)
    )
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def without_first(x: Any, y: Any) -> tuple[Any, Any]:
    rows = np.flatnonzero(np.arange(N) % D > 0)
    return x[rows], y[rows]


@pytest.mark.parametrize("base", [0, 1])
@pytest.mark.parametrize("streamed", [False, True])
def test_files_and_arrays_have_the_same_features(tmp_path: Path, base: int, streamed: bool) -> None:
    x, y = samples()
    some = without_first(x, y)
    train = write(tmp_path / "train.svm", x, y, base)
    test = write(tmp_path / "test.svm", *(some if base else (x, y)), base)
    settings = {"data.memory_mib": 0.001} if streamed else {}
    for given in (train, (x, y)):
        for other in (test, some):
            found = mpips.fit("logistic", given, other, epochs=40, settings=settings)
            assert found.metrics["accuracy"] == 1
            model = found.model
            assert (model.predict(x) == y).all()
            assert model.evaluate(test)["accuracy"] == 1
            notes = model.notes
            assert bool([n for n in notes if f"counted from {base}" in n]) is (given is not train)
            assert (model.predict(test) == (some[1] if base else y)).all()


def test_the_base_of_an_array_is_stored_and_files_are_asked_for_theirs(tmp_path: Path) -> None:
    x, y = samples()
    model = mpips.fit("logistic", without_first(x, y), epochs=1).model
    assert (model.info.index_base, model.info.of_array) == (0, True)
    # An array may lack its first column, and a file its first feature.
    assert model.info.n_features == D
    path = write(tmp_path / "a.svm", *without_first(x, y), 1)
    part = read(path, like=model.info)
    assert part.info.index_base == 1
    assert "column 0 of the training data is feature 1" in part.notes[-1]
    config = model.info.to_config()
    del config["of_array"]
    old = DataInfo.from_config(config)
    # A model of an earlier version keeps its base.
    assert read(path, like=old).info.index_base == 0
    # The job may say what the files have.
    assert read(path, like=model.info, options=ReadOptions(index_base=0)).info.index_base == 0


@pytest.mark.parametrize(
    ("label", "text"),
    [
        (20240101.0, "20240101"),
        (-1.0, "-1"),
        (0.5, "0.5"),
        (1e6, "1000000"),
        (2.0**53, "9007199254740992"),
        (1e300, "1e+300"),
        (0.1 + 0.2, "0.30000000000000004"),
    ],
)
def test_the_text_of_a_label_is_exact(label: float, text: str) -> None:
    assert label_text(label) == text
    assert float(text) == label


@pytest.mark.parametrize("form", ["csv", "npz", "parquet"])
def test_classes_with_many_digits_keep_their_probabilities(tmp_path: Path, form: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = 20240101 + (x[:, 0] > 0)
    model = mpips.fit("softmax", (x, y), epochs=2, folder=tmp_path / "m").model
    expected = model.predict_proba(x)
    np.savez(tmp_path / "a.npz", x=x)
    out = tmp_path / f"p.{form}"
    arguments = [str(tmp_path / "m"), "--data", str(tmp_path / "a.npz"), "--out", str(out)]
    assert CliRunner().invoke(predict, arguments).exit_code == 0
    names = [f"probability_{label}" for label in (20240101, 20240102)]
    if form == "csv":
        lines = [line.split(",") for line in out.read_text().splitlines()]
        assert lines[0] == ["prediction", *names]
        found = np.array(lines[1:], np.float64)[:, 1:].astype(np.float32)
    elif form == "npz":
        with np.load(out) as arrays:
            found = np.stack([arrays[name] for name in names], axis=1)
    else:
        table = pytest.importorskip("pyarrow.parquet").read_table(out)
        found = np.stack([table[name].to_numpy() for name in names], axis=1)
    assert np.array_equal(found, expected)


def test_class_weights_name_such_classes() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    data = x, 20240101 + (x[:, 0] > 0)
    light, heavy = (
        mpips.fit(
            "softmax", data, epochs=3, settings={"data.class_weight": {name: 0.0}}
        ).model.predict_proba(x)
        for name in ("20240101", "20240102.0")
    )
    assert light[:, 1].mean() > 0.6
    assert heavy[:, 1].mean() < 0.4
    with pytest.raises(ConfigError, match=r"there is no class '2\.02401e'"):
        mpips.fit("softmax", data, settings={"data.class_weight": {"2.02401e": 1.0}})


BEYOND = 2**53


@pytest.mark.parametrize("form", ["array", "sparse", "csv", "svm", "parquet", "npy"])
def test_labels_that_float64_merges_are_refused(tmp_path: Path, form: str) -> None:
    x, _ = samples()
    y = BEYOND + np.arange(N) % 3
    data: Any = (x.toarray(), y)
    if form == "sparse":
        data = (x, y)
    elif form == "svm":
        data = write(tmp_path / "a.svm", x, y, 1)
    elif form == "npy":
        np.save(tmp_path / "x.npy", x.toarray())
        np.save(tmp_path / "y.npy", y)
        data = str(tmp_path / "x.npy")
    elif form != "array":
        frame = pytest.importorskip("pandas").DataFrame(x.toarray(), columns=list("abcdef"))
        frame["label"] = y
        data = str(tmp_path / f"a.{form}")
        frame.to_csv(data, index=False) if form == "csv" else frame.to_parquet(data)
    with pytest.raises(DataError, match=r"beyond 2\*\*53, where different whole numbers are one"):
        mpips.fit("softmax", data, epochs=1)
    if form in ("csv", "parquet"):
        settings = {"data.label_kind": "text"}
        model = mpips.fit("softmax", data, epochs=1, settings=settings).model
        assert model.classes.tolist() == [str(BEYOND + i) for i in range(3)]
