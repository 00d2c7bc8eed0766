"""Sweeps, with a program in place of `mpips run` that does what its run directory says."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import processes
import pytest
from click.testing import CliRunner

from mpips.cli.sweep import command
from mpips.config.schema import load_config
from mpips.errors import ConfigError
from mpips.supervisor import child
from mpips.supervisor.sweep import Sweep, _Forwarding
from mpips.terminal import table

PYTHON = sys.executable  # the fixture sets another one
FINISHED = {"generation": 0, "time_s": 1.0, "step": 3, "checkpoint": ""}
# `mpips run RUN`: finish with a result, unless a file "fail" or "wait" lies beside the run directory.
PROGRAM = f"""#!{sys.executable}
import json, pathlib, signal, sys, time
run = pathlib.Path(sys.argv[4])
assert sys.argv[1:4] == ["-m", "mpips", "run"], sys.argv
with open(run.parent / "order", "a") as order:
    order.write(run.name[:7] + "\\n")
config = json.loads((run / "config.json").read_text())
if (run.parent / "fail").exists() and config["train"]["epochs"] == 2:
    sys.exit("something\\nmpips run: it broke")
if (run.parent / "wait").exists():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
    (run.parent / "ready").write_text("now")
    # A signal just before a long sleep begins would be handled at the end of the sleep.
    for _ in range(6000):
        time.sleep(0.01)
loss = abs(config["train"]["epochs"] - 3) + 0.5
result = {{"epochs": config["train"]["epochs"], "seconds": 1.5, "loss": loss, "accuracy": 1 - loss / 10,
          "cross_entropy": None}}
if config["data"]["fold"]:
    assert config["data"]["folds"] == 3
    result |= {{"loss": loss + config["data"]["fold"] / 4, "seconds": 2.0}}
if (run.parent / "history").exists():
    result |= json.loads((run.parent / "history").read_text())[str(config["train"]["epochs"])]
(run / "result.json").write_text(json.dumps(result))
(run / "finished.json").write_text(json.dumps({FINISHED!r}))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "python"
    path.write_text(PROGRAM)
    path.chmod(0o700)
    monkeypatch.setattr(child.sys, "executable", str(path))
    monkeypatch.chdir(tmp_path)
    return path


def sweep(*arguments: str, code: int = 0) -> Any:
    done = CliRunner().invoke(command, arguments)
    if isinstance(done.exception, ConfigError):
        raise done.exception
    assert done.exit_code == code, (done.output, done.exception)
    return done


JOB = ("mlp", "--train", "digits", "-n", "3")


def test_a_trial_that_runs_is_watched_until_it_ends() -> None:
    ends = [None, None, 3]

    def wait(timeout_s: float) -> int:
        if (code := ends.pop(0)) is None:
            raise subprocess.TimeoutExpired("mpips", timeout_s)
        return code

    watched: list[int] = []
    process: Any = SimpleNamespace(wait=wait)
    assert _Forwarding().wait(process, lambda: watched.append(len(ends))) == 3
    assert watched == [2, 1]


def test_trials_compute_the_metric_that_counts(program: Path) -> None:
    sweep(*JOB, "--grid", "train.epochs=1,2", "--metric", "pr_auc")
    sweep(*JOB, "--grid", "train.epochs=1,2", "--metric", "auc", "--folder", "other")
    for folder, metrics in (("sweeps/mlp", ["pr_auc"]), ("other", [])):
        for config in Path(folder).glob("trial-*/config.json"):
            assert json.loads(config.read_text())["train"]["metrics"] == metrics


def test_all_trials_run_once_and_the_best_is_first(program: Path) -> None:
    done = sweep(*JOB, "--grid", "train.epochs=1,2,3,5")
    assert "mpips sweep: 4 trials in sweeps/mlp" in done.stderr
    assert "1/4  train.epochs=1: training loss 2.5000, 1 epoch, 1.5 s" in done.stderr
    lines = done.stdout.splitlines()
    heads = "trial train.epochs training loss epoch accuracy epochs s state"
    assert lines[0].split() == heads.split()
    assert [line.split()[0] for line in lines[1:5]] == ["3", "2", "1", "4"]
    assert lines[5].startswith("best: train.epochs=3, training loss 0.5000, in sweeps/mlp/trial-3-")
    order = Path("sweeps/mlp/order")
    assert order.read_text().split() == ["trial-1", "trial-2", "trial-3", "trial-4"]
    # Continued, it has nothing to do; it can be shown by another metric.
    assert sweep("sweeps/mlp").stdout == done.stdout
    shown = sweep("sweeps/mlp", "--show", "--json", "--metric", "accuracy").stdout.splitlines()
    assert [json.loads(line)["number"] for line in shown] == [3, 2, 1, 4]
    assert json.loads(shown[0])["metrics"] == {"loss": 0.5, "accuracy": 0.95}
    assert order.read_text().count("\n") == 4
    with pytest.raises(ConfigError, match="has a sweep already; continue it with"):
        sweep(*JOB, "--grid", "train.epochs=1,2")


def rows(*losses: float, final: float, **more: Any) -> dict[str, Any]:
    """A report with an evaluation after each epoch but the last, whose loss is `final`."""
    history = [
        {"epoch": i + 1, "loss": 9.0, "cross_entropy": v, "accuracy": i / 10}
        for i, v in enumerate(losses)
    ]
    return {"history": history, "cross_entropy": final, "evaluated_data": "validation", **more}


def test_trials_are_ranked_by_their_best_epochs(program: Path) -> None:
    folder = Path("sweeps/mlp")
    folder.mkdir(parents=True)
    tested = {"test_metrics": {"cross_entropy": 0.375, "accuracy": None}}
    found = {
        "3": rows(0.5, 0.25, 0.5, final=0.75, **tested),
        "4": rows(0.5, 0.5, 0.5, 0.375, final=0.375, **tested),
    }
    (folder / "history").write_text(json.dumps(found))
    done = sweep(*JOB, "--grid", "train.epochs=4,3")
    assert "2/2  train.epochs=3: cross entropy 0.2500 after epoch 2, 3 epochs, 1.5 s" in done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    heads = "trial train.epochs cross entropy epoch accuracy training loss epochs s state"
    assert " ".join(lines[0]) == heads
    # The other metrics are those of the same epoch.
    assert lines[1] == ["2", "3", "0.2500", "2", "0.1000", "0.5000", "3", "1.5", "done"]
    assert lines[2][:4] == ["1", "4", "0.3750", "4"]
    best = done.stdout.splitlines()[3]
    text = (
        "best: train.epochs=3, cross entropy 0.2500 after epoch 2, test cross entropy 0.3750, in "
    )
    assert best.startswith(text)
    first = json.loads(sweep(str(folder), "--show", "--json").stdout.splitlines()[0])
    assert first["metrics"]["cross_entropy"] == 0.75
    assert (first["best"]["value"], first["best"]["epoch"]) == (0.25, 2)
    assert first["test_metrics"] == {"cross_entropy": 0.375}
    # The loss of the training counts at the end.
    shown = sweep(str(folder), "--show", "--metric", "loss").stdout.splitlines()
    assert shown[1].split()[:4] == ["2", "3", "0.5000", "3"]


def test_the_table_has_the_best_trial_in_green_and_states_in_their_colours(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "has_colour", lambda stream: True)
    Path("found").mkdir()
    Path("found/fail").touch()
    # The trial of two epochs fails, that of three is best.
    done = sweep(*JOB, "--grid", "train.epochs=2,3,5", "--folder", "found", code=1)
    found = [re.findall(r"\x1b\[(\d+)m(.*?)\x1b\[0m", line) for line in done.stdout.splitlines()]
    assert {style for style, _ in found[0]} == {"1"}
    assert found[1] == [
        ("32", text) for text in ["2", "3", "0.5000", "3", "0.9500", "3", "1.5", "done"]
    ]
    assert found[2] == [("32", "done")]
    assert found[3] == [("33", "not started")]
    # Without a trial that is done, nothing is best.
    Path("none").mkdir()
    Path("none/fail").touch()
    done = sweep(*JOB, "--grid", "train.epochs=2", "--folder", "none", code=1)
    assert re.findall(r"\x1b\[\d+m", done.stdout.splitlines()[1]) == ["\x1b[33m", "\x1b[0m"]


def test_a_narrow_terminal_has_options_metric_and_state(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep(*JOB, "--grid", "train.epochs=2,3")
    monkeypatch.setattr(table, "columns", lambda stream: 50)
    lines = sweep("sweeps/mlp", "--show").stdout.splitlines()
    assert lines[0].split() == ["trial", "train.epochs", "training", "loss", "epoch", "state"]
    assert lines[3] == "not shown in 50 columns: accuracy, epochs, s"
    monkeypatch.setattr(table, "columns", lambda stream: 45)
    lines = sweep("sweeps/mlp", "--show").stdout.splitlines()
    assert lines[0].split() == ["trial", "train.epochs", "training", "loss", "state"]


def test_folds_validate_one_job_where_nothing_varies(program: Path) -> None:
    Path("data.svm").write_text("1 1:1\n0 2:1\n" * 50)
    job = ("softmax", "--train", "data.svm", "-n", "3", "--folds", "3")
    done = sweep(*job, "--set", "train.epochs=2")
    assert "mpips sweep: 1 trial, 3 folds each, in sweeps/softmax" in done.stderr
    assert "1/1  fold 3: training loss 2.2500, 2 epochs, 2.0 s" in done.stderr
    rows = done.stdout.splitlines()
    assert rows[1].split()[:4] == ["1", "2.0000", "±", "0.2500"]
    assert rows[2].startswith(
        "training loss 2.0000 ± 0.2500 over 3 folds, in sweeps/softmax/trial-1-fold-1-"
    )


def test_folds_are_runs_of_each_trial_with_mean_and_spread(program: Path) -> None:
    Path("data.svm").write_text("1 1:1\n0 2:1\n" * 50)
    Path("softmax.toml").write_text(
        'task = "softmax"\ndata = { train = "data.svm", validation = 0.1 }\n'
    )
    job = ("softmax.toml", "-n", "3", "--folds", "3")
    with pytest.raises(
        ConfigError, match=r"data\.folds = 3 and data\.validation = 0\.2 are both set"
    ):
        sweep(*job, "--grid", "train.epochs=2,3", "--set", "data.validation=0.2")
    done = sweep(*job, "--grid", "train.epochs=2,3")
    assert "mpips sweep: 2 trials, 3 folds each, in sweeps/softmax" in done.stderr
    assert "1/2  train.epochs=2 fold 3: training loss 2.2500, 2 epochs, 2.0 s" in done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    # Losses 0.75, 1 and 1.25, and 1 more with two epochs.
    assert lines[1] == ["2", "3", "1.0000", "±", "0.2500", "3", "0.9500", "3", "6.0", "done"]
    assert lines[2][:5] == ["1", "2", "2.0000", "±", "0.2500"]
    best = "best: train.epochs=3, training loss 1.0000 ± 0.2500 over 3 folds, in sweeps/softmax/trial-2-"
    assert done.stdout.splitlines()[3].startswith(best)
    shown = sweep("sweeps/softmax", "--show", "--json").stdout.splitlines()
    assert json.loads(shown[0])["folds"] == [0.75, 1.0, 1.25]
    seeds = {
        json.loads(p.read_text())["cluster"]["seed"]
        for p in Path("sweeps/softmax").glob("*/config.json")
    }
    assert len(seeds) == 1
    # A fold that is not done leaves the trial without a value, and is run when the sweep continues.
    (next(Path("sweeps/softmax").glob("trial-2-fold-2-*")) / "finished.json").unlink()
    rows = sweep("sweeps/softmax", "--show").stdout.splitlines()
    assert [row.split()[0] for row in rows[1:3]] == ["1", "2"]
    assert rows[2].split()[2:4] == ["-", "-"]
    assert sweep("sweeps/softmax").stdout == done.stdout


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ("--grid", "cluster.seed=1,2"),
            "cluster.seed: varies, and all trials must have the same folds",
        ),
        (
            ("--grid", "train.epochs=1,2", "--validation", "0.1"),
            "are both set: a fold is the validation",
        ),
        (
            ("--grid", "train.epochs=1,2", "--train", "digits"),
            "is no file of which samples can be held",
        ),
    ],
)
def test_folds_that_cannot_be_are_refused(
    program: Path, more: tuple[str, ...], message: str
) -> None:
    Path("data.svm").write_text("1 1:1\n0 2:1\n" * 50)
    train = () if "--train" in more else ("--train", "data.svm")
    with pytest.raises(ConfigError, match=message):
        sweep("softmax", *train, "-n", "3", "--folds", "3", *more)
    assert not Path("sweeps").exists()


def test_a_trial_that_fails_is_shown_and_tried_again_when_the_sweep_continues(
    program: Path,
) -> None:
    Path("found").mkdir()
    Path("found/fail").touch()
    done = sweep(*JOB, "--grid", "train.epochs=2,3", "--folder", "found", code=1)
    assert "1/2  train.epochs=2: not started (exit 1): mpips run: it broke; log:" in done.stderr
    assert done.stdout.splitlines()[2].split() == ["1", "2", *"-----", "not", "started"]
    Path("found/fail").unlink()
    assert "2 trials" in sweep("found").stderr
    assert Path("found/order").read_text().split() == ["trial-1", "trial-2", "trial-1"]


# A process that sweeps, and does `{between}` when a trial has ended. It sends itself `{number}` within the
# call that starts a trial, once the trial is ready: its process is not known to the sweep yet.
SWEEPING = """
import os, sys, time
from pathlib import Path
from mpips.supervisor import child, sweep
start = child.start
def start_late(*arguments):
    process = start(*arguments)
    while not Path("sweeps/ready").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), {number})
    return process
if {number}:
    child.start = start_late
child.sys.executable = {program!r}
sys.exit(sweep.Sweep.open(Path("sweeps")).run([], lambda *_: {between}))
"""
ENDS = [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 75)]


def sweeping(program: Path, waits: bool, number: int = 0, between: str = "None") -> list[str]:
    """Make a sweep of two trials, which `waits` lets wait for a signal; return the command that runs it."""
    config = load_config(None, [("task", "mlp"), ("data.train", "digits")])
    Sweep.create(Path("sweeps"), "mlp", "", [(("a=1",), config), (("a=2",), config)])
    if waits:
        Path("sweeps/wait").touch()
    text = SWEEPING.format(number=int(number), program=str(program), between=between)
    return [PYTHON, "-c", text]


@pytest.mark.parametrize(("number", "code"), ENDS)
def test_a_signal_goes_to_the_trial_and_ends_the_sweep(
    program: Path, number: signal.Signals, code: int
) -> None:
    # SIGINT goes to the sweep alone, not to a terminal's processes; the trial is sent it as well.
    with subprocess.Popen(sweeping(program, True)) as process:
        assert processes.until(Path("sweeps/ready").exists, 60.0)
        os.kill(process.pid, number)
        assert process.wait(60) == code
    assert Path("sweeps/order").read_text().split() == ["trial-1"]


@pytest.mark.parametrize(("number", "code"), ENDS)
def test_a_signal_that_comes_while_a_trial_is_started_goes_to_it(
    program: Path, number: signal.Signals, code: int
) -> None:
    done = subprocess.run(sweeping(program, True, number), timeout=40, check=False)
    assert done.returncode == code
    assert Path("sweeps/order").read_text().split() == ["trial-1"]


def test_a_sweep_that_is_preempted_between_two_trials_starts_no_other(program: Path) -> None:
    between = f"os.kill(os.getpid(), {int(signal.SIGUSR1)})"
    done = subprocess.run(sweeping(program, False, between=between), timeout=40, check=False)
    assert done.returncode == 75
    assert Path("sweeps/order").read_text().split() == ["trial-1"]


def test_a_trial_that_ends_by_sigusr1_before_it_can_take_it_was_preempted(program: Path) -> None:
    program.write_text(
        program.read_text().replace("signal.signal(signal.SIGUSR1,", "(lambda *_: 0)(0,")
    )
    done = subprocess.run(sweeping(program, True, signal.SIGUSR1), timeout=40, check=False)
    assert done.returncode == 75
    assert Path("sweeps/order").read_text().split() == ["trial-1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (JOB, "nothing varies: give --grid"),
        ((*JOB, "--grid", "train.epoch=1,2"), "unknown key 'train.epoch'"),
        ((*JOB, "--grid", "train.lr=1,2"), r"did you mean 'table.optimizer.lr' \(--lr\)"),
        ((*JOB, "--random", "train.l2=1:2"), "or 'options.l2'"),
        (
            (*JOB, "--grid", "options.batch_size=1,2"),
            r"'train.batch_size' \(--batch-size\)|options",
        ),
        ((*JOB, "--grid", "train.epochs=1,x"), "train.epochs = 'x': must be a whole number"),
        ((*JOB, "--grid", "train.epochs=1,2", "--metric", "f2"), "--metric f2: must be one of"),
        (
            (*JOB, "--grid", "train.epochs=1,2", "--set", "checkpoint.folder=a"),
            "all trials would share",
        ),
        (("job.py", "--grid", "a=1,2"), "a script has no options that a sweep can set"),
        (("mlp", "--show"), "is no folder of a sweep"),
        ((".",), "has no sweep.json"),
        ((".", "--n", "3", "--train", "x"), "--n, --train: . continues with the trials"),
        ((*JOB, "--grid", "train.epochs=1,2", "--spares", "1"), "spares = 1"),
    ],
)
def test_a_sweep_that_cannot_run_is_refused_and_leaves_nothing(
    program: Path, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        sweep(*arguments)
    assert not Path("sweeps").exists()
