"""Look-ups of rows over HTTP, the client in Python, and keys without a row."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from mpips import load
from mpips.cli import evaluate, serve
from mpips.cli.choosing import find_model
from mpips.data.ids import ids
from mpips.errors import ConfigError, DataError, ServingError
from mpips.rundir.directory import RunFolder

pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

from model_rig import make
from serving_rig import TOKEN, served

from mpips.inference.client import ModelClient
from mpips.inference.looking_up import MOST_FLOATS, MOST_JSON_FLOATS, _check_size
from mpips.inference.parsing import MOST_KEYS, RequestRefused

RAW = "application/octet-stream"


@pytest.fixture(scope="module")
def hashed(tmp_path_factory: Any) -> Path:
    return make("hashed", tmp_path_factory.mktemp("looked"))[0] / "checkpoints"


def test_look_ups_by_key_and_by_id_in_json_and_raw(hashed: Path) -> None:
    own = ids(["red", "green", "none of these"], "colour")
    model = load(hashed)
    expected = model.tables.table("weight").pull(own)
    assert expected[:2].all()
    with served(hashed) as (client, _):
        asked = {"ids": ["red", "green", "none of these"], "column": "colour"}
        status, by_id = client.json("POST", "/rows/weight", asked)
        assert (status, by_id) == (
            200,
            {
                "source": "checkpoint",
                "step": model.manifest.step,
                "model": model.path.name,
                "keys": asked["ids"],
                "missing": [2],
                "rows": expected.tolist(),
            },
        )
        for method, query, content in (
            ("POST", "", {"keys": own.tolist()}),
            ("GET", "?keys=" + ",".join(map(str, own)), None),
        ):
            status, by_key = client.json(method, f"/rows/weight{query}", content)
            assert (status, by_key) == (200, by_id | {"keys": own.tolist()})
        raw = {"Content-Type": RAW, "Accept": f"text/plain, {RAW}; q=1"}
        status, body, head = client.ask("POST", "/rows/weight", own.astype("<i8").tobytes(), **raw)
        assert (status, body) == (200, expected.astype("<f4").tobytes())
        assert (head["x-mpips-shape"], head["x-mpips-missing"]) == ("3,1", "1")
        assert head["x-mpips-step"] == str(model.manifest.step)
        status, found = client.json("POST", "/rows/weight", {"keys": []})
        assert (status, found["rows"]) == (200, [])


def test_refusals_are_one_sentence(hashed: Path) -> None:
    cases: list[tuple[Any, int, str]] = [
        ({"keys": [1.5]}, 400, "key 1.5: must be a whole number of 64 bits"),
        ({"keys": [True]}, 400, "key True: must be a whole number"),
        ({"keys": ["red"]}, 400, "key 'red': must be a whole number"),
        ({"keys": [2**63]}, 400, "key 9223372036854775808: must be a whole number"),
        ({"keys": "1"}, 400, '"keys" must be a list'),
        ({"keys": [1], "ids": ["a"]}, 400, "the body must be"),
        ({"kees": [1]}, 400, "the body must be"),
        ({"ids": [""]}, 400, "stands for a missing one"),
        ({"ids": [None]}, 400, '"ids" must be a list of texts and numbers'),
        ({"ids": ["a"], "column": 3}, 400, "column is 3"),
        ({"keys": [1], "on_missing": "none"}, 400, "on_missing must be one of initial, zero"),
        ({"keys": [1], "on_missing": ["zero"]}, 400, "on_missing must be one of initial, zero"),
        ({"keys": [1], "on_missing": "error"}, 400, "has no row for 1 of 1 keys, such as 1"),
        ({"keys": [1] * (MOST_KEYS + 1)}, 413, "100,001 keys: at most 100,000"),
    ]
    with served(hashed) as (client, _):
        for content, expected, text in cases:
            status, found = client.json("POST", "/rows/weight", content)
            assert (status, text in found["error"]) == (expected, True), (content, found)
        status, found = client.json("POST", "/rows/wait", {"keys": [1]})
        assert (status, "did you mean 'weight'" in found["error"]) == (404, True), found
        status, found = client.json("GET", "/rows/weight")
        assert (status, "'weight' is an embedding table" in found["error"]) == (400, True)
        status, body, _ = client.ask("POST", "/rows/weight", b"1234567", **{"Content-Type": RAW})
        assert (status, b"raw keys are int64" in body) == (400, True)
        most = np.zeros(MOST_KEYS + 1, "<i8").tobytes()
        assert client.ask("POST", "/rows/weight", most, **{"Content-Type": RAW})[0] == 413
        client.token = "wrong"
        assert client.ask("POST", "/rows/weight", b'{"keys": [1]}')[0] == 401


def test_the_size_of_an_answer_is_bounded() -> None:
    _check_size(1024, MOST_FLOATS // 1024, MOST_FLOATS)
    with pytest.raises(
        RequestRefused, match="1,025 rows of 16,384 values: at most 1,024 rows"
    ) as over:
        _check_size(1025, MOST_FLOATS // 1024, MOST_FLOATS)
    assert over.value.status == 413
    with pytest.raises(RequestRefused, match=f"and twice as many with Accept: {RAW}"):
        _check_size(1025, MOST_FLOATS // 1024, MOST_JSON_FLOATS)


def test_the_client_in_python(hashed: Path) -> None:
    model = load(hashed)
    table = model.tables.table("weight")
    with served(hashed) as (plain, _):
        client = ModelClient(f"http://127.0.0.1:{plain.port}", TOKEN)
        keys = np.concatenate([np.arange(MOST_KEYS - 1), ids(["red"], "colour")])
        found = client.rows("weight", keys)
        assert (found.values == table.pull(keys)).all()
        assert (found.source, found.step) == ("checkpoint", model.manifest.step)
        assert found.n_missing == len(keys) - np.isin(keys, table.keys).sum()
        named = client.rows_of_ids("weight", ["red", "green"], "colour")
        assert (named.values == table.pull(ids(["red", "green"], "colour"))).all()
        assert client.rows("weight", []).values.shape == (0, 1)
        sample = {"colour": "red", "size": 3}
        # The connection is opened again when the server has closed it.
        client._connection.sock.shutdown(socket.SHUT_RDWR)
        assert client.predict([sample])["predictions"] == [1]
        assert client.health()["step"] == model.manifest.step
        for ask, status, text in (
            (lambda: client.rows("weight", np.arange(MOST_KEYS + 1)), 413, "at most 100,000"),
            (lambda: client.rows("weight", ["a"]), 0, "must be whole numbers"),
            (lambda: client.rows("weight", np.array([2**63], np.uint64)), 0, "beyond int64: use"),
            (lambda: client.rows("weight", [7], on_missing="error"), 400, "has no row for 1 of 1"),
            (lambda: client.dense("weight"), 400, "is an embedding table"),
            (lambda: client.predict([{"colour": "red"}]), 400, r"rows\[0\] lacks 'size'"),
        ):
            with pytest.raises(ServingError, match=text) as refused:
                ask()
            assert refused.value.status == status
        wrong = ModelClient(f"http://127.0.0.1:{plain.port}", "another token of 16")
        with wrong, pytest.raises(ServingError, match="token is missing or wrong") as refused:
            wrong.rows("weight", [1])
        assert refused.value.status == 401
    with pytest.raises(ServingError, match="does not answer") as refused:
        client.rows("weight", [1])
    assert refused.value.status == 0
    client.close()
    for url in ("https://a", "127.0.0.1:80", "http://a:port"):
        with pytest.raises(ConfigError, match="must be of the form http://HOST:PORT"):
            ModelClient(url)


@pytest.mark.parametrize("on_missing", ["initial", "zero", "error"])
def test_keys_without_a_row_in_predictions_and_evaluations(
    hashed: Path, tmp_path: Path, on_missing: Any
) -> None:
    unknown = {"rows": [{"colour": "violet", "size": 3.0}]}
    file = tmp_path / "unknown.csv"
    file.write_text("colour,size,y\nviolet,3,1\nred,1,0\n")
    model = load(hashed, on_missing=on_missing)
    command = [str(hashed), "--data", str(file), "--on-missing", on_missing]
    done = CliRunner().invoke(evaluate.command, command)
    with served(hashed, on_missing=on_missing) as (client, _):
        status, found = client.json("POST", "/predict", unknown)
    if on_missing == "error":
        assert (status, "table 'weight' has no row for 1 of" in found["error"]) == (400, True)
        assert isinstance(done.exception, DataError)
        with pytest.raises(DataError, match="table 'weight' has no row for 1 of"):
            model.evaluate(file)
        return
    assert (status, done.exit_code) == (200, 0)
    assert model.evaluate(file) == load(hashed).evaluate(file)


def test_zeros_take_the_place_of_initial_values(tmp_path: Path) -> None:
    path = make("hashed fm", tmp_path)[0] / "checkpoints"
    keys = np.array([5, *ids(["red"], "colour")], np.int64)
    values = {
        m: load(path, on_missing=m).tables.table("factor").pull(keys) for m in ("initial", "zero")
    }
    assert values["initial"].all()
    assert not values["zero"][0].any()
    assert (values["zero"][1] == values["initial"][1]).all()
    with pytest.raises(DataError, match=r"'factor' has no row for 1 of 2 keys, such as 5: leave"):
        load(path, on_missing="error").tables.table("factor").pull(keys)
    with pytest.raises(
        ConfigError, match="unknown on_missing 'none'; valid are initial, zero, error"
    ):
        load(path, on_missing="none")


def test_the_command_finds_runs_by_their_names(tmp_path: Path, monkeypatch: Any) -> None:
    run = RunFolder.create(tmp_path / "runs", "click")
    monkeypatch.chdir(tmp_path)
    name = run.path.name
    for given in (name, name[:-3]):
        assert find_model(given, str(tmp_path / "runs")) == run.path
    assert find_model(str(run.path), "elsewhere") == run.path
    # A folder that is there comes first, and a path with folders is no name.
    (tmp_path / name[:5]).mkdir()
    assert find_model(name[:5], "runs") == Path(name[:5])
    assert find_model("gone/step-1", "runs") == Path("gone/step-1")
    with pytest.raises(ConfigError, match="no folder 'other' here, and no run 'other' in"):
        find_model("other", "runs")
    found = CliRunner().invoke(serve.command, [name, "--no-token"])
    assert "contains no checkpoint" in str(found.exception)


def test_a_second_server_on_the_port_is_refused() -> None:
    with serve._listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port} cannot be listened on: Address"):
            serve._listen("127.0.0.1", port)


def test_a_checkpoint_that_is_pruned_while_it_is_served_is_read_to_its_end(
    hashed: Path, tmp_path: Path
) -> None:
    shutil.copytree(hashed, tmp_path / "checkpoints")
    expected = load(hashed).tables.table("weight").pull(np.arange(3)).tolist()
    with served(tmp_path / "checkpoints") as (client, _):
        # Nothing of the tables was read yet.
        shutil.rmtree(tmp_path / "checkpoints")
        status, found = client.json("POST", "/rows/weight", {"keys": [0, 1, 2]})
        assert (status, found["rows"]) == (200, expected)
