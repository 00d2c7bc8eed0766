"""A Keras script on several ranks: as one process with the whole batch, with equal bits, and after deaths."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launcher
import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
if importlib.util.find_spec("keras") is None:
    pytest.skip("keras is not installed", allow_module_level=True)

SCRIPT = Path(__file__).with_name("programs") / "keras_script.py"
Launch = Callable[..., launcher.Launch]


def ranks(launch: Launch, n: int, *arguments: str, env: dict[str, str] | None = None) -> list[Any]:
    return launcher.results(
        launch(n, [sys.executable, str(SCRIPT), *arguments], env=env, timeout=100.0)
    )


def test_workers_do_what_one_process_does_and_transports_have_equal_bits(
    launch: Launch, tmp_path: Path
) -> None:
    command = [sys.executable, str(SCRIPT)]
    with launcher.Launch(command, launcher.site_environment(), 60.0, tmp_path) as launched:
        (whole,) = launcher.results(launched)
    tcp = {"OMPI_MCA_btl": "tcp,self"}
    runs = [
        ranks(launch, 6, "--servers", "2"),
        ranks(launch, 6, "--servers", "2", "--transport", "rma", env=tcp),
    ]
    assert len(runs[0]) == len(runs[1]) == 3
    assert len({found["digest"] for run in runs for found in run}) == 1
    for got, wanted in zip(runs[0][0]["values"], whole["values"], strict=True):
        assert np.abs(np.subtract(got, wanted)).max() <= 1e-4 * np.abs(wanted).max()
    # Metrics are those of all workers, on each of them.
    for found in runs[0]:
        assert found["steps"] == whole["steps"] == 5 * 8
        assert found["rate"] == whole["rate"]
        assert found["history"] == runs[0][0]["history"]
        for name, logs in whole["history"].items():
            np.testing.assert_allclose(found["history"][name], logs, rtol=1e-4, err_msg=name)


@pytest.mark.timeout(300)
def test_a_run_that_is_killed_ends_with_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    # Within the second fit, at the end of an epoch, and before the last epoch's last batch.
    places = "0b18,1e0,0b39"
    found = []
    for name, deaths, placement in (("calm", "", "servers"), ("killed", places, "replicated")):
        folder = tmp_path / name
        folder.mkdir()
        command = [sys.executable, "-m", "mpips", "run", "-n", "5", "--max-restarts", "9"]
        command += [str(SCRIPT), "--servers", "2", "--noise", "--kill", deaths]
        command += ["--placement", placement]
        with launcher.Launch(command, launcher.site_environment(), 200.0, folder) as launched:
            found.append(launcher.results(launched))
            n_deaths = len(deaths.split(",")) if deaths else 0
            assert launched.stderr().count("killed by SIGKILL") == n_deaths, launched.tail(60)
            assert launched.stderr().count("from memory: step") == n_deaths
    calm, killed = found
    assert killed[0]["paths"] == ["replicated"] != calm[0]["paths"]
    assert {worker["digest"] for worker in killed} == {calm[0]["digest"]}
    assert {worker["rate"] for worker in killed} == {calm[0]["rate"]}
    for name, logs in calm[0]["history"].items():
        got = killed[0]["history"][name]
        assert len(got) == 1
        assert got == logs[-1:], name


@pytest.mark.parametrize("consistency", ["ssp", pytest.param("asp", marks=pytest.mark.long)])
def test_asynchronous_workers_train(launch: Launch, consistency: str) -> None:
    run = ranks(launch, 5, "--servers", "2", "--consistency", consistency, "--epochs", "8")
    # A worker that begins later begins with what others have learned.
    first = max(worker["first"]["loss"][0] for worker in run)
    for worker in run:
        assert worker["history"]["loss"][-1] < 0.8 * first


def test_workers_that_read_different_batches_are_told(launch: Launch) -> None:
    launched = launch(4, [sys.executable, str(SCRIPT), "--other-order"], timeout=100.0)
    assert launched.wait() == 2, launched.tail(60)
    assert "the workers have read different batches in this epoch" in launched.stderr()
