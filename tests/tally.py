"""Add up what pytest reports.

`python tally.py EXIT_CODE REPORT.xml...` prints three numbers: passed, failed, skipped. `python tally.py
--slowest N REPORT.xml...` prints the N slowest tests.

Several reports are those of the ranks of one launch, where a test failed if
it failed on any rank. A launch that went wrong in a way that no report tells counts as a failure, and
so does one that tested nothing; the reason goes to stderr.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

# What counts where ranks, or the phases of a test, differ: the last of these.
_ORDER = ("skipped", "passed", "failed")


def outcome(case: ElementTree.Element) -> str:
    """Passed, failed or skipped, of one test case in a JUnit report."""
    tags = {child.tag for child in case}
    if tags & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in tags else "passed"


def tally(code: int, reports: list[Path]) -> tuple[int, int, int, str]:
    """Count the tests of one launch.

    Args:
        code: Exit code of the launch.
        reports: One per rank.

    Returns:
        Passed, failed, skipped, and what is wrong beyond the tests themselves (or "").
    """
    tests: dict[str, str] = {}
    lost = []
    for report in reports:
        try:
            cases = list(ElementTree.parse(report).iter("testcase"))
        except (OSError, ElementTree.ParseError):
            lost.append(report.name)
            continue
        for case in cases:
            name = f"{case.get('classname')}::{case.get('name')}"
            tests[name] = max(outcome(case), tests.get(name, "skipped"), key=_ORDER.index)
    passed, failed, skipped = (
        sum(outcome == kind for outcome in tests.values())
        for kind in ("passed", "failed", "skipped")
    )
    trouble = ""
    if lost:
        trouble = f"no report {', '.join(lost)} (exit code {code})"
    elif code and not failed:
        trouble = f"exit code {code} although no test failed"
    elif not passed and not failed:
        trouble = "no test ran" if not skipped else "every test was skipped"
    return passed, failed + bool(trouble and not failed), skipped, trouble


def slowest(n: int, reports: list[Path]) -> list[str]:
    """Return a line for each of the `n` slowest tests: seconds, report, name."""
    found = []
    for report in reports:
        try:
            cases = list(ElementTree.parse(report).iter("testcase"))
        except (OSError, ElementTree.ParseError):
            continue
        for case in cases:
            name = f"{case.get('classname')}::{case.get('name')}"
            found.append((float(case.get("time", 0)), report.stem, name))
    return [f"{time:7.1f} s  {stem:<9} {name}" for time, stem, name in sorted(found)[: -n - 1 : -1]]


if __name__ == "__main__" and sys.argv[1] == "--slowest":
    print(*slowest(int(sys.argv[2]), [Path(name) for name in sys.argv[3:]]), sep="\n")
elif __name__ == "__main__":
    *counts, problem = tally(int(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
    if problem:
        print(f"FAILED: {problem}", file=sys.stderr)
    print(*counts)
