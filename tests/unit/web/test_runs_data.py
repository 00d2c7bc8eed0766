"""The list of runs of a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_files import BEGIN, full_run

from mpips.web import runs_data
from mpips.web.runs_data import RunsData


def test_a_run_that_a_page_shows_stays_in_a_full_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_data, "MOST_RUNS", 2)
    monkeypatch.setattr(runs_data, "_LIST_S", 0.0)
    full_run(tmp_path, "oldest", begin=BEGIN)
    full_run(tmp_path, "older", begin=BEGIN + 1)
    runs = RunsData(tmp_path)

    def names() -> list[str]:
        return [row["name"] for row in runs.listed()]

    assert names() == ["older", "oldest"]
    runs.refresh(["oldest"])
    full_run(tmp_path, "newer", begin=BEGIN + 2)
    full_run(tmp_path, "newest", begin=BEGIN + 3)
    assert names() == ["newest", "newer", "oldest"]
    assert runs.get("oldest") is not None
    assert runs.get("older") is None
    runs.refresh([])
    assert names() == ["newest", "newer"]
