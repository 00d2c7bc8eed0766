"""The history of measured figures: what is recorded, read and shown on the page."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from documents import parts

import mpips
from mpips.bench.measure import Comparison, Figure, Findings
from tests.bench import __main__ as program
from tests.bench import history
from tests.bench.history import Entry
from tests.bench.suites import SUITES

FOUND = Findings(
    comparisons=[
        Comparison(
            name="map_lookup_vs_robin",
            what="",
            unit="Mkeys/s",
            ours=[2.0, 3.0, 7.0],
            baseline=[1.0, 1.5, 3.0],
            baseline_name="tsl::robin_map",
        )
    ],
    figures=[Figure(name="map_lookups_present", what="", unit="Mkeys/s", values=[12.34567])],
)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A history without entries, in place of that of the repository."""
    path = tmp_path / "history.jsonl"
    monkeypatch.setattr(history.append, "__defaults__", (path,))
    return path


@pytest.fixture
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "run_suite", lambda *_: FOUND)
    monkeypatch.setattr(program.os, "getloadavg", lambda: (3.25, 0.0, 0.0))


@pytest.mark.usefixtures("_measured")
def test_a_run_is_recorded_with_version_commit_machine_and_conditions(path: Path) -> None:
    done = CliRunner().invoke(program.command, ["maps", "--record", "--note", "nice 15"])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(program.command, ["maps", "--record", "--quick"])
    assert done.exit_code == 0, done.output
    first, second = history.read(path)
    assert first.suite == "maps"
    assert first.version == mpips.__version__
    assert first.commit == history.commit()
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", first.date)
    assert re.search(r", \d+ cores$", first.machine)
    assert first.ratios == {"map_lookup_vs_robin": 2.0}
    assert first.figures == {"map_lookups_present": 12.35}
    assert first.conditions == "repetitions: 5; load at the start: 3.2; nice 15"
    assert second.conditions == "quick sizes; repetitions: 5; load at the start: 3.2"


@pytest.mark.usefixtures("_measured")
def test_nothing_is_recorded_unless_it_was_asked_for(path: Path) -> None:
    assert CliRunner().invoke(program.command, ["maps"]).exit_code == 0
    assert not path.exists()
    done = CliRunner().invoke(program.command, ["maps", "--note", "x"])
    assert done.exit_code == 2
    assert "--note" in done.output


def test_a_run_that_has_measured_nothing_is_not_recorded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "run_suite", lambda *_: Findings(skipped={"a": "no root"}))
    done = CliRunner().invoke(program.command, ["links", "--record"])
    assert done.exit_code == 1
    assert "nothing to record: the suite 'links' has measured nothing here" in done.output
    assert not path.exists()


def test_the_commit_says_whether_files_differ_beside_the_history(tmp_path: Path) -> None:
    assert history.commit(tmp_path) == ""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    folder = tmp_path / "tests/bench"
    folder.mkdir(parents=True)
    for name in ("history.jsonl", "other.py"):
        (folder / name).write_text("")
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    clean = history.commit(tmp_path)
    assert re.fullmatch("[0-9a-f]{7,}", clean)
    (folder / "history.jsonl").write_text("{}")
    assert history.commit(tmp_path) == clean
    (folder / "other.py").write_text("x")
    assert history.commit(tmp_path) == f"{clean}-dirty"


def test_a_line_that_is_no_entry_is_named(path: Path) -> None:
    history.append(entry("maps", "2026-01-01", a=1.0), path)
    with path.open("a") as file:
        file.write('{"suite": "maps"}\n')
    with pytest.raises(ValueError, match=r"history\.jsonl:2: .*version"):
        history.read(path)


def test_every_entry_of_the_repository_is_of_a_suite_and_has_figures() -> None:
    entries = history.read()
    assert len(entries) >= 9
    for found in entries:
        assert found.suite in SUITES
        assert found.ratios or found.figures
        assert found.version
        assert found.machine
    assert [found.date for found in entries] == sorted(found.date for found in entries)


def entry(suite: str, date: str, **ratios: float) -> Entry:
    return Entry(
        suite=suite, version="1.0", commit="abc", date=date, machine="two cores", ratios=ratios
    )


def test_the_page_has_a_table_of_each_suite_with_its_newest_entries() -> None:
    entries = [entry("maps", f"2026-01-0{day}", a=day / 10) for day in range(1, 7)]
    entries[-1] = entry("maps", "2026-01-06", b=7.0, map_lookup_vs_robin=2.0)
    entries.append(
        Entry(
            suite="soak",
            version="1.1",
            commit="",
            date="2026-01-07",
            machine="four cores",
            conditions="load",
            figures={"soak_steps": 12.0},
        )
    )
    text = parts().history_of(entries)
    dates = [f"1.0, 2026-01-0{day}" for day in range(3, 7)]
    assert f"| median | bar | {' | '.join(dates)} |" in text
    assert "| `a` |  | 0.3 | 0.4 | 0.5 |  |" in text
    assert "| `b` |  |  |  |  | 7 |" in text
    assert "| `map_lookup_vs_robin` | &gt;= 1.5 |  |  |  | 2 |" in text
    assert "2026-01-02" not in text
    assert "- 1.0, 2026-01-06: commit `abc`; two cores" in text
    assert "| `soak_steps` |  | 12 |" in text
    assert "- 1.1, 2026-01-07: commit unknown; four cores; load" in text
    assert text.index("**maps**") < text.index("**soak**")
    page = (history.ROOT / "docs/benchmarks.md").read_text()
    assert "<!-- part history -->" in page
    assert "<!-- part bars -->" in page
    assert "<!-- part bars_of_developers -->" in page


def test_every_suite_is_on_the_page() -> None:
    page = (history.ROOT / "docs/benchmarks.md").read_text()
    rows = " ".join(line.partition("|")[2].partition("|")[0] for line in page.splitlines())
    assert set(re.findall(r"`(\w+)`", rows)) >= SUITES.keys()
