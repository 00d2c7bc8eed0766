"""The decisions of the set-up, on machines made up of a PATH and an environment."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import termios
from pathlib import Path

import pytest
from script_machine import ROOT, Machine


def test_without_root_and_hdf5_one_message_names_every_way_out(machine: Machine) -> None:
    machine.add_python()
    machine.add_compiler()
    done = machine.setup()
    assert done.returncode == 69
    assert done.stdout == ""
    for way in (
        "apt-get install libhdf5-openmpi-dev hdf5-tools",
        "dnf install hdf5-openmpi-devel hdf5",
        "load the modules in jobs/env.sh",
        "HDF5_DIR=",
        "MPIPS_HDF5=serial",
    ):
        assert done.stderr.count(way) == 1, done.stderr


def test_all_that_is_missing_is_in_the_one_message(machine: Machine) -> None:
    done = machine.setup(MPIPS_MPI="system")
    assert done.returncode == 69
    assert done.stderr.count("this machine lacks") == 1
    packages = (
        "python3 python3-venv python3-dev g++ make openmpi-bin libopenmpi-dev "
        "libhdf5-openmpi-dev hdf5-tools"
    )
    assert f"apt-get install {packages}\n" in done.stderr


def test_a_serial_hdf5_dir_is_named(machine: Machine, tmp_path: Path) -> None:
    machine.add_python()
    machine.add_compiler()
    prefix = machine.add_hdf5(False, tmp_path / "hdf5")
    done = machine.setup(HDF5_DIR=str(prefix))
    assert done.returncode == 69
    assert f"the one in {prefix} is missing or not built for MPI" in done.stderr


def test_a_python_that_is_too_old_is_named(machine: Machine) -> None:
    machine.add_compiler()
    old = machine.add("python3", "cat >/dev/null; echo 'version 3.10 or newer'")
    done = machine.setup(MPIPS_HDF5="serial")
    assert done.returncode == 69
    assert f"{old} lacks version 3.10 or newer" in done.stderr
    assert "HDF5" not in done.stderr


def test_the_first_python_that_will_do_is_taken(machine: Machine) -> None:
    machine.add("python3", "cat >/dev/null; echo 'the modules venv and ensurepip'")
    good = machine.add("python3.12", "cat >/dev/null")
    assert machine.call("find_python").stdout == f"{good}\n"


def test_unknown_values_and_arguments_are_refused(machine: Machine) -> None:
    for done in (
        machine.setup(MPIPS_MPI="lam"),
        machine.setup(MPIPS_HDF5="yes"),
        machine.run("bash", "jobs/setup.sh", "--help"),
    ):
        assert done.returncode == 2, done.stderr
    assert not (machine.root / ".venv").exists()


def test_mpicc_in_usr_bin_does_not_count(machine: Machine) -> None:
    # /usr/bin of this machine, whether or not it holds an mpicc.
    path = f"{machine.bin}:/usr/bin"
    assert machine.call("choose_mpi", PATH=path, LOADEDMODULES="gcc/13").stdout == "wheel\n"


def test_mpicc_counts_with_a_module_loaded(machine: Machine, tmp_path: Path) -> None:
    mpicc = machine.add("mpicc", "", tmp_path / "opt/openmpi/bin")
    path = f"{mpicc.parent}:{machine.bin}"
    assert machine.call("choose_mpi", PATH=path).stdout == "wheel\n"
    assert machine.call("choose_mpi", PATH=path, LOADEDMODULES="openmpi/5").stdout == "system\n"
    home = str(mpicc.parents[1])
    assert machine.call("choose_mpi", PATH=path, MPI_HOME=home).stdout == "system\n"
    assert machine.call("choose_mpi", PATH=path, MPI_HOME="/elsewhere").stdout == "wheel\n"


def test_mpicc_of_our_own_venv_does_not_count(machine: Machine) -> None:
    mpicc = machine.add("mpicc", "", machine.root / ".venv/bin")
    path = f"{mpicc.parent}:{machine.bin}"
    assert machine.call("choose_mpi", PATH=path, LOADEDMODULES="gcc/13").stdout == "wheel\n"


def test_a_choice_is_remembered_until_another_is_asked_for(machine: Machine) -> None:
    state = machine.root / ".venv/.mpips"
    state.mkdir(parents=True)
    (state / "choice.mpi").write_text("system\n")
    (state / "choice.hdf5").write_text("serial\n")
    assert machine.call("choose_mpi; choose_hdf5 system").stdout == "system\nserial\n"
    asked = machine.call("choose_mpi; choose_hdf5 wheel", MPIPS_MPI="wheel", MPIPS_HDF5="parallel")
    assert asked.stdout == "wheel\nparallel\n"


@pytest.mark.parametrize("mpi", ["mpich", "intel"])
def test_the_wheels_of_mpich_and_intel_take_a_parallel_hdf5_only_by_name(
    machine: Machine, mpi: str
) -> None:
    state = machine.root / ".venv/.mpips"
    state.mkdir(parents=True)
    (state / "choice.hdf5").write_text("parallel\n")
    assert machine.call(f"choose_hdf5 {mpi}").stdout == "serial\n"
    assert machine.call(f"choose_hdf5 {mpi}", HDF5_DIR="/opt/hdf5").stdout == "parallel\n"
    refused = machine.call(f"choose_hdf5 {mpi}", MPIPS_HDF5="parallel")
    assert refused.returncode == 2
    assert f"MPIPS_MPI={mpi}" in refused.stderr
    assert "needs HDF5_DIR" in refused.stderr


def test_intel_mpi_is_chosen_where_it_exists(machine: Machine) -> None:
    machine.add("uname", "echo x86_64")
    asked = machine.call("choose_mpi; mpi_family intel", MPIPS_MPI="intel")
    assert asked.stdout == "intel\nmpich\n"
    machine.add("uname", "echo aarch64")
    refused = machine.call("choose_mpi", MPIPS_MPI="intel")
    assert refused.returncode == 2
    assert "for x86_64 only, and this is aarch64" in refused.stderr


def test_hdf5_is_found_through_its_wrapper(machine: Machine, tmp_path: Path) -> None:
    prefix = machine.add_hdf5(True, tmp_path / "opt/hdf5")
    machine.add("h5pcc", f"echo mpicc -I{prefix}/include -O2 -L{prefix}/lib64 -lhdf5")
    found = machine.call("parallel_hdf5 openmpi")
    assert found.stdout == f"{prefix}/include\n{prefix}/lib64\n"


def test_the_wrapper_of_the_right_mpi_is_asked(machine: Machine, tmp_path: Path) -> None:
    prefix = machine.add_hdf5(True, tmp_path / "hdf5-mpich")
    machine.add("h5pcc", "echo mpicc -I/nowhere -L/nowhere")
    machine.add("h5pcc.mpich", f"echo mpicc -I{prefix}/include -L{prefix}/lib")
    assert machine.call("parallel_hdf5 openmpi").returncode == 1
    assert machine.call("parallel_hdf5 mpich").stdout.startswith(str(prefix))


def test_mpich_gets_the_hdf5_of_mpich(machine: Machine, tmp_path: Path) -> None:
    machine.add_python()
    machine.add_compiler()
    mpicc = machine.add("mpicc", "exit 1", tmp_path / "opt/mpich/bin")
    done = machine.setup(PATH=f"{mpicc.parent}:{machine.bin}", LOADEDMODULES="mpich/4")
    assert done.returncode == 69
    assert "apt-get install libhdf5-mpich-dev" in done.stderr


def test_a_step_is_done_only_with_the_same_key(machine: Machine) -> None:
    call = 'mkdir -p "$state"; stamp step "a b"; done_before step "a b" && ! done_before step "a"'
    assert machine.call(call).returncode == 0
    assert machine.call('done_before other "a"').returncode == 1


def test_a_failed_step_shows_the_end_of_its_log_and_leaves_no_stamp(machine: Machine) -> None:
    machine.add("broken", "echo the reason; exit 4")
    done = machine.call('mkdir -p "$state"; logged "trying" broken; stamp step key')
    assert done.returncode == 1
    assert "the reason" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("mpips set-up: trying failed; ")
    assert not list((machine.root / ".venv/.mpips").glob("stamp*"))


def test_a_step_that_takes_long_prints_its_time(machine: Machine, tmp_path: Path) -> None:
    # The step ends when it reads that line.
    lines = tmp_path / "lines"
    os.mkfifo(lines)
    machine.add("slow", f'read -r line <{lines}; echo "$line"')
    call = f'mkdir -p "$state"; exec 5<>{lines}; logged "building" slow >&5; cat "$log"'
    done = machine.call(call, MPIPS_SETUP_ELAPSED_S="0.01")
    assert re.search(r"^mpips set-up: building \.\.\. \d+ s$", done.stdout, re.M), done.stderr
    quick = machine.call('mkdir -p "$state"; logged "building" true; echo "end"')
    assert quick.stdout == "end\n"


def test_the_time_comes_every_ten_seconds_and_later_every_minute(machine: Machine) -> None:
    """In a log too: the output is no terminal here."""
    # In place of a wait `read` notes its timeout and moves the clock of the shell; `kill` ends the loop.
    call = """
      read() { waits+=" $2"; SECONDS=$((SECONDS + $2)); }
      kill() { ((SECONDS < 720)); }
      SECONDS=0 waits=; elapsed building >lines; echo "$waits"; cat lines
    """
    waits, *lines = machine.call(call).stdout.splitlines()
    assert waits.split() == ["10"] * 60 + ["60"] * 2
    assert lines[0] == "mpips set-up: building ... 10 s"
    assert lines[-1] == "mpips set-up: building ... 660 s"


@pytest.mark.parametrize(
    ("tools", "lines"),
    [
        (("fold", "stty"), ["mpips set-up: one ", "two three four five ", "six"]),
        (("fold",), ["mpips set-up: one two three four five six"]),
        ((), ["mpips set-up: one two three four five six"]),
    ],
)
def test_lines_fit_the_terminal_whose_size_is_known(
    machine: Machine, tools: tuple[str, ...], lines: list[str]
) -> None:
    for tool in ("fold", "stty"):
        (machine.bin / tool).unlink(missing_ok=True)
        found = shutil.which(tool)
        if tool in tools and found:
            (machine.bin / tool).symlink_to(found)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 20, 0, 0))
    done = machine.call(f'exec >{os.ttyname(theirs)}; say "one two three four five six"')
    assert done.returncode == 0, done.stderr
    assert os.read(ours, 1000).decode().splitlines() == lines
    os.close(ours)
    os.close(theirs)


def test_sources_change_with_any_file_of_native_and_any_module_that_comes_or_goes(
    machine: Machine,
) -> None:
    for folder in ("native", "mpips"):
        (machine.root / folder).mkdir(exist_ok=True)
    (machine.root / "pyproject.toml").touch()
    seen = [machine.call("sources").stdout]
    (machine.root / "native/new.cpp").touch()
    seen.append(machine.call("sources").stdout)
    (machine.root / "native/new.cpp").write_text("int x;")
    seen.append(machine.call("sources").stdout)
    (machine.root / "mpips/new.py").touch()
    seen.append(machine.call("sources").stdout)
    (machine.root / "mpips/new.py").write_text("x = 1")
    seen += [machine.call("sources").stdout] * 2
    assert len(set(seen)) == 4
    assert seen[-1] == seen[-3]


def test_a_module_with_fault_points_is_kept(machine: Machine) -> None:
    state = machine.root / ".venv/.mpips"
    state.mkdir(parents=True)
    assert machine.call("choose_faults").stdout == "OFF\n"
    assert machine.call("choose_faults", MPIPS_SETUP_TESTS="1").stdout == "ON\n"
    (state / "choice.faults").write_text("ON\n")
    assert machine.call("choose_faults").stdout == "ON\n"


def test_mpips_is_built_again_only_when_it_gets_fault_points(machine: Machine) -> None:
    for folder in ("native", "mpips", ".venv/.mpips"):
        (machine.root / folder).mkdir(parents=True, exist_ok=True)
    (machine.root / "pyproject.toml").touch()
    packages = machine.root / ".venv/lib/python3.11/site-packages/mpips"
    packages.mkdir(parents=True)
    (packages / "_native.so").touch()
    machine.add_compiler()
    build = (
        'find_xxhash() { :; }; pip_install() { echo "$*"; }; compgen() { :; }; installed() { :; };'
    )
    seen = [
        machine.call(f"{build} install_mpips {faults}").stdout
        for faults in ("OFF", "OFF", "ON", "ON")
    ]
    assert [out.count("cmake.define.MPIPS_FAULTS=") for out in seen] == [1, 0, 1, 0]
    assert "cmake.define.MPIPS_FAULTS=OFF" in seen[0]
    assert "cmake.define.MPIPS_FAULTS=ON" in seen[2]


def test_a_foreign_folder_called_venv_is_left_alone(machine: Machine) -> None:
    machine.add_compiler()
    machine.add_python()
    keep = machine.root / ".venv/bin/precious"
    keep.parent.mkdir(parents=True)
    keep.touch()
    done = machine.setup(MPIPS_HDF5="serial")
    assert done.returncode == 1
    assert "move it away" in done.stderr
    assert keep.exists()


@pytest.mark.parametrize("index", ["pinned", "others", "nothing"])
def test_a_library_of_the_tests_may_have_another_version(machine: Machine, index: str) -> None:
    (machine.root / ".venv/.mpips").mkdir(parents=True)
    (machine.root / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (machine.bin / "sed").symlink_to(shutil.which("sed") or "")
    # The index has no local versions, and no jax at all.
    takes = {"pinned": "true", "others": "[[ $* != *==* && $* != *jax* ]]", "nothing": "false"}
    pip = 'pip_install() { echo "pip ${*:2}"; ' + takes[index] + "; }"
    lines = "torch torch==2.13.0+cpu mpips.torch\njax jax==0.10.2 mpips.jax\npyarrow pyarrow>=14 Parquet"
    done = machine.call(f"{pip}; install_libraries $'{lines}'", MPIPS_SETUP_TESTS="1")
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if "cannot be installed" in line]
    if index == "pinned":
        assert said == []
    elif index == "others":
        assert "pip torch>=2.4" in done.stdout
        assert (
            "torch==2.13.0+cpu cannot be installed here: the tests of mpips.torch use another"
            in said[0]
        )
        assert "jax cannot be installed here; the tests of mpips.jax will be skipped" in said[1]
        assert len(said) == 2
    else:
        assert [line.split()[2] for line in said] == ["torch", "jax", "pyarrow"]
