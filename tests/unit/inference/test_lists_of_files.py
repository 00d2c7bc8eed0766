"""Lists of files where one file is accepted: in Python and on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import mpips
from mpips.cli import cli
from mpips.data.options import FileList
from mpips.data.several import asked_files, given_files
from mpips.errors import DataError
from mpips.inference.fitted import Fit


def write(path: Path, n: int, seed: int, bad: int = 0) -> Path:
    random = np.random.default_rng(seed)
    rows = [f"{a},{b},{int(a > b)}" for a, b in random.integers(0, 99, (n, 2)).tolist()]
    rows[5:5] = ["1,2"] * bad
    path.write_text("a,b,label\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [write(tmp_path / f"{name}.csv", n, n) for name, n in (("z", 70), ("b", 40), ("c", 55))]


def run(*arguments: object) -> Result:
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done


def fitted(train: object, **more: object) -> Fit:
    return mpips.fit("softmax", train, epochs=3, batch_size=10, **more)  # type: ignore[arg-type]


def test_a_list_of_paths_is_files_and_a_pair_of_arrays_is_not() -> None:
    assert (
        given_files("a.csv") == given_files(["a.csv"]) == given_files((Path("a.csv"),)) == "a.csv"
    )
    found = given_files(["b.csv", Path("a*.csv")])
    assert isinstance(found, FileList)
    assert found.paths == ("b.csv", "a*.csv")
    for data in (None, [], 3, ([[1.0]], [1]), np.zeros((2, 2)), ["a.csv", 1]):
        assert given_files(data) is None
        with pytest.raises(DataError, match="must be a path, a pattern or a list of them"):
            asked_files(data)


@pytest.mark.parametrize("kind", [list, tuple])
def test_fit_reads_a_list_as_the_files_one_behind_the_other(
    files: list[Path], tmp_path: Path, kind: type
) -> None:
    whole = tmp_path / "whole.csv"
    header, *rows = files[0].read_text().splitlines()
    rows += [row for file in files[1:] for row in file.read_text().splitlines()[1:]]
    whole.write_text("\n".join([header, *rows]) + "\n")
    one, many = fitted(whole, test=whole), fitted(kind(files), test=kind(files))
    assert one.history == many.history
    assert one.metrics == many.metrics
    # A list of two is no pair of samples and labels; its entries may be patterns.
    two = fitted([str(files[0]), str(tmp_path / "[bc].csv")])
    assert two.history[-1]["loss"] == one.history[-1]["loss"]


def test_a_model_predicts_and_is_evaluated_on_a_list(files: list[Path], tmp_path: Path) -> None:
    model = fitted(files[0]).model
    each = np.concatenate([model.predict(file) for file in files])
    assert model.predict(files).tolist() == each.tolist()
    pattern = [files[0], tmp_path / "[bc].csv"]
    assert model.predict(pattern).tolist() == each.tolist()
    assert model.evaluate(pattern) == model.evaluate(files)
    with pytest.raises(DataError, match=r"must be a path, a pattern or a list of them"):
        model.evaluate(np.zeros((2, 2)))


def test_commands_take_several_files(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--epochs", 2, "--save", "m", "--json", "--quiet", "--progress", "none")
    trains = [word for file in files for word in ("--train", file.name)]
    done = run("train", "softmax", *trains, "--test", "z.csv", "--test", "b.csv", *options)
    assert json.loads(done.stdout)["n_samples"] == 165
    run("predict", "m", "--data", "z.csv", "--data", "[bc].csv", "--out", "many.csv")
    both = [word for file in files for word in ("--data", file.name)]
    run("predict", "m", *both, "--out", "list.csv")
    assert Path("many.csv").read_text() == Path("list.csv").read_text()
    assert len(Path("many.csv").read_text().splitlines()) == 166
    found = json.loads(run("evaluate", "m", *both, "--json").stdout)
    assert found["data"] == "z.csv, b.csv, c.csv"
    assert found["accuracy"] == mpips.load("m").evaluate([str(f) for f in files])["accuracy"]


def test_the_end_of_a_job_names_the_lines_that_were_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("a.csv"), 50, 1, bad=3)
    write(Path("b.csv"), 50, 2, bad=4)
    write(Path("t.csv"), 50, 3, bad=1)
    job = ("train", "softmax", "--train", "a.csv", "--train", "b.csv", "--test", "t.csv")
    options = ("--epochs", 1, "--json", "--progress", "none", "--set", "data.cache=cache")
    # The second job finds the cache.
    for _ in range(2):
        done = run(*job, *options, "--set", "data.on_bad=skip")
        *summary, report = done.stdout.splitlines()
        assert json.loads(report)["skipped"] == {"train": 7, "test": 1}
        text = " ".join(" ".join(summary).split())
        assert (
            "a.csv, b.csv: 100 samples, 2 features; 7 bad lines skipped; test t.csv; 1 bad" in text
        )
    write(Path("a.csv"), 50, 1)
    done = run("train", "softmax", "--train", "a.csv", *options)
    assert json.loads(done.stdout.splitlines()[-1])["skipped"] == {}
    assert "skipped" not in "".join(done.stdout.splitlines()[:-1])


def test_a_list_of_paths_and_arrays_is_one_sentence(files: list[Path]) -> None:
    model = fitted(str(files[0])).model
    with pytest.raises(DataError, match="neither an array of numbers nor a list of files"):
        model.predict([str(files[0]), np.ones((3, 2))])


def test_a_model_of_named_columns_predicts_rows_of_npy(files: list[Path], tmp_path: Path) -> None:
    model = fitted(str(files[0])).model
    rows = np.loadtxt(files[1], delimiter=",", skiprows=1)
    np.save(tmp_path / "rows.npy", rows[:, :2])
    np.save(tmp_path / "wide.npy", rows)
    expected = model.predict_proba(str(files[1]))
    assert model.predict_proba(str(tmp_path / "rows.npy")).tolist() == expected.tolist()
    assert model.notes == (
        f"{tmp_path / 'rows.npy'}: its columns have no names and are read as 'a', 'b'",
    )
    # A file with more columns does not tell which of them is the label.
    with pytest.raises(
        DataError, match=r"wide\.npy: has 3 columns without names: give an array of"
    ):
        model.predict(str(tmp_path / "wide.npy"))


def test_a_model_of_named_columns_is_evaluated_on_npy(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fitted(str(files[0])).model
    rows = np.loadtxt(files[1], delimiter=",", skiprows=1)
    np.save(tmp_path / "x.npy", rows[:, :2])
    with pytest.raises(DataError, match=r"x\.npy: has no labels: give an array of the 2 features"):
        model.evaluate(str(tmp_path / "x.npy"))
    np.save(tmp_path / "y.npy", rows[:, 2])
    expected = model.evaluate(str(files[1]))
    assert model.evaluate(str(tmp_path / "x.npy")) == expected
    assert model.notes == (
        f"{tmp_path / 'x.npy'}: labels from {tmp_path / 'y.npy'}",
        f"{tmp_path / 'x.npy'}: its columns have no names and are read as 'a', 'b'",
    )
    found = run("evaluate", str(model.path), "--data", str(tmp_path / "x.npy"), "--json")
    assert json.loads(found.stdout.splitlines()[-1])["accuracy"] == expected["accuracy"]
    np.save(tmp_path / "x.npy", rows)
    sentence = (
        r"has 3 columns without names: .* as y\.npy beside x\.npy, or an array of records .*'label'"
    )
    with pytest.raises(DataError, match=sentence):
        model.evaluate(str(tmp_path / "x.npy"))
    # Records have the names.
    records = np.array([*map(tuple, rows)], [("label", "f8"), ("b", "f8"), ("a", "f8")])
    records["a"], records["label"] = records["label"].copy(), records["a"].copy()
    np.save(tmp_path / "records.npy", records)
    assert model.evaluate(str(tmp_path / "records.npy")) == expected


def test_labels_of_text_are_not_numbers_of_npy(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,label\n" + "1,yes\n2,no\n" * 20)
    model = fitted(str(path)).model
    np.save(tmp_path / "x.npy", np.ones((3, 1)))
    np.save(tmp_path / "y.npy", np.array([0, 1, 1]))
    with pytest.raises(
        DataError, match=r"y\.npy: contains numbers, and the labels .* are text, 'no', 'yes'"
    ):
        model.evaluate(str(tmp_path / "x.npy"))


def test_fit_has_the_number_of_skipped_lines(tmp_path: Path) -> None:
    train, test = write(tmp_path / "a.csv", 50, 1, bad=3), write(tmp_path / "t.csv", 50, 2, bad=1)
    settings = {"data.on_bad": "skip"}
    assert fitted(train, test=test, settings=settings).skipped == {"train": 3, "test": 1}
    assert fitted(write(tmp_path / "b.csv", 50, 1), settings=settings).skipped == {}
    assert fitted(write(tmp_path / "c.csv", 50, 1)).skipped == {}
