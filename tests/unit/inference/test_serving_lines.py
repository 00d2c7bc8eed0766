"""`mpips serve` for tasks that read their files themselves: kge, mf, word2vec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpips import load
from mpips.config.schema import load_config
from mpips.training.train import train

pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

from model_rig import trained_on_text
from serving_rig import served

JOBS: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "kge": (
        "".join(f"a{i % 7}\tknows\tb{i % 11}\n" for i in range(70)),
        ["a1\tknows\t?", "?\tknows\tb3", "a1\tknows\tb1"],
        {"options.dim": 4},
    ),
    "mf": (
        "".join(f"u{i % 7},i{i % 11},{i % 5}\n" for i in range(60)),
        ["u1,i2", "u3,?", "nobody,i4"],
        {"options.dim": 4},
    ),
    "word2vec": (
        "the cat sat on the mat and the dog sat too\n" * 40,
        ["cat dog", "unheard"],
        {"options.dim": 4, "options.min_count": 2},
    ),
}


@pytest.fixture(scope="module", params=JOBS)
def model(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("lines")
    text, _, options = JOBS[request.param]
    trained_on_text(folder, request.param, text, options)
    return request.param, folder


def test_lines_are_answered_as_a_file_is_predicted(model: tuple[str, Path], tmp_path: Path) -> None:
    name, folder = model
    lines = JOBS[name][1]
    (tmp_path / "asked.txt").write_text("\n".join(lines) + "\n")
    expected = load(folder / "checkpoints").columns(tmp_path / "asked.txt")
    assert expected is not None
    with served(folder / "checkpoints") as (client, _):
        status, found = client.json("POST", "/predict", {"lines": lines})
        again, other = client.json("POST", "/predict", {"lines": lines[:1]})
    assert status == again == 200, found
    assert list(found["columns"]) == list(other["columns"]) == list(expected)
    for column, values in expected.items():
        got = found["columns"][column]
        if np.asarray(values).dtype.kind == "f":
            numbers = np.array([np.nan if value is None else value for value in got])
            assert np.allclose(numbers, values, equal_nan=True, rtol=1e-5, atol=1e-6)
        else:
            assert got == np.asarray(values).tolist()


def test_requests_that_do_not_fit_are_refused(model: tuple[str, Path]) -> None:
    name, folder = model
    with served(folder / "checkpoints") as (client, _):
        for content, complaint in (
            ({"rows": [[1, 2]]}, f"task '{name}' reads lines of its own"),
            ({"lines": []}, "texts of one line each"),
            ({"lines": ["a\nb"]}, "texts of one line each"),
            ({"lines": [1]}, "texts of one line each"),
        ):
            status, found = client.json("POST", "/predict", content)
            assert status == 400
            assert complaint in found["error"]
        if name == "kge":
            status, found = client.json("POST", "/predict", {"lines": ["a1\tknows\tb1", "one"]})
            assert (status, found["error"][:25]) == (400, "line 2: 'one' has 1 cells")


def test_a_model_of_samples_takes_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
    pairs = {
        "task": "softmax",
        "data.train": str(tmp_path / "a.csv"),
        "train.epochs": 1,
        "checkpoint.folder": str(tmp_path / "checkpoints"),
    }
    train(load_config(None, list(pairs.items())), "none", verbose=False)
    with served(tmp_path / "checkpoints") as (client, _):
        status, found = client.json("POST", "/predict", {"lines": ["1"]})
    assert (status, found["error"]) == (
        400,
        'this model takes {"rows": [...]}, samples with features',
    )
