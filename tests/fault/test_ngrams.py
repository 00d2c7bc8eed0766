"""A language model with a memory of n-grams on several ranks: as with torch's own table, over kills, too."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launcher
import numpy as np
import pytest
from launcher import results

pytest.importorskip("torch", reason="torch is not installed")

SCRIPT = Path(__file__).with_name("programs") / "ngram_script.py"
Launch = Callable[..., launcher.Launch]
N_STEPS = 18  # of one process with batches of 8, and of two workers with batches of 4


def alone(folder: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), "--batch", "8", *arguments]
    with launcher.Launch(command, launcher.site_environment(), 60.0, folder) as launched:
        (found,) = results(launched)
    return found


def test_one_and_two_workers_train_as_a_table_of_torch(launch: Launch, tmp_path: Path) -> None:
    plain, one = alone(tmp_path, "--plain"), alone(tmp_path)
    two = results(launch(4, [sys.executable, str(SCRIPT), "--ahead", "3"], timeout=100.0))
    assert len(two) == 2
    assert len({found["digest"] for found in two}) == 1
    mean = np.mean([found["losses"] for found in two], axis=0)
    assert len(plain["losses"]) == N_STEPS
    assert plain["losses"][-1] < 0.97 * plain["losses"][0]
    for losses, outputs in ((one["losses"], one["outputs"]), (mean, two[0]["outputs"])):
        assert np.abs(np.array(losses) - plain["losses"]).max() <= 1e-5
        assert np.abs(np.array(outputs) - plain["outputs"]).max() <= 1e-5


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_run_that_is_killed_has_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    arguments = ["--dtype", "bf16", "--rule", "RowAdagrad(0.1)", "--ahead", "3"]
    found = {}
    for name, kills in (("calm", []), ("killed", ["--kill", "4", "11"])):
        (tmp_path / name).mkdir()
        command = [sys.executable, "-m", "mpips", "run", "-n", "4", str(SCRIPT), *arguments, *kills]
        with launcher.Launch(
            command, launcher.site_environment(), 200.0, tmp_path / name
        ) as launched:
            found[name] = results(launched)
        assert launched.stderr().count("killed by SIGKILL") == len(kills[1:])
    assert {one["digest"] for one in found["killed"]} == {found["calm"][0]["digest"]}
    assert len(found["calm"][0]["losses"]) == N_STEPS
    # Worker 0 repeats the step in which it ended; the other one may have ended its clock.
    for calm, killed, n in zip(found["calm"], found["killed"], (7, 6), strict=True):
        assert len(killed["losses"]) in (7, n)
        assert killed["losses"] == calm["losses"][-len(killed["losses"]) :]
