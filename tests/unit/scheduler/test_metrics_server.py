"""The port of the scheduler for Prometheus: answers, readers that are slow or many, ports that are taken."""

from __future__ import annotations

import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

from mpips.rundir.exposition import exposition
from mpips.rundir.files import Progress, RankRow, Ranks, Status
from mpips.rundir.view import RunView
from mpips.scheduler import metrics_server as module
from mpips.scheduler.metrics_server import MetricsServer


def view(step: int, n_ranks: int = 1) -> RunView:
    status = Status(state="running", generation=0, time_s=1.0, progress=Progress(step=step))
    rows = tuple(RankRow(rank=r, role=f"worker {r}", host="a", pid=1) for r in range(n_ranks))
    ranks = Ranks(generation=0, time_s=1.0, ranks=rows)
    return RunView(name="job", state="running", status=status, ranks=ranks)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    found = MetricsServer("127.0.0.1", 0, "job", lambda line: None)
    yield found
    found.close()


def get(server: MetricsServer, path: str = "/metrics", method: str = "GET") -> tuple[int, bytes]:
    address = server.address.removesuffix("/metrics") + path
    try:
        with urllib.request.urlopen(
            urllib.request.Request(address, method=method), timeout=30
        ) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def raw(server: MetricsServer) -> socket.socket:
    port = int(server.address.removesuffix("/metrics").rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def test_metrics_are_those_of_the_newest_state(server: MetricsServer) -> None:
    assert get(server)[0] == 503
    for step in (3, 4):
        server.observe(view(step))
        assert get(server) == (200, exposition([view(step)]))
    assert get(server, "/metrics?x=1")[0] == 200
    assert get(server, method="HEAD") == (200, b"")


def test_other_requests_are_refused(server: MetricsServer) -> None:
    server.observe(view(1))
    assert get(server, "/")[0] == 404
    assert get(server, "/metrics/../../etc/passwd")[0] == 404
    assert get(server, method="POST")[0] == 405
    with raw(server) as reader:
        reader.sendall(b"no request\r\n\r\n")
        assert reader.recv(100).startswith(b"HTTP/1.1 405 ")
    # A head without an end is not read without end: the connection is closed.
    with raw(server) as reader, pytest.raises(OSError, match=r"reset|Broken pipe"):
        reader.sendall(b"GET /metrics" * 10_000_000)
    assert get(server)[0] == 200


def test_a_text_is_made_once_for_each_state(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(views: list[RunView]) -> bytes:
        made.append(views[0].status.progress.step)
        return exposition(views)

    monkeypatch.setattr(module, "exposition", counted)
    for step in (1, 2):
        server.observe(view(step))
        for _ in range(5):
            get(server)
    server.observe(view(3))
    assert made == [1, 2]


def test_a_state_without_a_text_is_an_error_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(views: list[RunView]) -> bytes:
        if views[0].status.progress.step == 1:
            raise ValueError("a \udc80 label")
        return exposition(views)

    monkeypatch.setattr(module, "exposition", broken)
    said: list[str] = []
    server = MetricsServer("127.0.0.1", 0, "job", said.append)
    try:
        del said[:]
        server.observe(view(1))
        answer = b"the metrics cannot be written: ValueError: a \\udc80 label\n"
        assert [get(server) for _ in range(3)] == [(500, answer)] * 3
        assert len(said) == 1
        assert (
            "/metrics answers 500, the metrics cannot be written: ValueError: a \\udc80" in said[0]
        )
        assert said[0].endswith("training continues")
        said[0].encode()
        server.observe(view(2))
        assert get(server)[0] == 200
    finally:
        server.close()


def test_slow_readers_are_dropped_and_do_not_keep_others_out(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REQUEST_S", 0.3)
    server.observe(view(1, 1000))
    with ExitStack() as stack:
        # Some send nothing, some do not read the answer, which is longer than all buffers.
        readers = [stack.enter_context(raw(server)) for _ in range(20)]
        for reader in readers[:10]:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert get(server)[0] == 200
        until(lambda: not server._open)
        assert {reader.recv(1) for reader in readers[10:]} == {b""}


def test_connections_beyond_the_limit_are_closed_at_once(server: MetricsServer) -> None:
    server.observe(view(1))
    with ExitStack() as stack:
        many = [stack.enter_context(raw(server)) for _ in range(module._MOST_CONNECTIONS)]
        until(lambda: len(server._open) == len(many))
        with raw(server) as further:
            assert further.recv(1) == b""
    until(lambda: not server._open)
    assert get(server)[0] == 200


def test_the_scheduler_does_not_wait_and_the_thread_does_not_spin(server: MetricsServer) -> None:
    with ExitStack() as stack:
        for _ in range(module._MOST_CONNECTIONS + 5):
            stack.enter_context(raw(server))
        until(lambda: len(server._open) >= module._MOST_CONNECTIONS)
        spent = time.process_time()
        state = view(1)
        for _ in range(10_000):
            server.observe(state)
        assert time.process_time() - spent < 0.5
        before, at = time.process_time(), time.monotonic()
        time.sleep(0.5)
        assert time.process_time() - before < 0.2 * (time.monotonic() - at)


def test_a_taken_port_is_said_once_and_used_when_it_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.02)
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = MetricsServer("127.0.0.1", port, "job", said.append)
        server.observe(view(5))
        time.sleep(0.1)
        assert server.address == ""
    try:
        until(lambda: server.address != "")
        assert get(server) == (200, exposition([view(5)]))
        assert len(said) == 2
        assert (
            f"monitor.port = {port} cannot be opened on 127.0.0.1: Address already in use"
            in said[0]
        )
        assert "training continues" in said[0]
        assert said[1].endswith(f"metrics at http://127.0.0.1:{port}/metrics")
    finally:
        server.close()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_a_wrong_host_is_a_warning(host: str) -> None:
    said: list[str] = []
    server = MetricsServer(host, 0, "job", said.append)
    server.close()
    assert len(said) == 1
    assert f"cannot be opened on {host}: " in said[0]


def test_a_closed_server_frees_its_port_at_once_also_in_forked_children() -> None:
    server = MetricsServer("127.0.0.1", 0, "job", lambda line: None)
    server.observe(view(1))
    assert get(server)[0] == 200
    port = int(server.address.removesuffix("/metrics").rpartition(":")[2])
    told, tell = os.pipe()
    ready, say_ready = os.pipe()
    child = os.fork()
    if child == 0:  # waits for the end of the pipe
        os.close(tell)
        os.write(say_ready, b"1")
        os.read(told, 1)
        os._exit(0)
    os.close(told)
    os.read(ready, 1)
    try:
        with raw(server):  # open at the end
            server.close()
        assert not server._thread.is_alive()
        # Neither this process nor the child listens at the port.
        module.listening("127.0.0.1", port).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
    finally:
        os.close(tell)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(say_ready)
