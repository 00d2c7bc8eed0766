"""The layers of the package: folders import downwards only, and nothing is loaded too early."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mpips

ROOT = Path(mpips.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# From the ground up. A folder imports those before it, and none of its own row or of a later one.
LAYERS = [
    ["errors", "_native"],
    ["kernels", "process", "terminal"],
    ["model"],
    ["data"],
    ["config", "rundir"],
    ["transport"],
    ["mpi", "checkpoint"],
    ["server"],
    ["recovery"],
    ["snapshot"],
    ["scheduler"],
    ["worker"],
    ["session"],
    ["tasks", "monitor", "torch", "jax"],
    ["training", "keras", "sklearn"],
    ["supervisor", "web"],
    ["inference"],
    ["testing", "plan", "doctor"],
    ["bench"],
    ["cli"],
    ["__main__"],
]
LEVEL = {name: level for level, row in enumerate(LAYERS) for name in row}
BESIDE_FOLDERS = {"__init__.py", "__main__.py", "_native.pyi", "errors.py", "py.typed"}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def dotted(path: Path) -> str:
    """The name of a test: "mpi" alone would be taken for the marker of pytest-mpi."""
    return f"mpips.{name_of(path)}"


def imports(path: Path, at_start: bool = False, types: bool = False) -> Iterator[str]:
    """Modules that a file imports; `at_start`: when it is imported; `types`: for type checking too."""

    def walk(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not types:
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


def folder_of(name: str) -> str:
    """The folder of mpips that a dotted name lies in; "": it is of the package itself."""
    first = name.removeprefix("mpips.").partition(".")[0] if name.startswith("mpips.") else ""
    return first if first in LEVEL or (ROOT / first).is_dir() else ""


def test_the_package_holds_folders_and_five_files() -> None:
    files = {path.name for path in ROOT.iterdir() if path.is_file()}
    assert {name for name in files if not name.startswith("_native.cpython")} == BESIDE_FOLDERS
    # A folder of an earlier version may be left with bytecode alone.
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders == set(LEVEL) - {"errors", "_native", "__main__"}


@pytest.mark.parametrize("path", FILES, ids=dotted)
def test_folders_import_downwards_only(path: Path) -> None:
    mine = folder_of(f"mpips.{name_of(path)}")
    if mine:
        for name in imports(path, types=True):
            other = folder_of(name)
            if other and other != mine:
                assert LEVEL[other] < LEVEL[mine], f"{path} imports {name}"


@pytest.mark.parametrize("path", sorted(ROOT.glob("*/__init__.py")), ids=dotted)
def test_every_folder_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", FILES, ids=dotted)
def test_mpi_is_imported_only_where_it_is_used(path: Path) -> None:
    allowed = folder_of(f"mpips.{name_of(path)}") in ("mpi", "transport", "session")
    # `hdf5` loads mpi4py without starting MPI: HDF5 must find the right library.
    allowed = allowed or name_of(path).startswith(("bench.rank", "doctor.rank", "data.hdf5"))
    assert allowed or not any(name.split(".")[0] == "mpi4py" for name in imports(path))


@pytest.mark.parametrize("path", FILES, ids=dotted)
def test_hdf5_is_imported_in_one_place_and_lazily(path: Path) -> None:
    at_start = [n for n in imports(path, at_start=True) if n.split(".")[0] == "h5py"]
    anywhere = [n for n in imports(path) if n.split(".")[0] == "h5py"]
    assert not at_start
    assert not anywhere or name_of(path) == "data.hdf5"


@pytest.mark.parametrize("path", FILES, ids=dotted)
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
        "import mpips.mpi.launch",
        "import mpips.tasks, mpips.data, mpips.training.train",
        "import mpips.checkpoint, mpips.checkpoint.compare, mpips.checkpoint.export",
        "import mpips.doctor.checks, mpips.doctor.launches",
        "import mpips; mpips.run(lambda w: None, [mpips.DenseTable('w', (1,))])",
    ],
)
def test_neither_mpi_nor_hdf5_nor_click_is_loaded_by(code: str) -> None:
    assert not loaded_after(code) & {
        "mpi4py",
        "h5py",
        "click",
        "rich",
        "torch",
        "jax",
        "keras",
        "sklearn",
    }


def test_the_command_line_loads_no_mpi_before_a_job_starts() -> None:
    code = "import mpips.cli, mpips.cli.train; mpips.cli.cli.list_commands(None)"
    assert not loaded_after(code) & {"mpi4py", "h5py", "torch", "jax", "keras", "sklearn"}


def test_every_public_name_is_there() -> None:
    assert all(hasattr(mpips, name) for name in mpips.__all__)
    assert len(set(mpips.__all__)) == len(mpips.__all__)


PICKLED = {
    "allgather",
    "allreduce",
    "alltoall",
    "bcast",
    "bsend",
    "gather",
    "ibsend",
    "irecv",
    "isend",
    "issend",
    "recv",
    "reduce",
    "scatter",
    "send",
    "sendrecv",
    "ssend",
}
# Start-up alone: servers and their copies move memory before the job is at work.
PICKLES_AT_START = {"recovery.replica_memory"}


@pytest.mark.parametrize("path", FILES, ids=dotted)
def test_ranks_at_work_exchange_no_pickled_objects(path: Path) -> None:
    if name_of(path) in PICKLES_AT_START or name_of(path).startswith("bench.rank"):
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in PICKLED:
            owner = ast.unparse(node.value).lower()
            assert "comm" not in owner.rpartition(".")[2], f"{path}:{node.lineno}"


def test_a_package_for_another_library_is_imported_at_its_first_use() -> None:
    assert "sklearn" not in loaded_after("import mpips; assert not hasattr(mpips, 'Adm')")
    pytest.importorskip("sklearn", reason="mpips.sklearn imports it")
    assert "sklearn" in loaded_after("import mpips; mpips.sklearn.MpipsClassifier")


def test_training_imports_nothing_that_is_slow_and_not_needed() -> None:
    program = (
        "import sys; from mpips.cli import main\n"
        "sys.argv = ['mpips', 'train', 'softmax', '--train', 'digits', '--set', 'train.epochs=1']\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "slow = {'numpy.ma', 'importlib.metadata', 'h5py', 'email', 'torch', 'pyarrow'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE)
    assert done.stdout.splitlines()[-1] == b"[]"


LAZY = ["mpips", "mpips.checkpoint", "mpips.data", "mpips.tasks"]


@pytest.mark.parametrize("package", LAZY)
def test_lazy_names_are_those_that_type_checkers_see(package: str) -> None:
    module = importlib.import_module(package)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    typed = {
        (node.module, alias.name)
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    (call,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("lazy_names")
    )
    listed = ast.literal_eval(call.args[1])
    assert typed == {(origin, name) for origin, names in listed.items() for name in names}
    for origin, name in typed:
        assert getattr(module, name) is getattr(importlib.import_module(str(origin)), name)
    assert {name for _, name in typed} <= set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_the_names_of_the_package_are_all_those_of_its_rules() -> None:
    for part in ("codec", "consistency", "optimizer"):
        names = set(importlib.import_module(f"mpips.model.{part}").__all__)
        assert names <= set(mpips.__all__)


# Names that a program uses, and how many modules of mpips a process then loads, at most.
LOADED = {
    "": 10,
    "mpips.DenseTable, mpips.EmbeddingTable, mpips.SGD, mpips.SSP": 30,
    "mpips.run": 100,
    "mpips.init, mpips.run, mpips.report": 110,
}


@pytest.mark.parametrize("names", LOADED)
def test_a_program_loads_few_modules_of_mpips(names: str) -> None:
    program = (
        f"import sys, numpy, mpips\n{names}\n"
        "print(*(name for name in sys.modules if name.split('.')[0] == 'mpips'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = done.stdout.split()
    assert len(loaded) <= LOADED[names], loaded
    # The parts of a role are loaded when this process gets it.
    roles = ("mpips.server.server", "mpips.scheduler.recorder", "mpips.worker.worker")
    assert not set(loaded) & set(roles)


def test_the_package_costs_less_than_half_of_numpy() -> None:
    def cpu_s(module: str) -> float:
        """The least processor time of several imports, beside the start of Python."""
        program = (
            f"import time; a = time.process_time()\nimport {module}\nprint(time.process_time() - a)"
        )
        return min(
            float(subprocess.check_output([sys.executable, "-c", program], timeout=60))
            for _ in range(3)
        )

    assert cpu_s("mpips") < 0.5 * cpu_s("numpy")
