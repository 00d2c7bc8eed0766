"""The server of the page over real HTTP: what it answers, and what it refuses."""

from __future__ import annotations

import http.client
import json
import os
import resource
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from run_files import RunFiles, full_run, members

pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")

from web_rig import TOKEN, Page, page_of

from mpips.rundir.directory import replace_json
from mpips.web import server as module
from mpips.web.files import SCRIPTS, STYLES


def run_part(events: Any, name: str) -> dict[str, Any]:
    """Return the first part of a run in a stream of events."""
    return next(data for kind, data in events if kind == "run" and data["run"] == name)


def test_the_page_and_its_parts_have_a_strict_policy(tmp_path: Path) -> None:
    full_run(tmp_path)
    with page_of(tmp_path) as page:
        for path in ("", *SCRIPTS, *STYLES, "logs?run=job&attempt=0"):
            status, body, headers = page.ask(path)
            assert status == 200, path
            assert body
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self';" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["x-frame-options"] == "DENY"
            assert "set-cookie" not in headers


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "//",
        "/events?run=job",
        "/page.js",
        f"/{TOKEN[:-1]}/",
        f"/{TOKEN}x/events?run=job",
        f"/{TOKEN.upper()}/",
        "/wrong/log?run=job&attempt=0&rank=3",
        "/%00/",
        "/%ff%fe/events",
        f"/?token={TOKEN}",
        "/wrong/page.html",
    ],
)
def test_without_the_token_nothing_is_answered(tmp_path: Path, path: str) -> None:
    full_run(tmp_path)
    with page_of(tmp_path) as page:
        status, body, headers = page.ask(path)
    assert status == 404
    assert b"job" not in body
    assert "default-src 'none'" in headers["content-security-policy"]


@pytest.mark.parametrize(
    "path",
    [
        "../run.json",
        "..%2frun.json",
        "%2e%2e/%2e%2e/etc/passwd",
        "run.json",
        "page%2f..%2f__init__.py",
        "__init__.py",
        "/etc/passwd",
        "log?run=..&attempt=0&rank=3",
        "log?run=../job&attempt=0&rank=3",
        "log?run=job/../job&attempt=0&rank=3",
        "log?run=/etc&attempt=0&rank=3",
        "log?run=job&attempt=../0&rank=3",
        "log?run=job&attempt=0&rank=../../run.json",
        "log?run=job&attempt=-5&rank=3",
        "log?run=job&attempt=9&rank=3",
        "log?run=job&attempt=0&rank=77",
        "log?run=job&attempt=0&rank=٣",
        "log?run=job&attempt=0",
        "log?run=other&attempt=0&rank=3",
        "logs?run=..&attempt=0",
    ],
)
def test_nothing_outside_the_logs_of_the_runs_is_readable(tmp_path: Path, path: str) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    full_run(folder)
    full_run(tmp_path, "other")
    target = path if path.startswith("/") else f"/{TOKEN}/{path}"
    with page_of(folder) as page, socket.create_connection(("127.0.0.1", page.port), 30) as line:
        # A client of the library would tidy the path up.
        line.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while data := line.recv(65536):
            answer += data
    # A number that is none to the parser of addresses may be refused by 400 before it comes here.
    assert answer.split()[1] in (b"404", b"400")
    assert b"root:" not in answer
    assert b'token":' not in answer
    assert b"worker 0" not in answer


def test_metrics_of_the_runs_at_work_are_there_for_prometheus(tmp_path: Path) -> None:
    client = pytest.importorskip("prometheus_client.parser")
    files = RunFiles(tmp_path, "job")
    files.step = 400
    files.state("running", released=False)
    full_run(tmp_path, "done")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text("{")
    with page_of(tmp_path) as page:
        status, body, headers = page.ask("metrics")
        assert status == 200
        assert headers["content-type"].startswith("text/plain; version=0.0.4")
        families = {f.name: f for f in client.text_string_to_metric_families(body.decode())}
        samples = families["mpips_run_step"].samples
        assert [(s.labels["run"], s.value) for s in samples] == [("job", 400.0)]
    with page_of(tmp_path / "done") as page:
        assert 'run="done"' in page.ask("metrics")[1].decode()


def test_a_link_among_the_logs_is_not_followed(tmp_path: Path) -> None:
    files = full_run(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("a secret\n")
    path = files.log(1, "")
    path.unlink()
    path.symlink_to(secret)
    with page_of(tmp_path) as page:
        status, body, _ = page.ask("log?run=job&attempt=0&rank=1")
    assert status == 404
    assert b"secret" not in body


def test_files_and_folders_that_are_links_out_of_the_run_are_not_shown(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    files = full_run(folder)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name, text in (
        ("rank-3.log", "a secret\n"),
        ("summary.txt", "a secret\n"),
        ("config.json", '{"x": "a secret"}'),
    ):
        (elsewhere / name).write_text(text)
    files.run.config_file.unlink()
    files.run.config_file.symlink_to(elsewhere / "config.json")
    (files.path / "summary.txt").symlink_to(elsewhere / "summary.txt")
    files.run.attempt(1).symlink_to(elsewhere)
    with page_of(folder) as page, page.events("run=job") as events:
        assert "secret" not in str(run_part(events, "job"))
        status, body, _ = page.ask("log?run=job&attempt=1&rank=3")
    assert status == 404
    assert b"secret" not in body


def test_other_methods_are_refused(tmp_path: Path) -> None:
    full_run(tmp_path)
    with page_of(tmp_path) as page:
        for method in ("POST", "PUT", "DELETE"):
            assert page.ask("log?run=job&attempt=0&rank=3", method)[0] == 404


def test_a_log_is_its_end_without_control_characters(tmp_path: Path) -> None:
    files = full_run(tmp_path)
    files.log(2, "x" * 5000 + "\n" + "\x1b[31mred\x07\n" + "line\n" * 80_000)
    with page_of(tmp_path) as page:
        status, body, _ = page.ask("log?run=job&attempt=0&rank=3")
        assert status == 200
        assert b"the last line of worker 0" in body
        status, body, _ = page.ask("log?run=job&attempt=0&rank=2")
        assert status == 200
        assert b"\\u001b" not in body
        assert 200_000 < len(body) < 1_000_000
        status, body, _ = page.ask("logs?run=job&attempt=0")
        assert b'"rank":3' in body


def test_the_logs_of_programs_are_those_of_every_attempt(tmp_path: Path) -> None:
    files = full_run(tmp_path)
    members(files)
    (files.path / "producers/member-2.log").symlink_to("/etc/passwd")
    with page_of(tmp_path) as page:
        status, body, _ = page.ask("logs?run=job&attempt=0")
        assert [(row["rank"], row["label"]) for row in json.loads(body)][-2:] == [
            (-2, "member 0"),
            (-3, "member 1"),
        ]
        status, body, _ = page.ask("log?run=job&attempt=0&rank=-3")
        assert (status, json.loads(body)["lines"]) == (200, ["--- start 1", "pushed 7"])
        for rank in (-4, -5, -999):
            assert page.ask(f"log?run=job&attempt=0&rank={rank}")[0] == 404


def test_a_growing_run_is_sent_line_by_line(tmp_path: Path) -> None:
    files = full_run(tmp_path)
    files.state("running", released=False)
    files.run.finished_file.unlink()
    with page_of(tmp_path) as page, page.events("run=job") as events:
        first = run_part(events, "job")
        assert first["state"]["state"] == "running"
        assert len(first["curve"]["rows"]) == 40
        files.metrics(1)
        new = next(d for k, d in events if k == "run" and "curve" in d)
        assert (new["curve"]["from"], len(new["curve"]["rows"])) == (40, 1)
        assert new["curve"]["rows"][0][1] == 41


def test_a_new_run_of_the_folder_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpips.web.runs_data._LIST_S", 0.01)
    with page_of(tmp_path) as page, page.events() as events:
        assert next(d for k, d in events if k == "list") == []
        full_run(tmp_path, "a run")
        # The first list with it may come while its files are being written.
        listed = next(d for k, d in events if k == "list" and d and d[0]["state"] == "done")
        assert [row["name"] for row in listed] == ["a run"]
    full_run(tmp_path, "a,b")
    query = "run=a%20run&run=unknown&run=..&run=a%2Cb"
    with page_of(tmp_path) as page, page.events(query) as events:
        assert next(d for k, d in events if k == "hello")["shown"] == ["a run", "a,b"]


def test_nothing_is_read_while_no_page_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = full_run(tmp_path)
    read = []
    monkeypatch.setattr(
        "mpips.web.run_data.RunData.refresh", lambda self, now=None: read.append(self.name)
    )
    with page_of(tmp_path, refresh_s=0.01) as page:
        assert page.ask("")[0] == 200
        assert not read
        with page.events("run=job") as events:
            next(d for k, d in events if k == "list")
        # The server notices the closed connection when it sends the next line.
        end = time.monotonic() + 60
        while page.server.n_streams:
            assert time.monotonic() < end
            time.sleep(0.01)
        n = len(read)
        assert page.ask("")[0] == 200
        assert len(read) - n <= 1
    assert read
    assert files.path.exists()


def test_a_hanging_file_system_stops_no_other_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_run(tmp_path)
    hangs, released = threading.Event(), threading.Event()

    def refresh(self: Any, now: float | None = None) -> None:
        hangs.set()
        assert released.wait(30)

    monkeypatch.setattr("mpips.web.run_data.RunData.refresh", refresh)
    with page_of(tmp_path) as page, page.events("run=job"):
        try:
            assert hangs.wait(30)
            assert page.ask("page.css")[0] == 200
        finally:
            released.set()


def test_a_slow_reader_delays_no_other_and_nothing_is_queued_for_it(tmp_path: Path) -> None:
    files = full_run(tmp_path)
    files.state("running", released=False)
    files.run.finished_file.unlink()
    files.metrics(2000)
    with page_of(tmp_path, refresh_s=0.01) as page, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", page.port))
        slow.sendall(f"GET /{TOKEN}/events?run=job HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        slow.recv(100)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with page.events("run=job") as events:
            seen = len(run_part(events, "job")["curve"]["rows"])
            for _ in range(30):
                files.metrics(20)
                new = next(d for k, d in events if k == "run" and "curve" in d)
                seen = new["curve"]["from"] + len(new["curve"]["rows"])
        assert seen > 2100
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_the_number_of_open_pages_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_STREAMS", 2)
    full_run(tmp_path)
    with page_of(tmp_path) as page, page.events("run=job") as one, page.events("run=job") as two:
        run_part(one, "job")
        run_part(two, "job")
        status, body, _ = page.ask("events?run=job")
        assert status == 503
        assert b"close one" in body
        assert page.ask("")[0] == 200


def _open_files_allow(n: int) -> bool:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < n and (hard == resource.RLIM_INFINITY or hard >= n):
        resource.setrlimit(resource.RLIMIT_NOFILE, (n, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= n


def test_a_thousand_connections_end_in_answers_and_the_page_still_works(tmp_path: Path) -> None:
    if not _open_files_allow(4096):
        pytest.skip("fewer than 4096 open files are allowed")
    full_run(tmp_path)
    with page_of(tmp_path, most=1010) as page:
        lines = []
        try:
            for _ in range(1000):
                line = socket.create_connection(("127.0.0.1", page.port), 30)
                line.sendall(f"GET /{TOKEN}/events?run=job HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                lines.append(line)
            status = [line.recv(12)[-3:] for line in lines]
        finally:
            for line in lines:
                line.close()
        assert set(status) == {b"200", b"503"}
        assert status.count(b"200") <= module.MOST_STREAMS
        assert _answers(page)


def _answers(page: Page) -> bool:
    """Return True as soon as the page and its events come again; closed connections take a moment."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            with page.events("run=job") as events:
                return run_part(events, "job")["state"]["state"] == "done"
        except (AssertionError, OSError, http.client.HTTPException):
            time.sleep(0.02)
    return False


def test_a_run_directory_is_not_written_to(tmp_path: Path) -> None:
    files = full_run(tmp_path)

    def content() -> dict[str, tuple[int, float, bytes]]:
        return {
            str(p): (p.stat().st_mode, p.stat().st_mtime, p.read_bytes() if p.is_file() else b"")
            for p in sorted(files.path.rglob("*"))
        }

    before = content()
    with page_of(tmp_path) as page, page.events("run=job") as events:
        run_part(events, "job")
        page.ask("log?run=job&attempt=0&rank=3")
    assert content() == before


def test_a_single_run_shows_itself_and_no_neighbour(tmp_path: Path) -> None:
    files = full_run(tmp_path)
    RunFiles(tmp_path, "neighbour").state("done")
    with page_of(files.path) as page, page.events("run=neighbour&run=job") as events:
        assert next(d for k, d in events if k == "hello")["shown"] == ["job"]
        assert [row["name"] for row in next(d for k, d in events if k == "list")] == ["job"]


def test_a_run_that_cannot_be_read_is_listed_as_damaged(tmp_path: Path) -> None:
    full_run(tmp_path, "bad").run.info_file.write_text("{")
    full_run(tmp_path, "good")
    os.utime(tmp_path)
    with page_of(tmp_path) as page, page.events("run=bad&run=good") as events:
        listed = next(d for k, d in events if k == "list")
        assert {row["name"]: row["state"] for row in listed} == {"bad": "damaged", "good": "done"}
        assert run_part(events, "bad")["state"]["state"] == "damaged"
        assert run_part(events, "good")["state"]["state"] == "done"


def test_the_stream_of_a_run_that_is_done_ends(tmp_path: Path) -> None:
    files = full_run(tmp_path)
    with page_of(tmp_path / "job") as page, page.events("run=job") as events:
        kinds = [kind for kind, _ in events]
        assert kinds[0] == "hello"
        assert kinds[-1] == "end"
        assert "run" in kinds
    # In a folder a run may begin, and one that has just ended may still be written.
    with page_of(tmp_path) as page, page.events("run=job") as events:
        assert run_part(events, "job")["state"]["state"] == "done"
        assert not page.server._runs.is_over(["job"])
    mark = files.run.finished()
    assert mark is not None
    replace_json(files.run.finished_file, replace(mark, time_s=time.time()))
    with page_of(tmp_path / "job") as page, page.events("run=job") as events:
        assert run_part(events, "job")["state"]["state"] == "done"
        assert not page.server._runs.is_over(["job"])


def test_the_trials_of_a_sweep_come_before_the_list(tmp_path: Path) -> None:
    full_run(tmp_path)
    (tmp_path / "sweep.json").write_text('{"trials": [{"run": "job", "assignments": ["a=1"]}]}')
    with page_of(tmp_path) as page, page.events() as events:
        found = [next(events) for _ in range(3)]
        assert [kind for kind, _ in found] == ["hello", "sweep", "list"]
        assert found[1][1]["trials"][0]["run"] == "job"
