"""`mpips serve`: a real server in a thread of this process, asked over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from model_rig import labelled_csv, make, several_csv

from mpips import load
from mpips.cli.serve import command
from mpips.config.schema import load_config
from mpips.errors import ConfigError
from mpips.training.train import train

uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

from serving_rig import TOKEN, Client, served  # noqa: E402

from mpips.inference.parsing import MOST_BYTES, named_by_row  # noqa: E402

NAMES = ("big", "small", "flat", "wide")  # columns of the rows of numbers


@pytest.fixture(scope="module", params=["softmax", "logistic", "hashed"])
def model(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[str, Path]:
    return request.param, make(request.param, tmp_path_factory.mktemp("served"))[0]


@pytest.fixture(scope="module")
def softmax(tmp_path_factory: Any) -> Path:
    return make("softmax", tmp_path_factory.mktemp("softmax"))[0]


def rows_in(name: str, folder: Path, file: str = "test.csv") -> list[Any]:
    """Return the samples of the test file as rows of a request."""
    if name == "logistic":
        lines = [line.split()[1:] for line in (folder / "test.svm").read_text().splitlines()]
        return [{k: float(v) for k, v in (pair.split(":") for pair in line)} for line in lines]
    header, *lines = [line.split(",") for line in (folder / file).read_text().splitlines()]
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    return [{k: v if k == "colour" else float(v) for k, v in row.items()} for row in rows]


def test_rows_are_predicted_as_the_file(model: tuple[str, Path]) -> None:
    name, folder = model
    loaded = load(folder / "checkpoints")
    test = next(folder.glob("test.*"))
    with served(folder / "checkpoints") as (client, _):
        status, found = client.json("POST", "/predict", {"rows": rows_in(name, folder)})
    assert status == 200, found
    assert found["model"] == loaded.path.name
    assert found["classes"] == loaded.classes.tolist()
    assert found["predictions"] == loaded.predict(test).tolist()
    assert np.allclose(found["probabilities"], loaded.predict_proba(test), atol=1e-6)


@pytest.mark.parametrize("labels", ["targets", "several"])
def test_numbers_and_several_labels_are_answered(labels: str, tmp_path: Path) -> None:
    write = labelled_csv if labels == "targets" else several_csv
    file = write(tmp_path / "a.csv", 100, 1)
    several = ["rare", "b", "a"]
    pairs = [
        ("task", "wide_deep"),
        ("data.train", str(file)),
        ("train.epochs", 1),
        ("checkpoint.folder", str(tmp_path / "checkpoints")),
        ("options.labels", "targets") if labels == "targets" else ("data.label", several),
    ]
    train(load_config(None, pairs), "none", verbose=False)
    loaded = load(tmp_path / "checkpoints")
    with served(tmp_path / "checkpoints") as (client, _):
        status, found = client.json(
            "POST", "/predict", {"rows": rows_in("wide_deep", tmp_path, "a.csv")}
        )
    assert status == 200, found
    predicted = loaded.predict(file)
    if labels == "targets":
        assert np.allclose(found["predictions"], predicted, rtol=1e-5)
        assert "classes" not in found
        return
    assert found["classes"] == several
    names = [[n for n, y in zip(several, row, strict=True) if y] for row in predicted.tolist()]
    assert found["predictions"] == names
    assert np.allclose(found["probabilities"], loaded.predict_proba(file), atol=1e-6)


def test_lists_and_raw_arrays(softmax: Path) -> None:
    x = np.array([[1e6, 0.1, 7, 1.7e9], [1e6 + 300, 0.0, 7, 1.7e9 + 60]])
    loaded = load(softmax / "checkpoints")
    with served(softmax / "checkpoints") as (client, _):
        status, found = client.json("POST", "/predict", {"rows": x.tolist()})
        assert status == 200
        assert np.allclose(found["probabilities"], loaded.predict_proba(x), atol=1e-6)
        raw = x.astype("<f4").tobytes()
        kind = {"Content-Type": "application/octet-stream"}
        status, body, headers = client.ask("POST", "/predict", raw, **kind)
        assert (status, headers["x-mpips-shape"]) == (200, "2,3")
        assert headers["x-mpips-model"] == loaded.path.name
        expected = loaded.predict_proba(np.frombuffer(raw, "<f4").reshape(2, 4))
        assert body == expected.astype("<f4").tobytes()
        status, body, _ = client.ask("POST", "/predict", raw[:-1], **kind)
        assert status == 400
        assert b"raw samples are rows of 4 float32 values" in body


def test_tables_can_be_looked_up(model: tuple[str, Path]) -> None:
    name, folder = model
    tables = load(folder / "checkpoints").tables
    with served(folder / "checkpoints") as (client, _):
        if name == "softmax":
            status, found = client.json("GET", "/rows/bias")
            assert (status, found["values"]) == (200, tables["bias"].tolist())
            assert client.json("GET", "/rows/bias?keys=1")[0] == 400
        else:
            status, found = client.json("GET", "/rows/weight?keys=-1,5")
            rows = tables.table("weight").pull(np.array([-1, 5]))
            assert (status, found["rows"]) == (200, rows.tolist())
            assert "give ?keys=1,2" in client.json("GET", "/rows/weight")[1]["error"]
            assert "whole numbers" in client.json("GET", "/rows/weight?keys=a")[1]["error"]
            assert client.json("GET", "/rows/weight?keys=99999999999999999999")[0] == 400
        assert client.json("GET", "/rows/../../etc/passwd")[0] == 404
        status, found = client.json("GET", "/rows/absent")
        assert (status, found["error"].partition(";")[0]) == (404, "no table 'absent'")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"rows": [[1, 2]]}, "data has 2 features, the training data 4"),
        ({"rows": [[1, 2, 3, "x"]]}, "rows must have 4 numbers each"),
        ({"rows": [[1, 2, 3, None]]}, "NaN or infinity|4 numbers each"),
        ({"rows": [[1, 2], [1]]}, "rows must have 4 numbers each"),
        ({"rows": []}, "at least one row"),
        ({"rows": [[1, 2, 3, 4], {}]}, "all lists of numbers, or all"),
        (
            {"rows": [{"big": 1}]},
            r"rows\[0\] lacks 'small', 'flat', 'wide'; the columns are 'big', 'small', 'flat', 'wide'$",
        ),
        (
            {"rows": [{"big": [1], "small": 1, "flat": 1, "wide": 1}]},
            "column 'big': a value must be a number",
        ),
        (
            {"rows": [dict(zip(NAMES, row, strict=True)) for row in ("1111", "x111")]},
            r"^rows\[1\]: column 'big' contains 'x'",
        ),
        ([1], "the body must be"),
        (b"{", "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b"\xff\xfe", "the body is not JSON"),
    ],
)
def test_bad_requests_get_one_sentence(softmax: Path, content: Any, text: str) -> None:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    with served(softmax / "checkpoints") as (client, _):
        status, found, _ = client.ask("POST", "/predict", body)
        assert status == 400
        assert re.search(text, json.loads(found)["error"]), found
        # The server goes on.
        assert client.json("POST", "/predict", {"rows": [[1, 2, 3, 4]]})[0] == 200


def test_large_bodies_are_refused(softmax: Path) -> None:
    with served(softmax / "checkpoints") as (client, _):
        connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
        connection.putrequest("POST", "/predict")
        connection.putheader("Authorization", f"Bearer {TOKEN}")
        connection.putheader("Content-Length", str(MOST_BYTES + 1))
        connection.endheaders()
        answer = connection.getresponse()
        assert answer.status == 413
        assert b"at most 16,777,216 in one request" in answer.read()
        connection.close()


def test_a_client_that_sends_a_large_body_first_gets_the_answer(softmax: Path) -> None:
    with served(softmax / "checkpoints") as (client, _):
        # More than the sockets hold, so the client is still sending when the server knows the length.
        status, body, _ = client.ask("POST", "/predict", bytes(4 * MOST_BYTES))
        assert status == 413
        assert b"67,108,864 bytes: at most 16,777,216 in one request" in body


@pytest.mark.parametrize(
    ("text", "line", "row"), [("a", 2, 0), ("a", 3, 1), ("a\nb", 3, 0), ("a\r\nb\rc", 5, 1)]
)
def test_an_error_names_the_row_of_the_request(text: str, line: int, row: int) -> None:
    rows = [{"word": text, "x": 1, "other": "\n"}, {"word": None, "x": 1}]
    found = named_by_row(f"the frame:{line}: column 'x' is wrong", rows, ("word", "x"))
    assert found == f"rows[{row}]: column 'x' is wrong"
    assert named_by_row("the frame: is wrong", rows, ("x",)) == "the frame: is wrong"


def test_without_the_token_only_health_is_answered(softmax: Path) -> None:
    with served(softmax / "checkpoints") as (client, current):
        for token in ("", "wrong", TOKEN + "x", TOKEN[:-1]):
            other = Client(client.port, token)
            for method, path in (("POST", "/predict"), ("GET", "/rows/bias"), ("GET", "/metrics")):
                status, found = other.json(method, path, {"rows": [[1, 2, 3, 4]]})
                assert status == 401
                assert "the token is missing or wrong" in found["error"]
            status, found = other.json("GET", "/health")
            assert (status, found["status"], found["model"]) == (200, "ok", current.name)
        status, body, _ = client.ask("GET", "/metrics")
        text = body.decode()
        assert status == 200
        assert 'mpips_requests_total{path="/predict",status="401"} 4.0' in text
        assert f"mpips_model_step {float(current.step)}" in text


def test_a_newer_checkpoint_takes_its_place_under_a_hundred_clients(tmp_path: Path) -> None:
    """No request fails, and each answer is of the one model that it names."""
    folder, _ = make("softmax", tmp_path)
    newest = (folder / "checkpoints" / "latest").resolve()
    live, spare = tmp_path / "live", tmp_path / "spare"
    old, new = sorted(p for p in (folder / "checkpoints").glob("step-*") if p.is_dir())[-2:]
    assert new == newest
    live.mkdir()
    spare.mkdir()
    shutil.copytree(old, live / old.name)
    shutil.copytree(new, spare / new.name)
    x = np.array([[1e6 + 120, 0.001, 7, 1.7e9 + 30]])
    expected = {p.name: load(p).predict_proba(x)[0] for p in (old, new)}
    assert not np.allclose(*expected.values())
    failures: list[object] = []
    seen: set[str] = set()
    stop = threading.Event()

    def ask(client: Client) -> None:
        while not stop.is_set():
            status, found = client.json("POST", "/predict", {"rows": x.tolist()})
            if status != 200 or not np.allclose(
                found["probabilities"][0], expected[found["model"]], atol=1e-6
            ):
                failures.append(found)
                return
            seen.add(found["model"])

    with served(live, every_s=0.05) as (client, current):
        threads = [threading.Thread(target=ask, args=(client,)) for _ in range(100)]
        for thread in threads:
            thread.start()
        try:
            wait_for(lambda: old.name in seen or failures)
            # A damaged checkpoint is not taken, and the one in use stays.
            damaged = spare / "step-000000999999"
            damaged.mkdir()
            (damaged / "manifest.json").write_text("{")
            os.rename(damaged, live / damaged.name)
            os.rename(spare / new.name, live / new.name)
            wait_for(lambda: new.name in seen or failures)
        finally:
            stop.set()
            for thread in threads:
                thread.join(30)
        assert failures == []
        assert seen == {old.name, new.name}
        assert current.name == new.name


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_command_prints_how_to_ask_and_ends_on_ctrl_c(softmax: Path) -> None:
    program = [sys.executable, "-m", "mpips", "serve", str(softmax / "checkpoints"), "--port", "0"]
    process = subprocess.Popen(program, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        first, second = process.stderr.readline(), process.stderr.readline()
        assert first.startswith("mpips serve: step-"), first
        address = first.split(" on ")[1].split(";")[0]
        token = second.split("Bearer ")[1].split('"')[0]
        port = int(address.rpartition(":")[2])
        client = Client(port, token)
        assert client.json("POST", "/predict", {"rows": [[1, 2, 3, 4]]})[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait(10)
        process.stderr.close()


def test_options_that_are_unsafe_or_impossible_are_refused(softmax: Path, tmp_path: Path) -> None:
    def error(*arguments: str) -> str:
        result = CliRunner().invoke(command, [str(softmax / "checkpoints"), *arguments])
        assert isinstance(result.exception, ConfigError), result.output
        return str(result.exception)

    assert "anybody could use it" in error("--no-token", "--host", "0.0.0.0")
    short = tmp_path / "short"
    short.write_text("abc\n")
    assert "at least 16 printable ASCII characters" in error("--token-file", str(short))
    assert "cannot be read: No such file" in error("--token-file", str(tmp_path / "none"))
    assert "leave one of them out" in error("--token-file", str(short), "--no-token")
    with served(softmax / "checkpoints") as (client, _):
        text = error("--port", str(client.port))
        assert f"127.0.0.1:{client.port} cannot be listened on: Address already in use" in text


def _closed(line: socket.socket) -> bool:
    """Read until the server closes a connection; False if it is still open after 20 s."""
    line.settimeout(20)
    try:
        while line.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


HALF_A_BODY = (
    f"POST /predict HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    "Content-Length: 9\r\n\r\n{"
)


@pytest.mark.parametrize("sent", ["", "GET /hea", HALF_A_BODY], ids=["nothing", "a line", "a body"])
def test_a_connection_without_a_whole_request_is_closed(
    softmax: Path, sent: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with served(softmax, request_s=0.2, body_s=0.2) as (client, _):
        with socket.create_connection(("127.0.0.1", client.port), 30) as line:
            line.sendall(sent.encode())
            assert _closed(line)
        assert client.ask("GET", "/health")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_slow_body_has_more_time_than_the_headers(softmax: Path) -> None:
    with (
        served(softmax, request_s=0.2, body_s=60.0) as (client, _),
        socket.create_connection(("127.0.0.1", client.port), 30) as line,
        socket.create_connection(("127.0.0.1", client.port), 30) as idle,
    ):
        line.sendall(HALF_A_BODY.encode())
        # The idle connection is younger, so the time for headers is over for both.
        assert _closed(idle)
        line.sendall(b'"rows":1')
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 400")


def test_idle_connections_keep_no_request_out(softmax: Path) -> None:
    with served(softmax, most=10, request_s=60.0) as (client, _):
        idle = [socket.create_connection(("127.0.0.1", client.port), 30) for _ in range(30)]
        try:
            assert client.json("GET", "/health")[0] == 200
        finally:
            for line in idle:
                line.close()
