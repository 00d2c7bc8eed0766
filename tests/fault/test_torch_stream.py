"""Models larger than a worker on several ranks: within a limit of memory, and killed in backward."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launcher
import pytest
from launcher import results

torch = pytest.importorskip("torch", reason="torch is not installed")
if not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):
    pytest.skip("stream needs torch 2.8 or newer", allow_module_level=True)

SCRIPT = Path(__file__).with_name("programs") / "stream_script.py"
Launch = Callable[..., launcher.Launch]


def ranks(launch: Launch, n: int, *arguments: str, env: dict[str, str] | None = None) -> list[Any]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return results(launch(n, command, env=env, timeout=150.0))


def digest_of(found: list[Any]) -> str:
    (digest,) = {worker["digest"] for worker in found}
    assert isinstance(digest, str)
    return digest


@pytest.mark.timeout(320)
def test_a_model_of_four_times_the_workers_memory_has_the_bits_of_one_without_a_limit(
    launch: Launch,
) -> None:
    size = ("--servers", "2", "--width", "512", "--layers", "130")
    capped = ranks(launch, 5, *size, "--stream", "2", "--cap", "32")
    assert all(worker["refused"] and worker["mib"] > 4 * 32 for worker in capped)
    plain = ranks(launch, 5, *size)
    assert not any(worker["refused"] for worker in plain)
    assert digest_of(capped) == digest_of(plain)
    assert [worker["losses"] for worker in capped] == [worker["losses"] for worker in plain]


def test_a_streamed_model_has_the_same_bits_over_tcp(launch: Launch) -> None:
    tcp = {"OMPI_MCA_btl": "tcp,self"}
    plain = ranks(launch, 4)
    other = ranks(launch, 5, "--servers", "2", "--transport", "rma", "--stream", "1", env=tcp)
    assert digest_of(plain) == digest_of(other)


@pytest.mark.timeout(240)
def test_a_streamed_model_that_is_killed_ends_with_the_bits_of_an_undisturbed_run(
    launch: Launch, tmp_path: Path
) -> None:
    calm = ranks(launch, 4, "--stream", "1")
    command = [sys.executable, "-m", "mpips", "run", "-n", "4", "--progress", "none"]
    command += [str(SCRIPT), "--stream", "1", "--kill", "0,1"]
    with launcher.Launch(command, launcher.site_environment(), 200.0, tmp_path) as launched:
        killed = results(launched)
        assert launched.stderr().count("killed by SIGKILL") == 2, launched.stderr()
    assert digest_of(killed) == digest_of(calm)
