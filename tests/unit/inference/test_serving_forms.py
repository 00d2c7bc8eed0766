"""Requests with values in other forms: the same answer, or one sentence that names no file of the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving_rig import served

import mpips

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


def test_raw_float32_is_named_where_it_loses_differences(tmp_path: Path) -> None:
    x = 1.7e9 + np.arange(60.0)[:, None]
    mpips.fit("softmax", (x, np.arange(60) // 30), epochs=1, folder=tmp_path / "m")
    with served(tmp_path / "m") as (client, _):
        kind = {"content-type": "application/octet-stream"}
        status, _, headers = client.ask("POST", "/predict", x.astype("<f4").tobytes(), **kind)
        assert status == 200
        assert "give float64" in headers["x-mpips-notes"]
        assert client.json("POST", "/predict", {"rows": x[:2].tolist()})[0] == 200
