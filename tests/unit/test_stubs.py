"""The types of the compiled modules (.pyi) are those that the modules have."""

from __future__ import annotations

import importlib
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest
from signatures import in_docstring, in_stub

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


@pytest.mark.parametrize("module", modules())
def test_parameters_have_the_names_and_defaults_of_the_compiled_functions(module: str) -> None:
    # Functions of pybind11 have no signature that stubtest can read.
    compiled = importlib.import_module(module)
    stub = in_stub((ROOT / f"{module.replace('.', '/')}.pyi").read_text())
    real = {}
    for name in stub:
        text = attrgetter(name)(compiled).__doc__
        real[name] = sorted(in_docstring(name.rpartition(".")[2], text))
    assert {name: sorted(found) for name, found in stub.items()} == real
    assert len(real) >= 10


def test_signatures_are_read_as_they_are() -> None:
    stub = in_stub(
        "class A:\n"
        "    def f(self, a: int, b: int = ..., *, c: int, d: int = 1) -> None: ...\n"
        "    @property\n"
        "    def g(self) -> int: ...\n"
        "class _B:\n"
        "    def h(self) -> int: ...\n"
        "@overload\n"
        "def k(x: int) -> int: ...\n"
        "@overload\n"
        "def k(y: str) -> int: ...\n"
    )
    assert stub == {"A.f": [["a", "b=", "*", "c", "d="]], "k": [["x"], ["y"]]}
    text = (
        "f(*args, **kwargs)\nOverloaded function.\n"
        "1. f(self: m.A, a: Callable[[int, int], dict[str, int]], b: m.E = <E.X: 1>, *, c: int) -> int\n"
        "2. f(arg0: str) -> None\n"
    )
    assert in_docstring("f", text) == [["a", "b=", "*", "c"], ["arg0"]]


@pytest.mark.parametrize("name", ["Partitioner", "PushRequest", "SharedMemory"])
def test_classes_of_the_list_have_no_constructor(name: str) -> None:
    with pytest.raises(TypeError, match="No constructor defined"):
        getattr(_native, name)()
