"""Requests with values in other forms: the same answer, or one sentence that names no file of the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving_rig import served

import mpips
from mpips.inference.parsing import RequestRefused, samples_in

pandas = pytest.importorskip("pandas")


def test_values_in_other_forms_are_answered_or_refused_by_one_sentence(tmp_path: Path) -> None:
    k = np.arange(60) % 6
    data = pandas.DataFrame({"k": k, "a": k * 0.5, "label": k % 2})
    settings = {"data.categorical": ["k"]}
    mpips.fit("fm", data, epochs=2, settings=settings, folder=tmp_path / "m")
    with served(tmp_path / "m") as (client, _):

        def ask(rows: str) -> tuple[int, Any]:
            status, body, _ = client.ask("POST", "/predict", f'{{"rows": [{rows}]}}'.encode())
            return status, json.loads(body)

        expected = ask('{"k": 4, "a": 1.5}')
        assert expected[0] == 200
        for number in ("4.0", "4e0", '"4"', '"004"', '"4.0"'):
            assert ask(f'{{"k": {number}, "a": 1.5}}') == expected
        status, found = ask('{"k": "new", "a": 1.5}')
        assert status == 200
        assert "column 'k': no training sample has the word of 1 of 1 cells" in found["notes"][0]
        for row in (
            '{"k": "\\ud800", "a": 1}',
            '{"k": 4, "a": 1, "\\udfff": []}',
            f'{{"k": 4, "a": {10**308}}}',
            f'{{"k": 4, "a": {10**400}}}',
            '{"k": 4, "a": 1e39}',
            f"[{10**400}, 1]",
        ):
            status, found = ask(row)
            assert status == 400
            assert "/" not in found["error"]
            assert len(found["error"]) < 300


def test_each_storage_of_a_linear_model_is_served(tmp_path: Path) -> None:
    k = np.arange(60) % 3
    x = np.eye(3)[k]
    mpips.fit("logistic", (x, k), epochs=8, folder=tmp_path / "numbers")
    words = pandas.DataFrame({"word": np.array(["a", "b", "c"])[k], "label": k})
    mpips.fit("softmax", words, epochs=8, folder=tmp_path / "words")
    for name, rows in (
        ("numbers", x[:3].tolist()),
        ("words", [{"word": word} for word in "abc"]),
    ):
        with served(tmp_path / name) as (client, _):
            status, found = client.json("POST", "/predict", {"rows": rows})
        assert (status, found["predictions"]) == (200, [0, 1, 2])


def test_raw_float32_is_named_where_it_loses_differences(tmp_path: Path) -> None:
    x = 1.7e9 + np.arange(60.0)[:, None]
    mpips.fit("softmax", (x, np.arange(60) // 30), epochs=1, folder=tmp_path / "m")
    with served(tmp_path / "m") as (client, _):
        kind = {"content-type": "application/octet-stream"}
        status, _, headers = client.ask("POST", "/predict", x.astype("<f4").tobytes(), **kind)
        assert status == 200
        assert "give float64" in headers["x-mpips-notes"]
        assert client.json("POST", "/predict", {"rows": x[:2].tolist()})[0] == 200


COLOURS = ["red", "green", "blue"]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: Any) -> Path:
    """A model of the columns colour, size, c0, ..., c11; all but size are words."""
    k = np.arange(90) % 3
    words = {f"c{i}": [f"v{(j + i) % 2}" for j in range(90)] for i in range(12)}
    data = pandas.DataFrame({"colour": np.array(COLOURS)[k], "size": k * 0.5, **words, "label": k})
    folder: Path = tmp_path_factory.mktemp("mixed") / "m"
    mpips.fit("softmax", data, epochs=2, folder=folder)
    return folder


FULL = {"colour": "red", "size": 0.5, **{f"c{i}": "v0" for i in range(12)}}


def without(*names: str, **more: Any) -> dict[str, Any]:
    return {**{name: value for name, value in FULL.items() if name not in names}, **more}


REST = "'c0', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7'"
COLUMNS = f"the columns are 'colour', 'size', {REST} and 4 more"
NO_COLOUR = "rows[1] lacks 'colour' ('COLUR' is no column, did you mean 'colour'?); " + COLUMNS
NONE_OF_THEM = f"rows[1] lacks 'colour', 'size', {REST} and 4 more; {COLUMNS}"
TWO_HINTS = (
    "rows[1] lacks 'colour', 'size' ('colr' is no column, did you mean 'colour'? 'sizes' is no column, did "
    f"you mean 'size'?); {COLUMNS}"
)


@pytest.mark.parametrize(
    ("row", "by_error", "by_empty"),
    [
        (without("size"), f"rows[1] lacks 'size'; {COLUMNS}", ""),
        (without("size", other=1), f"rows[1] lacks 'size'; {COLUMNS}", ""),
        (without("colour", COLUR="red"), NO_COLOUR, NO_COLOUR),
        (without("colour", "size", colr="red", sizes=1), TWO_HINTS, TWO_HINTS),
        ({}, NONE_OF_THEM, NONE_OF_THEM),
        ({"other": 1}, NONE_OF_THEM, NONE_OF_THEM),
        # A name that is near to a column that the row has is only one more.
        (without("size", colur="red"), f"rows[1] lacks 'size'; {COLUMNS}", ""),
    ],
)
def test_columns_that_are_missing_are_refused_or_empty(
    mixed: Path, row: dict[str, Any], by_error: str, by_empty: str
) -> None:
    model = mpips.load(mixed)
    for missing, expected in (("error", by_error), ("empty", by_empty)):
        if expected:
            with pytest.raises(RequestRefused) as refused:
                samples_in([FULL, row], model, missing)  # type: ignore[arg-type]
            assert (refused.value.status, str(refused.value)) == (400, expected)
            continue
        nulls = {name: row.get(name) for name in FULL}
        found, wanted = (
            model.predict_proba(samples_in([FULL, given], model, missing))  # type: ignore[arg-type]
            for given in (row, nulls)
        )
        assert found.tobytes() == wanted.tobytes()


def test_the_option_reaches_the_answers(mixed: Path) -> None:
    rows = {"rows": [without("size")]}
    with served(mixed) as (client, _):
        assert client.json("POST", "/predict", rows)[0] == 400
    with served(mixed, missing="empty") as (client, _):
        assert client.json("POST", "/predict", rows)[0] == 200
        status, found = client.json("GET", "/rows/weigth?keys=1")
        assert status == 404
        assert (
            found["error"]
            == "no table 'weigth'; there are 'weight', 'bias'; did you mean 'weight'?"
        )


def test_names_that_are_no_columns_are_compared_up_to_a_number(mixed: Path) -> None:
    model = mpips.load(mixed)
    rows = [
        without("size", **{f"{i}{i}{i}": 1 for i in range(100 * k, 100 * k + 100)}) for k in (1, 2)
    ]
    samples_in(rows[:1], model, "empty")
    with pytest.raises(RequestRefused, match="more than 100 names that are no columns"):
        samples_in(rows, model, "empty")
