"""`mpips doctor --mpi`: the checks of the reports of ranks, and launches that fail or hang."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from mpips.doctor import verdicts
from mpips.doctor.launches import host_flags, run_launches, start
from mpips.doctor.situation import Situation
from mpips.doctor.stages import BASIC, MARK, NETWORK, Launch, StageReport, parse

VERSIONS = {"python": "3.11.7", "numpy": "2.1.0", "mpips": "0.2.0"}
DATA: dict[str, dict[str, Any]] = {
    "start": {"versions": VERSIONS},
    "mpi": {"size": 2, "library": "Open MPI v5.0.11"},
    "facts": {"skew_s": 0.001, "shm_free": 1 << 33, "affinity": [0, 1], "cores": 2},
    "session": {"transports": ["shm"]},
    "rma": {"transports": ["rma"]},
    "p2p": {"transports": ["p2p"]},
    "hdf5": {"kind": "parallel"},
    "failing": {},
}


def healthy(stages: tuple[str, ...] = BASIC, n: int = 2) -> list[StageReport]:
    """Return the reports of healthy ranks, each on a host of its own."""
    return [
        StageReport(
            rank=r,
            host=f"node{r}",
            stage=stage,
            done=done,
            data=DATA.get(stage, {}) if done else {},
        )
        for stage in stages
        for done in (False, True)
        for r in range(n)
    ]


def launched(reports: list[StageReport], code: int = 0, stages: tuple[str, ...] = BASIC) -> Launch:
    return Launch(
        n=2,
        stages=stages,
        reports=reports,
        code=code,
        seconds=3.0,
        output="last line",
        command="mpirun x",
    )


def changed(stage: str, rank: int = 1, error: str = "", **data: Any) -> list[StageReport]:
    """Return the reports of healthy ranks with another end of one stage on one rank."""
    reports = []
    for report in healthy():
        if (report.stage, report.rank, report.done) == (stage, rank, True):
            report = msgspec.structs.replace(report, error=error, data={**report.data, **data})
        reports.append(report)
    return reports


def test_healthy_ranks_pass_everything() -> None:
    launch = launched(healthy())
    assert {name: judge(launch).status for name, judge in verdicts.JUDGES.items()} == dict.fromkeys(
        verdicts.JUDGES, "PASS"
    )
    assert verdicts.rma_network(launched(healthy(NETWORK), stages=NETWORK)).status == "PASS"


BAD = [
    ("ranks-start", [w for w in healthy() if w.rank == 0], "FAIL", "rank 1 did not start"),
    ("ranks-see", changed("mpi", size=1), "FAIL", "rank 1 on node1 sees 1"),
    ("ranks-see", changed("mpi", error="no libmpi"), "FAIL", "node1: no libmpi"),
    (
        "versions",
        changed("start", versions={**VERSIONS, "numpy": "1.26.4"}),
        "FAIL",
        "numpy is 2.1.0 on rank 0 and 1.26.4 on rank 1 (node1)",
    ),
    ("versions", changed("mpi", library="MPICH 4"), "FAIL", "MPI is Open MPI v5.0.11 on rank 0"),
    ("clocks", changed("facts", skew_s=-7.5), "WARN", "clock of node1 is -7.5 s"),
    ("shm-nodes", changed("facts", shm_free=1 << 20), "FAIL", "node1: 0.00 GiB"),
    ("shared-folder", changed("folder", error="not the same folder"), "FAIL", "rank 1 on node1"),
    ("fork", changed("fork", error="TimeoutError: does not run"), "WARN", "does not run"),
    ("session", changed("session", error="ValueError: other values"), "FAIL", "other values"),
    ("rma", changed("rma", error="no window"), "WARN", "no window"),
    ("p2p", changed("p2p", error="other values"), "FAIL", "other values"),
    ("hdf5-write", changed("hdf5", 0, kind="none"), "WARN", "not installed on rank 0 on node0"),
    ("hdf5-write", changed("hdf5", error="cannot lock"), "FAIL", "cannot lock"),
]


@pytest.mark.parametrize(("name", "reports", "status", "reason"), BAD)
def test_a_fault_of_a_rank_is_named_with_rank_and_host(
    name: str, reports: list[StageReport], status: str, reason: str
) -> None:
    verdict = verdicts.JUDGES[name](launched(reports))
    assert (verdict.status, reason in verdict.reason) == (status, True), verdict
    assert verdict.fix


@pytest.mark.parametrize(
    ("reports", "fix"),
    [
        (changed("start", versions={**VERSIONS, "numpy": "1.26.4"}), "-m pip install numpy==2.1.0"),
        (changed("mpi", library="MPICH 4"), "rsync -a "),
    ],
    ids=["numpy", "MPI"],
)
def test_a_host_gets_the_versions_of_rank_0(reports: list[StageReport], fix: str) -> None:
    found = verdicts.same_versions(launched(reports)).fix
    assert fix in found
    assert "node1" in found


def test_h5py_without_mpi_is_no_fault() -> None:
    verdict = verdicts.hdf5_write(launched(changed("hdf5", kind="serial")))
    assert verdict.status == "PASS"
    assert "without MPI-IO, as h5py has no MPI on rank 1 on node1" in verdict.reason
    assert "by MPI-IO" in verdicts.hdf5_write(launched(healthy())).reason


def test_ranks_bound_to_one_core_are_named() -> None:
    reports = [
        msgspec.structs.replace(w, host="node0", data={**w.data, "affinity": [1]})
        if (w.stage, w.done) == ("facts", True)
        else w
        for w in healthy()
    ]
    verdict = verdicts.binding(launched(reports))
    assert verdict.status == "WARN"
    assert "ranks 0, 1 on node0 are all bound to core 1" in verdict.reason


def test_every_judge_has_been_seen_to_fail() -> None:
    assert {name for name, *_ in BAD} | {"binding"} == set(verdicts.JUDGES)


def test_a_rank_that_hangs_is_named_and_ranks_that_wait_for_it_are_not() -> None:
    """Rank 1 hangs in the window; rank 0 has left it and waits in the exchange after it."""
    stop = next(i for i, w in enumerate(healthy()) if (w.stage, w.rank, w.done) == ("rma", 1, True))
    launch = launched(healthy()[:stop], code=124)
    assert launch.trouble("rma") == "rank 1 on node1 hung: last line"
    assert launch.trouble("session") == ""
    assert launch.trouble("hdf5").startswith("not reached: ")


def test_an_error_that_does_not_end_the_launch_fails() -> None:
    stages = ("start", "mpi", "failing")
    reports = [w for w in healthy(stages) if (w.stage, w.done) != ("failing", True)]
    assert verdicts.error_ends(launched(reports, 1, stages)).status == "PASS"
    assert verdicts.error_ends(launched(reports, 124, stages)).status == "FAIL"
    assert verdicts.error_ends(launched(reports, 0, stages)).status == "WARN"
    assert verdicts.error_ends(launched(reports[:4], 1, stages)).status == "FAIL"


def test_reports_are_found_among_other_output() -> None:
    report = healthy()[0]
    text = f"[node0:12] warning\n[1,0]<stdout>: {MARK}{msgspec.json.encode(report).decode()}\n{MARK}{{half\n"
    found, others = parse(text.splitlines())
    assert found == [report]
    assert others == ["[node0:12] warning", "{half"]


@pytest.fixture
def fake_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a script named mpirun, which does not exist yet, first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder / "mpirun"


def script(path: Path, body: str) -> None:
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo "mpirun (Open MPI) 5.0.11"; exit; fi\n{body}\n'
    )
    path.chmod(0o755)


def test_a_launch_that_hangs_is_ended_and_named(fake_mpirun: Path, tmp_path: Path) -> None:
    reports = healthy(("start",)) + healthy(("mpi",))[:2]
    lines = "".join(f"echo '{MARK}{msgspec.json.encode(w).decode()}'\n" for w in reports)
    script(fake_mpirun, f"{lines}trap '' TERM\nwhile :; do sleep 0.1; done")
    here = Situation(tmp_path)
    launch = start(here, [], NETWORK, 1.0)
    assert launch.code == 124
    assert verdicts.ranks_start(launch).status == "PASS"
    verdict = verdicts.ranks_see(launch)
    assert verdict.status == "FAIL"
    assert "rank 0 on node0, rank 1 on node1 hung" in verdict.reason


def test_the_error_of_mpirun_is_the_reason(fake_mpirun: Path, tmp_path: Path) -> None:
    script(fake_mpirun, "echo ------; echo 'There are not enough slots available'; exit 1")
    here = Situation(tmp_path)
    here.stack = msgspec.convert({"mpi": "Open MPI v5.0.11"}, type(here.stack))
    found = {f.name: f for f in run_launches(here, [], 5.0)}
    assert found["ranks-start"].status == "FAIL"
    assert "There are not enough slots available" in found["ranks-start"].reason
    # The launch ended there, so no other check repeats the reason.
    assert list(found) == ["ranks-start"]
    assert found["ranks-start"].fix.startswith("mpirun -n 2 hostname")


def test_hosts_get_equal_shares_and_the_settings(tmp_path: Path) -> None:
    here = Situation(tmp_path, n_ranks=5)
    here.open_mpi = (5, 0, 11)
    env = {"MPIPS_KERNELS": "avx2", "OMPI_MCA_osc": "^ucx", "HOME": "/root"}
    flags = host_flags(here, ["a", "b"], env)
    assert flags == ["--host", "a:3,b:3", "--map-by", "slot", "-x", "MPIPS_KERNELS"]
    assert host_flags(here, [], env) == []
    here.open_mpi = ()
    assert host_flags(here, ["a", "b"], env) == ["-hosts", "a,b", "-ppn", "3"]
