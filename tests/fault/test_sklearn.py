"""Fits of scikit-learn estimators on several ranks: as in one process, with equal bits, and after deaths."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launcher
import numpy as np
import pytest

if importlib.util.find_spec("sklearn") is None:
    pytest.skip("scikit-learn is not installed", allow_module_level=True)

COMMAND = [sys.executable, str(Path(__file__).with_name("programs") / "sklearn_script.py")]
MODELS = ("linear", "mlp", "online", "search")
Launch = Callable[..., launcher.Launch]


def run(command: list[str], folder: Path, n: int = 1) -> list[dict[str, Any]]:
    """Return what each worker has found."""
    folder.mkdir(exist_ok=True)
    with launcher.Launch(command, launcher.site_environment(), 200.0, folder) as launched:
        found = [line["found"] for line in launcher.results(launched)]
        n_deaths = launched.stderr().count("killed by SIGKILL")
        assert n_deaths == command.count("--kill") * 2, launched.tail(60)
    assert len(found) == n
    return found


def digests(found: list[dict[str, Any]]) -> dict[str, set[str]]:
    return {name: {worker[name]["digest"] for worker in found} for name in MODELS}


@pytest.mark.timeout(300)
def test_workers_do_what_one_process_does_also_when_some_are_killed(
    launch: Launch, tmp_path: Path
) -> None:
    (whole,) = run(COMMAND, tmp_path / "whole")
    launched = launch(6, [*COMMAND, "--servers", "2"], timeout=100.0)
    calm = [line["found"] for line in launcher.results(launched)]
    assert len(calm) == 3
    assert {len(found) for found in digests(calm).values()} == {1}
    for found in calm:
        assert found["best"] == whole["best"]
        assert found["scores"] == whole["scores"]
        for name in MODELS:
            wanted = np.array(whole[name]["values"])
            assert np.abs(found[name]["values"] - wanted).max() <= 1e-5 * np.abs(wanted).max()
            np.testing.assert_allclose(found[name]["losses"], whole[name]["losses"], rtol=1e-5)
    # In the first fit, and in a call of partial_fit.
    supervised = [sys.executable, "-m", "mpips", "run", "-n", "6", "--max-restarts", "9"]
    killed = run(
        [*supervised, COMMAND[1], "--servers", "2", "--kill", "0b18,1b60"],
        tmp_path / "killed",
        3,
    )
    assert digests(killed) == digests(calm)
    for name in MODELS:
        assert {tuple(found[name]["losses"]) for found in killed} == {
            tuple(calm[0][name]["losses"])
        }
    assert killed[0]["scores"] == calm[0]["scores"]


def test_asynchronous_workers_have_equal_results(launch: Launch) -> None:
    launched = launch(5, [*COMMAND, "--servers", "2", "--consistency", "asp"], timeout=100.0)
    found = [line["found"] for line in launcher.results(launched)]
    assert len(found) == 2
    assert {len(found) for found in digests(found).values()} == {1}
    for worker in found:
        assert worker["mlp"]["losses"] == found[0]["mlp"]["losses"]
        assert worker["mlp"]["losses"][-1] < 0.8 * worker["mlp"]["losses"][0]


def test_workers_with_other_data_are_told(launch: Launch) -> None:
    launched = launch(4, [*COMMAND, "--other-data"], timeout=100.0)
    assert launched.wait() == 2, launched.tail(60)
    assert (
        "fit 1 of this script has other data or parameters than on another worker"
        in launched.stderr()
    )
