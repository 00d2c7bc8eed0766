"""What the set-up installs by apt, and what it does without."""

from __future__ import annotations

import shutil
from pathlib import Path

from script_machine import Machine


def test_root_installs_what_is_missing_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path, uid=0)
    machine.add_compiler()
    machine.add_python()
    prefix = machine.add_hdf5(True, tmp_path / "hdf5")
    wrapper = machine.bin / "h5pcc"
    machine.add(
        "apt-get",
        f'echo "$*" >>{tmp_path}/apt.log\n'
        f"echo 'echo mpicc -I{prefix}/include -L{prefix}/lib' >{wrapper}\n"
        f"chmod +x {wrapper}",
    )
    (machine.bin / "chmod").symlink_to(shutil.which("chmod") or "")
    call = 'mkdir -p "$state"; prepare_machine wheel parallel'
    for _ in range(2):
        done = machine.call(call)
        assert done.returncode == 0, done.stderr
    (line,) = (tmp_path / "apt.log").read_text().splitlines()
    assert line.startswith("install -y --no-install-recommends libhdf5-openmpi-dev hdf5-tools")
    assert "iproute2" in line


def test_a_convenience_that_apt_cannot_bring_is_no_failure(tmp_path: Path) -> None:
    machine = Machine(tmp_path, uid=0)
    machine.add_compiler()
    machine.add_python()
    machine.add("apt-get", f'echo "$*" >>{tmp_path}/apt.log; exit 100')
    call = 'mkdir -p "$state"; prepare_machine wheel serial'
    for _ in range(2):
        done = machine.call(call)
        assert done.returncode == 0, done.stderr
    # It updates its lists and tries again, then each by itself; but not at the next set-up.
    calls = [line.split() for line in (tmp_path / "apt.log").read_text().splitlines()]
    packages = calls[0][3:]
    assert [call[0] for call in calls[:3]] == ["install", "update", "install"]
    assert [call[3:] for call in calls[3:]] == [[package] for package in packages]


def test_what_cannot_be_had_keeps_nothing_else_away(tmp_path: Path) -> None:
    machine = Machine(tmp_path, uid=0)
    machine.add_python()
    compiler = machine.bin / "c++"
    machine.add(
        "apt-get",
        f'echo "$*" >>{tmp_path}/apt.log\n'
        '[[ "$*" == "install -y --no-install-recommends g++" ]] || exit 100\n'
        f"echo 'cat >/dev/null' >{compiler}; chmod +x {compiler}",
    )
    (machine.bin / "chmod").symlink_to(shutil.which("chmod") or "")
    done = machine.call('mkdir -p "$state"; prepare_machine wheel serial')
    assert done.returncode == 0, done.stderr


def test_only_the_tests_get_a_slurm_and_a_browser_and_only_where_there_are_none(
    machine: Machine,
) -> None:
    tools = [
        "shellcheck",
        "gfortran",
        "redis-server",
        "prometheus",
        "slurm-wlm",
        "munge",
        "chromium",
        "chromium-driver",
    ]
    assert not set(tools) & set(machine.call("conveniences").stdout.split())
    asked = machine.call("conveniences", MPIPS_SETUP_TESTS="1").stdout.split()
    assert asked[-len(tools) :] == tools
    machine.add("sbatch", "")
    machine.add("chromedriver", "")
    asked = machine.call("conveniences", MPIPS_SETUP_TESTS="1").stdout.split()
    assert set(tools) & set(asked) == {"shellcheck", "gfortran", "redis-server", "prometheus"}
