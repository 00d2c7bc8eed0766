"""`mpips init`: the job file that it writes is accepted and trains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from model_rig import dense_csv, hashed_csv, several_svm, svm

import mpips
from mpips.cli.init import command
from mpips.config.schema import load_config
from mpips.errors import ConfigError, DataError
from mpips.training.train import train


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments)
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.mark.parametrize(
    ("write", "name", "task"),
    [
        (dense_csv, "a.csv", "mlp"),
        (hashed_csv, 'odd "name".csv', "wide_deep"),
        (svm, "a.svm", "logistic"),
        (several_svm, "a.svm", "mlp"),
    ],
)
def test_the_job_file_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: object, name: str, task: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert callable(write)
    write(tmp_path / name, 200, 1)
    write(tmp_path / f"test {name}", 50, 2)
    said = run(name, "--test", f"test {name}", "-o", "new.toml")
    assert f'task = "{task}"' in said
    assert "200 samples" in said
    start = ("mpips run new.toml", "or mpips train new.toml --save FOLDER")
    assert said.endswith(f"mpips init: wrote new.toml; start it with: {', '.join(start)}\n")
    text = Path("new.toml").read_text()
    config = load_config("new.toml", [("train.epochs", 1)])
    assert (config.task, config.data.train, config.data.test) == (task, name, f"test {name}")
    assert ("categorical" in text) == (write is hashed_csv)
    outcome = train(config, "none", verbose=False)
    assert 0 <= outcome.value.metrics["micro_f1" if write is several_svm else "accuracy"] <= 1
    # What is commented out is accepted, too.
    wanted = ("[schedule]", "[table]", "[cluster]", "name", "consistency", "optimizer", "servers")
    lines = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
    optional = [line for line in lines if line.startswith(wanted)]
    assert len(optional) == 7
    Path("all.toml").write_text("\n".join([*optional, ""]))
    load_config("all.toml", [("task", "mlp"), ("data.train", "x")])


@pytest.mark.parametrize("n", [1999, 2000])
def test_a_draft_holds_samples_out_where_there_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    monkeypatch.chdir(tmp_path)
    svm(tmp_path / "a.svm", n, 1)
    run("a.svm")
    config = load_config("job.toml", [])
    has = n == 2000
    assert config.data.validation == (0.1 if has else 0)
    assert config.train.patience == (5 if has else 0)
    assert config.checkpoint.keep_best == has
    if has:
        folder = [("checkpoint.folder", "m"), ("train.epochs", 2)]
        outcome = train(load_config("job.toml", folder), "none", verbose=False)
        assert outcome.value.evaluated_data == "validation"
        assert mpips.load("m", best=True).manifest.step > 0


def test_an_existing_file_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dense_csv(tmp_path / "a.csv", 20, 1)
    Path("job.toml").write_text("mine")
    with pytest.raises(ConfigError, match=r"job.toml: already exists; use --force"):
        run("a.csv")
    assert Path("job.toml").read_text() == "mine"
    run("a.csv", "--force")
    assert Path("job.toml").read_text() != "mine"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("y,a\n1,1\n1,2\n", "all samples have the label 1; nothing can be learned"),
        ("y,a\nyes,1\nyes,2\n", "all samples have the label yes; nothing can be learned"),
    ],
)
def test_labels_that_no_task_learns_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text(text)
    with pytest.raises(DataError, match=complaint):
        run("a.csv")
    assert not Path("job.toml").exists()


OWN = {
    "kge": ("".join(f"a{i % 7} knows b{i % 11}\n" for i in range(70)), "18 entities, 1 relations"),
    "mf": ("".join(f"u{i % 7}::i{i % 11}::{i % 5}\n" for i in range(60)), "11 items, 7 users"),
    "word2vec": ("the cat sat on the mat and the dog sat too\n" * 30, "words"),
}


@pytest.mark.parametrize("task", OWN)
def test_tasks_that_read_their_files_have_drafts_too(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = OWN[task][0].replace(" knows ", "\tknows\t")
    Path("a.txt").write_text(text)
    Path("b.txt").write_text("".join(text.splitlines(keepends=True)[:5]))
    said = run("a.txt", "--test", "b.txt", "--task", task)
    assert f'task = "{task}"' in said
    assert OWN[task][1] in said.splitlines()[0]
    config = load_config("job.toml", [("train.epochs", 1), ("options.dim", 4)])
    assert (config.task, config.data.train, config.data.test) == (task, "a.txt", "b.txt")
    metrics = train(config, "none", verbose=False).value.metrics
    assert len(metrics) > 1
    # What is commented out is accepted, too.
    draft = Path("job.toml").read_text().splitlines()
    begin, end = draft.index("# [options]"), draft.index("[train]")
    Path("all.toml").write_text("\n".join(line.removeprefix("# ") for line in draft[begin:end]))
    assert load_config("all.toml", [("task", task), ("data.train", "a.txt")]).options


def test_a_task_for_init_must_read_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dense_csv(tmp_path / "a.csv", 20, 1)
    with pytest.raises(
        ConfigError, match="task 'mlp': must be one of kge, mf, word2vec; for other"
    ):
        run("a.csv", "--task", "mlp")
    with pytest.raises(DataError, match=r"a\.csv"):
        run("a.csv", "--task", "kge")
    assert not Path("job.toml").exists()


def test_the_label_of_an_array_or_a_table_can_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(1)
    array = np.column_stack([random.random((60, 3)), np.arange(60) % 2])
    np.save("a.npy", array)
    with pytest.raises(DataError, match="where its labels are is not clear"):
        run("a.npy")
    run("a.npy", "--test", "a.npy", "--label", "-1", "-o", "array.toml")
    np.savetxt("a.csv", array, delimiter=",", header="a,b,c,clicked", comments="")
    with pytest.raises(DataError, match=r"no label column 'd'; set data\.label to one of 'a', 'b'"):
        run("a.csv", "--label", "d")
    run("a.csv", "-o", "found.toml")
    run("a.csv", "--label", "clicked", "-o", "table.toml")
    for name, label in (("array", "-1"), ("table", "clicked"), ("found", "clicked")):
        config = load_config(f"{name}.toml", [("train.epochs", 1)])
        assert (config.task, config.data.label) == ("mlp", label)
        assert train(config, "none", verbose=False).value.n_samples == 60


def test_files_of_arrow_and_of_two_arrays_are_drafted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(1).random((60, 3)))
    np.save("y.npy", np.arange(60) % 2)
    assert 'task = "mlp"' in run("x.npy", "-o", "array.toml")
    feather = pytest.importorskip("pyarrow.feather")
    table = pytest.importorskip("pyarrow").table
    feather.write_feather(table({"w": ["a", "b", "c"] * 20, "y": [0, 1] * 30}), "a.feather")
    assert 'task = "wide_deep"' in run("a.feather", "-o", "table.toml")
    assert 'categorical = ["w"]' in Path("table.toml").read_text()
    for name in ("array", "table"):
        config = load_config(f"{name}.toml", [("train.epochs", 1)])
        assert train(config, "none", verbose=False).value.n_samples == 60
