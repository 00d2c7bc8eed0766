"""Checkpoints of very late steps: their names sort by number, and their numbers stay exact."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoints import Contents

from mpips.checkpoint import open_checkpoint
from mpips.checkpoint.find import order
from mpips.checkpoint.folder import list_checkpoints
from mpips.checkpoint.manifest import STATE
from mpips.checkpoint.structure import load_writer

# A name has at least 12 digits; a double has 53 bits, an attribute of HDF5 63.
STEPS = [10**12 - 1, 10**12, 10**12 + 1, 2**53, 2**53 + 1, 2**63 - 1]


def test_steps_of_more_digits_come_later(tmp_path: Path) -> None:
    for step in reversed(STEPS):
        (tmp_path / f"step-{step:012d}").mkdir()
    (tmp_path / f"step-{STEPS[0]:012d}.2").mkdir()
    found = [(name.step, name.attempt) for name in list_checkpoints(tmp_path)]
    assert found == [(STEPS[0], 1), (STEPS[0], 2), *((step, 1) for step in STEPS[1:])]


@pytest.mark.parametrize("step", STEPS)
def test_a_late_step_is_exact_in_every_file_of_a_checkpoint(tmp_path: Path, step: int) -> None:
    folder = tmp_path / "checkpoints"
    Contents().write(folder, step=step - 1)
    path = Contents().write(folder, step=step).path
    assert (folder / "latest").resolve() == path.resolve()
    assert order(folder).readable[0].path == path
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.manifest.step == step
    with load_writer().File(path / STATE, "r") as file:
        assert int(file.attrs["step"]) == step
