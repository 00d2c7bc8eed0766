"""The layers of the package: lower ones never import higher ones, and nothing is loaded too early."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mpips

ROOT = Path(mpips.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Longest prefix wins; a module may import its own layer and those below.
LAYERS = {
    "_native": 0,
    "kernels": 0,
    "errors": 0,
    "early": 0,
    "explain": 0,
    "forked": 0,
    "hdf5": 0,
    "model": 1,
    "data": 1,
    "options": 1,  # plain values
    "rundir": 1,
    "runfiles": 1,
    "course": 1,
    "config": 1,
    "overrides": 1,
    "placement": 1,
    "calling": 4,
    "requests": 1,
    "cluster": 2,
    "transport": 2,
    "checkpoint": 3,
    "handles": 4,
    "cuts": 4,
    "worker": 4,
    "server": 4,
    "scheduler": 4,
    "chronicle": 4,
    "panel": 4,
    "local": 4,
    "memory": 4,
    "partner": 4,
    "saving": 4,
    "job": 4,
    "takeover": 4,
    "ending": 4,
    "links": 4,
    "session": 4,
    "tasks": 5,
    "integrations": 5,
    "monitor": 5,
    "preflight": 6,
    "epochs": 6,
    "train": 6,
    "resume": 6,
    "submit": 6,
    "supervisor": 6,
    "cli": 6,
    "bench": 6,
    "doctor": 6,
    "plan": 6,
    "__main__": 6,
    "": 6,  # the package itself gives users everything
}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(name: str) -> int:
    first = name.partition(".")[0]
    assert first in LAYERS, f"mpips.{name} has no layer; add it to the test and to the style guide"
    return LAYERS[first]


def imports(path: Path, at_start: bool = False) -> Iterator[str]:
    """Modules that a file imports, but for type checking; `at_start`: when it is imported."""

    def walk(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from walk(other)
            return
        if at_start and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            # `from mpips.x import y` may name a module y.
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    yield from walk(ast.parse(path.read_text()))


def is_module(name: str) -> bool:
    base = ROOT.parent / Path(*name.split("."))
    return base.with_suffix(".py").is_file() or (base / "__init__.py").is_file()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_module_imports_a_higher_layer(path: Path) -> None:
    mine = layer_of(name_of(path))
    for name in imports(path):
        if name.startswith("mpips.") and (is_module(name) or name == "mpips._native"):
            assert layer_of(name.removeprefix("mpips.")) <= mine, f"{path} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_cluster_transport_and_job_import_mpi(path: Path) -> None:
    allowed = name_of(path).split(".")[0] in ("cluster", "transport", "job", "ending", "links")
    # `hdf5` loads mpi4py without starting MPI: HDF5 must find the right library.
    allowed = allowed or name_of(path).startswith(("bench.rank", "doctor.rank", "hdf5"))
    assert allowed or not any(name.split(".")[0] == "mpi4py" for name in imports(path))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_hdf5_is_imported_in_one_place_and_lazily(path: Path) -> None:
    at_start = [n for n in imports(path, at_start=True) if n.split(".")[0] == "h5py"]
    anywhere = [n for n in imports(path) if n.split(".")[0] == "h5py"]
    assert not at_start
    assert not anywhere or name_of(path) == "hdf5"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_module_unpickles_or_evaluates(path: Path) -> None:
    names = {name.split(".")[0] for name in imports(path)}
    assert not names & {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "compile", "__import__"), path
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert ast.unparse(node.value) == "False", path


def loaded_after(code: str) -> set[str]:
    program = f"{code}\nimport sys; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    "code",
    [
        "import mpips",
        "import mpips.cluster.launch",
        "import mpips.tasks, mpips.data, mpips.train",
        "import mpips.checkpoint, mpips.checkpoint.compare, mpips.checkpoint.export",
        "import mpips.doctor.checks, mpips.doctor.launches",
        "import mpips; mpips.run(lambda w: None, [mpips.DenseTable('w', (1,))])",
    ],
)
def test_neither_mpi_nor_hdf5_nor_click_is_loaded_by(code: str) -> None:
    assert not loaded_after(code) & {"mpi4py", "h5py", "click", "rich", "torch", "sklearn"}


def test_the_command_line_loads_no_mpi_before_a_job_starts() -> None:
    code = "import mpips.cli, mpips.cli.train; mpips.cli.cli.list_commands(None)"
    assert not loaded_after(code) & {"mpi4py", "h5py", "torch", "sklearn"}


def test_every_public_name_is_there() -> None:
    assert all(hasattr(mpips, name) for name in mpips.__all__)
    assert len(set(mpips.__all__)) == len(mpips.__all__)
