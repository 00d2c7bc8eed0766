"""The types of the compiled modules (.pyi) are those that the modules have."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from mpips import _native

ROOT = Path(__file__).parents[2]
ALLOWED = ROOT / "tests/support/stub_differences.txt"


def modules() -> list[str]:
    """Return the compiled modules of this build that have all that their .pyi describes."""
    found = ["mpips._native"]
    try:
        loops = importlib.import_module("mpips.bench._loops")
    except ImportError:
        return found
    # RobinMap is compiled only where its header was found.
    return [*found, "mpips.bench._loops"] if hasattr(loops, "RobinMap") else found


def differences(folder: Path) -> set[str]:
    """Return the names whose types stubtest finds to differ."""
    pytest.importorskip("mypy")
    # Types of other modules, such as NumPy's, would take five times as long to load.
    (folder / "mypy.ini").write_text("[mypy]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy.stubtest", *modules(), "--concise"]
    command += ["--mypy-config-file", str(folder / "mypy.ini")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    lines = done.stdout.splitlines()
    assert all(line.startswith("mpips.") for line in lines), done.stdout + done.stderr
    assert done.returncode == int(bool(lines)), done.stderr
    return {line.split()[0] for line in lines}


@pytest.mark.timeout(600)
def test_types_of_compiled_modules_differ_in_known_names_only(tmp_path: Path) -> None:
    lines = ALLOWED.read_text().splitlines()
    # The list is not empty, so a run of stubtest that compares nothing is found.
    assert differences(tmp_path) == {line for line in lines if line and not line.startswith("#")}


@pytest.mark.parametrize("name", ["Partitioner", "PushRequest", "SharedMemory"])
def test_classes_of_the_list_have_no_constructor(name: str) -> None:
    with pytest.raises(TypeError, match="No constructor defined"):
        getattr(_native, name)()
