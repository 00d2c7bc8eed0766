"""A real run under ASP and SSP is recorded, checked, and repeated with the same bits."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import launcher
import pytest
from supervised import ENVIRONMENT, PROGRAMS, command, job

from mpips.model.consistency import NEVER
from mpips.record.files import read_all
from mpips.record.legs import legs_of
from mpips.rundir.directory import RunFolder

SCRIPT = str(PROGRAMS / "asynchronous.py")
RECORD = ["--set", "monitor.record=true"]


RESTARTING = str(PROGRAMS / "restarting.py")


def mpips(
    folder: Path, *arguments: str, timeout_s: float = 110, **more: str
) -> subprocess.CompletedProcess[str]:
    """A command of mpips in `folder`, with more variables."""
    env = {**launcher.site_environment(), **ENVIRONMENT, **more}
    return subprocess.run(
        [sys.executable, "-m", "mpips", *arguments],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def recorded(folder: Path, *arguments: str) -> Path:
    """Record a run; returns its directory."""
    done = mpips(folder, *command(*arguments)[3:])
    assert done.returncode == 0, done.stderr
    return next((folder / "runs").iterdir())


def digests(run: Path) -> list[dict[str, str]]:
    return [json.loads(path.read_text())["digests"] for path in sorted(run.glob("replayed-*.json"))]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_script_is_repeated_with_the_same_bits_and_a_changed_one_is_named(tmp_path: Path) -> None:
    run = recorded(tmp_path, "-n", "6", *RECORD, SCRIPT)
    checked = mpips(tmp_path, "history", "check", run.name)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "no break" in checked.stdout
    done = mpips(tmp_path, "replay", run.name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "have the same bits" in done.stdout
    [again] = [path for path in (tmp_path / "runs").iterdir() if path != run]
    # The small table is on one server.
    assert [sorted(of) for of in digests(again)] == [["e", "s", "w"], ["e", "w"]]

    # Two replays have the same tables at a break and at a step.
    places = ["--break-at", "w:50", "--break-at", "s:20", "--break-at", "e:20", "--until", "30"]
    for _ in range(2):
        done = mpips(tmp_path, "replay", run.name, *places)
        assert done.returncode == 0, done.stdout + done.stderr
    first, second = sorted((tmp_path / "runs").glob("*/breaks"))
    assert {path.name for path in first.iterdir()} == {"w-50", "s-20", "e-20", "until-30"}
    for name in ("w-50", "s-20", "e-20", "until-30"):
        done = mpips(tmp_path, "ckpt", "diff", str(first / name), str(second / name))
        assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(first.parent)
    shutil.rmtree(second.parent)

    config = json.loads((run / "config.json").read_text())
    config["run"]["script_args"] = ["--changed"]
    (run / "config.json").write_text(json.dumps(config))
    done = mpips(tmp_path, "replay", run.name)
    assert done.returncode == 1, done.stdout + done.stderr
    # Each push behind the first other one is found with 255 of 256 digests.
    assert re.search(
        r"worker 1 sends a push to table '\w' at clock 4[0-3] with other keys or values",
        " ".join(done.stderr.split()),
    ), done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("slow_s", ["0.04", "0.004"])
def test_a_run_that_decides_on_its_switch_is_repeated_with_the_same_bits(
    slow_s: str, tmp_path: Path
) -> None:
    """With a slow worker it switches within 60 clocks; with even ones there is no decision to repeat."""
    shape = command("-n", "6", *RECORD, str(PROGRAMS / "uneven.py"))[3:]
    done = mpips(tmp_path, *shape, SLOW_S=slow_s)
    assert done.returncode == 0, done.stderr
    run = next((tmp_path / "runs").iterdir())
    server, *_ = read_all(run / "record" / "attempt-0")[0]
    if slow_s == "0.04":
        assert server.switch is not None
        assert 16 <= server.switch.clock == server.switch.of_attempt < 60
        logs = "".join(p.read_text(errors="replace") for p in run.glob("logs/**/*") if p.is_file())
        assert f"is {server.switch.clock}: from this step" in logs
    clocks = {table.switch_at for table in server.head.tables}
    assert clocks == {server.switch.clock if server.switch is not None else NEVER}
    checked = mpips(tmp_path, "history", "check", run.name)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    # Other times in the replay change nothing: it decides on nothing.
    done = mpips(tmp_path, "replay", run.name, SLOW_S="0.004" if slow_s == "0.04" else "0.04")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "have the same bits" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("model", ["asp", "ssp"])
def test_a_task_is_repeated_with_the_same_bits(model: str, tmp_path: Path) -> None:
    given = job(tmp_path, "logistic")
    run = recorded(
        tmp_path,
        "-n",
        "6",
        "--servers",
        "2",
        "--set",
        f"table.consistency={model}",
        *RECORD,
        *given,
    )
    assert mpips(tmp_path, "history", "check", run.name).returncode == 0
    done = mpips(tmp_path, "replay", run.name)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("kills", "steps"), [(2, 40), (20, 400)])
def test_a_run_with_kills_is_repeated_over_its_restarts(
    kills: int, steps: int, tmp_path: Path
) -> None:
    restarts = ["--max-restarts", str(kills + 5)]
    shape = command("-n", "6", *RECORD, *restarts, RESTARTING, str(steps))[3:]
    done = mpips(tmp_path, *shape, timeout_s=1200, KILLS=str(kills))
    assert done.returncode == 0, done.stderr
    run = next((tmp_path / "runs").iterdir())
    # Each attempt has written a checkpoint, from which the next one began.
    legs = legs_of(RunFolder(run))
    assert [leg.attempt for leg in legs] == list(range(kills + 1))
    checked = mpips(tmp_path, "history", "check", run.name)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"in {kills + 1} attempts: no break" in checked.stdout

    done = mpips(tmp_path, "replay", run.name, timeout_s=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"over {len(legs)} attempts" in done.stdout
    # A launch that would end with a checkpoint ends at a step before it, or at the same one.
    step = min(legs[1].head.begin)
    done = mpips(tmp_path, "replay", run.name, "--until", str(step), "--break-at", "w:10")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"step {step}: tables in" in done.stdout
    [breaks] = (tmp_path / "runs").glob("*/breaks")
    assert [len(list(path.glob("step-*"))) for path in breaks.iterdir()] == [1, 1]
    shutil.rmtree(breaks.parent)
    # Newer checkpoints have replaced the one from which the last attempt began.
    start = legs[-1].head.start.removeprefix("checkpoint ")
    shutil.copytree(run / "kept" / start, run / "checkpoints" / start, dirs_exist_ok=True)
    done = mpips(tmp_path, "replay", run.name, "--from", start)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [digests(path) for path in (tmp_path / "runs").iterdir() if path != run]
    assert found[0] == found[1]
