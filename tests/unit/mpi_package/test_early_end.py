"""Ends before the start of MPI: the order to Hydra, and ranks that never come to it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpips.mpi import siblings
from mpips.mpi.early_end import end_launch

HYDRA = {"PMI_SIZE": "3", "PMI_RANK": "1", "MPI_LOCALNRANKS": "3"}


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of the connection between a rank and Hydra."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def ordered(theirs: socket.socket) -> bytes:
    try:
        return theirs.recv(100)
    except BlockingIOError:
        return b""


def test_hydra_gets_the_exit_code(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    end_launch(69, {**HYDRA, "PMI_FD": str(ours.fileno())})
    assert ordered(theirs) == b"cmd=abort exitcode=69\n"


@pytest.mark.parametrize(
    "changes",
    [
        {"PMI_SIZE": "1"},
        {"PMI_FD": ""},
        # srun with PMI 2 gives a descriptor as well; its protocol is another one.
        {"MPI_LOCALNRANKS": None},
    ],
)
def test_other_launches_are_left_alone(
    pair: tuple[socket.socket, socket.socket], changes: dict[str, str | None]
) -> None:
    ours, theirs = pair
    env = {**HYDRA, "PMI_FD": str(ours.fileno()), **changes}
    end_launch(2, {name: value for name, value in env.items() if value is not None})
    assert ordered(theirs) == b""


def test_a_descriptor_that_is_something_else_is_not_written_to(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        end_launch(2, {**HYDRA, "PMI_FD": str(file.fileno())})
    assert (tmp_path / "file").read_bytes() == b""
    end_launch(2, {**HYDRA, "PMI_FD": "987"})
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as ours:
        end_launch(2, {**HYDRA, "PMI_FD": str(ours.fileno())})
        theirs, _ = server.accept()
        with theirs:
            theirs.setblocking(False)
            assert ordered(theirs) == b""


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["train", "mlp", "--set", "train.nonsense=1"], 2, "rank 1: unknown key 'train.nonsense'"),
        (["train", "mlp", "--epochs", "x"], 2, "rank 1: Invalid value for '--epochs'"),
    ],
)
def test_a_rank_with_an_error_of_its_own_ends_the_launch(
    pair: tuple[socket.socket, socket.socket], arguments: list[str], code: int, text: str
) -> None:
    ours, theirs = pair
    env = {**os.environ, **HYDRA, "PMI_FD": str(ours.fileno())}
    done = subprocess.run(
        [sys.executable, "-m", "mpips", *arguments],
        env=env,
        pass_fds=[ours.fileno()],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == code
    assert text in done.stderr
    assert ordered(theirs) == f"cmd=abort exitcode={code}\n".encode()


@pytest.mark.parametrize(
    ("found", "env", "texts"),
    [
        ({0, 2}, HYDRA, ["rank 1 (on HOST, ended before)"]),
        ({1}, HYDRA, ["rank 0 (on HOST, ended before)", "rank 2 (on HOST, ended before)"]),
        ({0, 1, 2}, HYDRA, []),
        # On several nodes the ranks of this one are unknown.
        ({5}, {**HYDRA, "PMI_SIZE": "6"}, ["2 ranks (on HOST, ended before)"]),
        ({5, 3}, {**HYDRA, "PMI_SIZE": "6"}, ["1 rank (on HOST, ended before)"]),
        ({1}, {"OMPI_COMM_WORLD_SIZE": "3"}, []),
    ],
)
def test_ranks_that_ended_before_the_start_of_mpi_are_named(
    found: set[int], env: dict[str, str], texts: list[str]
) -> None:
    host = socket.gethostname()
    assert siblings._ended(found, env) == [text.replace("HOST", host) for text in texts]


def test_launches_of_hydra_are_told_apart_by_their_proxies(tmp_path: Path) -> None:
    proxies = [tmp_path / name / "hydra_pmi_proxy" for name in ("one", "two")]
    running = []
    for path in proxies:
        path.parent.mkdir()
        # The rank is a child of a shell here, as it is where a script starts it.
        # It has a name of its own from its first line on.
        rank = "sh -c 'echo ready; sleep 60; :' &"
        path.write_text(f"#!/bin/sh\n{rank} {rank} wait\n")
        path.chmod(0o755)
        command = subprocess.Popen([path], stdout=subprocess.PIPE, start_new_session=True)
        running.append(command)
    try:
        launches = []
        for process in running:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            launches.append({siblings._launch_of(HYDRA, int(pid)) for pid in children})
            assert len(children) == 2
        assert [len(found) for found in launches] == [1, 1]
        assert not launches[0] & launches[1]
        # Without Hydra's variable nothing is searched.
        assert siblings._launch_of({"PMI_SIZE": "3"}, running[0].pid)[-1] == "0"
    finally:
        for process in running:
            os.killpg(process.pid, 9)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
