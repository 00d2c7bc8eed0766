"""The suite `insitu`: its Redis server and client, and what it says where there is none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from mpips.bench import insitu
from mpips.bench.insitu import InsituOptions, redis_server, run
from mpips.bench.launching import Options
from mpips.bench.measure import Findings
from mpips.bench.rank.insitu import RedisClient, push_findings
from mpips.testing.errors import BenchError

# A server that stores what SET brings, checks the form of each request, and answers as Redis does.
SERVER = """
import socket, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
assert sys.argv[1:3] == ["--bind", "127.0.0.1"]
assert sys.argv[-4:] == ["--save", "", "--appendonly", "no"]  # nothing is written to disks
listening = socket.create_server(("127.0.0.1", port))
while True:
    file = listening.accept()[0].makefile("rwb")
    while line := file.readline():
        assert line == b"*3\\r\\n", line
        words = []
        for _ in range(3):
            size = file.readline()
            assert size[:1] == b"$", size
            words.append(file.read(int(size[1:])))
            assert file.read(2) == b"\\r\\n"
        assert words[0] == b"SET"
        file.write(b"-ERR refused\\r\\n" if words[1] == b"bad" else b"+OK\\r\\n")
        file.flush()
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An imitated redis-server, the only program in PATH."""
    path = tmp_path / "redis-server"
    path.write_text(f"#!{sys.executable}\n{SERVER}")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return path


def test_samples_are_stored_by_a_server_of_its_own(program: Path) -> None:
    value = np.arange(1 << 18, dtype=np.float32).view(np.uint8).data
    with redis_server() as address:
        client = RedisClient(address)
        for _ in range(3):
            client.set(b"x1", value)
        with pytest.raises(RuntimeError, match="the Redis server answers b'-ERR refused"):
            client.set(b"bad", value[:10])
        client.close()
    with pytest.raises(ConnectionRefusedError):
        RedisClient(address)


def test_a_server_that_does_not_start_is_an_error(program: Path) -> None:
    program.write_text("#!/bin/sh\nexit 3\n")
    refused = pytest.raises(BenchError, match="redis-server accepts no connection on port")
    with refused, redis_server():
        pytest.fail("it has started")


def test_without_the_program_the_ratio_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    launched = []

    def imitated(program: str, n: int, options: Options) -> Findings:
        launched.append((program.rpartition(":")[2], n, getattr(options, "redis", None)))
        return Findings()

    monkeypatch.setattr(insitu, "on_ranks", imitated)
    found = run("insitu", Options(), 0)
    assert found.skipped == {"sample_push_vs_redis": "there is no redis-server in PATH"}
    assert launched == [
        ("push", 2, ""),
        ("attach", 2, None),
        ("solve", 4, None),
        ("gather", 11, None),
    ]
    assert set(run("insitu", Options(), 2).skipped) == set(insitu.RATIOS)
    assert InsituOptions().redis == ""


def test_pushes_are_compared_with_what_was_measured() -> None:
    seconds = {"memcpy": [1e-4, 2e-4], "full": [2e-4, 8e-4], "plain": [1e-4, 3e-4]}
    found = push_findings(seconds).comparisons
    assert [each.name for each in found] == [*insitu.RATIOS[1:3]]
    assert found[0].ratios == pytest.approx([2, 4])
    assert found[1].ratios == pytest.approx([1, 1.5])
    with_redis = push_findings({**seconds, "redis": [2e-3, 4e-3]}).comparisons[2]
    assert with_redis.name == "sample_push_vs_redis"
    assert with_redis.ratios == pytest.approx([0.1, 0.2])
