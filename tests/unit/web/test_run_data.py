"""The parts of a run that the page gets: complete at first, then what is new, whatever the files do."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from run_files import RunFiles, full_run, members

from mpips.web import members as members_module
from mpips.web import run_data as module
from mpips.web.run_data import RunData, SentParts


def parts(run: RunData, sent: SentParts) -> dict[str, Any]:
    """Read what is new of the run, and return what a browser gets."""
    run.refresh()
    found = run.parts(sent)
    return json.loads(found) if found is not None else {}


def test_a_run_is_sent_once_and_then_what_is_new(tmp_path: Path) -> None:
    files = full_run(tmp_path)
    run, sent = RunData(files.path), SentParts()
    assert run.parts(sent) is None, "nothing is sent before anything is read"
    first = parts(run, sent)
    assert set(first) == {"run", "state", "config", "curve", "history"}
    assert first["state"]["state"] == "done"
    assert len(first["curve"]["rows"]) == 40
    assert [t[3] for t in first["curve"]["tests"]] == [
        {"accuracy": 0.875, "log_loss": 0.25},
        {"accuracy": 0.9375, "log_loss": 0.125},
    ]
    assert len(first["history"]["rows"]) == 10
    assert [mark["type"] for mark in first["history"]["marks"]] == ["head", "checkpoint"]
    assert first["config"]["config"]["train.batch_size"] == "32"
    assert first["config"]["attempts"] == [0]
    assert parts(run, sent) == {}
    files.metrics(2)
    files.history(files.counts(11))
    new = parts(run, sent)
    assert set(new) == {"run", "curve", "history"}
    assert (new["curve"]["from"], len(new["curve"]["rows"]), new["curve"]["tests"]) == (40, 2, [])
    assert (new["history"]["from"], len(new["history"]["rows"])) == (10, 1)


def test_neither_the_token_of_the_run_nor_paths_are_sent(tmp_path: Path) -> None:
    files = full_run(tmp_path)
    members(files)
    run, sent = RunData(files.path), SentParts()
    run.refresh()
    text = (run.parts(sent) or b"").decode()
    assert files.run.info().token not in text
    assert str(tmp_path) not in text


def test_the_programs_of_a_run_are_part_of_its_state(tmp_path: Path, monkeypatch: Any) -> None:
    files = full_run(tmp_path)
    assert parts(RunData(files.path), SentParts())["state"]["producers"] == {}
    members(files)
    run, sent = RunData(files.path), SentParts()
    found = parts(run, sent)["state"]["producers"]
    assert found["count"] == 2
    assert found["rows"][1] == {
        "member": 1,
        "state": "failed",
        "restarts": 2,
        "failures": 3,
        "produced": 7,
        "values": "speed = 2.0",
        "cause": "member 1 of the producers was killed by SIGKILL on node",
    }
    monkeypatch.setattr(members_module, "MOST_MEMBERS", 1)
    found = parts(RunData(files.path), SentParts())["state"]["producers"]
    assert (found["count"], [row["member"] for row in found["rows"]]) == (2, [0])
    # A damaged file costs this table alone.
    (files.path / "producers.json").write_text("{")
    found = parts(RunData(files.path), SentParts())["state"]
    assert (found["producers"], found["state"]) == ({}, "done")


def test_a_thinned_file_replaces_the_rows(tmp_path: Path) -> None:
    files = full_run(tmp_path)
    run, sent = RunData(files.path), SentParts()
    parts(run, sent)
    for path, n in ((files.run.metrics_file, 5), (files.run.history_file, 4)):
        lines = path.read_bytes().splitlines(keepends=True)
        new = path.with_name("new")
        new.write_bytes(b"".join(lines[:n]))
        os.replace(new, path)
    new_parts = parts(run, sent)
    assert (new_parts["curve"]["from"], len(new_parts["curve"]["rows"])) == (0, 5)
    assert (new_parts["history"]["from"], len(new_parts["history"]["rows"])) == (0, 3)
    assert len(new_parts["history"]["marks"]) == 1


def test_a_damaged_file_costs_its_part_alone(tmp_path: Path) -> None:
    files = full_run(tmp_path)
    (files.path / "summary.json").write_text("{")
    files.run.config_file.write_text("[1")
    files.run.placement_file.write_text("[]")
    files.run.metrics_file.write_bytes(b"\xff\n{}\n" + files.run.metrics_file.read_bytes())
    found = parts(RunData(files.path), SentParts())
    assert len(found["curve"]["rows"]) == 40
    assert found["config"]["config"] == {}
    assert found["config"]["attempts"] == [0]
    files.run.status_file.write_text("{")
    found = parts(RunData(files.path), SentParts())
    assert found["state"]["state"] == "damaged"
    assert "status.json" in found["state"]["note"]
    assert len(found["curve"]["rows"]) == 40


def test_a_run_that_has_not_begun_has_a_state(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    found = parts(RunData(files.path), SentParts())
    assert found["state"]["state"] == "not started"
    assert "curve" not in found
    assert "history" not in found


def test_of_a_long_file_a_sample_is_sent_until_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LONG_BYTES", 1000)
    monkeypatch.setattr(module, "_SLICE_S", 0.0)
    monkeypatch.setattr("mpips.web.line_file._MOST_BYTES", 20_000)
    monkeypatch.setattr(module, "_N_SAMPLES", 30)
    files = RunFiles(tmp_path)
    files.metrics(1000)
    files.state("done")
    run, sent = RunData(files.path), SentParts()
    first = parts(run, sent)
    assert len(first["curve"]["rows"]) == 30
    assert first["curve"]["rows"][-1][1] > 900, "the sample reaches the end of the file"
    assert 0 < first["state"]["loading"] < 1
    assert run.is_loading
    while run.is_loading:
        run.refresh()
    last = parts(run, sent)
    assert last["state"]["loading"] is None
    assert (last["curve"]["from"], len(last["curve"]["rows"])) == (0, 1000)


def test_history_of_many_ranks_or_a_long_run_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_VALUES", 500)
    files = RunFiles(tmp_path)
    files.history(files.head(), *(files.counts(n) for n in range(1, 1001)))
    found = parts(RunData(files.path), SentParts())["history"]
    assert 30 <= len(found["rows"]) <= 101
    steps = [row["step"] for row in found["rows"]]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (1, 1000)
    # No part of the time is left out.
    assert max(b - a for a, b in itertools.pairwise(steps)) <= 1000 / 15
