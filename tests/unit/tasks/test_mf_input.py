"""What matrix factorisation takes: files of ratings, columns, options, frames; and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from mf_rig import job, write

import mpips
from mpips.cli.run import command as run
from mpips.config.schema import load_config
from mpips.data.ratings import RatingColumns, read_ratings
from mpips.errors import ConfigError, DataError
from mpips.training.preflight import preflight
from mpips.training.train import train

FILES = {
    "header": b'\xef\xbb\xbfitem_id,rating,userId,when\r\n"a, b",4.5,7,1\r\n\r\nc,1,8,2\r\n',
    "u.data": b"7\ta, b\t4.5\t881250949\n8\tc\t1\t881250950\n",
    "ratings.dat": b"7::a, b::4.5::9\n8::c::1::9\n",
    "semicolon": b"user;item;rating\n7;a, b;4.5\n8;c;1\n",
}


@pytest.mark.parametrize("name", FILES)
def test_usual_files_of_ratings_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    found = read_ratings(str(tmp_path / name), RatingColumns(), rated=True)
    assert (found.users, found.items) == (["7", "8"], ["a, b", "c"])
    assert found.values.tolist() == [4.5, 1.0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"user,item,rating\na,b\n",
            r"line 2: 'a,b' has 2 cells: must be 3 \(user, item and rating\)",
        ),
        (b"user,item,rating\na,b,x\n", "line 2: rating 'x': must be a finite number"),
        (b"user,item,rating\na,b,nan\n", "line 2: rating 'nan'"),
        (b"user,item,rating\na,,3\n", "line 2: cell 2 is empty"),
        (b"user,item\na,b\n", "has no column of the rating: must be one of rating"),
        (b"a,b,3\na,b\n", "line 2: .* has 2 cells"),
        (b"a,b,3\n\xff,b,2\n", "is not UTF-8"),
        (b"user,item,rating\n", "contains no samples"),
        (b"\n", "contains no samples"),
    ],
)
def test_a_file_that_has_no_ratings_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    write(tmp_path)
    (tmp_path / "train.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        train(job(tmp_path), "none", verbose=False)


def test_columns_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("who,what,n\na,b,2\n")
    found = read_ratings(str(tmp_path / "r.csv"), RatingColumns("who", "what", "n"), rated=True)
    assert (found.users, found.items, found.values.tolist()) == (["a"], ["b"], [2.0])
    with pytest.raises(DataError, match=r"no column of the user: must be 'whom'; set options.user"):
        read_ratings(str(tmp_path / "r.csv"), RatingColumns("whom", "what", "n"), rated=True)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ([("options.least_rating", 3)], "applies only with options.implicit = true"),
        ([("options.implicit", True), ("options.rating", "r")], "for options.least_rating alone"),
        ([("task", "kge"), ("options.norm", 1)], "only to transe, options.model is complex"),
        ([("task", "kge"), ("options.margin", 2.0)], "only to the loss logistic"),
        ([("task", "kge"), ("options.temperature", 2.0)], "only to the loss logistic"),
    ],
)
def test_options_without_effect_are_refused(
    more: list[tuple[str, Any]], text: str, tmp_path: Path
) -> None:
    write(tmp_path)
    with pytest.raises(
        ConfigError, match=rf"^options\.\w+ = .* has no effect: .*{text}.*leave it out$"
    ):
        preflight(
            load_config(None, [("task", "mf"), ("data.train", str(tmp_path / "train.csv")), *more])
        )


@pytest.mark.parametrize(
    "more",
    [
        [("options.implicit", True), ("options.least_rating", 3), ("options.rating", "rating")],
        [("options.rating", "rating")],
        [("task", "kge"), ("options.model", "transe"), ("options.norm", 1), ("options.margin", 2)],
        [("task", "kge"), ("options.loss", "logistic"), ("options.temperature", 0)],
    ],
)
def test_options_with_an_effect_are_accepted(more: list[tuple[str, Any]], tmp_path: Path) -> None:
    write(tmp_path)
    preflight(
        load_config(None, [("task", "mf"), ("data.train", str(tmp_path / "train.csv")), *more])
    )


def test_fit_takes_files_and_frames_but_no_arrays(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(
        DataError, match="the train data is tuple: task 'mf' reads its files itself; give the path"
    ):
        mpips.fit("mf", (np.zeros((3, 2)), np.zeros(3)))
    with pytest.raises(DataError, match="the test data is tuple"):
        mpips.fit("mf", tmp_path / "train.csv", (np.zeros((3, 2)), np.zeros(3)))
    assert mpips.fit("mf", tmp_path / "train.csv", epochs=1, dim=2).epochs == 1
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(tmp_path / "train.csv")
    assert mpips.fit("mf", frame, epochs=1, dim=2).epochs == 1


def test_run_takes_the_task_beside_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mf").mkdir()
    arguments = ["mf", "-n", "3", "--train", "train.csv", "--dry-run"]
    found = CliRunner().invoke(run, arguments)
    assert found.exit_code == 0, found.exception
    assert "mpirun" in found.stdout or "mpiexec" in found.stdout
    for wrong in (["--resume-run", "mf"], ["--discard-memory", "mf"]):
        assert "is no run directory" in str(CliRunner().invoke(run, wrong).exception)
    (tmp_path / "other").mkdir()
    assert "is no run directory" in str(CliRunner().invoke(run, ["other"]).exception)
