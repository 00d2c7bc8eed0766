"""The state of a torch model with rows, and of its optimizer, on several ranks: worker 0 saves it alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import launcher
import pytest
from launcher import results

pytest.importorskip("torch", reason="torch is not installed")

SCRIPT = Path(__file__).with_name("programs") / "state_script.py"
TCP = {"OMPI_MCA_btl": "tcp,self"}
Launch = Callable[..., launcher.Launch]


@pytest.mark.parametrize(
    ("consistency", "env"),
    [
        ("bsp", {}),
        pytest.param("bsp", TCP, marks=pytest.mark.long),
        pytest.param("asp", {}, marks=pytest.mark.long),
    ],
)
def test_worker_0_saves_the_rows_and_moments_of_all_servers_alone(
    launch: Launch, consistency: str, env: dict[str, str]
) -> None:
    command = [sys.executable, str(SCRIPT), "--consistency", consistency]
    saver, other = results(launch(5, command, env=env, timeout=100.0))
    assert other["keys"] == []
    assert saver["keys"] == [[*range(100), 2**40]] * 3
    for own in saver["momenta"]:
        assert own[2:100] == list(range(2, 100))
    if consistency == "bsp":
        assert [own[:2] + own[100:] for own in saver["momenta"]] == [
            [1, 1.5, 2],
            [1.5, 1.75, 3],
            [1.75, 1.875, 3.5],
        ]
        assert saver["buffers"] == [[40000, 5.5], [40000, 4.75], [40000, 4.375]]
    for step, values in enumerate(saver["values"], start=1):
        assert [row[1:] for row in values] == [[row[0]] * 2 for row in values]
        assert [row[0] for row in values[2:100]] == list(range(2, 100))
        first, second, shared = values[0][0], values[1][0], values[100][0]
        if consistency == "bsp":
            assert (first, second, shared) == (-step, 1 - step, -2 * step)
        else:
            # The other worker may be at any step. Each step is a push of its own.
            assert first == -2 * step
            assert (1 - second) % 2 == 0
            assert -6 - 2 * step <= shared <= -2 * step
