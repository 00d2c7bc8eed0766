"""Texts of launchers, word by word, and the verdict of the supervisor on them."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mpips.mpi.failure_report import FailureReport
from mpips.rundir.files import RankPlace, Status
from mpips.supervisor.attempt import Ended
from mpips.supervisor.verdict import (
    CRASHED,
    PREEMPTED,
    STALLED,
    Death,
    fatal_stacks,
    judge,
    read_reports,
)

RANKS = tuple(RankPlace(rank=r, role=f"worker {r}", host="node1", pid=100 + r) for r in range(3))
STATUS = Status(state="running", generation=0, time_s=1.0, ranks=RANKS)

OPENMPI_4 = """Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
mpirun noticed that process rank 1 with PID 0 on node node1 exited on signal 9 (Killed).
"""
OPENMPI_4_CODE = """mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[12932,1],2]
  Exit code:    3
"""
OPENMPI_5_DAEMON = """A daemon failed to report back after being spawned. This could
be due to several factors, including inability to find the
daemon executable.

  Local host:    vm
  Remote host:   node2
  Daemon exit status: 255
"""
OPENMPI_4_LOST = """ORTE has lost communication with a remote daemon.

  HNP daemon   : [[51011,0],0] on node head
  Remote daemon: [[51011,0],2] on node node2

This is usually due to either a failure of the TCP network
"""
# The pid is that of the first rank of the host, whichever was killed; the code may differ from the signal.
MPICH = """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 100 RUNNING AT node1
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)
"""
INTEL = """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 2 PID 102 RUNNING AT node1
=   KILLED BY SIGNAL: 9 (Killed)
===================================================================================
"""


def verdict_on(folder: Path, **fields: Any) -> Any:
    given: dict[str, Any] = {"code": 1, "pid": 7, "seconds": 1.0, "stderr": "", "status": STATUS}
    (folder / "launcher.log").touch()
    return judge(Ended(**{**given, **fields}), False, folder, len(RANKS))


def death_of(folder: Path, **fields: Any) -> Death:
    death = verdict_on(folder, **fields).death
    assert death is not None
    found: Death = death
    return found


@pytest.mark.parametrize(
    ("printed", "rank", "cause"),
    [
        (OPENMPI_4, 1, "killed by SIGKILL (signal 9)"),
        (OPENMPI_4_CODE, 2, "ended with code 3"),
        (INTEL, 2, "killed by SIGKILL (signal 9)"),
    ],
)
def test_a_rank_is_found_in_what_the_launcher_says(
    tmp_path: Path, printed: str, rank: int, cause: str
) -> None:
    death = death_of(tmp_path, stderr=printed)
    assert (death.rank, death.role, death.host) == (rank, f"worker {rank}", "node1")
    assert death.pid == 100 + rank
    assert death.cause.startswith(cause)


def test_a_rank_that_the_supervisor_has_killed_after_another_one_is_not_the_cause(
    tmp_path: Path,
) -> None:
    # The launcher names rank 1. Where it names the lost one, its signal counts.
    assert death_of(tmp_path, stderr=OPENMPI_4, lost=1).cause.startswith("killed by SIGKILL")
    death = death_of(tmp_path, stderr=OPENMPI_4, lost=2)
    assert (death.rank, death.role, death.pid) == (2, "worker 2", 102)
    assert death.cause == "ended, without a failure report"


def test_where_the_launcher_names_a_wrong_rank_the_order_of_ends_tells(tmp_path: Path) -> None:
    death = death_of(tmp_path, stderr=MPICH, gone=(2, 0, 1))
    assert (death.rank, death.pid) == (2, 102)
    assert death.cause.startswith("killed by SIGSEGV (signal 11)")
    # A rank whose log contains the stacks of the signal takes precedence.
    (tmp_path / "rank-0.log").write_text("all is well\n")
    (tmp_path / "rank-1.log").write_text(
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
        '  File "x.py", line 3 in f\n'
    )
    death = death_of(tmp_path, stderr=MPICH, gone=(2, 0, 1))
    assert death.rank == 1
    assert 'File "x.py", line 3 in f' in death.details
    # Nothing is known, so no rank is named.
    (tmp_path / "rank-1.log").unlink()
    assert death_of(tmp_path, stderr=MPICH).rank == -1


RULE = "=" * 83 + "\n"


def of_intel(*signals: int, first: int = 0) -> str:
    """Return the blocks of Intel MPI for ranks that were ended by these signals; 0: none for this rank."""
    return "".join(
        f"\n{RULE}=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
        f"=   RANK {rank} PID {100 + rank} RUNNING AT node1\n=   KILLED BY SIGNAL: {number} (X)\n{RULE}"
        for rank, number in enumerate(signals, first)
        if number
    )


@pytest.mark.parametrize(
    ("printed", "gone", "rank", "cause"),
    [
        # All were killed, the others by the launcher: the first that was gone is the one.
        (of_intel(9, 9, 9), (1, 0, 2), 1, "killed by SIGKILL (signal 9)"),
        # What the launcher has not sent tells, whoever was gone first.
        (of_intel(9, 9, 15), (0, 1, 2), 2, "killed by SIGTERM (signal 15)"),
        (of_intel(9, 11, 9), (), 1, "killed by SIGSEGV (signal 11)"),
        # A rank without a block has exited with a code, which this launcher does not pass on.
        (of_intel(9, 0, 9), (1, 2, 0), 1, "ended, without a failure report"),
        (of_intel(9, 0, 9), (), 1, "ended, without a failure report"),
        (of_intel(9, 0, 9), (2, 1, 0), 2, "killed by SIGKILL (signal 9)"),
        # Ends on other hosts are not seen: no rank is named.
        (of_intel(9, 9, 9), (), -1, "killed by SIGKILL (signal 9)"),
        (of_intel(9, 9, 9), (1,), -1, "killed by SIGKILL (signal 9)"),
        (of_intel(9, 9, 9), (0, 2), -1, "killed by SIGKILL (signal 9)"),
    ],
)
def test_the_victim_among_the_blocks_of_intel_mpi(
    tmp_path: Path, printed: str, gone: tuple[int, ...], rank: int, cause: str
) -> None:
    death = death_of(tmp_path, stderr=printed, gone=gone, code=255)
    assert death.rank == rank
    assert death.host == "node1"
    assert death.cause.startswith(cause)


def test_a_rank_of_this_host_that_ended_before_it_was_watched_was_the_first(tmp_path: Path) -> None:
    here = socket.gethostname()
    status = msgspec.structs.replace(
        STATUS, ranks=tuple(msgspec.structs.replace(place, host=here) for place in RANKS)
    )
    printed = of_intel(9, 9, 9).replace("node1", here)
    assert death_of(tmp_path, stderr=printed, gone=(0, 2), code=255, status=status).rank == 1


def test_the_signal_of_mpich_is_that_of_the_log_where_it_has_one(tmp_path: Path) -> None:
    # MPICH prints the bits of SIGABRT and of SIGKILL in one number: that of SIGTERM.
    aborted = MPICH.replace("Segmentation fault (signal 11)", "Terminated (signal 15)")
    assert death_of(tmp_path, stderr=aborted, gone=(2, 0, 1)).cause.startswith("killed by SIGTERM")
    (tmp_path / "rank-1.log").write_text("Fatal Python error: Aborted\n\nCurrent thread 0x1:\n")
    death = death_of(tmp_path, stderr=aborted, gone=(2, 0, 1))
    assert (death.rank, death.cause) == (1, "killed by SIGABRT (signal 6)")
    killed = MPICH.replace("Segmentation fault (signal 11)", "Killed (signal 9)")
    (tmp_path / "rank-1.log").unlink()
    assert "or it exited with a code" in death_of(tmp_path, stderr=killed, gone=(2, 0, 1)).cause


def test_a_rank_that_hydra_reports_by_its_exit_code_only(tmp_path: Path) -> None:
    (tmp_path / "rank-2.log").write_text("the last line\n")
    death = death_of(tmp_path, code=3, gone=(2, 1, 0), is_hydra=True)
    assert (death.rank, death.details) == (2, "the last line")
    assert death.cause == "ended with code 3, without a failure report"
    # Without the order of ends nothing is known.
    assert death_of(tmp_path, code=3, is_hydra=True).rank == -1
    # The launcher of Open MPI may end with a code of its own.
    assert death_of(tmp_path, code=3, gone=(2, 1, 0)).rank == -1


def test_before_there_is_a_status_the_ends_of_ranks_name_the_first(tmp_path: Path) -> None:
    here = socket.gethostname()
    for printed in (MPICH, of_intel(9, 9, 9)):
        text = printed.replace("node1", here)
        death = death_of(tmp_path, stderr=text, gone=(1, 0, 2), status=None)
        assert (death.rank, death.host) == (1, here)
    # The ranks of another host are not known then.
    elsewhere = death_of(tmp_path, stderr=MPICH, gone=(1, 0, 2), status=None)
    assert (elsewhere.rank, elsewhere.host) == (-1, "node1")
    late = death_of(tmp_path, gone=(1,), status=None, overdue=True, code=-9)
    assert (late.rank, late.cause) == (1, "ended, and the launcher did not end after it")


def test_an_abort_of_mpi_shows_the_end_of_the_log_of_its_rank(tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").write_text("Warning\n")
    text = "loading\nAbort(1090959) on node 1 (rank 1 in comm 0): Fatal error in internal_Init_thread\n"
    (tmp_path / "rank-1.log").write_text(f"{text}open_fabric(1517): OFI fi_open domain failed\n")
    death = death_of(tmp_path, code=143, gone=(0, 1, 2), status=None)
    assert death.rank == 1
    assert death.cause == "aborted by the MPI library with code 1090959"
    assert death.details.splitlines()[-1] == "open_fabric(1517): OFI fi_open domain failed"
    assert "loading" not in death.details


@pytest.mark.parametrize("printed", [OPENMPI_5_DAEMON, OPENMPI_4_LOST])
def test_a_host_is_found_in_the_text_of_the_launcher(tmp_path: Path, printed: str) -> None:
    death = death_of(tmp_path, stderr=printed, code=0)
    assert (death.rank, death.host) == (-1, "node2")


def test_kills_for_lack_of_memory_are_reported(tmp_path: Path) -> None:
    death = death_of(tmp_path, stderr=OPENMPI_4, out_of_memory=2)
    assert "the kernel ran out of memory on this host (2 killed)" in death.cause
    death = death_of(tmp_path, stderr=OPENMPI_4, out_of_memory=1, memory_limit=3 << 29)
    assert (
        "the job has used up the 1.5 GiB that it is granted on this host (1 killed)" in death.cause
    )


def test_a_stop_explains_a_launcher_that_had_to_be_killed(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, code=-9, stopped={2: 5.0, 1: 4.0}, cut_off="no heartbeat")
    assert verdict.kind == STALLED
    assert verdict.exit_code == 124
    assert verdict.death.rank == 1


def test_a_damaged_failure_report_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "words-1.json").write_text('{"rank": 1, "abo')
    verdict = verdict_on(tmp_path, stderr=OPENMPI_4)
    assert verdict.kind == CRASHED
    assert verdict.death.rank == 1


def test_a_checkpointed_end_counts_also_when_interrupted(tmp_path: Path) -> None:
    assert verdict_on(tmp_path, code=75).kind == PREEMPTED
    assert verdict_on(tmp_path, code=75, interrupted=15).kind == PREEMPTED


@pytest.mark.parametrize(("hosts", "first"), [(("a", "a"), 2), (("a", "b"), 1)])
def test_words_of_one_host_are_ordered_by_a_clock_that_nobody_sets(
    tmp_path: Path, hosts: tuple[str, str], first: int
) -> None:
    # The wall clock was set back after the report of rank 2. Clocks of two hosts have different origins.
    for rank, host, time_s, up_s in ((1, hosts[0], 10.0, 501.0), (2, hosts[1], 900.0, 500.0)):
        words = FailureReport(
            rank=rank,
            about=rank,
            host=host,
            pid=rank,
            kind="ValueError",
            message="",
            exit_code=1,
            time_s=time_s,
            up_s=up_s,
        )
        (tmp_path / f"words-{rank}.json").write_bytes(msgspec.json.encode(words))
    assert [w.rank for w in read_reports(tmp_path)] == [first, 3 - first]


def test_logs_of_months_are_read_at_their_end_only(tmp_path: Path) -> None:
    for rank in range(3):
        log = tmp_path / f"rank-{rank}.log"
        log.touch()
        os.truncate(log, 1 << 40)
    with log.open("ab") as file:
        file.write(
            b"\nFatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call)\n"
        )
    assert fatal_stacks(tmp_path, 0) == ""
    assert fatal_stacks(tmp_path, 2).startswith("Fatal Python error: Segmentation fault\nCurrent")


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b'{"kind": "\xff"}', b"3"])
def test_a_damaged_report_is_left_out(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "words-1.json").write_bytes(content)
    assert read_reports(tmp_path) == []
