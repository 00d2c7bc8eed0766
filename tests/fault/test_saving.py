"""Saving at the end of training and going on from there, over real launches of different shape."""

from __future__ import annotations

from pathlib import Path

import pytest
from long_runs import LONG
from training import assert_same, content, made_data, train

from mpips import load
from mpips.checkpoint import open_checkpoint

# By day one job of dense tables and one of rows, with another optimizer for each table.
MIXED = {
    "mlp": {"weight0": "adam", "weight1": "momentum", "bias0": "adagrad", "bias1": "ftrl"},
    "fm": {"weight": "ftrl", "factor": "adam"},
}
JOBS = {
    **{
        f"{task}, mixed": (
            task,
            [w for t, o in optimizers.items() for w in ("--set", f"tables.{t}.optimizer={o}")],
        )
        for task, optimizers in MIXED.items()
    },
    "mlp, adam": ("mlp", ["--set", "table.optimizer=adam"]),
    "mlp, momentum": ("mlp", ["--set", "table.optimizer=momentum"]),
    "fm, adagrad": ("fm", []),
    "logistic, ftrl": ("logistic", []),
    "fm, adam": ("fm", ["--set", "table.optimizer=adam"]),
}


@pytest.mark.parametrize(
    "name",
    [name if "mixed" in name else pytest.param(name, marks=pytest.mark.long) for name in JOBS],
)
def test_training_in_two_parts_is_training_in_one_bit_by_bit(tmp_path: Path, name: str) -> None:
    task, more = JOBS[name]
    data = "digits" if task == "mlp" else str(made_data(tmp_path))
    common = [task, "--train", data, "--servers", "2", "--set", "train.batch_size=64", *more]
    whole, _ = train(5, *common, "--set", "train.epochs=3", "--save", str(tmp_path / "whole"))
    part, _ = train(5, *common, "--set", "train.epochs=2", "--save", str(tmp_path / "parts"))
    rest, told = train(5, *common, "--set", "train.epochs=3", "--save", str(tmp_path / "parts"))
    assert "2 of 3 epochs done" in told
    assert rest["samples"] * 3 == whole["samples"]
    assert rest["epochs"] == 3
    assert part["checkpoint"]["path"] != rest["checkpoint"]["path"]
    assert Path(rest["checkpoint"]["path"]).name == Path(whole["checkpoint"]["path"]).name
    assert_same(content(whole["checkpoint"]["path"]), content(rest["checkpoint"]["path"]))


def test_32_ranks_on_a_few_cores_train_to_the_same_bits_as_4(tmp_path: Path) -> None:
    """By day 8 ranks."""
    n = 32 if LONG else 8
    common = ["mlp", "--train", "digits", "--set", "train.epochs=1"]
    few, _ = train(4, *common, "--servers", "1", "--save", str(tmp_path / "4"))
    many, _ = train(
        n, *common, "--servers", str(n - 3), "--save", str(tmp_path / "many"), timeout=240
    )
    assert few["transports"] == {"shm": 2}
    assert many["transports"] == {"shm": 2 * (n - 3)}
    assert many["history"] == few["history"]
    assert_same(content(few["checkpoint"]["path"]), content(many["checkpoint"]["path"]))


@pytest.mark.parametrize("optimizer", [pytest.param("ftrl", marks=pytest.mark.long), "adam"])
def test_a_checkpoint_fits_any_number_of_servers(tmp_path: Path, optimizer: str) -> None:
    data = str(made_data(tmp_path))
    common = ["fm", "--train", data, "--set", f"table.optimizer={optimizer}"]
    first, _ = train(
        4, *common, "--set", "train.epochs=2", "--servers", "2", "--save", str(tmp_path / "a")
    )
    saved = first["checkpoint"]["path"]
    # Nothing is left to train: what is saved again is what was read.
    ranges = ["--set", 'table.partition={name="range", low=-1, high=1000}']
    for n, servers, more in ((1, 1, []), (5, 3, ranges), *([(2, 1, [])] * LONG)):
        folder = tmp_path / f"{n}-{servers}"
        where = ["--resume", saved, "--servers", str(servers), "--save", str(folder)]
        again, _ = train(n, *common, "--set", "train.epochs=2", *where, *more)
        assert again["samples"] == 0
        with open_checkpoint(again["checkpoint"]["path"]) as checkpoint:
            assert len(checkpoint.manifest.servers) == servers
            assert checkpoint.manifest.generation == 1
        assert_same(content(saved), content(again["checkpoint"]["path"]))
        # The example of every job is predicted as by its servers.
        assert len(load(again["checkpoint"]["path"]).manifest.example["predictions"]) == 5


def test_the_one_before_is_taken_if_the_newest_is_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    common = ["mlp", "--train", "digits", "--save", str(folder)]
    # One process writes what three ranks read.
    train(1, *common, "--set", "train.epochs=1")
    second, _ = train(1, *common, "--set", "train.epochs=2")
    state = Path(second["checkpoint"]["path"]) / "state.h5"
    data = bytearray(state.read_bytes())
    data[-1] ^= 1
    state.write_bytes(data)
    third, told = train(3, *common, "--set", "train.epochs=2")
    assert "not used: " in told
    assert Path(second["checkpoint"]["path"]).name in told
    assert "1 of 2 epochs done" in told
    assert third["samples"] > 0


def test_never_starts_anew(tmp_path: Path) -> None:
    common = ["mlp", "--train", "digits", "--set", "train.epochs=1", "--save", str(tmp_path)]
    first, _ = train(1, *common)
    again, told = train(1, *common, "--resume", "never")
    assert "starting from" not in told
    assert again["samples"] == first["samples"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--resume", "nowhere/step-1"],
            "resume = 'nowhere/step-1': must be 'auto', 'never' or the folder",
        ),
        (["--set", "checkpoint.keep_last=0"], "keep_last = 0: must be 1 or more"),
        (["--save", "/proc/none"], "checkpoint.folder = '/proc/none'"),
    ],
)
def test_what_cannot_work_is_refused_before_training(arguments: list[str], sentence: str) -> None:
    _, told = train(1, "mlp", "--train", "digits", *arguments, code=2)
    assert sentence in told
    assert told.count("mpips: error:") == 1


def test_keys_outside_the_partition_are_refused_by_name(tmp_path: Path) -> None:
    common = ["logistic", "--train", str(made_data(tmp_path)), "--set", "train.epochs=1"]
    first, _ = train(1, *common, "--save", str(tmp_path / "run"))
    narrow = ["--set", 'table.partition={name="range", low=-1, high=5}']
    _, told = train(3, *common, *narrow, "--resume", first["checkpoint"]["path"], code=2)
    assert "lies outside the partition" in told
    assert "choose a partition that takes all keys" in told


def test_another_model_is_refused_by_name(tmp_path: Path) -> None:
    first, _ = train(
        1, "mlp", "--train", "digits", "--set", "train.epochs=1", "--save", str(tmp_path)
    )
    where = ["--resume", first["checkpoint"]["path"]]
    _, told = train(1, "mlp", "--train", "digits", "--set", "options.hidden=[32]", *where, code=2)
    assert "table 'weight0' is dense of shape (64, 128) in the checkpoint" in told
    _, told = train(3, "mlp", "--train", "digits", "--set", "table.optimizer=adam", *where, code=2)
    assert "has the state of adagrad, but this job's optimizer is adam" in told
