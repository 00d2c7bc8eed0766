"""Connections that do not ask, or ask for ever, and a reader that fails: the page still comes."""

from __future__ import annotations

import asyncio
import resource
import select
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from run_files import full_run

pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")

from web_rig import TOKEN, Page, page_of

from mpips.web.connections import BACKLOG, most_connections
from mpips.web.runs_data import RunsData
from mpips.web.server import PageServer


def line_to(page: Page) -> socket.socket:
    return socket.create_connection(("127.0.0.1", page.port), 30)


def closed(line: socket.socket) -> bool:
    """Wait for the end of a connection; False if it does not come within 20 s."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if select.select([line], [], [], 1.0)[0]:
            try:
                if not line.recv(65536):
                    return True
            except ConnectionError:
                return True
    return False


@pytest.mark.parametrize("begin", [b"", b"GET / HT"])
def test_a_connection_that_does_not_ask_in_time_is_closed(tmp_path: Path, begin: bytes) -> None:
    full_run(tmp_path)
    with page_of(tmp_path, request_s=0.2) as page, line_to(page) as line:
        line.sendall(begin)
        assert closed(line)
        assert page.ask("")[0] == 200


def test_bytes_now_and_then_do_not_extend_the_time(tmp_path: Path) -> None:
    full_run(tmp_path)
    with page_of(tmp_path, request_s=0.3) as page, line_to(page) as line:
        # The first request is answered; the second one never ends.
        line.sendall(f"GET /{TOKEN}/page.css HTTP/1.1\r\nHost: x\r\n\r\nGET /".encode())
        end = time.monotonic() + 20
        try:
            while time.monotonic() < end:
                line.sendall(b"x")
                if select.select([line], [], [], 0.02)[0] and not line.recv(1 << 20):
                    break
        except ConnectionError:
            pass
        assert time.monotonic() < end


def test_a_stream_of_events_outlives_that_time(tmp_path: Path) -> None:
    files = full_run(tmp_path)
    files.state("running", released=False)
    files.run.finished_file.unlink()
    with page_of(tmp_path, request_s=0.1) as page, page.events("run=job") as events:
        next(d for k, d in events if k == "run")
        time.sleep(0.3)
        files.metrics(1)
        assert next(d for k, d in events if k == "run" and "curve" in d)["curve"]["from"] == 40


def test_a_new_connection_takes_the_place_of_an_idle_one(tmp_path: Path) -> None:
    full_run(tmp_path)
    with page_of(tmp_path, most=10, request_s=60.0) as page, page.events("run=job") as events:
        next(d for k, d in events if k == "run")
        lines = [line_to(page) for _ in range(30)]
        try:
            for _ in range(5):
                assert page.ask("")[0] == 200
            assert closed(lines[0])
            assert len(page.server._watched) == 1, "the stream goes on"
        finally:
            for line in lines:
                line.close()


def test_without_the_token_a_connection_gets_one_answer(tmp_path: Path) -> None:
    full_run(tmp_path)
    with page_of(tmp_path) as page, line_to(page) as line:
        line.sendall(b"GET /wrong/ HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
        begin = time.monotonic()
        answers = b""
        try:
            while data := line.recv(65536):
                answers += data
        except ConnectionError:
            pass
        assert answers.count(b"HTTP/1.1 404") <= 1
        assert time.monotonic() - begin < 4, "not by the time of an idle connection"


def test_fewer_connections_are_served_than_files_may_be_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for soft in (256, 512, 1024):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, soft=soft: (soft, 4096))
        assert 8 <= most_connections() < soft - BACKLOG
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, 4096))
    assert most_connections() == 1000


def test_the_reader_goes_on_after_an_error_and_prints_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    full_run(tmp_path)
    refresh, n_failed = RunsData.refresh, []

    def fails(self: RunsData, names: Any) -> None:
        if len(n_failed) < 3:
            n_failed.append(1)
            raise ZeroDivisionError("by chance")
        refresh(self, names)

    monkeypatch.setattr(RunsData, "refresh", fails)
    with page_of(tmp_path, refresh_s=0.01) as page, page.events("run=job") as events:
        assert next(d for k, d in events if k == "run")["state"]["state"] == "done"
    assert capfd.readouterr().err.count("ZeroDivisionError: by chance") == 1


def test_a_stream_that_is_cancelled_again_and_again_stops_no_other(tmp_path: Path) -> None:
    """A browser that leaves cancels its stream until it has ended, also while the runs are being read."""
    full_run(tmp_path)

    async def follow(server: PageServer) -> None:
        async for _ in server._stream(["job"]):
            pass

    async def crowd() -> None:
        server = PageServer(RunsData(tmp_path), TOKEN)
        await server._read_once()
        streams = [asyncio.create_task(follow(server)) for _ in range(20)]
        for _ in range(200):
            await asyncio.sleep(0)
        for _ in range(200):
            for stream in streams:
                stream.cancel()
            await asyncio.sleep(0)
        ended = await asyncio.wait_for(asyncio.gather(*streams, return_exceptions=True), 20)
        assert {type(error) for error in ended} == {asyncio.CancelledError}
        # The runs are read on, and a later one gets what is new.
        await asyncio.wait_for(server._read_once(), 20)
        late = server._stream(["job"])
        assert [(await anext(late))[:12] for _ in range(2)] == [b"event: hello", b"event: list\n"]

    asyncio.run(crowd())
