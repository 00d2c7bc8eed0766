"""Run directories whose files are anything: links, pipes, devices, JSON without a bottom, times of no clock.

Each costs the page or the report the part that it damages, and never another run.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_files import RunFiles, full_run

from mpips.errors import ConfigError
from mpips.rundir.directory import read_json, version_of
from mpips.rundir.files import RunInfo
from mpips.rundir.history import read_line
from mpips.rundir.reading import read_regular
from mpips.web import runs_data as module
from mpips.web.report import report
from mpips.web.run_data import RunData, SentParts
from mpips.web.runs_data import RunsData

DEEP = b"[" * 100_000 + b"]" * 100_000
LINE = b'{"type":"counts","time_s":1.0,"generation":0,"x":' + DEEP + b"}\n"


def ended(call: Callable[[], Any]) -> Any:
    """Return what a call returns; fail if it blocks."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert found, "blocks"
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def parts(files: RunFiles) -> dict[str, Any]:
    """Return what a browser gets of a run."""
    run = RunData(files.path)
    ended(run.refresh)
    assert not run.is_loading
    found: dict[str, Any] = json.loads(run.parts(SentParts()) or b"{}")
    return found


def put(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("name", ["summary.json", "config.json", "summary.txt"])
def test_links_to_themselves_cost_their_part_alone(tmp_path: Path, name: str) -> None:
    files = full_run(tmp_path)
    link(files.path / name, name)
    found = parts(files)
    assert found["state"]["state"] == "done"
    assert len(found["curve"]["rows"]) == 40


SECRET = "a secret of somebody else"


@pytest.mark.parametrize(
    "name",
    ["summary.json", "config.json", "placement.json", "status.json", "ranks.json", "run.json"],
)
def test_a_json_file_that_is_a_link_is_not_read(tmp_path: Path, name: str) -> None:
    """Also where the link leads to a file of the right form, outside the run or within it."""
    files = full_run(tmp_path / "runs")
    path = files.path / name
    form = path.read_bytes() if path.exists() else b"{}"
    for target in (tmp_path / "elsewhere.json", files.path / "other.json"):
        more = json.dumps({"reasons": [SECRET], "message": SECRET}).encode()[:-1] + b","
        target.write_bytes(form.replace(b"{", more, 1) if len(form) > 2 else more[:-1] + b"}")
        link(path, str(target))
        found = parts(files)
        assert SECRET not in json.dumps(found)
        if name in ("status.json", "ranks.json", "run.json"):
            assert found["state"]["state"] == "damaged"
            assert "is a symbolic link" in found["state"]["note"]


def test_a_run_directory_may_be_reached_through_a_link(tmp_path: Path) -> None:
    full_run(tmp_path / "disk")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "job").symlink_to(tmp_path / "disk" / "job")
    runs = RunsData(tmp_path / "runs")
    assert [row["state"] for row in runs.listed()] == ["done"]
    run = runs.get("job")
    assert run is not None
    run.refresh()
    found = json.loads(run.parts(SentParts()) or b"")
    assert len(found["curve"]["rows"]) == 40
    assert found["config"]["config"]["task"] == "fm"


@pytest.mark.parametrize("name", ["metrics.jsonl", "history.jsonl", "events.jsonl"])
def test_a_line_without_a_bottom_is_skipped(tmp_path: Path, name: str) -> None:
    files = full_run(tmp_path)
    before = parts(files)
    put(files.path / name, LINE + (files.path / name).read_bytes())
    after = parts(files)
    assert after["state"]["events"] == before["state"]["events"]
    assert after["curve"] == before["curve"]
    assert after["history"] == before["history"]


@pytest.mark.parametrize("name", ["config.json", "summary.json", "placement.json"])
def test_json_without_a_bottom_costs_its_part_alone(tmp_path: Path, name: str) -> None:
    files = full_run(tmp_path)
    put(files.path / name, b'{"x":' + DEEP + b"}")
    found = parts(files)
    assert found["state"]["state"] == "done"
    assert found["config"]["attempts"] == [0]
    assert len(found["curve"]["rows"]) == 40


@pytest.mark.parametrize("name", ["run.json", "status.json", "lease.json", "ranks.json"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: put(path, b'{"x":' + DEEP),
        pipe,
        lambda path: link(path, "/dev/zero"),
        lambda path: link(path, path.name),
    ],
    ids=["deep", "pipe", "device", "loop"],
)
def test_a_damaged_run_is_listed_as_such_beside_the_others(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    files = full_run(tmp_path, "bad")
    full_run(tmp_path, "good")
    damage(files.path / name)
    runs = RunsData(tmp_path)
    listed = ended(runs.listed)
    states = {row["name"]: row["state"] for row in listed}
    assert states["good"] == "done"
    # A link to itself does not exist for the search of run.json.
    assert states.get("bad", "damaged") == "damaged"
    ended(lambda: runs.refresh(["bad", "good"]))
    bad = runs.get("bad")
    if bad is not None:
        assert name in json.loads(bad.parts(SentParts()) or b"")["state"]["note"]


@pytest.mark.parametrize(
    "name",
    [
        "metrics.jsonl",
        "history.jsonl",
        "events.jsonl",
        "summary.json",
        "summary.txt",
        "places.json",
    ],
)
def test_a_pipe_in_place_of_a_file_blocks_nothing(tmp_path: Path, name: str) -> None:
    files = full_run(tmp_path)
    pipe(files.path / name)
    assert parts(files)["state"]["state"] == "done"
    assert ended(lambda: version_of(files.path / name)) == (0, 0, 0)


def test_a_summary_that_is_no_text_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    files = full_run(tmp_path)
    put(files.path / "summary.txt", b"accuracy \xff\xfe 0.5\n")
    assert RunsData(tmp_path).listed()[0]["state"] == "done"
    assert parts(files)["state"]["summary"] == "accuracy \ufffd\ufffd 0.5\n"


def test_files_are_read_up_to_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    put(path, b"x" * 100)
    assert read_regular(path, 100) == b"x" * 100
    with pytest.raises(OSError, match="more than 99 bytes"):
        read_regular(path, 99)
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigError, match="cannot be read: has more than"):
        ended(lambda: read_json(path, RunInfo))


@pytest.mark.parametrize("time_s", [-1.7e308, 1.7e308, -1.0, 1e12])
def test_times_of_no_clock_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, time_s: float
) -> None:
    monkeypatch.setattr("mpips.web.curve._MOST_ROWS", 60)
    monkeypatch.setattr("mpips.web.run_data._MOST_VALUES", 60)
    files = full_run(tmp_path)
    wrong = {
        "time_s": time_s,
        "generation": 0,
        "samples": 8,
        "samples_per_s": 8.0,
        "loss": 1.0,
    }
    lines = [json.dumps({**wrong, "step": i}).encode() + b"\n" for i in range(100)]
    put(files.run.metrics_file, b"".join(lines) + files.run.metrics_file.read_bytes())
    count = {"type": "counts", "time_s": time_s, "generation": 0}
    counts = [json.dumps(count).encode() + b"\n" for _ in range(100)]
    assert read_line(counts[0]) is not None
    put(files.run.history_file, b"".join(counts) + files.run.history_file.read_bytes())
    found = parts(files)
    assert found["state"]["state"] == "done"
    assert len(found["curve"]["rows"]) == 40
    assert len(found["history"]["rows"]) == 10


def test_numbers_without_a_bound_are_skipped(tmp_path: Path) -> None:
    files = full_run(tmp_path)
    huge = "1" + "0" * 400
    line = '{"time_s":1,"generation":%s,"step":1,"samples":%s,"samples_per_s":8.0,"loss":1.0}\n'
    put(
        files.run.metrics_file,
        (line % (1, huge) + line % (huge, 1)).encode() + files.run.metrics_file.read_bytes(),
    )
    found = parts(files)
    assert found["state"]["state"] == "done"
    assert len(found["curve"]["rows"]) == 40


@pytest.mark.parametrize("text", [b"\xff\x01", b"\x01"])
def test_bytes_that_are_no_json_are_not_sent(tmp_path: Path, text: bytes) -> None:
    files = full_run(tmp_path)
    line = (
        b'{"type":"checkpoint","time_s":1.0,"generation":0,"step":1,"name":"a","new":"%b"}\n' % text
    )
    put(files.run.history_file, line + files.run.history_file.read_bytes())
    assert len(parts(files)["history"]["rows"]) == 10
    assert "</html>" in report([RunData(files.path)])


def test_an_error_nobody_has_thought_of_makes_its_run_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_run(tmp_path, "bad")
    full_run(tmp_path, "good")
    runs = RunsData(tmp_path)
    runs.listed()
    bad, good = runs.get("bad"), runs.get("good")
    assert bad is not None
    assert good is not None

    def read(self: Any) -> Any:
        raise ZeroDivisionError("by chance")

    with monkeypatch.context() as patched:
        patched.setattr(bad._lines, "read", lambda: read(None))
        patched.setattr(bad._metrics, "at_end", False)
        runs.refresh(["bad", "good"])
        state = json.loads(bad.parts(SentParts()) or b"")["state"]
        assert state["state"] == "damaged"
        assert "ZeroDivisionError: by chance" in state["note"]
        assert not bad.is_loading, "it would be read again at once, for ever"
        assert json.loads(good.parts(SentParts()) or b"")["state"]["state"] == "done"
    runs.refresh(["bad"])
    assert json.loads(bad.parts(SentParts()) or b"")["state"]["state"] == "done"


def test_a_long_line_without_its_end_neither_loops_nor_fails_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpips.web.run_data._READ_S", 5.0)
    files = full_run(tmp_path)
    with files.run.metrics_file.open("ab") as file:
        file.write(b"\0" * (5 << 20))
    run = RunData(files.path)
    for _ in range(3):
        run.refresh()
    assert not run.is_loading
    assert "</html>" in report([RunData(files.path)])


def test_the_list_is_read_by_one_thread_and_others_get_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LIST_S", 0.0)
    full_run(tmp_path)
    runs = RunsData(tmp_path)
    first = runs.listed()
    reading, go_on, n_readers = threading.Event(), threading.Event(), []
    created = RunsData._created

    def slow(self: RunsData) -> Any:
        n_readers.append(threading.get_ident())
        reading.set()
        assert go_on.wait(30)
        return created(self)

    monkeypatch.setattr(RunsData, "_created", slow)
    thread = threading.Thread(target=runs.listed)
    thread.start()
    try:
        assert reading.wait(30)
        begin = time.monotonic()
        assert ended(runs.listed) == first
        assert time.monotonic() - begin < 15
        assert len(n_readers) == 1
        assert runs.get("job") is not None
    finally:
        go_on.set()
        thread.join(30)
