"""Trainers of Lightning and transformers on several workers: values of one process, and kills."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import launcher
import pytest
from launcher import results

pytest.importorskip("torch", reason="torch is not installed")

SCRIPT = Path(__file__).with_name("programs") / "trainer_script.py"


def run(folder: Path, *command: str) -> tuple[list[dict[str, Any]], str]:
    folder.mkdir()
    full = [sys.executable, *command]
    with launcher.Launch(full, launcher.site_environment(), 200.0, folder) as launched:
        return results(launched), launched.stderr()


@pytest.mark.long
@pytest.mark.timeout(500)
@pytest.mark.parametrize(("kind", "n_steps"), [("lightning", 12), ("transformers", 12)])
def test_workers_do_what_one_trainer_does_and_continue_after_a_kill(
    tmp_path: Path, kind: str, n_steps: int
) -> None:
    pytest.importorskip(kind, reason=f"{kind} is not installed")
    (whole,), _ = run(tmp_path / "alone", str(SCRIPT), kind)
    parts: dict[str, list[dict[str, Any]]] = {}
    for name, kill in (("calm", []), ("killed", ["6"])):
        supervised = ["-m", "mpips", "run", "-n", "4", str(SCRIPT), kind, *kill]
        parts[name], said = run(tmp_path / name, *supervised)
        assert said.count("killed by SIGKILL") == len(kill), said
    calm, killed = parts["calm"], parts["killed"]
    assert [one["worker"] for one in calm] == [0, 1]
    assert whole["steps"] == calm[0]["steps"] == list(range(n_steps))
    # The first step of the last launch is the one that the kill prevented.
    assert killed[0]["steps"] == list(range(6, n_steps))
    assert len({one["digest"] for one in [*calm, *killed]}) == 1
    for one in [*calm, *killed]:
        assert one["val"] == pytest.approx(whole["val"], rel=1e-4)
    if kind == "lightning":
        for one in calm:
            assert one["train"] == pytest.approx(whole["train"], rel=1e-4)
            assert one["workers"] == [0, 1, 1]
        assert [one["files"] > 0 for one in calm] == [True, False]
    else:
        assert [one["zero"] for one in calm] == [True, False]
        saved = list((tmp_path / "calm").glob("out/checkpoint-*/model.safetensors"))
        assert len(saved) == 3
