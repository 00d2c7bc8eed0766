"""`mpips report`: one file that shows the same page without a server, and cannot be broken out of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from click.testing import CliRunner
from run_files import RunFiles, full_run

from mpips.cli import report as command
from mpips.errors import ConfigError
from mpips.web import report as module
from mpips.web import run_data
from mpips.web.report import report
from mpips.web.run_data import RunData

HOSTILE = "</script><script>window.hacked=1</script><!-- <script> ]]>\u2028\u2029"


def written(folder: Path, *runs: RunFiles) -> str:
    """Write the report of these runs; return its address."""
    path = folder / "report.html"
    path.write_text(report([RunData(files.path) for files in runs]), encoding="utf-8")
    return path.as_uri()


def data_in(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_the_file_loads_nothing_and_shows_the_numbers(window: Browser, tmp_path: Path) -> None:
    first, second = full_run(tmp_path, "first"), full_run(tmp_path, "second", loss=4.0)
    window.open(written(tmp_path, first, second))
    window.wait("document.body.dataset.ready")
    assert "report of" in window.text("#link")
    assert "second 0.1" in re.sub(r"\s+", " ", window.text("#panel-loss .legend"))
    assert "wait 15 %" in re.sub(r"\s+", " ", window.text("#panel-time .legend"))
    assert window.has("[data-key='train.lr']")
    window.wait("document.querySelector('[data-log=\"3\"]')")
    window.click("[data-log='3']")
    window.wait("document.querySelector('#log-text')")
    assert "the last line of worker 0" in window.text("#log-text")
    assert window.messages() == []
    assert window.run("return performance.getEntriesByType('resource').length;") == 0
    window.open("about:blank")


def test_hostile_text_cannot_end_the_data(window: Browser, tmp_path: Path) -> None:
    files = full_run(tmp_path, "<img src=x onerror=window.hacked=1>")
    files.config(note=HOSTILE)
    files.event("failed", 30.0, cause=HOSTILE)
    files.log(3, HOSTILE + "\n")
    text = report([RunData(files.path)])
    embedded = text[text.index('id="data">') :]
    assert embedded.count("</script>") == 2, "the end of the data and that of the scripts"
    data = data_in(text)
    assert data["runs"][0]["config"]["config"]["note"] == HOSTILE
    assert data["runs"][0]["state"]["events"][-1]["cause"] == HOSTILE
    window.open(written(tmp_path, files))
    window.wait("document.body.dataset.ready")
    assert not window.run("return window.hacked;")
    assert "<script>window.hacked=1" in window.text("#panel-events")
    # Scripts that are not of the page are refused by their digest.
    window.run(
        "const s = document.createElement('script'); s.textContent = 'window.hacked = 1';"
        "document.body.append(s);"
    )
    assert not window.run("return window.hacked;")
    assert any("Content Security Policy" in message for message in window.messages())
    window.open("about:blank")


def test_the_token_of_the_run_is_not_in_the_file(tmp_path: Path) -> None:
    files = full_run(tmp_path)
    text = report([RunData(files.path)])
    assert files.run.info().token not in text
    assert str(tmp_path) not in text


def test_logs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOG_BYTES", 1000)
    monkeypatch.setattr(module, "_MOST_LOG_BYTES", 2500)
    files = full_run(tmp_path)
    for rank in range(5):
        files.log(rank, "a line\n" * 1000)
    logs = data_in(report([RunData(files.path)]))["logs"]["job"]["0"]
    assert 2000 <= sum(len(line) + 1 for log in logs for line in log["lines"]) <= 3500
    assert logs[0]["left_out"] == 6000


def test_a_run_without_numbers_has_a_report(window: Browser, tmp_path: Path) -> None:
    window.open(written(tmp_path, RunFiles(tmp_path, "empty")))
    window.wait("document.body.dataset.ready")
    assert "not started" in window.text(".head")
    assert window.messages() == []
    window.open("about:blank")


def test_a_run_that_takes_too_long_to_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunData, "is_loading", True)
    monkeypatch.setattr(run_data, "_READ_S", 0.0)
    with pytest.raises(ConfigError, match="could not be read within"):
        report([RunData(full_run(tmp_path).path)])


def test_the_report_of_a_sweep_lists_its_trials(window: Browser, tmp_path: Path) -> None:
    for name, loss in (("a", 0.5), ("b", 0.25)):
        files = full_run(tmp_path, name)
        report_of = {"epochs": 2, "seconds": 2.5, "history": [{"log_loss": loss}], "log_loss": loss}
        files.run.result_file.write_text(json.dumps(report_of))
    hostile = "</script><img src=x onerror=window.hacked=1>"
    # The files of the third trial were removed.
    names = ("a", "b", "c" * 300)
    trials = [{"run": name, "assignments": [f"</script><b>={i}.0"]} for i, name in enumerate(names)]
    (tmp_path / "sweep.json").write_text(json.dumps({"job": hostile, "trials": trials}))
    out = tmp_path / "report.html"
    done = CliRunner().invoke(command.command, [str(tmp_path), "-o", str(out)])
    assert done.exit_code == 0, done.output
    window.open(out.as_uri())
    window.wait("document.body.dataset.ready")
    rows = window.run(
        "return [...document.querySelectorAll('[data-trial]')].map((e) => e.innerText);"
    )
    assert [re.sub(r"\s+", " ", row).strip() for row in rows] == [
        "trial 2 best 1 0.25 2 2 2.5 s done",
        "trial 1 0 0.5 2 2 2.5 s done",
        "trial 3 2 - - - - -",
    ]
    assert hostile in window.text("#panel-trials h2")
    assert window.text("#panel-trials th:nth-child(2)") == "</script><b>"
    assert "log loss" in window.text("#panel-trials th:nth-child(3)")
    assert not window.run("return window.hacked;")
    assert window.run("return document.querySelectorAll('#heads [data-run]').length;") == 2
    assert window.messages() == []
    window.open("about:blank")


def test_a_sweep_has_a_report_of_its_own(tmp_path: Path) -> None:
    full_run(tmp_path)
    path = str(tmp_path)
    (tmp_path / "sweep.json").write_text('{"trials": []}')
    with pytest.raises(ConfigError, match="a sweep has a report of its own"):
        CliRunner().invoke(command.command, [path, f"{path}/job"], catch_exceptions=False)
    with pytest.raises(ConfigError, match="has no trials that can be read"):
        CliRunner().invoke(command.command, [path], catch_exceptions=False)
