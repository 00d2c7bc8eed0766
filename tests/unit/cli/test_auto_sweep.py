"""What `mpips sweep --auto` varies: ranges of each task, options of a job, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kge_rig import job

from mpips.cli import auto_sweep
from mpips.cli.sweep import command
from mpips.config.schema import load_config, parse_assignment
from mpips.config.variation import Range, parse_random
from mpips.errors import ConfigError
from mpips.supervisor.sweep import Sweep
from mpips.tasks.mlp import Mlp
from mpips.tasks.proposals import among, around, between
from mpips.training.preflight import preflight


def accepted(config: Any) -> Any:
    """Return the check of a sweep: the job with other options passes all checks before a start."""

    def check(assignments: Sequence[str]) -> None:
        pairs = [parse_assignment(text) for text in assignments]
        preflight(load_config(None, [*config, *pairs]), 3, dry_run=True)

    return check


def made(name: str, folder: Path) -> list[tuple[str, Any]]:
    """Return the pairs of a job on a small file of its kind."""
    text = {
        "fm": "1 1:1 3:1\n0 2:1\n" * 40,
        "logistic": "1 1:1 3:1\n0 2:1\n" * 40,
        "mf": "user,item,rating\n" + "".join(f"u{i % 7},i{i % 5},{i % 4}\n" for i in range(60)),
        "word2vec": "a b c a b c\n" * 40,
    }.get(name, "y,city,size\n" + "".join(f"{i % 2},c{i % 3},{i % 11}\n" for i in range(80)))
    ending = {"fm": "svm", "logistic": "svm", "word2vec": "txt"}.get(name, "csv")
    path = folder / f"data.{ending}"
    path.write_text(text)
    pairs: list[tuple[str, Any]] = [
        ("task", name),
        ("data.train", str(path)),
        ("data.test", str(path)),
    ]
    return pairs + ([("data.label", "y")] if text.startswith("y,") else [])


TASKS = {
    "softmax": ("learning_rate", "prior"),
    "mlp": ("learning_rate", "l2", "prior", "hidden"),
    "logistic": ("prior", "learning_rate"),
    "fm": ("factor_learning_rate", "factor_prior", "prior", "dim"),
    "wide_deep": ("learning_rate", "prior", "l2", "dim", "hidden"),
    "deepfm": ("learning_rate", "prior", "l2", "dim", "hidden"),
    "dcnv2": ("learning_rate", "prior", "l2", "dim", "hidden", "cross"),
    "mf": ("l2", "learning_rate", "dim"),
    "word2vec": ("learning_rate",),
}


@pytest.mark.parametrize("name", TASKS)
def test_each_task_proposes_trials_that_pass_all_checks(name: str, tmp_path: Path) -> None:
    pairs = made(name, tmp_path)
    found = auto_sweep.propose(load_config(None, pairs), 6, 3, accepted(pairs), False)
    keys = tuple(f"options.{key}" for key in TASKS[name])
    assert len(found.trials) == len(set(found.trials)) == 6
    for trial in found.trials:
        assert tuple(text.partition("=")[0] for text in trial) == keys
        accepted(pairs)(trial)
    # The first trial is the job as it is.
    own = load_config(None, [*pairs, *(parse_assignment(t) for t in found.trials[0])])
    options = preflight(own, 3, dry_run=True).Options()
    for key, value in own.options.items():
        expected = getattr(options, key)
        if (name, key) == ("mf", "l2"):
            expected = 0.273  # chosen for its few ratings of a user
        assert value == (0.1 if expected is None else expected) or tuple(value) == expected
    assert found == auto_sweep.propose(load_config(None, pairs), 6, 3, accepted(pairs), False)
    assert found != auto_sweep.propose(load_config(None, pairs), 6, 4, accepted(pairs), False)


def test_a_graph_varies_around_what_was_chosen_for_it(tmp_path: Path) -> None:
    config = job(tmp_path, ("checkpoint.folder", ""))
    found = auto_sweep.propose(config, 3, 0, lambda _: None, False)
    assert found.trials[0] == (
        "options.n3=0.05",
        "options.dropout=0.0",
        "options.learning_rate=0.1",
    )
    assert "options.n3" in found.lines[1]
    assert "0.0025 to 1.0, log" in found.lines[1]


def test_what_the_job_sets_does_not_vary_and_is_listed(tmp_path: Path) -> None:
    pairs = [*made("mlp", tmp_path), ("options.l2", 0.25), ("table.optimizer.lr", 0.5)]
    found = auto_sweep.propose(load_config(None, pairs), 4, 0, accepted(pairs), False)
    assert {text.partition("=")[0] for trial in found.trials for text in trial} == {
        "options.prior",
        "options.hidden",
    }
    rows = {line.split()[0]: line for line in found.lines}
    assert "not varied" in rows["options.l2"]
    assert rows["options.l2"].endswith("the job sets it to 0.25")
    assert "because [table] sets another optimizer" in rows["options.learning_rate"]


def test_ranges_are_as_the_option_random_takes_them() -> None:
    wanted = {
        "a=0.002:0.2:log": around("a", 0.02, 10, ""),
        "a=1.0:400.0:log": around("a", 20.0, 20, ""),
        "a=2:10": between("a", 5, 2, 10, ""),
        "a=0.0:2.0": between("a", 1.0, 0.0, 2.0, ""),
        "a=[64],[128,64],[32]": among("a", (32,), [[64], [128, 64]], ""),
        "a=4,8": among("a", 8, [4, 8], ""),
    }
    for text, proposal in wanted.items():
        assert f"a={proposal.values}" == text
        parse_random(text)
    found = parse_random("a=1.0:400.0:log")[1]
    assert isinstance(found, Range)
    assert isinstance(found.low, float)


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Sweep, "run", lambda *_: 0)
    monkeypatch.chdir(tmp_path)


def test_the_command_makes_the_trials_and_prints_what_varies(nothing_runs: None) -> None:
    done = CliRunner().invoke(
        command, ["softmax", "--train", "digits", "-n", "3", "--auto", "3", "--seed", "5"]
    )
    assert done.exit_code == 1, done.exception  # no trial has run
    lines = done.output.splitlines()
    assert lines[0] == "--auto 3: trial 1 has the values of the job, the others vary"
    assert lines[1].split() == ["option", "values", "why"]
    assert lines[2].split()[:5] == ["options.learning_rate", "0.01", "to", "1.0,", "log"]
    assert lines[3].split()[:5] == ["options.l2", "6.67e-05", "to", "0.06,", "log"]
    assert lines[4] == "mpips sweep: 3 trials in sweeps/softmax"
    trials = Sweep.open(Path("sweeps/softmax")).content.trials
    assert trials[0].assignments == ("options.learning_rate=0.1", "options.l2=0.002")
    assert len({trial.assignments for trial in trials}) == 3


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--train", "digits", "--grid", "options.l2=1,2"), "--grid: --auto chooses what varies"),
        (("--train", "digits", "--n", "3"), "--n: --auto chooses what varies"),
        (("--train", "a.svm"), "--auto compares trials by data that they were not trained on"),
        (
            ("--train", "digits", "--set", "options.l2=1", "--set", "options.learning_rate=1"),
            "can vary nothing (options.learning_rate: the job sets it to 1; options.l2: the job",
        ),
    ],
)
def test_an_automatic_sweep_that_cannot_be_is_refused(
    nothing_runs: None, more: tuple[str, ...], message: str
) -> None:
    Path("a.svm").write_text("1 1:1\n0 2:1\n")
    done = CliRunner().invoke(command, ["softmax", "-n", "3", "--auto", "3", *more])
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)
    assert not Path("sweeps").exists()


def test_a_task_without_proposals_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Mlp, "proposals", lambda self: [])
    pairs = made("mlp", tmp_path)
    with pytest.raises(ConfigError, match="task 'mlp' proposes nothing to vary; give --grid"):
        auto_sweep.propose(load_config(None, pairs), 4, 0, accepted(pairs), False)
