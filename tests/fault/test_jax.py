"""A JAX script on several ranks: as one process with the joined batch, with equal bits, and after deaths."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launcher
import numpy as np
import pytest
from launcher import results

pytest.importorskip("jax", reason="jax is not installed")

SCRIPT = Path(__file__).with_name("programs") / "jax_script.py"
Launch = Callable[..., launcher.Launch]


def ranks(launch: Launch, n: int, *arguments: str, env: dict[str, str] | None = None) -> list[Any]:
    return results(launch(n, [sys.executable, str(SCRIPT), *arguments], env=env, timeout=100.0))


def test_workers_do_what_one_process_does_and_transports_have_equal_bits(
    launch: Launch, tmp_path: Path
) -> None:
    command = [sys.executable, str(SCRIPT)]
    with launcher.Launch(command, launcher.site_environment(), 60.0, tmp_path) as launched:
        (whole,) = results(launched)
    tcp = {"OMPI_MCA_btl": "tcp,self"}
    runs = [
        ranks(launch, 6, "--servers", "2"),
        ranks(launch, 6, "--servers", "2", "--transport", "rma", env=tcp),
    ]
    assert len(runs[0]) == len(runs[1]) == 3
    assert len({found["digest"] for run in runs for found in run}) == 1
    for name, wanted in whole["values"].items():
        got = np.array(runs[0][0]["values"][name])
        assert np.abs(got - wanted).max() <= 1e-4 * np.abs(wanted).max(), name
    losses = np.mean([found["losses"] for found in runs[0]], axis=0)
    np.testing.assert_allclose(losses, whole["losses"], rtol=1e-3)


@pytest.mark.timeout(300)
def test_a_run_that_is_killed_ends_with_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    found = []
    for name, deaths, placement in (
        ("calm", "", "servers"),
        ("killed", "0,5,5,17", "replicated"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        command = [
            sys.executable,
            "-m",
            "mpips",
            "run",
            "-n",
            "5",
            "--max-restarts",
            "9",
            str(SCRIPT),
        ]
        command += ["--servers", "2", "--noise", "--kill", deaths, "--placement", placement]
        with launcher.Launch(command, launcher.site_environment(), 120.0, folder) as launched:
            found.append(results(launched))
            assert launched.stderr().count("killed by SIGKILL") == len(deaths.split(",")) - (
                not deaths
            )
            said = launched.stderr()
            assert said.count("from memory: step") == (4 if deaths else 0)
    calm, killed = found
    assert killed[0]["paths"] == ["replicated"] != calm[0]["paths"]
    assert {worker["digest"] for worker in killed} == {calm[0]["digest"]}
    assert killed[0]["losses"] == calm[0]["losses"][-len(killed[0]["losses"]) :]
    assert len(killed[0]["losses"]) == 3


@pytest.mark.parametrize("consistency", [pytest.param("ssp", marks=pytest.mark.long), "asp"])
def test_asynchronous_workers_train(launch: Launch, consistency: str) -> None:
    for worker in ranks(launch, 5, "--servers", "2", "--consistency", consistency, "--steps", "80"):
        assert np.mean(worker["losses"][-6:]) < 0.8 * np.mean(worker["losses"][:6])
