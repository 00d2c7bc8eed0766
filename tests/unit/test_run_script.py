"""The script that runs all tests: its stages, and what it counts."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from script_machine import ROOT


def test_run_refuses_unknown_stages() -> None:
    done = subprocess.run(
        ["bash", str(ROOT / "tests/run.sh"), "unit", "units"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "units" in done.stderr
    assert "sanitize" in done.stderr


REPORT = """<testsuites><testsuite>
<testcase classname="t" name="a"/>
<testcase classname="t" name="b">{}</testcase>
</testsuite></testsuites>"""


def tally(code: int, *reports: Path) -> tuple[int, int, int]:
    """What tests/tally.py counts."""
    command = [sys.executable, str(ROOT / "tests/tally.py"), str(code), *map(str, reports)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    passed, failed, skipped = map(int, done.stdout.split())
    return passed, failed, skipped


def test_a_test_failed_if_it_failed_on_any_rank(tmp_path: Path) -> None:
    ranks = [tmp_path / f"{i}.xml" for i in range(3)]
    for path, child in zip(ranks, ("", "<failure/>", "<skipped/>"), strict=True):
        path.write_text(REPORT.format(child))
    assert tally(1, *ranks) == (1, 1, 0)
    assert tally(0, ranks[0], ranks[2]) == (2, 0, 0)
    assert tally(0, ranks[2]) == (1, 0, 1)


def test_silence_counts_as_a_failure(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    assert tally(0, report) == (0, 1, 0)
    report.write_text("<testsuites/>")
    assert tally(5, report) == (0, 1, 0)
    report.write_text("<testsuites><testcase name='a'><skipped/></testcase></testsuites>")
    assert tally(0, report) == (0, 1, 1)
    report.write_text(REPORT.format(""))
    assert tally(0, report) == (2, 0, 0)
    assert tally(137, report) == (2, 1, 0)


def test_the_slowest_tests_are_listed_first(tmp_path: Path) -> None:
    report = tmp_path / "unit.xml"
    cases = "".join(f'<testcase classname="t" name="{n}" time="{n}.5"/>' for n in (1, 3, 2))
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    command = [
        sys.executable,
        str(ROOT / "tests/tally.py"),
        "--slowest",
        "2",
        str(report),
        "none.xml",
    ]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [line.split() for line in out.splitlines()] == [
        ["3.5", "s", "unit", "t::3"],
        ["2.5", "s", "unit", "t::2"],
    ]


SKIPPED = """<testsuites><testsuite>
<testcase classname="" name="tests.unit.a"><skipped type="pytest.skip" message="collection skipped">
('{folder}/test_a.py', 3, "Skipped: could not import 'torch': No module named 'torch'")</skipped></testcase>
<testcase classname="" name="tests.unit.b"><skipped type="pytest.skip" message="collection skipped">
('{folder}/test_b.py', 3, 'Skipped: mpips.torch needs PyTorch')</skipped></testcase>
<testcase classname="t" name="c"><skipped type="pytest.skip" message="compares with PyTorch"/></testcase>
<testcase classname="t" name="d"><skipped type="pytest.skip" message="keras is not installed"/></testcase>
<testcase classname="t" name="e"><skipped type="pytest.skip" message="jax has no such device"/></testcase>
<testcase classname="t" name="f"><skipped type="pytest.skip" message="long: run by tests/run.sh"/></testcase>
<testcase classname="t" name="g"/>
</testsuite></testsuites>"""


def test_tests_without_their_library_are_counted(
    tallying: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_a.py").write_text("def test_1(): ...\ndef test_2(): ...\ndef other(): ...\n")
    (tmp_path / "test_b.py").write_text("class TestIt:\n    def test_1(self): ...\n")
    reports = [tmp_path / "unit.xml", tmp_path / "again.xml", tmp_path / "none.xml"]
    for report in reports[:2]:
        report.write_text(SKIPPED.format(folder=tmp_path))
    monkeypatch.setattr(tallying, "importable", lambda name: name == "jax")
    assert tallying.missing(reports) == [
        "keras is not installed: 1 tests were skipped for it",
        "torch is not installed: 4 tests were skipped for it, in 2 modules as a whole",
    ]
    monkeypatch.setattr(tallying, "importable", lambda name: True)
    assert tallying.missing(reports) == []


@pytest.fixture(scope="module")
def tallying() -> ModuleType:
    """The module tests/tally.py."""
    spec = importlib.util.spec_from_file_location("tally_module", ROOT / "tests/tally.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CPU = """<testcase classname="t" name="{}"><properties>
<property name="other" value="99"/><property name="cpu_s" value="{}"/></properties></testcase>"""


def test_processor_times_are_read_from_each_report(tallying: ModuleType, tmp_path: Path) -> None:
    names = ("unit", "mpi-2-0", "mpi-2-1", "mpi-3-2", "broken")
    unit, *ranks, broken = (tmp_path / f"{name}.xml" for name in names)
    cases = CPU.format("a", "1.5") + CPU.format("b", "0.25") + '<testcase name="skipped"/>'
    unit.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    for seconds, rank in enumerate(ranks, 3):
        rank.write_text(f"<testsuites>{CPU.format('a', seconds)}</testsuites>")
    broken.write_text("<testsuites>")
    found = tallying.cpu_times([unit, *ranks, broken, tmp_path / "none.xml"])
    assert found == {"unit": {"t::a": 1.5, "t::b": 0.25}, "mpi": {"t::a": 3.0 + 4.0 + 5.0}}


def test_what_was_skipped_keeps_its_stored_time(tallying: ModuleType, tmp_path: Path) -> None:
    skipped = CPU.format("rests", "0.01").replace("</testcase>", "<skipped/></testcase>")
    report = tmp_path / "unit.xml"
    cases = CPU.format("a", "1.5") + CPU.format("quick", "0.1") + skipped
    sampled = CPU.format("grid", "7").replace("cpu_s", "sampled_s")
    report.write_text(f"<testsuites><testsuite>{cases}{sampled}</testsuite></testsuites>")
    old = {"unit t::a": 9.0, "unit t::rests": 8.0, "unit t::gone": 7.0, "fault t::b": 6.0}
    old["unit t::quick"] = 5.0
    assert tallying.merged([report], "cpu_s", old) == {
        "unit t::a": 1.5,
        "unit t::rests": 8.0,
        "fault t::b": 6.0,
    }
    assert tallying.merged([report], "sampled_s", {}) == {"unit t::grid": 7.0}


def test_tests_that_grew_are_named_and_a_slower_machine_is_no_growth(tallying: ModuleType) -> None:
    before = {"a": 1.0, "b": 2.0, "c": 4.0, "small": 0.05}
    assert tallying.grown({name: 2 * s for name, s in before.items()}, before, 10) == []
    now = {"a": 2.0, "b": 9.0, "c": 8.0, "small": 0.1, "new": 3.0}
    lines = [line.split() for line in tallying.grown(now, before, 10)]
    assert lines == [["9.0", "s", "+5.0", "s", "b"], ["3.0", "s", "+3.0", "s", "new", "(new)"]]
    assert len(tallying.grown(now, before, 1)) == 1
    assert [line.split()[0] for line in tallying.grown(now, {}, 10)] == ["9.0", "8.0", "3.0", "2.0"]


FEW = """
import pytest
from long_runs import by_day

@pytest.mark.long
def test_large(): pass

@pytest.mark.sampled
def test_grid(): print(list(by_day(range(8), 4, 1)))

@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.long)])
def test_parameters(n): pass

def test_plain(): pass
"""


@pytest.mark.parametrize(
    ("variables", "ran", "cases"),
    [
        ({}, {"test_grid", "test_parameters[1]", "test_plain"}, [1, 5]),
        (
            {"MPIPS_TEST_LONG": "1"},
            {"test_large", "test_grid", "test_parameters[2]"},
            list(range(8)),
        ),
        (
            {"MPIPS_TEST_LONG": "1", "MPIPS_TEST_ALL": "1"},
            {"test_large", "test_grid", "test_parameters[1]", "test_parameters[2]", "test_plain"},
            list(range(8)),
        ),
    ],
    ids=["daily", "long", "everything"],
)
def test_the_daily_and_the_long_run_have_each_test_at_least_once(
    tmp_path: Path, variables: dict[str, str], ran: set[str], cases: list[int]
) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    (tmp_path / "test_few.py").write_text(FEW)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  long\n  sampled\n")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MPIPS_TEST", "PYTEST"))}
    env |= {"PYTHONPATH": str(ROOT / "tests/support"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-vs", "--junitxml=r.xml"]
    done = subprocess.run(
        command, cwd=tmp_path, env=env | variables, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if "::" in line]
    passed = {line[0].partition("::")[2] for line in lines if "SKIPPED" not in line}
    assert passed == ran
    assert str(cases) in done.stdout
    report = (tmp_path / "r.xml").read_text()
    assert report.count('<property name="cpu_s"') >= len(ran) - 1
    assert '<property name="sampled_s"' in report


HEAVY = {"test_a": 9.0, "test_b": 8.0, "test_c": 5.0, "test_d": 4.0, "test_e": 0.6}
TURNS = """
import pytest

def test_a(): pass

def test_b(): pass

@pytest.mark.parametrize("n", ["x::y"])
def test_parameters(n): pass

@pytest.mark.sampled
def test_c(): pass

class TestIn:
    def test_d(self): pass

def test_e(): pass

def test_new(): pass
"""


def names_run(folder: Path, *arguments: str, **variables: str) -> set[str]:
    """Run the tests of a copy of the rules, and return the names of those that ran."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MPIPS_", "PYTEST"))}
    env |= {"PYTHONPATH": str(folder / "tests/support"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=env | variables, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if "::" in line]
    return {line[0].partition("::")[2] for line in lines if "PASSED" in line}


@pytest.fixture
def turns(tmp_path: Path) -> Path:
    """A copy of the rules with a few tests in the fault stage, the heavy ones in two parts."""
    rules = (ROOT / "tests/support/long_runs.py").read_text()
    files = {
        "tests/conftest.py": (ROOT / "tests/conftest.py").read_text(),
        "tests/support/long_runs.py": re.sub(r'"fault": \d+}', '"fault": 2}', rules),
        "tests/support/patience.py": (ROOT / "tests/support/patience.py").read_text(),
        "tests/fault/test_few.py": TURNS,
        "pytest.ini": "[pytest]\nmarkers =\n  long\n  sampled\n",
    }
    stored = {f"fault tests.fault.test_few::{name}": cost for name, cost in HEAVY.items()}
    stored["fault tests.fault.test_few::test_parameters[x::y]"] = 7.0
    del stored["fault tests.fault.test_few::test_d"]
    stored["fault tests.fault.test_few.TestIn::test_d"] = 6.0
    files["tests/cpu.json"] = json.dumps({"tests": stored, "sampled": {}})
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_heavy_tests_take_turns_and_all_others_run(turns: Path) -> None:
    always = {"test_c", "test_e", "test_new"}
    found = [names_run(turns, "tests", MPIPS_TEST_TURN=str(commit)) for commit in (70, 71, 72)]
    assert found[0] == found[2] != found[1]
    assert found[0] & found[1] == always
    heavy = {"test_a", "test_b", "test_parameters[x::y]", "TestIn::test_d"}
    assert found[0] | found[1] == always | heavy
    assert {len(part - always) for part in found} == {2}
    named = names_run(turns, "tests/fault/test_few.py", MPIPS_TEST_TURN="70")
    assert named == always | heavy
    long = names_run(turns, "tests", MPIPS_TEST_LONG="1")
    assert long == heavy | {"test_c"}


LIMITED = """
import pytest

@pytest.mark.timeout(7)
def test_limited(request): assert request.node.get_closest_marker("timeout").args == (LIMIT,)
"""


@pytest.mark.parametrize(("variables", "limit"), [({}, "7"), ({"MPIPS_TEST_PATIENCE": "2"}, "14")])
def test_a_stage_with_several_launches_at_once_waits_longer(
    turns: Path, variables: dict[str, str], limit: str
) -> None:
    (turns / "tests/fault/test_few.py").write_text(LIMITED.replace("LIMIT", limit))
    with (turns / "pytest.ini").open("a") as file:
        file.write("  timeout\n")
    assert names_run(turns, "tests", **variables) == {"test_limited"}
    # The time limit of a launch has the same factor.
    code = "import launcher; a = launcher.Launch(['true'], {}, 3.0); print(a.timeout_s, a.wait())"
    env = {k: v for k, v in os.environ.items() if k != "MPIPS_TEST_PATIENCE"} | variables
    path = os.pathsep.join(map(str, [ROOT / "tests/support", ROOT]))
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env=env | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert shown.stdout.split() == [str(3.0 * int(limit) / 7), "0"]


def function_of(name: str) -> str:
    """A function of tests/run.sh."""
    text = (ROOT / "tests/run.sh").read_text()
    start = text.index(f"\n{name}() {{")
    return text[start : text.index("\n}\n", start) + 3]


@pytest.mark.parametrize(
    ("settings", "call", "over"),
    [
        ("long=0 pace=2.5", "unit 25", False),
        ("long=0 pace=2.5", "unit 26", True),
        ("long=0 pace=1", "unit 26", True),
        ("long=1 pace=1", "unit 26", False),
        ("long=0 pace=1", "leftovers 1000", False),
    ],
)
def test_a_stage_over_its_budget_fails_in_the_daily_run_alone(
    settings: str, call: str, over: bool
) -> None:
    text = f"{settings}; declare -A budget=([unit]=10); {function_of('over_budget')} over_budget {call}"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=20)
    assert done.stderr == ""
    assert (done.returncode == 0) == over


def test_the_files_that_the_sanitizers_check_exist() -> None:
    """A file that was renamed would be left out in silence, or end the stage."""
    text = (ROOT / "tests/run.sh").read_text()
    for name in ("without_native", "sanitized_by_day"):
        start = text.index(f"\n{name}=(") + len(f"\n{name}=(")
        words = text[start : text.index(")", start)].split()
        assert [word for word in words if not (ROOT / "tests/unit" / word).exists()] == []
