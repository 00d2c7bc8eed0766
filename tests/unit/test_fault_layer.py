"""Fault points lie behind one compile-time layer: product code only passes them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mpips import _native

SOURCES = Path(__file__).resolve().parents[2] / "native/src"
LAYER = {"shm/fault.hpp", "shm/fault.cpp", "server/shard_faults.hpp", "bindings/fault.cpp"}


def test_product_code_only_passes_points() -> None:
    allowed = re.compile(r"fault::(at\(|Point::|in_two\(|tear\(|armed\(\))")
    for path in sorted(SOURCES.rglob("*.[ch]pp")):
        if str(path.relative_to(SOURCES)) in LAYER:
            continue
        text = path.read_text()
        assert "MPIPS_FAULT" not in text, path
        wrong = [use for use in re.findall(r"fault::\S*", text) if not allowed.match(use)]
        assert not wrong, path


@pytest.mark.parametrize("built_in", [False, True])
def test_a_build_without_fault_points_has_none(tmp_path: Path, built_in: bool) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no compiler")
    made = tmp_path / "fault.o"
    options = [f"-DMPIPS_FAULTS={built_in:d}", "-std=c++17", "-fPIC", f"-I{SOURCES}"]
    source = str(SOURCES / "shm/fault.cpp")
    subprocess.run([compiler, *options, "-c", source, "-o", str(made)], check=True)
    code = made.read_bytes()
    assert (b"unit-saving" in code) == built_in
    assert (b"has no fault points" in code) != built_in


@pytest.mark.skipif(not _native.HAS_FAULT_POINTS, reason="this build has no fault points")
@pytest.mark.parametrize(
    ("setting", "message"),
    [("nowhere:1", "names no fault point 'nowhere'; use one of any"), ("any", "must be point:n")],
)
def test_a_bad_setting_fails_the_import(setting: str, message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from mpips import _native"],
        env={"MPIPS_FAULT": setting},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert f"ImportError: MPIPS_FAULT {'= ' if setting == 'any' else ''}" in done.stderr
    assert message in done.stderr
