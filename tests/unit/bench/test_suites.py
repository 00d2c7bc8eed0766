"""The suites by name: where each of them is, and what is said of those that have moved."""

from __future__ import annotations

import importlib
import subprocess
import sys
import typing

import msgspec
import pytest
from click.testing import CliRunner

from mpips.bench import measure, suites
from mpips.bench.launching import Options, collect, rank_command
from mpips.bench.measure import Comparison, Findings
from mpips.cli.bench import command
from tests.bench import suites as of_developers
from tests.bench.options import SuiteOptions

# Programs that suites start on ranks.
PROGRAMS = [
    *("dense:push", "dense:pull", "embedding:run", "transport:run", "checkpoint:run", "cut:run"),
    *("partners:run", "plan:run", "network:run", "adapting:run"),
    *("insitu:push", "insitu:solve", "insitu:gather"),
]
OWN_PROGRAMS = [
    *("train:steps", "train:idle", "train:samples", "train:pushes", "scale:crowd"),
    *("big_table:fill", "soak:push", "placement:steps_of_jobs", "lookahead:one_worker"),
    *("lookahead:two_workers", "groups:dense", "groups:rows", "groups:racks"),
    *("small_tables:pulls", "priority:layers"),
]


# Suites that `mpips bench` had before.
MOVED = [
    *("train", "data", "logistic", "diloco", "placement", "word2vec", "monitor", "scale"),
    "soak",
]


@pytest.mark.parametrize("name", MOVED)
def test_a_suite_that_has_moved_is_refused_with_the_command_that_runs_it(name: str) -> None:
    result = CliRunner().invoke(command, [name, "--quick"])
    assert result.exit_code == 2
    line = result.output.splitlines()[-1]
    assert line == (
        f"Error: the suite '{name}' is no longer part of mpips bench: in the repository of mpips run "
        f"python -m tests.bench {name}"
    )
    assert name in of_developers.OWN
    assert name not in suites.SUITES


@pytest.mark.parametrize(
    ("arguments", "suite"),
    [
        (["soak", "--seconds", "10"], "soak"),
        (["--workers=1000", "scale"], "scale"),
        (["recovery", "--kills", "3"], "kills"),
        (["recovery", "--matrix"], "kills"),
    ],
)
def test_options_of_suites_that_have_moved_are_refused_with_the_command(
    arguments: list[str], suite: str
) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert result.output.splitlines()[-1].endswith(f"run python -m tests.bench {suite}")


def test_another_name_is_refused_with_those_that_there_are() -> None:
    result = CliRunner().invoke(command, ["pushes"])
    assert result.exit_code == 2
    assert all(f"'{name}'" in result.output for name in suites.SUITES)
    assert "no longer" not in result.output


@pytest.mark.parametrize("name", of_developers.SUITES)
def test_every_suite_has_a_module_that_runs_it(name: str) -> None:
    if name in ("torch", "gpu"):
        pytest.importorskip("torch", reason="the suite trains models of PyTorch")
    module = importlib.import_module(of_developers.SUITES[name][0])
    assert list(typing.get_type_hints(module.run)) == ["suite", "options", "nodes", "return"]


def test_programs_say_which_options_they_take() -> None:
    # Some programs import MPI (without starting it), so look at them in a process of their own.
    names = [f"mpips.bench.rank.{name}" for name in PROGRAMS]
    names += [f"tests.bench.{name}" for name in OWN_PROGRAMS]
    code = f"""
import importlib, typing
import mpi4py
mpi4py.rc.initialize = False
from mpips.bench.launching import Options
for name in {names}:
    module, _, function = name.partition(":")
    hints = typing.get_type_hints(getattr(importlib.import_module(module), function))
    assert issubclass(hints["options"], Options), name
    assert list(hints) == ["ranks", "options", "return"], name
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_options_of_developers_reach_a_program_and_findings_come_back(tmp_path) -> None:
    options = SuiteOptions(steps=7, quick=True)
    command_line = rank_command("tests.bench.soak:push", options, tmp_path)
    assert command_line[1:4] == ["-m", "mpips.bench.rank", "tests.bench.soak:push"]
    assert msgspec.json.decode(command_line[4], type=SuiteOptions) == options
    found = Findings(notes=["a"], comparisons=[compared("idle_cpu", 0.5)])
    for rank in (2, 1):
        (tmp_path / f"{rank}.json").write_bytes(msgspec.json.encode(found))
    both = collect(tmp_path)
    assert both.notes == ["a", "a"]
    assert both.comparisons == found.comparisons * 2


def compared(name: str, ratio: float) -> Comparison:
    return Comparison(
        name=name, what="", unit="s", ours=[ratio], baseline=[1.0], baseline_name="one"
    )


@pytest.mark.parametrize(
    ("sense", "bar", "met"),
    [
        ("<=", 0.5, True),
        ("<=", 0.4, False),
        (">=", 0.5, True),
        (">=", 0.6, False),
        ("within", 2.0, True),
        ("within", 1.9, False),
    ],
)
def test_a_ratio_meets_its_bar_or_not(sense: str, bar: float, met: bool) -> None:
    found = Findings(comparisons=[compared("a", 0.5), compared("b", 0.5)])
    assert [c.met for c in found.comparisons] == [None, None]
    found.judge({"a": (sense, bar)})
    assert [c.met for c in found.comparisons] == [met, None]
    found.judge({})
    assert found.comparisons[0].met is None


def test_a_suite_is_judged_by_its_own_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    # A ratio has one bar.
    assert not measure.BARS.keys() & of_developers.bars.BARS.keys()
    node = importlib.import_module("mpips.bench.node")
    monkeypatch.setattr(
        node, "run", lambda *_: Findings(comparisons=[compared("push_64m_vs_sum", 0.9)])
    )
    found = suites.run_suite("push", Options(), 0)
    assert found.comparisons[0].bar == (">=", 0.85)
    found = suites.run_suite("push", Options(), 0, bars={"push_64m_vs_sum": (">=", 0.95)})
    assert found.comparisons[0].met is False
