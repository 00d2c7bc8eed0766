"""The decisions of the shell scripts, on machines made up of a PATH and an environment."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [*ROOT.glob("jobs/*.sh"), *ROOT.glob("jobs/*.sbatch"), *ROOT.glob("tests/*.sh")]
SCRIPTS = sorted([*SCRIPTS, ROOT / ".ci/run"])
TOOLS = """bash cat cut date dirname env find flock grep head ls lscpu mkdir mv nproc paste rm sha256sum
    sort tail touch tr uname wc xargs"""


class Machine:
    """A copy of jobs/ and a PATH that holds some basic tools and what a test adds."""

    def __init__(self, folder: Path, uid: int = 1000) -> None:
        self.root = folder / "repository"
        shutil.copytree(ROOT / "jobs", self.root / "jobs")
        self.bin = folder / "usr/bin"
        self.bin.mkdir(parents=True)
        for tool in TOOLS.split():
            if path := shutil.which(tool):
                (self.bin / tool).symlink_to(path)
        self.add("id", f"echo {uid}")
        self.env = {"PATH": str(self.bin), "HOME": str(folder)}

    def add(self, name: str, script: str, folder: Path | None = None) -> Path:
        """Put a command on the machine."""
        path = (folder or self.bin) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!{shutil.which('bash')}\n{script}\n")
        path.chmod(0o755)
        return path

    def add_compiler(self) -> None:
        self.add("c++", "cat >/dev/null")

    def add_python(self) -> None:
        """The interpreter under test; a link would lose its prefix."""
        self.add("python3", f'exec {sys._base_executable} "$@"')  # type: ignore[attr-defined]

    def add_hdf5(self, parallel: bool, folder: Path) -> Path:
        """An HDF5 with the compiler wrapper of the parallel kind."""
        (folder / "include").mkdir(parents=True)
        switch = "#define H5_HAVE_PARALLEL 1" if parallel else "/* #undef H5_HAVE_PARALLEL */"
        (folder / "include/H5pubconf.h").write_text(f"{switch}\n")
        return folder

    def run(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env={**self.env, **env},
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def setup(self, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run("bash", "jobs/setup.sh", **env)

    def call(self, function: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Call one function of setup.sh."""
        return self.run("bash", "-c", f"source jobs/setup.sh; {function}", **env)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine without root."""
    return Machine(tmp_path)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_parses(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_shellcheck_has_nothing_to_say() -> None:
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    # Sourced files are not followed, and checked by themselves.
    command = [shellcheck, "--shell=bash", "--exclude=SC1090,SC1091", *map(str, SCRIPTS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


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


def test_the_mpich_wheel_takes_a_parallel_hdf5_only_by_name(machine: Machine) -> None:
    state = machine.root / ".venv/.mpips"
    state.mkdir(parents=True)
    (state / "choice.hdf5").write_text("parallel\n")
    assert machine.call("choose_hdf5 mpich").stdout == "serial\n"
    assert machine.call("choose_hdf5 mpich", HDF5_DIR="/opt/hdf5").stdout == "parallel\n"
    refused = machine.call("choose_hdf5 mpich", MPIPS_HDF5="parallel")
    assert refused.returncode == 2
    assert "needs HDF5_DIR" in refused.stderr


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
    tools = ["shellcheck", "prometheus", "slurm-wlm", "munge", "chromium", "chromium-driver"]
    assert not set(tools) & set(machine.call("conveniences").stdout.split())
    asked = machine.call("conveniences", MPIPS_SETUP_TESTS="1").stdout.split()
    assert asked[-len(tools) :] == tools
    machine.add("sbatch", "")
    machine.add("chromedriver", "")
    asked = machine.call("conveniences", MPIPS_SETUP_TESTS="1").stdout.split()
    assert set(tools) & set(asked) == {"shellcheck", "prometheus"}


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


ENV = "source jobs/env.sh; env | grep -E '^(OMPI|PRTE|OMP)_' | sort"


def test_env_lets_open_mpi_run_as_root_only_for_root(tmp_path: Path) -> None:
    for uid in (0, 1000):
        machine = Machine(tmp_path / str(uid), uid=uid)
        assert ("PRTE_ALLOW_RUN_AS_ROOT=1" in machine.run("bash", "-c", ENV).stdout) == (uid == 0)


def test_env_keeps_what_the_user_set(machine: Machine) -> None:
    out = machine.run("bash", "-c", ENV, OMPI_MCA_osc="rdma", OMP_NUM_THREADS="4").stdout
    assert out.splitlines() == ["OMPI_MCA_osc=rdma", "OMP_NUM_THREADS=4"]
    granted = machine.run("bash", "-c", ENV, SLURM_CPUS_PER_TASK="8").stdout
    assert "OMP_NUM_THREADS=8" in granted


def test_env_may_be_sourced_twice(machine: Machine) -> None:
    machine.add("python", "", machine.root / ".venv/bin")
    twice = 'set -eu; source jobs/env.sh; source jobs/env.sh; echo "$PATH"'
    venv = machine.root / ".venv/bin"
    assert machine.run("bash", "-c", twice).stdout == f"{venv}:{machine.bin}\n"


def test_mpirun_is_told_of_oversubscription_only_where_it_counts(machine: Machine) -> None:
    def flags(n: int, version: str, **env: str) -> str:
        machine.add("mpirun", f"echo '{version}'")
        return machine.run("bash", "-c", f"source jobs/env.sh; mpirun_flags {n}", **env).stdout

    assert flags(10_000, "mpirun (Open MPI) 5.0.11") == "--oversubscribe --bind-to none"
    assert flags(1, "mpirun (Open MPI) 5.0.11") == ""
    assert flags(10_000, "HYDRA build details") == ""
    assert flags(10_000, "mpirun (Open MPI) 5.0.11", SLURM_JOB_ID="7") == ""


def test_quickstart_prints_its_command_before_it_runs(machine: Machine) -> None:
    machine.add("setup.sh", "echo ready", machine.root / "jobs")
    machine.add(
        "mpirun", '[[ $1 != --version ]] || { echo "mpirun (Open MPI) 5"; exit; }; echo "ran: $*"'
    )
    done = machine.run("bash", "jobs/quickstart.sh")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    command = next(i for i, line in enumerate(lines) if line.startswith("$ mpirun"))
    ran = next(i for i, line in enumerate(lines) if line.startswith("ran: "))
    assert lines[command].removeprefix("$ mpirun ") == lines[ran].removeprefix("ran: ")
    assert lines[command].endswith("python -m mpips train mlp --train digits --servers 2")
    assert lines.index("ready") < command < ran < len(lines) - 1
    assert "What to try next" in done.stdout


def test_quickstart_fails_when_the_job_fails(machine: Machine) -> None:
    machine.add("setup.sh", "", machine.root / "jobs")
    machine.add("mpirun", "exit 9")
    done = machine.run("bash", "jobs/quickstart.sh")
    assert done.returncode == 9
    assert "What to try next" not in done.stdout


def test_run_refuses_unknown_stages() -> None:
    done = subprocess.run(
        ["bash", str(ROOT / "tests/run.sh"), "unit", "units"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "units" in done.stderr
    assert "sanitize" in done.stderr


REPORT = """<testsuites><testsuite>
<testcase classname="t" name="a"/>
<testcase classname="t" name="b">{}</testcase>
</testsuite></testsuites>"""


def tally(code: int, *reports: Path) -> tuple[int, int, int]:
    """What tests/tally.py counts."""
    command = [sys.executable, str(ROOT / "tests/tally.py"), str(code), *map(str, reports)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    passed, failed, skipped = map(int, done.stdout.split())
    return passed, failed, skipped


def test_a_test_failed_if_it_failed_on_any_rank(tmp_path: Path) -> None:
    ranks = [tmp_path / f"{i}.xml" for i in range(3)]
    for path, child in zip(ranks, ("", "<failure/>", "<skipped/>"), strict=True):
        path.write_text(REPORT.format(child))
    assert tally(1, *ranks) == (1, 1, 0)
    assert tally(0, ranks[0], ranks[2]) == (2, 0, 0)
    assert tally(0, ranks[2]) == (1, 0, 1)


def test_silence_counts_as_a_failure(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    assert tally(0, report) == (0, 1, 0)
    report.write_text("<testsuites/>")
    assert tally(5, report) == (0, 1, 0)
    report.write_text("<testsuites><testcase name='a'><skipped/></testcase></testsuites>")
    assert tally(0, report) == (0, 1, 1)
    report.write_text(REPORT.format(""))
    assert tally(0, report) == (2, 0, 0)
    assert tally(137, report) == (2, 1, 0)


def run_folder(tmp_path: Path, **variables: str) -> str:
    """The run folder of a batch script in a job of Slurm, and what has to be named to go on in it."""
    tmp_path.mkdir()
    machine = Machine(tmp_path)
    for tool in ("realpath", "hostname"):
        (machine.bin / tool).symlink_to(str(shutil.which(tool)))
    venv = machine.root / ".venv/bin"
    machine.add("python", "exit 0", venv)
    (machine.root / "jobs/env.sh").write_text(f'PATH="{venv}:$PATH"\n')
    job = {
        "SLURM_JOB_ID": "12",
        "SLURM_NTASKS": "2",
        "SLURM_JOB_NAME": "j",
        "SLURM_JOB_NODELIST": "n",
    }
    script = (
        'set -euo pipefail; source "$root/jobs/batch.sh"; begin usage x >&2; echo "$run|$folder"'
    )
    done = subprocess.run(
        [str(machine.bin / "bash"), "-c", script],
        env={**machine.env, **job, **variables, "root": str(machine.root)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    run, folder = done.stdout.strip().split("|")
    return f"{Path(run).relative_to(tmp_path)} {Path(folder).relative_to(tmp_path)}"


@pytest.mark.parametrize("task", ["0", "1"])
def test_each_task_of_an_array_has_a_run_folder_of_its_own(tmp_path: Path, task: str) -> None:
    array = {"SLURM_ARRAY_JOB_ID": "11", "SLURM_ARRAY_TASK_ID": task}
    assert run_folder(tmp_path / "a", **array) == f"runs/j-11_{task} runs/j-11"
    found = run_folder(tmp_path / "b", **array, MPIPS_FOLDER=str(tmp_path / "b/mine"))
    assert found == f"mine_{task} mine"


def test_a_single_job_has_the_run_folder_that_was_given(tmp_path: Path) -> None:
    assert run_folder(tmp_path / "a") == "runs/j-12 runs/j-12"
    assert run_folder(tmp_path / "b", MPIPS_FOLDER=str(tmp_path / "b/mine")) == "mine mine"


def test_no_message_sends_anybody_to_an_index_that_has_no_mpips() -> None:
    texts = [*ROOT.glob("mpips/**/*.py"), ROOT / "README.md"]
    texts += [*ROOT.glob("jobs/*"), *ROOT.glob("native/CMakeLists.txt")]
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts
        if path.is_file()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"pip install [^#;,]*\bmpips\b", line)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_slowest_tests_are_listed_first(tmp_path: Path) -> None:
    report = tmp_path / "unit.xml"
    cases = "".join(f'<testcase classname="t" name="{n}" time="{n}.5"/>' for n in (1, 3, 2))
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    command = [
        sys.executable,
        str(ROOT / "tests/tally.py"),
        "--slowest",
        "2",
        str(report),
        "none.xml",
    ]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [line.split() for line in out.splitlines()] == [
        ["3.5", "s", "unit", "t::3"],
        ["2.5", "s", "unit", "t::2"],
    ]
