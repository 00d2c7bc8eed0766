"""What people see of a run with a real mpirun: `mpips top` meanwhile, the summary at its end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from supervised import PROGRAMS, Run, made_data, start

from mpips import _native

sys.path.insert(0, str(PROGRAMS))
import zipf


def top(run: Run, *options: str) -> str:
    """What `mpips top` says of a run."""
    done = subprocess.run(
        [sys.executable, "-m", "mpips", "top", str(run.path), "--once", *options],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def at_work(run: Run) -> dict[str, dict[str, Any]]:
    """Ranks by role, once all have been heard of and their rates are known."""
    found: dict[str, dict[str, Any]] = {}

    def known(status: dict[str, Any]) -> bool:
        table = run.read("ranks.json") or {"ranks": [], "generation": -1}
        found.update({row["role"]: row for row in table["ranks"]})
        rates = [r["samples_per_s"] for role, r in found.items() if "worker" in role]
        return len(rates) == 2 and all(rates) and status["generation"] == table["generation"]

    run.until(known)
    return found


def test_a_run_is_shown_while_it_runs_and_summed_up_at_its_end(tmp_path: Path) -> None:
    sets = [w for s in ("train.epochs=12", "options.pause_s=0.02") for w in ("--set", s)]
    job = ["faulty_task:Faulty", "--train", str(made_data(tmp_path)), *sets]
    run = start(tmp_path, "-n", "5", "--servers", "2", *job)
    with run.launched:
        ranks = at_work(run)
        assert {"scheduler", "server 0", "server 1", "worker 0", "worker 1"} == set(ranks)
        for role in ("server 0", "server 1"):
            assert ranks[role]["records_per_s"] > 0
            assert ranks[role]["push_bytes_per_s"] > 0
            assert ranks[role]["memory_bytes"] > 1 << 16
        assert ranks["worker 1"]["push_bytes_per_s"] > 0
        assert ranks["worker 1"]["pull_bytes_per_s"] > 0
        # Stopped, so that the job cannot end meanwhile.
        os.kill(ranks["worker 0"]["pid"], signal.SIGSTOP)
        shown = top(run)
        for role, row in ranks.items():
            line = next(line for line in shown.splitlines() if role in line)
            assert row["host"] in line
        assert "running  attempt 0" in shown
        assert "updates direct" in shown
        told = json.loads(top(run, "--json"))
        assert told["alive"]
        before = told["status"]["progress"]
        assert 0 < before["share"] < 1
        assert before["n_epochs"] == 12

        # After a restart the share goes on where it was, also where epochs do not tell.
        os.kill(ranks["worker 0"]["pid"], signal.SIGKILL)
        after = run.until(lambda s: s["generation"] == 1 and s["progress"]["samples"] > 0)
        assert after["progress"]["share"] > before["share"]
        assert run.launched.wait() == 0, run.launched.tail(60)
        check_end(run, tmp_path)


def check_end(run: Run, tmp_path: Path) -> None:
    """The summary and what `mpips top` says of a run that is over."""
    shown = top(run)
    assert "done" in shown.splitlines()[0]
    assert "1 failure" in shown
    text = (run.path / "summary.txt").read_text()
    assert text.strip() in run.launched.stdout().replace("\r", "")
    # A header and at most twelve epochs.
    epochs = re.search(r"  by epoch .*\n(?: {16,}\d+ +[\d.]+\n)*", text)
    assert epochs
    assert len(epochs[0].splitlines()) <= 13, text
    assert len(text.splitlines()) - len(epochs[0].splitlines()) <= 25, text
    # But for paths, which are as long as they are.
    short = text
    for path, name in ((run.path, "runs/NAME"), (run.path.parent, "runs"), (tmp_path, "data")):
        short = short.replace(str(path), name)
    assert all(len(line) <= 96 for line in short.splitlines()), text
    summary = run.read("summary.json")
    assert summary is not None
    # 12 epochs of 22 steps, whatever the restart has cost.
    assert summary["steps"] == 12 * 22
    assert summary["setbacks"]["restarts"] == 1
    assert 0 < summary["setbacks"]["seconds"] < 60
    assert summary["roles"] == {"scheduler": 1, "server": 2, "worker": 2}
    assert summary["options"]["train.epochs"] == 12
    for part in ("2 servers, 2 workers", "train.epochs=12", "step 264", "HDF5 1.", "mpips 0."):
        assert part in " ".join(text.split())
    assert "restarts      1: " in text
    assert "killed by SIGKILL" in " ".join(text.split())


def test_the_hottest_rows_of_two_servers_are_found(tmp_path: Path) -> None:
    """Expected pulls and pushes of a key: the probability that a batch has it."""
    run = start(tmp_path, "-n", "5", str(PROGRAMS / "zipf.py"))
    with run.launched:
        run.until(lambda _: len((run.read("ranks.json") or {}).get("load", {}).get("rows", ())) > 0)
        assert "rows      e[" in top(run)
        assert run.launched.wait() == 0, run.launched.tail(60)
    weights = 1.0 / np.arange(1, zipf.N_KEYS + 1) ** 1.2
    in_batch = 1.0 - (1.0 - weights / weights.sum()) ** zipf.BATCH
    expected = dict(zip(zipf.KEYS.tolist(), in_batch / in_batch.sum(), strict=True))
    ranks = run.read("ranks.json")
    assert ranks is not None
    rows = ranks["load"]["rows"]
    assert {row["table"] for row in rows} == {"e"}
    assert [row["key"] for row in rows] != sorted(row["key"] for row in rows)
    # Neighbours in the order may change places, and both servers have some of the eight.
    assert {row["key"] for row in rows[:3]} <= set(zipf.KEYS[:6].tolist())
    assert {row["key"] for row in rows} <= set(zipf.KEYS[:14].tolist())
    for row in rows:
        assert row["share"] == pytest.approx(expected[row["key"]], rel=0.25)
        assert row["pulls_per_s"] == pytest.approx(row["pushes_per_s"], rel=0.25)
    owners = _native.Partitioner.hash(2).owners(np.array([row["key"] for row in rows]))
    assert set(owners.tolist()) == {0, 1}
    lines = [json.loads(line) for line in (run.path / "history.jsonl").read_text().splitlines()]
    kept = [line["rows"] for line in lines if line["type"] == "counts" and line["rows"]]
    assert {key for key, *_ in kept[-1]["1"]} <= set(zipf.KEYS[:14].tolist())
    assert len(kept) > 1
