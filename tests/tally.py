"""Add up what pytest reports.

`python tally.py EXIT_CODE REPORT.xml...` prints three numbers: passed, failed, skipped. `python tally.py
--slowest N REPORT.xml...` prints the N slowest tests; `--missing` a line for each library that is not
installed and for which tests were skipped; `--cpu` the processor time of each report and the tests that grew
since `tests/cpu.json`, which `--store` writes; by it heavy tests take turns (support/long_runs.py).

Several reports are those of the ranks of one launch, where a test failed if
it failed on any rank. A launch that went wrong in a way that no report tells counts as a failure, and
so does one that tested nothing; the reason goes to stderr.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import statistics
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

# What counts where ranks, or the phases of a test, differ: the last of these.
_ORDER = ("skipped", "passed", "failed")
# Processor times of an earlier run: tests of at least _STORED_S seconds by name.
_STORED = Path(__file__).with_name("cpu.json")
_STORED_S = 0.2
# Words by which reasons of skips name libraries.
_WORDS = {"torch": r"\btorch\b|PyTorch", "keras": r"\b[Kk]eras\b", "jax": r"\b(jax|JAX)\b"}
# Wall-clock seconds of the work in `pace` on the idle machine on which the budgets of run.sh were measured.
_REFERENCE_S = 1.5


def outcome(case: ElementTree.Element) -> str:
    """Passed, failed or skipped, of one test case in a JUnit report."""
    tags = {child.tag for child in case}
    if tags & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in tags else "passed"


def cases_of(report: Path) -> list[ElementTree.Element] | None:
    """Return the test cases of a report; None if it cannot be read."""
    try:
        return list(ElementTree.parse(report).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return None


def name_of(case: ElementTree.Element) -> str:
    """Return the name of a test."""
    return f"{case.get('classname')}::{case.get('name')}"


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
        cases = cases_of(report)
        if cases is None:
            lost.append(report.name)
        for case in cases or ():
            name = name_of(case)
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


def missing(reports: list[Path]) -> list[str]:
    """Return a line for each library that is not installed: the tests that were skipped for it.

    A module that is skipped as a whole is one case of a report; its test functions are counted in its text.
    """
    tests: dict[str, dict[str, int]] = {}
    for report in reports:
        for case in cases_of(report) or ():
            for skip in case.iterfind("skipped"):
                reason = f"{skip.get('message', '')} {skip.text or ''}"
                name = next((n for n in wanted_by(reason) if not importable(n)), None)
                if name is None:
                    continue
                is_module = skip.get("message") == "collection skipped"
                path = re.search(r"\('([^']+\.py)'", reason) if is_module else None
                key = path[1] if path else name_of(case)
                tests.setdefault(name, {})[key] = functions(Path(path[1])) if path else 1
    return [
        f"{name} is not installed: {sum(found.values())} tests were skipped for it"
        + (f", in {n} modules as a whole" if (n := sum(k.endswith(".py") for k in found)) else "")
        for name, found in sorted(tests.items())
    ]


def wanted_by(reason: str) -> list[str]:
    """Return the libraries that the reason of a skip may name."""
    found = re.findall(r"could not import '(\w+)", reason)
    return found + [name for name, word in _WORDS.items() if re.search(word, reason)]


def importable(name: str) -> bool:
    """Return True if there is such a library here."""
    return importlib.util.find_spec(name) is not None


def functions(path: Path) -> int:
    """Return the number of test functions of a module, at least 1."""
    try:
        nodes = ast.walk(ast.parse(path.read_text()))
    except (OSError, SyntaxError):
        return 1
    return max(1, sum(isinstance(n, ast.FunctionDef) and n.name[:5] == "test_" for n in nodes))


def slowest(n: int, reports: list[Path]) -> list[str]:
    """Return a line for each of the `n` slowest tests: seconds, report, name."""
    found = []
    for report in reports:
        for case in cases_of(report) or ():
            found.append((float(case.get("time", 0)), report.stem, name_of(case)))
    return [f"{time:7.1f} s  {stem:<9} {name}" for time, stem, name in sorted(found)[: -n - 1 : -1]]


def cpu_times(
    reports: list[Path], kinds: tuple[str, ...] = ("cpu_s", "sampled_s")
) -> dict[str, dict[str, float]]:
    """Return the processor seconds of each test that ran, with its children, by stage and name.

    Those of the ranks of one launch, and of launches on several numbers of ranks, are added up.
    """
    found: dict[str, dict[str, float]] = {}
    for report in reports:
        cases = cases_of(report)
        if cases is None:
            continue
        times = found.setdefault(stage_of(report), {})
        for case in cases:
            for value in case.iterfind("properties/property"):
                if value.get("name") in kinds and outcome(case) != "skipped":
                    name = name_of(case)
                    times[name] = times.get(name, 0.0) + float(value.get("value", 0))
    return found


def stage_of(report: Path) -> str:
    """Return the stage of a report: that of mpi-3-0.xml, of rank 0 of three, is mpi."""
    return report.stem.partition("-")[0]


def names(reports: list[Path]) -> set[str]:
    """Return stage and name of all tests of the reports, also of those that were skipped."""
    found = set()
    for report in reports:
        found |= {f"{stage_of(report)} {name_of(case)}" for case in cases_of(report) or ()}
    return found


def stored() -> dict[str, dict[str, float]]:
    """Return the processor seconds of an earlier run: of tests, and of those that take turns case by case."""
    if not _STORED.exists():
        return {"tests": {}, "sampled": {}}
    found: dict[str, dict[str, float]] = json.loads(_STORED.read_text())
    return found


def merged(reports: list[Path], kind: str, old: dict[str, float]) -> dict[str, float]:
    """Return what to store: the times of the reports, and of tests that were skipped what is stored."""
    stages = {stage_of(report) for report in reports}
    there = names(reports)
    kept = {n: s for n, s in old.items() if n.partition(" ")[0] not in stages or n in there}
    for stage, times in cpu_times(reports, (kind,)).items():
        for name in times:
            kept.pop(f"{stage} {name}", None)
        kept |= {f"{stage} {name}": round(s, 1) for name, s in times.items() if s >= _STORED_S}
    return dict(sorted(kept.items()))


def grown(now: dict[str, float], before: dict[str, float], n: int) -> list[str]:
    """Return a line for each of the `n` tests whose processor time grew most.

    The median ratio of the tests of both runs counts as a change of the machine, not of a test.
    """
    both = [name for name in now if before.get(name, 0) >= _STORED_S]
    scale = statistics.median(now[name] / before[name] for name in both) if both else 1.0
    grew = {name: seconds - scale * before.get(name, 0) for name, seconds in now.items()}
    rows = sorted((name for name in grew if grew[name] >= _STORED_S), key=grew.__getitem__)[::-1]
    return [
        f"{now[name]:7.1f} s  {grew[name]:+7.1f} s  {name}{'' if name in before else ' (new)'}"
        for name in rows[:n]
    ]


def show_cpu(reports: list[Path], store: bool) -> None:
    """Print the processor time of each report and what grew; store the times."""
    found = cpu_times(reports)
    now = {f"{stage} {name}": s for stage, times in found.items() for name, s in times.items()}
    for stage, times in found.items():
        top = sorted(times.values())[-max(1, len(times) // 10) :]
        share = sum(top) / max(sum(times.values()), 1e-9)
        print(f"{stage:<9} {sum(times.values()):7.0f} s   {share:4.0%} in a tenth of the tests")
    before = stored()
    if store:
        new = {
            "tests": merged(reports, "cpu_s", before["tests"]),
            "sampled": merged(reports, "sampled_s", before["sampled"]),
        }
        _STORED.write_text(json.dumps(new, indent=0) + "\n")
        return
    if reports:
        reports[0].with_name("cpu.json").write_text(json.dumps(now, indent=0) + "\n")
    if _STORED.exists():
        lines = grown(now, before["tests"] | before["sampled"], 10)
        print("grew most since tests/cpu.json:" if lines else "no test grew", *lines, sep="\n")


def pace() -> float:
    """Return the time of a fixed piece of work over its time on the reference machine, at least 1."""
    started = time.perf_counter()
    for _ in range(5):
        subprocess.run(
            [sys.executable, "-c", "import numpy, asyncio, json, unittest.mock"], check=True
        )
    return max(1.0, (time.perf_counter() - started) / _REFERENCE_S)


if __name__ == "__main__" and sys.argv[1] == "--slowest":
    print(*slowest(int(sys.argv[2]), [Path(name) for name in sys.argv[3:]]), sep="\n")
elif __name__ == "__main__" and sys.argv[1] in ("--cpu", "--store"):
    show_cpu([Path(name) for name in sys.argv[2:]], store=sys.argv[1] == "--store")
elif __name__ == "__main__" and sys.argv[1] == "--missing":
    for line in missing([Path(name) for name in sys.argv[2:]]):
        print(line)
elif __name__ == "__main__" and sys.argv[1] == "--pace":
    print(f"{pace():.2f}")
elif __name__ == "__main__":
    *counts, problem = tally(int(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
    if problem:
        print(f"FAILED: {problem}", file=sys.stderr)
    print(*counts)
