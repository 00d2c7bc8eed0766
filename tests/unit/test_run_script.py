"""The script that runs all tests: its stages, and what it counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
