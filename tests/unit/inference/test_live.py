"""The memory of a run at work as `mpips serve` reads it, and its answers over HTTP."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpips import _native, load
from mpips.cli import serve
from mpips.data.ids import ids
from mpips.errors import DataError, ServingError
from mpips.inference.live import RETRY_S, LiveGone, _open_own
from mpips.model.partition import RangePartition
from mpips.rundir.directory import RunFolder
from mpips.server.look_ups import N_SLOTS, part_of
from mpips.transport.region import find_segment, new_token, own_segments, region_name
from tests.support.harness import dense, rows

pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

from documents import DOCS, blocks
from live_rig import LiveJob, live_run
from model_rig import make
from serving_rig import TOKEN, served

from mpips.inference.client import ModelClient
from mpips.inference.parsing import MOST_KEYS

RAW = "application/octet-stream"
KEYS = np.array([5, -1, 10**12, 5, 7], np.int64)
TABLES = [
    dense(50_000, name="w", partition="range"),
    rows(3, name="e", init="constant(2)"),
    rows(2, name="b", init="normal(1)", hash_buckets=5, row_dtype="bf16"),
    dense(40_000, name="c", pull_compression="bf16"),
]


@pytest.fixture
def token() -> Iterator[str]:
    token = new_token()
    yield token
    for _, path in own_segments(token):
        path.unlink()


def fill(job: LiveJob, scale: float) -> None:
    """Give all tables of TABLES values that belong to `scale`."""
    keys = np.arange(3000, dtype=np.int64)
    job.set_rows("e", keys, np.repeat(scale * keys[:, None], 3, 1))
    job.set_rows("b", keys[:4], np.full((4, 2), scale, np.float32))
    job.set_dense("w", scale * np.arange(50_000.0))
    job.set_dense("c", scale * np.arange(40_000.0))


@pytest.mark.parametrize("n_servers", [1, 3])
def test_rows_and_dense_tables_of_all_servers(token: str, n_servers: int) -> None:
    live, _ = live_run(token)
    with LiveJob(token, TABLES, n_servers).at_work() as job:
        fill(job, 1.0)
        assert live.tables() == ("w", "e", "b", "c")
        found = live.rows("e", KEYS)
        assert found.values.tolist() == [[5] * 3, [2] * 3, [2] * 3, [5] * 3, [7] * 3]
        assert found.has.tolist() == [True, False, False, True, True]
        assert (found.version, found.step) == (0, 0)
        assert live.rows("e", KEYS[:0]).values.shape == (0, 3)
        # More keys than a request to a server takes.
        many = np.arange(2999, -1, -1, dtype=np.int64)
        assert (live.rows("e", many).values == many[:, None]).all()
        # A key stands for its bucket.
        stored = TABLES[2].stored_keys
        there = np.isin(stored(KEYS), stored(np.arange(4)))
        assert 0 < there.sum() < len(KEYS)
        assert live.rows("b", KEYS).has.tolist() == there.tolist()
        assert ((live.rows("b", KEYS).values == 1.0).all(axis=1) == there).all()
        values = live.dense("w")
        assert (values.values == np.arange(50_000.0)).all()
        # The servers hold float32, whatever pulls of workers get.
        assert (live.dense("c").values == np.arange(40_000.0)).all()
        for kind, name in ((live.rows, "w"), (live.dense, "e"), (live.dense, "none")):
            with pytest.raises(LiveGone, match="the servers hold no"):
                kind(name, KEYS) if kind == live.rows else kind(name)
    with pytest.raises(LiveGone, match=r"server \d has ended") as gone:
        live.rows("e", KEYS)
    assert live.why == str(gone.value)


def test_a_restart_with_another_number_of_servers_is_found(token: str) -> None:
    live, clock = live_run(token)
    assert not live.follow()
    for generation, n_servers in ((0, 3), (1, 1), (2, 2)):
        clock.now += 0.5 * RETRY_S
        with LiveJob(token, TABLES, n_servers, generation).at_work() as job:
            fill(job, 1.0 + generation)
            # Between two searches it is not there.
            assert not live.follow()
            clock.now += RETRY_S
            assert live.follow()
            assert live.rows("e", np.array([3])).values[0, 0] == 3 * (1 + generation)
            assert live.dense("w").values[49_999] == 49_999 * (1 + generation)
        assert not live.follow()


def test_servers_that_were_killed_are_not_read_nor_waited_for(token: str) -> None:
    live, _clock = live_run(token)
    with LiveJob(token, TABLES, 1).at_work():
        path = find_segment(token, part_of(0, 0))
        assert path is not None
        content = path.read_bytes()
    # A killed process leaves its file as it was, and no lock on it.
    left = Path("/dev/shm") / region_name(token, part_of(0, 4))
    left.touch(0o600)
    left.write_bytes(content)
    started = time.monotonic()
    with pytest.raises(LiveGone, match="the servers have ended"):
        live.rows("e", KEYS)
    assert time.monotonic() - started < 1.0


def test_a_server_that_is_killed_during_a_request_ends_the_wait(
    token: str, monkeypatch: Any
) -> None:
    live, _ = live_run(token)
    job = LiveJob(token, TABLES, 1)
    with job.at_work():
        assert live.follow()
        server = live._current().servers[0]
        with job.lock:
            # Nobody answers; from its second look on the client finds the lock gone.
            looks: list[bool] = []

            def runs(self: Any) -> bool:
                looks.append(True)
                return len(looks) < 2

            monkeypatch.setattr(type(server), "runs", property(runs))
            with pytest.raises(LiveGone, match="server 0 has ended"):
                live.rows("e", KEYS)
            assert len(looks) == 2
        monkeypatch.undo()


def test_a_dense_table_of_a_server_that_ended_during_the_copy_is_not_returned(
    token: str, monkeypatch: Any
) -> None:
    live, _ = live_run(token)
    copy = _native.copy_dense_at
    with LiveJob(token, TABLES, 1).at_work() as job:
        fill(job, 1.0)

        def copied(*arguments: Any) -> bool:
            done: bool = copy(*arguments)
            # From here on the next attempt may change the region.
            with job.lock:
                job.servers[0].core.set_look_ups(None, 1, 1, 1, b"")
            return done

        monkeypatch.setattr(_native, "copy_dense_at", copied)
        with pytest.raises(LiveGone, match="server 0 has ended"):
            live.dense("w")


def test_servers_that_hang_end_all_waits(token: str, monkeypatch: Any) -> None:
    live, _ = live_run(token)
    monkeypatch.setattr("mpips.inference.live.PATIENCE_S", 0.2)
    messages: list[str] = []

    def ask() -> None:
        try:
            live.rows("e", KEYS)
        except LiveGone as gone:
            messages.append(str(gone))

    job = LiveJob(token, TABLES, 1)
    with job.at_work():
        assert live.follow()
        with job.lock:
            threads = [threading.Thread(target=ask) for _ in range(3 * N_SLOTS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
        assert messages == ["server 0 has not answered within 0.2 s"] * (3 * N_SLOTS)


def test_files_of_other_users_and_links_are_not_read(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    os.close(_open_own(path, os.O_RDONLY))
    (tmp_path / "link").symlink_to(path)
    for other, why in ((tmp_path / "link", "symbolic link"), (tmp_path, "no file of this user")):
        with pytest.raises(OSError, match=why):
            _open_own(other, os.O_RDONLY)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="is no file of this user"):
        _open_own(path, os.O_RDONLY)


def test_only_some_servers_are_on_this_node(token: str) -> None:
    live, _ = live_run(token)
    job = LiveJob(token, TABLES, 2)
    with job.at_work():
        path = find_segment(token, part_of(1, 0))
        assert path is not None
        hidden = path.with_name("mpips-hidden-by-a-test-" + token)
        path.rename(hidden)
        try:
            assert live.why == "1 of the 2 servers are on this node"
        finally:
            hidden.rename(path)


def locks(path: Path) -> list[str]:
    """Return the lines of the kernel's list that are locks on a file, without their numbers."""
    lines = (line.split(maxsplit=1)[1] for line in Path("/proc/locks").read_text().splitlines())
    return sorted(line for line in lines if f":{path.stat().st_ino} " in line)


def test_a_client_keeps_no_launch_from_taking_memory_over(token: str) -> None:
    live, _ = live_run(token)
    with LiveJob(token, TABLES, 1).at_work() as job:
        asked = find_segment(token, part_of(0, 0))
        assert asked is not None
        paths = [asked, asked.with_name(job.servers[0].region.name)]
        before = [locks(path) for path in paths]
        assert all(before)
        live.dense("w")
        live.rows("e", KEYS)
        assert live.follow()
        assert [locks(path) for path in paths] == before


def test_keys_outside_the_range_of_a_partition(token: str) -> None:
    live, _ = live_run(token)
    table = rows(2, name="e", partition=RangePartition(0, 10))
    with LiveJob(token, [table], 2).at_work(), pytest.raises(DataError, match=r"table 'e': .*10"):
        live.rows("e", np.array([3, 10]))


# --- Over HTTP -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hashed(tmp_path_factory: Any) -> Path:
    return make("hashed", tmp_path_factory.mktemp("live"))[0]


def job_like(path: Path, token: str) -> LiveJob:
    """Return a job at work with the tables of a model, and its values."""
    model = load(path)
    tables = [model.tables.table_named(name) for name in model.tables]
    job = LiveJob(token, tables, 2)
    for name in model.tables:
        content = model.tables[name]
        if isinstance(content, tuple):
            job.set_rows(name, content[0], content[1])
        else:
            job.set_dense(name, content)
    return job


def test_predictions_are_of_the_memory_and_then_of_the_checkpoint(hashed: Path, token: str) -> None:
    live, clock = live_run(token)
    samples = {"rows": [{"colour": "red", "size": 3.0}, {"colour": "blue", "size": 1.0}]}
    path = hashed / "checkpoints"
    model = load(path)
    with served(path, live=live) as (client, _):
        stored = client.json("POST", "/predict", samples)[1]
        assert (stored["source"], stored["step"]) == ("checkpoint", model.manifest.step)
        assert client.json("GET", "/health")[1]["source"] == "checkpoint"
        clock.now += RETRY_S
        with job_like(path, token).at_work() as job:
            found = client.json("POST", "/predict", samples)[1]
            assert (found["source"], found["step"]) == ("live", 0)
            assert found["probabilities"] == stored["probabilities"]
            assert client.json("GET", "/health")[1]["source"] == "live"
            # Rows of zeros predict nothing, and NaN is null in JSON.
            keys, values = model.tables["weight"]
            job.set_rows("weight", keys, np.zeros_like(values))
            found = client.json("POST", "/predict", samples)[1]
            assert found["probabilities"] == [[0.5, 0.5]] * 2
            job.set_rows("weight", keys, np.full_like(values, np.nan))
            found = client.json("POST", "/predict", samples)[1]
            assert found["probabilities"] == [[None, None]] * 2
            metrics = client.ask("GET", "/metrics")[1].decode()
            assert "mpips_live 1.0" in metrics
        found = client.json("POST", "/predict", samples)[1]
        assert found == stored
        assert "mpips_live 0.0" in client.ask("GET", "/metrics")[1].decode()


def test_look_ups_in_json_and_raw(hashed: Path, token: str) -> None:
    live, clock = live_run(token)
    path = hashed / "checkpoints"
    own = ids(["red", "green", "none of these"], "colour")
    with served(path, live=live) as (client, _), job_like(path, token).at_work():
        keys, values = load(path).tables["weight"]
        expected = [values[keys == key].tolist()[0] if key in keys else [0.0] for key in own]
        _status, by_id = client.json(
            "POST", "/rows/weight", {"ids": ["red", "green", "none of these"], "column": "colour"}
        )
        assert by_id["rows"] == expected
        assert by_id["missing"] == [2]
        assert by_id["keys"] == ["red", "green", "none of these"]
        assert (by_id["source"], by_id["step"], by_id["version"]) == ("live", 0, 0)
        _status, by_key = client.json("POST", "/rows/weight", {"keys": own.tolist()})
        assert by_key["rows"] == expected
        headers = {"Content-Type": RAW, "Accept": RAW}
        status, body, head = client.ask(
            "POST", "/rows/weight", own.astype("<i8").tobytes(), **headers
        )
        assert status == 200
        assert np.frombuffer(body, "<f4").reshape(3, 1).tolist() == expected
        assert (head["x-mpips-source"], head["x-mpips-shape"], head["x-mpips-missing"]) == (
            "live",
            "3,1",
            "1",
        )
        assert client.json("POST", "/rows/weight", {"keys": []})[1]["rows"] == []
        # Of the checkpoint the answer is the same.
        live._drop(live._current(), "a test")
        status, stored, head = client.ask(
            "POST", "/rows/weight", own.astype("<i8").tobytes(), **headers
        )
        assert (stored, head["x-mpips-source"]) == (body, "checkpoint")
        assert "x-mpips-version" not in head
        clock.now += RETRY_S
        _status, again = client.json("GET", "/rows/weight?keys=" + ",".join(map(str, own)))
        assert (again["rows"], again["source"]) == (expected, "live")


def test_a_hundred_thousand_keys_and_the_python_client(hashed: Path, token: str) -> None:
    live, clock = live_run(token)
    path = hashed / "checkpoints"
    with served(path, live=live) as (plain, _):
        client = ModelClient(f"http://127.0.0.1:{plain.port}", TOKEN)
        clock.now += RETRY_S
        keys = np.arange(MOST_KEYS, dtype=np.int64)
        job = job_like(path, token)
        job.set_rows("weight", keys[:50_000], keys[:50_000, None] * 0.5)
        with client, job.at_work():
            assert live.follow()
            found = client.rows("weight", keys, on_missing="zero")
            assert (found.source, found.n_missing, found.values.shape) == (
                "live",
                50_000,
                (MOST_KEYS, 1),
            )
            assert (found.values[:50_000, 0] == keys[:50_000] * np.float32(0.5)).all()
            assert not found.values[50_000:].any()
            status, text, _ = plain.ask(
                "POST", "/rows/weight", b'{"keys": ' + str(keys.tolist()).encode() + b"}"
            )
            assert (status, len(text) > 10**6) == (200, True)
            with pytest.raises(ServingError, match="at most 100,000") as refused:
                client.rows("weight", np.arange(MOST_KEYS + 1))
            assert refused.value.status == 413
            with pytest.raises(ServingError, match="must be whole numbers"):
                client.rows("weight", ["a"])
            named = client.rows_of_ids("weight", ["red"], "colour")
            red = load(path).tables.table("weight").pull(ids(["red"], "colour"))
            assert (named.values == red).all()
            assert client.rows("weight", []).values.shape == (0, 1)
            assert client.predict([{"colour": "red", "size": 3}])["source"] == "live"
            assert client.health()["source"] == "live"
        found = client.rows("weight", keys[:3])
        assert (found.source, found.version, found.step) == (
            "checkpoint",
            -1,
            load(path).manifest.step,
        )
        wrong = ModelClient(f"http://127.0.0.1:{plain.port}", "another token of 16")
        with wrong, pytest.raises(ServingError, match="token is missing or wrong") as refused:
            wrong.rows("weight", [1])
        assert refused.value.status == 401
    with pytest.raises(ServingError, match="does not answer") as refused:
        client.rows("weight", [1])
    assert refused.value.status == 0
    client.close()


def test_a_run_without_a_checkpoint_answers_from_memory_alone(tmp_path: Path, token: str) -> None:
    live, _ = live_run(token)
    (tmp_path / "checkpoints").mkdir()
    with LiveJob(token, TABLES, 1).at_work() as job:
        fill(job, 1.0)
        with served(tmp_path, live=live, needed=False) as (client, current):
            assert current.failure
            status, found = client.json("POST", "/rows/e", {"keys": [7, -7]})
            assert (status, found["rows"], found["missing"]) == (200, [[7.0] * 3, [2.0] * 3], [1])
            status, body, head = client.ask("GET", "/rows/w", None, Accept=RAW)
            assert (status, head["x-mpips-shape"]) == (200, "50000")
            assert (np.frombuffer(body, "<f4") == np.arange(50_000)).all()
            status, found = client.json("POST", "/predict", {"rows": [[1]]})
            assert (status, found["error"]) == (
                503,
                "the run has no checkpoint with a model yet: ask again later",
            )
            status, found = client.json("POST", "/rows/nothing", {"keys": [7]})
            assert status == 503


def test_the_example_of_the_documentation(tmp_path: Path, token: str) -> None:
    live, _ = live_run(token)
    (tmp_path / "checkpoints").mkdir()
    example = next(b for b in blocks(DOCS / "howto/predict.md") if "ModelClient" in b.text)
    tables = [rows(2, name="item"), rows(2, name="user"), dense(3, name="weight0")]
    with LiveJob(token, tables, 1).at_work() as job:
        job.set_rows("item", [3, 17], np.array([[1.0, 2], [3, 4]]))
        job.set_rows("user", ids(["u1", "u2"], "user").tolist(), np.array([[5.0, 6], [7, 8]]))
        job.set_dense("weight0", np.array([9.0, 10, 11]))
        with served(tmp_path, live=live, needed=False) as (client, _):
            text = example.text.replace(":8000", f":{client.port}")
            names: dict[str, Any] = {"token": TOKEN}
            exec(compile(text, example.name, "exec"), names)
    assert names["found"].values.tolist() == [[1, 2], [3, 4], [0, 0]]
    assert names["found"][1:] == (1, "live", 0, 0)
    assert names["named"].values.tolist() == [[5, 6], [7, 8]]
    assert names["weight"].tolist() == [9, 10, 11]


def test_requests_while_the_job_restarts_are_all_answered(hashed: Path, token: str) -> None:
    live, clock = live_run(token)
    path = hashed / "checkpoints"
    own = ids(["red", "green"], "colour")
    expected = load(path).tables.table("weight").pull(own).tolist()
    answers: list[tuple[int, str, bool]] = []
    done = threading.Event()
    with served(path, live=live) as (client, _):

        def ask() -> None:
            while not done.is_set():
                status, found = client.json("POST", "/rows/weight", {"keys": own.tolist()})
                answers.append((status, found["source"], found["rows"] == expected))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            with job_like(path, token).at_work():
                clock.now += 2 * RETRY_S
                n = len(answers)
                while len(answers) < n + 12:
                    assert threads[0].is_alive()
                    os.sched_yield()
        done.set()
        for thread in threads:
            thread.join(60)
    assert {(status, right) for status, _, right in answers} == {(200, True)}
    assert {source for _, source, _ in answers} == {"live", "checkpoint"}


@pytest.mark.parametrize("on_missing", ["initial", "zero", "error"])
def test_rows_that_are_missing_in_predictions(hashed: Path, token: str, on_missing: str) -> None:
    path = hashed / "checkpoints"
    live, _ = live_run(token)
    unknown = {"rows": [{"colour": "violet", "size": 3.0}]}
    model = load(path, on_missing=on_missing)
    with served(path, live=live, on_missing=on_missing) as (client, _):
        status, stored = client.json("POST", "/predict", unknown)
        with job_like(path, token).at_work():
            live._retry_at = 0.0
            clocked = client.json("POST", "/predict", unknown)
    assert clocked[0] == status == (400 if on_missing == "error" else 200)
    if on_missing != "error":
        assert clocked[1]["probabilities"] == stored["probabilities"]
        assert clocked[1]["source"] == "live"
        return
    assert "has no row for 1 of" in stored["error"]
    (path.parent / "unknown.csv").write_text("colour,size,y\nviolet,3,1\nred,1,0\n")
    with pytest.raises(DataError, match="table 'weight' has no row for 1 of"):
        model.evaluate(path.parent / "unknown.csv")


def test_the_command_reads_the_memory_of_runs_alone(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "click")
    live = serve._live_of(run.path)
    assert live is not None
    assert live.why == "the run is not at work on this node"
    assert serve._live_of(tmp_path) is None
