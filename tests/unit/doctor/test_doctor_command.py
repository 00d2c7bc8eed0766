"""`mpips doctor` as a program, and what it reads of the machine that runs it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from doctor_rig import STEP

from mpips.cli.doctor import command
from mpips.doctor import machine
from mpips.doctor.checks import CHECKS
from mpips.doctor.situation import Situation, numbers
from mpips.process.file_systems import file_system


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("v5.0.11rc1, package", (5, 0, 11)),
        (" 4.1.4\n", (4, 1, 4)),
        ("Version:      5.0.2", (5, 0, 2)),
        ("none", ()),
        ("", ()),
    ],
)
def test_version_numbers_are_read(text: str, expected: tuple[int, ...]) -> None:
    assert numbers(text) == expected


def test_the_file_system_of_a_folder_is_that_of_the_nearest_and_last_mount() -> None:
    text = (
        "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
        "30 22 0:25 / /scratch rw shared:1 - lustre ost@tcp:/x rw\n"
        "31 30 0:26 / /scratch/my\\040home rw - nfs4 host:/y rw\n"
        "32 22 0:27 / /over rw - nfs4 host:/z rw\n"
        "33 22 0:28 / /over rw - tmpfs tmpfs rw\n"
    )
    assert file_system(text, Path("/scratch/run/1")) == "lustre"
    assert file_system(text, Path("/scratch/my home/a")) == "nfs4"
    assert file_system(text, Path("/scratchy")) == "ext4"
    assert file_system(text, Path("/over/run")) == "tmpfs"
    assert file_system("", Path("/x")) == "unknown"


def test_a_process_reads_its_child_or_gets_the_reason_of_the_kernel() -> None:
    assert machine.read_other_process() in ("", os.strerror(errno.EPERM), os.strerror(errno.ENOSYS))


def test_a_command_that_hangs_or_is_missing_is_no_error(tmp_path: Path) -> None:
    here = Situation(tmp_path)
    assert here.run("sleep", "60", timeout_s=0.2).code == 124
    assert here.run("no-such-command-at-all").code == 127
    assert here.run("sh", "-c", "echo out; echo err >&2; exit 3") == (3, "out\nerr\n")


def test_a_child_process_describes_this_installation(tmp_path: Path) -> None:
    found = Situation(tmp_path).stack
    assert found.ended == ""
    assert found.quiet
    # NumPy alone takes longer than this.
    assert found.import_s > 0.05
    assert 0.0 <= found.waiting_s < found.import_s
    assert found.hdf5 in ("parallel", "serial", "none")
    assert bool(found.mpi) != bool(found.mpi_error)


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mpips", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def test_the_command_ends_with_69_if_anything_fails(tmp_path: Path) -> None:
    # The most frequent fault: srun starts copies of a job.
    done = doctor("--folder", str(tmp_path), **STEP)
    assert done.returncode == 69, done.stderr
    assert "FAIL  launch" in done.stdout
    assert "fix: srun --mpi=pmix -n 4" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("FAIL")


def test_json_is_one_line_with_every_check(tmp_path: Path) -> None:
    done = doctor("--folder", str(tmp_path), "--json", OMP_NUM_THREADS="1")
    report = json.loads(done.stdout)
    assert [check["name"] for check in report["checks"]] == list(CHECKS)
    assert done.returncode == (0 if report["ok"] else 69)


def test_without_mpi_the_checks_still_run(tmp_path: Path) -> None:
    """Put a package in front of mpi4py that cannot load its library, as on a login node."""
    broken = tmp_path / "broken" / "mpi4py"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("class rc:\n    initialize = finalize = True\n")
    (broken / "MPI.py").write_text("raise RuntimeError('cannot load MPI library')\n")
    done = doctor("--folder", str(tmp_path), PYTHONPATH=str(broken.parent))
    assert done.returncode == 69
    assert "cannot load MPI library" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_hosts_without_ranks_are_wrong_usage() -> None:
    result = CliRunner().invoke(command, ["--hosts", "a,b"])
    assert result.exit_code == 2
    assert "--hosts needs --mpi" in result.output
