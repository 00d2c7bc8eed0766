"""Rows of checkpoints in a real Redis server: each row is that of the checkpoint, after kills as well."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chains import History
from click.testing import CliRunner

from mpips.checkpoint import open_checkpoint, publish
from mpips.checkpoint.compact import compact
from mpips.checkpoint.delta import identity
from mpips.checkpoint.publish import PublishedRows
from mpips.cli.ckpt import command
from mpips.errors import CheckpointError, ConfigError
from mpips.model.row_values import bf16_values

LIMIT_S = 60.0
TABLES = ("users", "half", "empty")


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """A Redis server on a socket of its own; a client, and its address in `url`."""
    redis = pytest.importorskip("redis")
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("there is no redis-server here")
    # The path of a socket may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        socket = f"{folder}/socket"
        options = ["--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder]
        with subprocess.Popen([program, *options], stdout=subprocess.DEVNULL) as process:
            try:
                client = redis.Redis(unix_socket_path=socket)
                client.url = f"unix://{socket}?db=0"
                end = time.monotonic() + LIMIT_S
                while True:
                    try:
                        client.ping()
                        break
                    except redis.ConnectionError:
                        assert process.poll() is None
                        assert time.monotonic() < end
                        time.sleep(0.01)
                yield client
                client.close()
            finally:
                process.kill()


@pytest.fixture
def client(server: Any) -> Any:
    server.flushall()
    return server


def send(path: Path, client: Any, tables: tuple[str, ...] = ()) -> PublishedRows:
    with open_checkpoint(path) as checkpoint:
        return publish.publish(checkpoint, client.url, "p", tables)


def check(client: Any, columns: dict[str, Any], tables: tuple[str, ...] = TABLES) -> None:
    """Compare all of Redis with the tables of a checkpoint."""
    for name in tables:
        found = client.hgetall(f"p:{name}")
        keys, values = (columns[name][role] for role in ("keys", "values"))
        values = bf16_values(values) if values.dtype == np.uint16 else values
        assert found == {
            str(key).encode(): row.astype("<f4").tobytes()
            for key, row in zip(keys.tolist(), values, strict=True)
        }
    names = {name.decode() for name in client.keys("*")}
    assert names <= {"p", *(f"p:{name}" for name in tables)}


def written(folder: Path, n: int) -> History:
    history = History(8)
    history.write(folder)
    for _ in range(n - 1):
        history.evolve()
        history.write(folder)
    return history


def test_a_server_follows_a_chain_link_by_link(tmp_path, client, monkeypatch):
    monkeypatch.setattr(publish, "_BATCH_BYTES", 400)
    monkeypatch.setattr(publish, "_FIELDS", 7)
    history = written(tmp_path, 5)
    counts = []
    for place in (0, 1, 1, 4):
        columns, info = history.written[place]
        done = send(info.path, client)
        counts.append((done.whole, done.links))
        check(client, columns)
        state = client.hgetall("p")
        assert state[b"step"] == str(info.step).encode()
        assert state[b"checkpoint"] == info.path.name.encode()
        tables = json.loads(state[b"tables"])
        assert tables["users"] == {"dim": 3, "rows": len(columns["users"]["keys"])}
        assert b"writing" not in state
    assert counts == [(True, 0), (False, 1), (False, 0), (False, 3)]
    # An older checkpoint is no continuation.
    assert send(history.written[2][1].path, client).whole
    check(client, history.written[2][0])


def test_a_server_follows_a_chain_that_was_made_whole(tmp_path, client):
    history = written(tmp_path, 4)
    send(history.written[2][1].path, client)
    compact(history.written[2][1].path)
    for place, links in ((2, 0), (3, 1)):
        done = send(history.written[place][1].path, client)
        assert (done.whole, done.links) == (False, links)
        check(client, history.written[place][0])


class EndError(Exception):
    """The process ends here."""


@pytest.mark.parametrize("passages", range(1, 9))
@pytest.mark.parametrize("first", [None, 0], ids=["whole", "links"])
@pytest.mark.parametrize("then", [2, 3, 1])
def test_an_end_at_any_point_is_completed_by_the_next_call(
    tmp_path, client, monkeypatch, passages, first, then
):
    """The next call has the same checkpoint, a later one, or one before."""
    history = written(tmp_path, 4)
    if first is not None:
        send(history.written[first][1].path, client)
    with monkeypatch.context() as patch:
        left = [passages]

        def ending(name: str) -> Any:
            call = getattr(publish._Publication, name)

            def passed(own: Any, *arguments: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    raise EndError
                return call(own, *arguments)

            return passed

        patch.setattr(publish, "_BATCH_BYTES", 2000)
        # A killed process removes nothing.
        patch.setattr(publish._Publication, "_give_up", lambda _: None)
        for name in ("_put", "_delete", "_finish"):
            patch.setattr(publish._Publication, name, ending(name))
        try:
            send(history.written[2][1].path, client)
        except EndError:
            pass
        else:
            assert passages > 5
    # The lock of a killed process expires.
    client.delete("p/lock")
    send(history.written[then][1].path, client)
    check(client, history.written[then][0])


def test_chosen_tables_alone_are_published(tmp_path, client):
    history = written(tmp_path, 2)
    columns, info = history.written[1]
    done = send(info.path, client, ("half",))
    assert done.rows == len(columns["half"]["keys"])
    check(client, columns, ("half",))
    # Redis has not the other tables of this checkpoint.
    assert send(info.path, client).whole
    check(client, columns)
    # Those that are not chosen go.
    assert send(info.path, client, ("half",)).whole
    assert {name.decode() for name in client.keys("*")} == {"p", "p:half"}
    with pytest.raises(
        ConfigError, match="has no embedding table 'weight'; it has users, half, empty"
    ):
        send(info.path, client, ("weight",))


def test_the_command_publishes_the_newest_checkpoint(tmp_path, client):
    history = written(tmp_path, 2)
    arguments = ["publish", str(tmp_path), "--to", client.url, "--prefix", "p"]
    text = CliRunner().invoke(command, arguments).output
    assert f"{history.written[1][1].path.name}  all rows: " in text
    check(client, history.written[1][0])
    again = CliRunner().invoke(command, [*arguments, "--json"]).output
    assert json.loads(again)["rows"] == 0


def at_passage(monkeypatch: pytest.MonkeyPatch, number: int, act: Any) -> None:
    """Call `act` before a batch of rows is sent."""
    put, left = publish._Publication._put, [number]

    def passed(own: Any, *arguments: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            act()
        return put(own, *arguments)

    monkeypatch.setattr(publish, "_BATCH_BYTES", 2000)
    monkeypatch.setattr(publish._Publication, "_put", passed)


@pytest.mark.parametrize("first", [None, 0], ids=["whole", "links"])
def test_a_second_process_is_refused_while_one_publishes(tmp_path, client, monkeypatch, first):
    history = written(tmp_path, 3)
    if first is not None:
        send(history.written[first][1].path, client)
    refused: list[str] = []

    def second() -> None:
        with pytest.raises(CheckpointError) as error:
            send(history.written[1][1].path, client)
        refused.append(str(error.value))
        assert 0 < client.ttl("p/lock") <= 120

    at_passage(monkeypatch, 2, second)
    send(history.written[2][1].path, client)
    assert refused == [
        "nothing was published: another process publishes under prefix 'p', or was killed less than 120 s ago"
    ]
    check(client, history.written[2][0])


@pytest.mark.parametrize("first", [None, 0], ids=["whole", "links"])
@pytest.mark.parametrize("passage", [1, 2, 3])
def test_a_process_that_was_stopped_for_long_changes_nothing_more(
    tmp_path, client, monkeypatch, first, passage
):
    """Its lock has expired, and another process has published meanwhile."""
    history = written(tmp_path, 3)
    if first is not None:
        send(history.written[first][1].path, client)

    def other() -> None:
        client.delete("p/lock")
        send(history.written[1][1].path, client)
        # A third one is at work.
        client.set("p/lock", "other")

    at_passage(monkeypatch, passage, other)
    with pytest.raises(
        CheckpointError, match=r"was not published to .*: another process publishes"
    ):
        send(history.written[2][1].path, client)
    assert client.get("p/lock") == b"other"
    client.delete("p/lock")
    check(client, history.written[1][0])


def test_the_lock_stays_while_batches_are_sent(tmp_path, client, monkeypatch):
    path = written(tmp_path, 1).written[0][1].path
    monkeypatch.setattr(publish, "_LOCK_S", 1000)
    left: list[int] = []
    at_passage(monkeypatch, 2, lambda: client.expire("p/lock", 500))
    at_passage(monkeypatch, 3, lambda: left.append(client.ttl("p/lock")))
    send(path, client)
    assert left[0] > 900


def test_values_of_a_later_checkpoint_do_not_stay_in_an_earlier_one(tmp_path, client):
    """A process ended when it had changed one value: the number of rows says nothing."""
    history = written(tmp_path, 3)
    send(history.written[0][1].path, client)
    before, after = (history.written[place][0]["users"] for place in (0, 1))
    same = {int(k): v.tobytes() for k, v in zip(before["keys"], before["values"], strict=True)}
    key = next(
        int(k)
        for k, v in zip(after["keys"], after["values"], strict=True)
        if same.get(int(k)) == v.tobytes()
    )
    client.hset("p:users", str(key), b"\0" * 12)
    with open_checkpoint(history.written[2][1].path) as later:
        client.hset("p", "writing", identity(later))
    assert send(history.written[1][1].path, client).whole
    check(client, history.written[1][0])


@pytest.mark.parametrize("loss", ["row", "table"])
@pytest.mark.parametrize("place", [1, 2])
def test_rows_that_redis_has_lost_come_back(tmp_path, client, loss, place):
    """As when it evicts at its limit of memory: the rows of links alone would look complete."""
    history = written(tmp_path, 3)
    send(history.written[1][1].path, client)
    key = history.written[1][0]["users"]["keys"][0]
    assert (client.hdel("p:users", int(key)) if loss == "row" else client.delete("p:users")) == 1
    assert send(history.written[place][1].path, client).whole
    check(client, history.written[place][0])


def test_rows_that_are_lost_while_links_are_applied_come_back(tmp_path, client, monkeypatch):
    history = written(tmp_path, 3)
    send(history.written[0][1].path, client)
    at_passage(monkeypatch, 2, lambda: client.delete("p:users"))
    assert send(history.written[2][1].path, client).whole
    check(client, history.written[2][0])


def test_rows_that_are_lost_while_all_are_written_are_an_error(tmp_path, client, monkeypatch):
    history = written(tmp_path, 2)
    send(history.written[0][1].path, client)
    monkeypatch.setattr(publish, "_missing", lambda *_: None)
    at_passage(monkeypatch, 3, lambda: client.delete("p:users/new"))
    with pytest.raises(CheckpointError, match="Redis has lost rows while they were written"):
        send(history.written[1][1].path, client)
    check(client, history.written[0][0])


def test_a_server_without_memory_is_a_sentence_and_keeps_no_half(tmp_path, client, monkeypatch):
    history = written(tmp_path, 2)
    send(history.written[1][1].path, client)
    at_passage(monkeypatch, 3, lambda: client.config_set("maxmemory", 1))
    try:
        with pytest.raises(CheckpointError, match=r"was not published to unix:\S+ \S*command not"):
            send(history.written[0][1].path, client)
        check(client, history.written[1][0])
    finally:
        client.config_set("maxmemory", 0)
    assert send(history.written[0][1].path, client).whole
    check(client, history.written[0][0])


def test_a_server_that_refuses_writes_or_the_password_is_a_sentence(tmp_path, client):
    path = written(tmp_path, 1).written[0][1].path
    client.replicaof("localhost", 1)
    try:
        with pytest.raises(CheckpointError, match=r"was not published to unix:.*read only replica"):
            send(path, client)
    finally:
        client.replicaof("NO", "ONE")
    client.config_set("requirepass", "right")
    try:
        for part in ("", "&password=wrong"):
            with (
                open_checkpoint(path) as checkpoint,
                pytest.raises(CheckpointError, match="was not published to unix:") as error,
            ):
                publish.publish(checkpoint, client.url + part, "p")
            assert "wrong;" not in str(error.value)
            assert "=wrong" not in str(error.value)
    finally:
        client.config_set("requirepass", "")
    assert client.keys("*") == []


def test_a_connection_that_is_lost_in_a_batch_is_a_sentence(tmp_path, client, monkeypatch):
    history = written(tmp_path, 2)
    send_batch, left = publish._Publication._send, [3]

    def losing(own: Any, add: Any) -> None:
        left[0] -= 1

        def adding(batch: Any) -> None:
            add(batch)
            if left[0] == 0:
                assert client.client_kill_filter(_type="normal", skipme=True) > 0

        send_batch(own, adding)

    monkeypatch.setattr(publish._Publication, "_send", losing)
    with pytest.raises(CheckpointError, match=r"was not published to unix:\S+: .*Connection"):
        send(history.written[1][1].path, client)
    # The lock is free, and nothing was left.
    assert send(history.written[1][1].path, client).whole
    check(client, history.written[1][0])


def test_a_prefix_that_names_something_else_is_refused(tmp_path, client):
    path = written(tmp_path, 1).written[0][1].path
    states: list[dict[str, Any]] = [
        {"4711": b"\x00\xff"},
        {"tables": "{}"},
        {"xxh3": "1", "tables": "5"},
        {"xxh3": "1", "tables": b"\xff"},
        {"xxh3": "1", "tables": '{"users": {"dim": 3}}'},
    ]
    for state in states:
        client.flushall()
        client.hset("p", mapping=state)
        with pytest.raises(ConfigError, match="'p' is something else in Redis, which `publish`"):
            send(path, client)
        assert client.keys("*") == [b"p"]
    client.flushall()
    client.set("p", "text")
    with pytest.raises(CheckpointError, match="WRONGTYPE"):
        send(path, client)
    assert client.keys("*") == [b"p"]


@pytest.mark.parametrize(
    "url",
    [
        "redis://[::1",
        "redis://h:port",
        "redis://h:99999",
        "redis://h?no_such_option=secret",
        "unix:///nowhere?decode_responses=True&password=secret",
        "http://user:secret@h:1",
        "redis://:sec@ret@h:99999",
        "",
    ],
)
def test_what_is_no_address_is_refused_without_its_password(tmp_path, url):
    pytest.importorskip("redis")
    path = written(tmp_path, 1).written[0][1].path
    with (
        open_checkpoint(path) as checkpoint,
        pytest.raises(ConfigError, match=r"is no address of Redis: ") as error,
    ):
        publish.publish(checkpoint, url, "p")
    assert "secret" not in str(error.value)
    assert "ret@" not in str(error.value)


def test_what_cannot_be_reached_is_a_sentence(tmp_path):
    pytest.importorskip("redis")
    path = written(tmp_path, 1).written[0][1].path
    with open_checkpoint(path) as checkpoint:
        with pytest.raises(
            CheckpointError, match=r"was not published to unix:///nowhere/socket: .*again"
        ):
            publish.publish(checkpoint, "unix:///nowhere/socket", "p")
        with pytest.raises(ConfigError, match="http://h:1: is no address of Redis"):
            publish.publish(checkpoint, "http://user:secret@h:1", "p")
