"""The layers of the package: folders import downwards only, and nothing is loaded too early."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from sources import ROOT, Source, expect_none, parse, sources

import mpips

# From the ground up. A folder imports those before it, and none of its own row or of a later one.
LAYERS = [
    ["errors", "_native"],
    ["kernels", "process", "terminal"],
    ["model"],
    ["data"],
    ["config", "rundir"],
    ["record"],
    ["transport"],
    ["mpi", "checkpoint"],
    ["server"],
    ["recovery"],
    ["snapshot"],
    ["scheduler"],
    ["worker"],
    ["session"],
    ["tasks", "monitor", "torch", "jax", "insitu"],
    ["training", "keras", "sklearn"],
    ["supervisor", "web"],
    ["inference", "chaos"],
    ["testing", "plan", "doctor"],
    ["bench"],
    ["cli"],
    ["__main__"],
]
LEVEL = {name: level for level, row in enumerate(LAYERS) for name in row}
BESIDE_FOLDERS = {"__init__.py", "__main__.py", "_native.pyi", "errors.py", "py.typed"}


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

# A place in a file and what is wrong there.
Found = tuple[int, str]


def folder_of(name: str) -> str:
    """The folder of mpips that a dotted name lies in; "": it is of the package itself."""
    first = name.removeprefix("mpips.").partition(".")[0] if name.startswith("mpips.") else ""
    return first if first in LEVEL or (ROOT / first).is_dir() else ""


def upwards(source: Source) -> Iterator[Found]:
    """Imports of a folder of the same row or of a later one."""
    mine = folder_of(f"mpips.{source.name}")
    for each in source.imports if mine else ():
        other = folder_of(each.name)
        if other and other != mine and LEVEL[other] >= LEVEL[mine]:
            yield each.line, f"{mine} imports {each.name}, which is not below it"


def early_mpi(source: Source) -> Iterator[Found]:
    """Imports of mpi4py where MPI is not used."""
    # `hdf5` loads mpi4py without starting MPI: HDF5 must find the right library.
    if source.name.startswith(("bench.rank", "doctor.rank", "data.hdf5")):
        return
    if folder_of(f"mpips.{source.name}") in ("mpi", "transport", "session"):
        return
    for each in source.imports:
        if each.name.split(".")[0] == "mpi4py" and not each.types:
            yield each.line, "imports mpi4py"


def early_hdf5(source: Source) -> Iterator[Found]:
    """Imports of h5py elsewhere than in functions of `mpips.data.hdf5`."""
    for each in source.imports:
        is_h5py = each.name.split(".")[0] == "h5py" and not each.types
        if is_h5py and (each.at_start or source.name != "data.hdf5"):
            yield each.line, "imports h5py"


# These run source that mpips has written, into which a file can bring names and plain text only.
WRITTEN_HERE = ("inference.torch_writing",)


def evaluations(source: Source) -> Iterator[Found]:
    """Unpickling, and code from text."""
    forbidden = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
    for each in source.imports:
        if each.name.split(".")[0] in forbidden and not each.types:
            yield each.line, f"imports {each.name}"
    for node in source.nodes:
        name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if name in ("eval", "exec", "compile", "__import__") and source.name not in WRITTEN_HERE:
            yield node.lineno, f"calls {name}"
        allows = isinstance(node, ast.keyword) and node.arg == "allow_pickle"
        if allows and ast.unparse(node.value) != "False":
            yield node.value.lineno, "allows pickled arrays"


def pickled_messages(source: Source) -> Iterator[Found]:
    """Messages of Python objects between ranks at work."""
    if source.name in PICKLES_AT_START or source.name.startswith("bench.rank"):
        return
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and node.attr in PICKLED:
            owner = ast.unparse(node.value).lower()
            if "comm" in owner.rpartition(".")[2]:
                yield node.lineno, f"{owner}.{node.attr} pickles"


def silent_folder(source: Source) -> Iterator[Found]:
    """A folder whose `__init__` does not say what it is."""
    is_folder = source.path.name == "__init__.py" and "." not in source.name and source.name
    if is_folder and not ast.get_docstring(source.tree):
        yield 1, "has no docstring"


# Files that may import each other in a circle. Such files can only be read together.
MOST_IN_CIRCLE = 3


def circles(files: Sequence[Source]) -> list[list[str]]:
    """Circles of files that import each other, with imports for types and in functions; largest first."""
    # `mpips/__init__` names files of all folders, and imports each at the first use of its name.
    names = {file.name for file in files if file.name}
    imports = {file.name: _used(file, names) for file in files if file.name}
    above = {name: _reached(name, imports) for name in names}
    found = {
        frozenset(other for other in above[name] if name in above[other])
        for name in names
        if name in above[name]
    }
    return sorted(map(sorted, found), key=lambda circle: (-len(circle), circle))


def _used(source: Source, names: set[str]) -> set[str]:
    """The files among `names` that a file imports: of `from mpips.x import y`, y alone if it is a file."""
    own = [
        (each.line, each.name.removeprefix("mpips."))
        for each in source.imports
        if each.name.startswith("mpips.")
    ]
    found = set()
    for line, name in own:
        of_it = {other for at, other in own if at == line and other.rpartition(".")[0] == name}
        if not of_it or of_it - names:
            found.add(name)
    return found & names


def _reached(name: str, imports: Mapping[str, set[str]]) -> set[str]:
    """The files that a file imports, and those that these import, and so on."""
    found: set[str] = set()
    new = imports[name] - {name}
    while new:
        found |= new
        new = {other for each in new for other in imports[each] if other != each} - found
    return found


Rule = Callable[[Source], Iterator[Found]]


def broken(rule: Rule, *files: Source) -> list[str]:
    """Return `file:line: what is wrong` of every offence."""
    return [f"{file.path}:{line}: {what}" for file in files for line, what in rule(file)]


def test_the_package_holds_folders_and_five_files() -> None:
    files = {path.name for path in ROOT.iterdir() if path.is_file()}
    assert {name for name in files if not name.startswith("_native.cpython")} == BESIDE_FOLDERS
    # A folder of an earlier version may be left with bytecode alone.
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders == set(LEVEL) - {"errors", "_native", "__main__"}


def test_folders_import_downwards_only() -> None:
    assert len(sources()) > 300
    expect_none(broken(upwards, *sources()))


def test_no_circle_of_files_is_larger_than_three() -> None:
    large = [circle for circle in circles(sources()) if len(circle) > MOST_IN_CIRCLE]
    expect_none([f"{len(circle)} files in a circle: {', '.join(circle)}" for circle in large])


def test_circles_of_files_are_found_whatever_way_they_import() -> None:
    files = {
        "model/a.py": "from mpips.model.b import x",
        "model/b.py": "if TYPE_CHECKING:\n    from mpips.worker.c import x",
        "worker/c.py": "def f():\n    from mpips.worker import d",
        "worker/d.py": "import numpy, mpips.model.a, mpips.worker.f",
        # A name of a package that is no file stands for the package.
        "worker/__init__.py": "from mpips.worker.c import x",
        "session/__init__.py": "from mpips.session.e import x",
        "session/e.py": "from mpips.session import x",
        # Not a circle: a file by itself, another package of this name, the lazy names of mpips.
        "worker/f.py": "import mpips.worker.f, torch",
        "torch/__init__.py": "import mpips.worker.f",
        "__init__.py": "import mpips.worker.g",
        "worker/g.py": "import mpips",
    }
    found = circles([parse(ROOT / name, text) for name, text in files.items()])
    assert found == [["model.a", "model.b", "worker.c", "worker.d"], ["session", "session.e"]]


def test_every_folder_says_what_it_is() -> None:
    expect_none(broken(silent_folder, *sources()))


def test_mpi_is_imported_only_where_it_is_used() -> None:
    expect_none(broken(early_mpi, *sources()))


def test_hdf5_is_imported_in_one_place_and_lazily() -> None:
    expect_none(broken(early_hdf5, *sources()))


def test_no_module_unpickles_or_evaluates() -> None:
    expect_none(broken(evaluations, *sources()))


def test_ranks_at_work_exchange_no_pickled_objects() -> None:
    expect_none(broken(pickled_messages, *sources()))


@pytest.mark.parametrize(
    ("rule", "file", "text", "lines"),
    [
        (upwards, "model/x.py", "import mpips.model.y\nfrom mpips import server", [2]),
        (upwards, "model/x.py", "if TYPE_CHECKING:\n    from mpips.server.x import y", [2, 2]),
        (upwards, "model/x.py", "def f():\n    import mpips.cli", [2]),
        (upwards, "kernels/x.py", "import mpips.process.x\nimport mpips.errors", [1]),
        (silent_folder, "model/__init__.py", "import os", [1]),
        (early_mpi, "model/x.py", "def f():\n    from mpi4py import MPI", [2, 2]),
        (early_mpi, "transport/x.py", "import mpi4py", []),
        (early_hdf5, "data/hdf5.py", "def f():\n    import h5py\nimport h5py", [3]),
        (early_hdf5, "data/x.py", "def f():\n    import h5py", [2]),
        (evaluations, "data/x.py", "import os\nimport pickle\nx = eval('1')", [2, 3]),
        (evaluations, "data/x.py", "f(allow_pickle=False)\nf(allow_pickle=True)", [2]),
        (pickled_messages, "worker/x.py", "self.comm.Send(x)\nself.comm.send(x)", [2]),
    ],
)
def test_a_rule_names_each_line_that_breaks_it(
    rule: Rule, file: str, text: str, lines: list[int]
) -> None:
    found = broken(rule, parse(ROOT / file, text))
    assert [line.partition(": ")[0] for line in found] == [f"{ROOT / file}:{n}" for n in lines]


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
    "mpips.DenseTable, mpips.EmbeddingTable, mpips.SGD, mpips.SSP": 32,
    "mpips.run": 110,
    "mpips.init, mpips.run, mpips.report": 117,
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


def test_the_picture_of_the_folders_has_the_layers_from_the_top_to_the_ground() -> None:
    picture = (ROOT.parent / "docs/assets/folders.svg").read_text()
    rows = re.findall(r'text-anchor="start"[^>]*>([^<]*)<', picture)
    layers = [row for row in LAYERS[::-1] if (ROOT / row[0]).is_dir()]
    assert [row.split(" &#183; ") for row in rows] == layers


@pytest.mark.parametrize("folder", ["supervisor", "worker", "session", "torch"])
def test_the_first_text_of_a_large_folder_names_each_of_its_files(folder: str) -> None:
    path = ROOT / folder
    text = ast.get_docstring(ast.parse((path / "__init__.py").read_text())) or ""
    named = set(re.findall(r"`(\w+)(?:\.py)?`", text))
    assert {file.stem for file in path.glob("*.py")} - named == {"__init__"}
