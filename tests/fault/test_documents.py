"""The commands of README and docs, typed one after the other in an empty folder, and what they print.

By day the pages take turns with the other tests of this folder.
"""

from __future__ import annotations

from pathlib import Path

import launcher
import pytest
from documents import (
    DOCUMENTS,
    ROOT,
    blocks,
    commands,
    data_files,
    is_console,
    lacking,
    same_output,
    started,
)
from training import made_data

# A reader's mpirun has a slot for each rank; this machine may have two cores.
MORE_RANKS = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
WITH_COMMANDS = [path for path in DOCUMENTS if started(path)]


@pytest.mark.timeout(700)
@pytest.mark.parametrize("path", WITH_COMMANDS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_do_what_is_shown(path: Path, tmp_path: Path) -> None:
    if names := {lacking(block.text) for block in blocks(path) if block.file} - {""}:
        pytest.skip(f"{', '.join(names)} is not installed")
    for file in data_files("".join(block.text for block in blocks(path))):
        if not file.is_file():
            pytest.skip(f"the data set is missing: {file}")
        (tmp_path / file.name).symlink_to(file)
    for name in ("a.svm", "b.svm", "train.svm", "test.svm"):
        if name in path.read_text():
            made_data(tmp_path).rename(tmp_path / name)
    env = {**launcher.site_environment(), **MORE_RANKS, "PYTHONWARNINGS": "error"}
    for block in blocks(path):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
        if not is_console(block):
            continue
        for command, shown in commands(block):
            with launcher.Launch(["bash", "-c", command], env, 240, tmp_path) as job:
                assert job.wait() == 0, f"{block.name}: {command}\n{job.tail()}"
                got = job.stderr() + job.stdout()
            if shown:
                assert same_output(shown, got), f"{block.name}: {command}\n{got}"
