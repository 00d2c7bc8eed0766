"""Hydra: its texts about ends within the output of ranks, its processes, and signals to it."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mpips.mpi.mpirun import as_one_process
from mpips.rundir.directory import RunFolder, replace_json
from mpips.rundir.files import Places, RankPlace, Status
from mpips.supervisor.attempt import Attempt
from mpips.supervisor.hydra import BlockFilter, EndBlock, blocks, started_ranks

RULE = "=" * 83 + "\n"
MPICH = f"""
{RULE}=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 1687 RUNNING AT vm
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
{RULE}YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Terminated (signal 15)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
"""


def of_intel(rank: int, number: int) -> str:
    """Return a block of Intel MPI."""
    return f"""
{RULE}=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK {rank} PID {100 + rank} RUNNING AT node1
=   KILLED BY SIGNAL: {number} (Killed)
{RULE}"""


def test_the_blocks_of_mpich_name_a_host_and_a_signal_and_no_rank() -> None:
    assert blocks(MPICH) == [EndBlock("vm", signal=15)]
    # On several hosts the line with the signal is missing; the code is a status as of wait(2).
    without = MPICH.partition("YOUR APPLICATION TERMINATED")[0]
    assert blocks(without) == [EndBlock("vm", signal=9)]
    assert blocks(without.replace("CODE: 9", "CODE: 768")) == [EndBlock("vm", signal=0)]


def test_the_blocks_of_intel_name_ranks() -> None:
    text = of_intel(0, 9) + "a line of a rank\n" + of_intel(2, 11)
    assert blocks(text) == [EndBlock("node1", 0, 100, 9), EndBlock("node1", 2, 102, 11)]
    assert blocks("nothing\n") == []


def parted(pieces: list[bytes]) -> tuple[bytes, bytes]:
    """Return the output of ranks and the texts of the launcher."""
    separate = BlockFilter()
    fed = [separate.feed(piece) for piece in pieces]
    output = b"".join(part for part, _ in fed) + separate.end()
    return output, b"".join(part for _, part in fed)


# Rules, empty lines and beginnings of titles that are not Hydra's.
OUTPUT = [
    "one\n",
    "",
    "\n\n",
    RULE,
    f"\n{RULE}",
    f"\n{RULE}=   BAD LUCK\n{RULE}",
    f"{RULE}\nTHIS\nYOUR \n",
    "no end of line",
]


@pytest.mark.parametrize("before", OUTPUT)
@pytest.mark.parametrize("text", [MPICH, of_intel(0, 9) + of_intel(1, 15)])
def test_texts_leave_the_output_however_it_is_cut(before: str, text: str) -> None:
    # A block begins with the empty line only where a rank has ended its line.
    end = "" if before.endswith("\n") or not before else "\n"
    for behind in OUTPUT:
        data = (before + end + text + behind).encode()
        for size in (1, 7, 82, 83, 84, len(data)):
            pieces = [data[i : i + size] for i in range(0, len(data), size)]
            output, texts = parted(pieces)
            assert output == (before + end + behind).encode(), (behind, size)
            assert texts == text.encode(), (behind, size)


def test_output_passes_at_once_unless_it_may_begin_a_text() -> None:
    separate = BlockFilter()
    assert separate.feed(b"epoch 1 .") == (b"epoch 1 .", b"")
    # Within a line nothing is held back.
    assert separate.feed(b"=====") == (b"=====", b"")
    assert separate.feed(b"\n") == (b"\n", b"")
    assert separate.feed(b"=====") == (b"", b"")
    assert separate.feed(b"= a table =") == (b"====== a table =", b"")
    assert separate.feed(b"\n\n") == (b"\n", b"")
    assert separate.feed(b"more") == (b"\nmore", b"")


def test_a_block_without_an_end_swallows_no_output() -> None:
    begun = MPICH.partition("=   EXIT CODE")[0].encode()
    output, texts = parted([begun + b"a line of a rank\n", b"and more\n"])
    assert output == b"a line of a rank\nand more\n"
    assert texts == begun


INTEL_MPIRUN = """#!/bin/sh
# As that of Intel MPI: it starts a child, passes no signal on, and ends with its code.
export I_MPI_MPIRUN="mpirun"
if [ -n "$PE_HOSTFILE" ]; then
    exit 9
else
    mpiexec.hydra "$@" <&0
    rc=$?
fi
exit $rc
"""
LAUNCHER = """#!/bin/sh
trap 'kill $proxy 2>/dev/null' EXIT
exec 3<&0
"${0%/*}/hydra_pmi_proxy" "$@" <&3 & proxy=$!
wait $proxy
"""
# Two ranks and a child of a rank.
PROXY = """#!/bin/sh
trap 'kill $ranks 2>/dev/null' EXIT
PMI_RANK=0 "$@" & ranks=$!
PMI_RANK=1 "$@" & ranks="$ranks $!"
wait
"""


@pytest.fixture
def hydra(tmp_path: Path) -> Path:
    """A folder with the programs of an imitated Hydra."""
    folder = tmp_path / "bin"
    folder.mkdir()
    programs = {"mpirun": INTEL_MPIRUN, "mpiexec.hydra": LAUNCHER, "hydra_pmi_proxy": PROXY}
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def test_a_script_that_starts_the_launcher_becomes_the_launcher(
    hydra: Path, tmp_path: Path
) -> None:
    (hydra / "mpiexec.hydra").write_text('#!/bin/sh\necho "$$ $I_MPI_MPIRUN $@"; cat; exit 7\n')
    command = as_one_process([str(hydra / "mpirun"), "-n", "2", "a b"])
    for env in ({"PATH": "/usr/bin:/bin"}, {"PATH": "/usr/bin:/bin", "POSIXLY_CORRECT": "1"}):
        started = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        out, _ = started.communicate("from stdin\n", timeout=30)
        assert out == f"{started.pid} mpirun -n 2 a b\nfrom stdin\n"
        assert started.returncode == 7
    # What else the script does is done.
    other = subprocess.run(command, env={"PATH": "/usr/bin:/bin", "PE_HOSTFILE": "x"}, timeout=30)
    assert other.returncode == 9


def test_other_programs_are_started_as_they_are(hydra: Path, tmp_path: Path) -> None:
    for words in (["true"], [str(hydra / "mpiexec.hydra"), "x"], [str(tmp_path / "none"), "x"]):
        assert as_one_process(words) == words
    (hydra / "mpirun").write_text('#!/bin/sh\nexec prterun "$@"\n')
    assert as_one_process([str(hydra / "mpirun")]) == [str(hydra / "mpirun")]


def attempt_of(hydra: Path, folder: Path, program: str) -> Attempt:
    """Return an attempt whose two ranks run a shell script, which finds its rank in PMI_RANK."""
    run = RunFolder.create(folder, "job")
    run.attempt(0).mkdir(parents=True)
    env = {**os.environ, "MPIPS_RUN_DIR": str(run.path), "MPIPS_GENERATION": "0"}
    command = [str(hydra / "mpirun"), "sh", "-c", program]
    return Attempt(run, 0, command, env, str(folder), copy_stdout=True, is_hydra=True)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_rank_that_ends_before_there_is_a_status_is_noted(hydra: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    # Rank 1 ends when the gate opens; the launcher waits for rank 0 for ever.
    program = f'[ $PMI_RANK = 1 ] || exec sleep 60; read line <"{gate}"'
    attempt = attempt_of(hydra, tmp_path, program)
    try:
        until(lambda: attempt.look() is None and set(attempt._ends.values()) == {-1, 0, 1})
        assert not attempt.is_ending
        gate.write_text("go\n")
        until(lambda: attempt.wait(0.01) or attempt.is_ending)
    finally:
        attempt.kill(overdue=True)
        ended = attempt.close()
    assert ended.gone[0] == 1
    assert ended.overdue


def test_sigusr2_goes_to_the_ranks_and_not_to_the_launcher(hydra: Path, tmp_path: Path) -> None:
    got = tmp_path / "got"
    ready = tmp_path / "ready"
    program = (
        f'trap "echo $PMI_RANK >>{got}" USR2; touch {ready}-$PMI_RANK; while :; do sleep 0.05; done'
    )
    attempt = attempt_of(hydra, tmp_path, program)
    try:
        until(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
        ranks = dict(started_ranks(attempt._process.pid))
        assert sorted(ranks) == [0, 1]
        here = socket.gethostname()
        places = tuple(RankPlace(rank=r, role="w", host=here, pid=pid) for r, pid in ranks.items())
        attempt._run.write_status(Status(state="running", generation=0, time_s=0.0, ranks=places))
        replace_json(attempt._run.places_file, Places(generation=0, ranks=places))
        attempt.signal(signal.SIGUSR2)
        until(lambda: got.exists() and sorted(got.read_text().split()) == ["0", "1"])
        assert not attempt.poll()
        # Other signals end the launcher, and no process waits for it.
        attempt.signal(signal.SIGTERM)
        until(lambda: attempt.wait(0.01))
    finally:
        attempt.kill()
        attempt.close()


def test_texts_about_ends_go_to_the_log(
    hydra: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", shown)
    (tmp_path / "text").write_text(f"first\n{MPICH}last\n")
    program = f'[ $PMI_RANK = 1 ] || cat "{tmp_path}/text"'
    attempt = attempt_of(hydra, tmp_path, program)
    until(lambda: attempt.wait(0.01))
    ended = attempt.close()
    assert shown.buffer.getvalue() == b"first\nlast\n"  # type: ignore[attr-defined]
    assert MPICH in ended.stderr
    assert (attempt._run.attempt(0) / "launcher.log").read_text().endswith(MPICH)
    assert attempt.is_ending


def test_output_that_is_taken_slowly_is_copied_to_its_end(
    hydra: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bytes] = []

    class Slow(io.StringIO):
        """A stdout whose reader needs a moment for each piece."""

        class buffer:
            @staticmethod
            def write(data: bytes) -> None:
                time.sleep(0.02)
                taken.append(data)

    monkeypatch.setattr(sys, "stdout", Slow())
    attempt = attempt_of(
        hydra, tmp_path, "[ $PMI_RANK = 1 ] || head -c 4000000 /dev/zero | tr '\\0' x"
    )
    attempt._JOIN_S = 0.1
    until(lambda: attempt.wait(0.01))
    attempt.close()
    assert b"".join(taken) == b"x" * 4000000
