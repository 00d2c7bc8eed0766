"""The commands of README and docs, typed one after the other in an empty folder, and what they print."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import launcher
import pytest
from documents import DOCUMENTS, blocks, commands, same_output
from training import made_data

# A reader's mpirun has a slot for each rank; this machine may have two cores.
MORE_RANKS = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
WITH_COMMANDS = [
    path
    for path in DOCUMENTS
    if any(block.language == "console" and not block.kind for block in blocks(path))
]


def unit_tests() -> ModuleType:
    """tests/unit/test_documents.py, which makes the checkpoint that the documents look into."""
    path = Path(__file__).parents[1] / "unit/test_documents.py"
    spec = importlib.util.spec_from_file_location("unit_test_documents", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", WITH_COMMANDS, ids=lambda path: path.name)
def test_the_commands_do_what_is_shown(path: Path, tmp_path: Path) -> None:
    for name in ("a.svm", "b.svm", "train.svm", "test.svm"):
        made_data(tmp_path).rename(tmp_path / name)
    unit_tests().checkpoint(tmp_path)
    env = {**launcher.site_environment(), **MORE_RANKS}
    for block in blocks(path):
        if block.kind == "file":
            (tmp_path / block.argument).write_text(block.text)
        if block.language != "console" or block.kind:
            continue
        for command, shown in commands(block):
            with launcher.Launch(["bash", "-c", command], env, 90, tmp_path) as job:
                assert job.wait() == 0, f"{block.name}: {command}\n{job.tail()}"
                got = job.stderr() + job.stdout()
            if shown:
                assert same_output(shown, got), f"{block.name}: {command}\n{got}"
