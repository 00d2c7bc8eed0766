"""Files of a run directory are opened without following links, waiting for writers or leaving the run."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mpips.monitor.sparkline import read_points
from mpips.rundir.directory import RunFolder, replace_json
from mpips.rundir.reading import end_of, names_in, open_regular, read_regular
from mpips.rundir.requests import RequestFolder, RunRequest
from mpips.rundir.series import series
from mpips.rundir.tracing import TraceFolder, TraceHead, TraceRequest, traces

SECRET = b"a secret of somebody else\n"


def link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def socket_file(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("make", [link, os.mkfifo, os.mkdir, socket_file])
def test_only_regular_files_are_opened(
    make: Callable[[Path], None], within: bool, tmp_path: Path
) -> None:
    path = tmp_path / "logs" / "rank-0.log"
    path.parent.mkdir()
    make(path)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=r"symbolic link|no regular file|No such device") as caught:
        open_regular(path, tmp_path if within else None)
    assert caught.value.filename == str(path)
    assert ("is a symbolic link" in str(caught.value)) == (make is link)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("place", ["logs", "logs/attempt-0"])
def test_no_folder_below_the_run_may_be_a_link(place: str, tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    name = "rank-0.log" if place != "logs" else "attempt-0/rank-0.log"
    (elsewhere / name).parent.mkdir(parents=True)
    (elsewhere / name).write_bytes(SECRET)
    (run / place).parent.mkdir(parents=True)
    (run / place).symlink_to(elsewhere)
    path = run / "logs" / "attempt-0" / "rank-0.log"
    assert path.read_bytes() == SECRET
    with pytest.raises(OSError, match="symbolic link"):
        read_regular(path, within=run)
    with pytest.raises(OSError, match="symbolic link"):
        names_in(path.parent, run)


def test_the_run_itself_may_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk" / "logs").mkdir(parents=True)
    (tmp_path / "disk" / "logs" / "x").write_bytes(b"own")
    run = tmp_path / "run"
    run.symlink_to(tmp_path / "disk")
    assert read_regular(run / "logs" / "x", within=run) == b"own"
    assert names_in(run / "logs", run) == ["x"]
    assert names_in(run / "none", run) == []
    with pytest.raises(FileNotFoundError, match="logs/y"):
        read_regular(run / "logs" / "y", within=run)


@pytest.mark.parametrize("path", ["../secret", "logs/../../secret", "/etc/passwd"])
def test_a_path_out_of_the_run_is_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / "run" / "logs").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(SECRET)
    with pytest.raises(ValueError, match=r"does not lie below|not in the subpath"):
        read_regular(tmp_path / "run" / path, within=tmp_path / "run")


def test_a_folder_that_becomes_a_link_meanwhile_leads_nowhere(tmp_path: Path) -> None:
    """A writer replaces the folder of the logs by a link and back, as fast as it can."""
    run = tmp_path / "run"
    for folder, text in ((run / "own", b"own"), (tmp_path / "elsewhere", SECRET)):
        folder.mkdir(parents=True)
        (folder / "x").write_bytes(text)
    (run / "link").symlink_to(tmp_path / "elsewhere")
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for name in ("own", "link"):
                os.rename(run / name, run / "logs")
                os.rename(run / "logs", run / name)

    thread = threading.Thread(target=swap)
    thread.start()
    found: set[bytes | int] = set()
    end = time.monotonic() + 20
    try:
        # Until all that can happen has happened, many times.
        for _ in range(20_000):
            try:
                found.add(read_regular(run / "logs" / "x", within=run))
            except OSError as error:
                found.add(error.errno or 0)
            assert time.monotonic() < end
    finally:
        over.set()
        thread.join()
    assert SECRET not in found
    assert b"own" in found


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "job")


def test_metrics_of_another_file_are_no_points(run: RunFolder, tmp_path: Path) -> None:
    line = b'{"time_s":1.0,"step":1,"generation":0,"loss":0.5,"samples_per_s":2.0}\n'
    other = tmp_path / "other.jsonl"
    other.write_bytes(line)
    run.metrics_file.write_bytes(line)
    assert (len(read_points(run.metrics_file)), len(series(run))) == (1, 1)
    run.metrics_file.unlink()
    run.metrics_file.symlink_to(other)
    assert read_points(run.metrics_file) == []
    with pytest.raises(OSError, match="symbolic link"):
        series(run)
    run.metrics_file.unlink()
    os.mkfifo(run.metrics_file)
    assert read_points(run.metrics_file) == []
    with pytest.raises(OSError, match="no regular file"):
        series(run)


def test_lines_of_metrics_without_a_bottom_are_left_out(run: RunFolder) -> None:
    line = b'{"time_s":1.0,"step":1,"generation":0,"loss":0.5,"samples_per_s":2.0}\n'
    deep = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    run.metrics_file.write_bytes(deep + line)
    assert (len(read_points(run.metrics_file)), len(series(run))) == (1, 1)


def test_traces_behind_links_are_none(run: RunFolder, tmp_path: Path) -> None:
    own, other = TraceFolder(run, "own"), RunFolder.create(tmp_path, "other")
    head = TraceHead(
        rank=0, role="worker 0", host="a", clock_id="x", offset_ns=0, error_ns=0, tables=()
    )
    for folder in (own, TraceFolder(other, "linked")):
        folder.ask(5)
        folder.write(head, b"")
    (run.path / "traces" / "linked").symlink_to(other.path / "traces" / "linked")
    (run.path / "traces" / "file").write_text("no folder")
    assert [folder.name for folder in traces(run)] == ["own"]
    assert own.read(0)[0] == head
    assert own.request() == TraceRequest(steps=5, time_s=own.request().time_s)  # type: ignore[union-attr]
    with pytest.raises(OSError, match="symbolic link") as caught:
        read_regular(TraceFolder(run, "linked").rank_file(0), within=run.path)
    assert "rank-0.trace" in str(caught.value)
    own.rank_file(0).unlink()
    own.rank_file(0).symlink_to(TraceFolder(other, "linked").rank_file(0))
    with pytest.raises(Exception, match=r"rank-0.trace: cannot be read: is a symbolic link"):
        own.read(0)


def test_a_pipe_among_the_requests_does_not_stop_the_supervisor(run: RunFolder) -> None:
    folder = RequestFolder(run)
    folder.path.mkdir()
    os.mkfifo(folder.path / "0.json")
    (folder.path / "1.json").symlink_to("/etc/passwd")
    request = RunRequest(kind="stop", host="a", pid=7, time_s=1.0)
    replace_json(folder.path / "2.json", request)
    assert [request.kind for request in folder.take("a", 7)] == ["stop"]
    assert list(folder.path.iterdir()) == []


def test_the_end_of_a_log_takes_no_more_memory_than_it_has(tmp_path: Path) -> None:
    log = tmp_path / "rank-3.log"
    assert end_of(log) == ""
    log.write_text("first\nlast é\n")
    assert end_of(log) == "first\nlast é\n"
    # As long as the file system allows without blocks: to read it whole is an error at once.
    with log.open("r+b") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b"\xff\nFatal Python error: Aborted\n")
    assert end_of(log, 30) == "\ufffd\nFatal Python error: Aborted\n"
    assert len(end_of(log)) == 1 << 20
    link(tmp_path / "link")
    assert end_of(tmp_path / "link") == ""
    os.mkfifo(tmp_path / "pipe")
    assert end_of(tmp_path / "pipe") == ""
