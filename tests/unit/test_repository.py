"""The files at the top, spelling, and the files that editors, pre-commit and hosts of repositories read."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mpips

ROOT = Path(__file__).parents[2]
FOLDERS = {"mpips", "native", "jobs", "tests", "docs", "packaging"}
FILES = {
    "pyproject.toml",
    "mkdocs.yml",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    # Its readers look for it at the top only.
    "CITATION.cff",
}


def tracked() -> list[Path]:
    """Return the paths of the repository's files, relative to its top; skip the test without git."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode or not done.stdout:
        pytest.skip("this is no git repository")
    return [Path(name) for name in done.stdout.splitlines() if (ROOT / name).is_file()]


def test_the_top_has_few_names() -> None:
    first = {path.parts[0] for path in tracked() if not path.parts[0].startswith(".")}
    assert first - FOLDERS - FILES == set()
    assert (FOLDERS | FILES) - first == set()


def untidy(text: str) -> Iterator[str]:
    """Yield what .editorconfig forbids in a text."""
    if text and not text.endswith("\n"):
        yield "no newline at the end"
    if "\r" in text:
        yield "carriage return"
    for number, line in enumerate(text.splitlines(), 1):
        if line != line.rstrip():
            yield f"line {number}: blanks at the end"
        if "\t" in line:
            yield f"line {number}: tab"


def test_files_are_tidy() -> None:
    found = []
    for path in tracked():
        data = (ROOT / path).read_bytes()
        if b"\0" not in data:
            found += [f"{path}: {what}" for what in untidy(data.decode())]
    assert found == []


def test_an_untidy_text_is_found() -> None:
    assert list(untidy("a \n\tb\r\n")) == [
        "carriage return",
        "line 1: blanks at the end",
        "line 2: tab",
    ]
    assert list(untidy("a")) == ["no newline at the end"]


# Languages of code; an interface of a compiled module (.pyi) describes a whole module.
CODE = {".py", ".cpp", ".hpp", ".in", ".sh", ".sbatch", ".js", ".css", ".html"}


def test_no_file_of_code_has_more_than_600_lines() -> None:
    # A file is what a reader would look for by its name, so the limit is generous.
    n_lines = {
        str(path): (ROOT / path).read_text().count("\n")
        for path in tracked()
        if path.suffix in CODE
    }
    assert len(n_lines) > 800
    assert {name: n for name, n in n_lines.items() if n > 600} == {}


def codespell(*paths: str | Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("codespell_lib", reason="codespell is not installed")
    command = [sys.executable, "-m", "codespell_lib", *map(str, paths)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)


def test_words_are_spelled_right(tmp_path: Path) -> None:
    done = codespell(*sorted(FOLDERS | FILES - {"LICENSE"}), ".github")
    assert done.returncode == 0, done.stdout
    (tmp_path / "a.md").write_text("A table is " + "rec" + "ieved.\n")
    assert "received" in codespell(tmp_path).stdout


def read_yaml(name: str) -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((ROOT / name).read_text())


def hooks() -> dict[str, str]:
    """Return the command of each hook of pre-commit by its name."""
    (repository,) = read_yaml(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}
    return {hook["name"]: hook["entry"] for hook in repository["hooks"]}


def test_pre_commit_runs_the_checks_of_the_stage_lint() -> None:
    run = (ROOT / "tests/run.sh").read_text()
    checks = dict(re.findall(r'^  check "([^"$]+)" (.+?)(?: "\$\{sources\[@\]\}")?$', run, re.M))
    assert len(checks) == 4
    assert hooks() == {
        **checks,
        "codespell": "codespell",
        "shellcheck": "shellcheck --shell=bash --exclude=SC1090,SC1091",
    }


@pytest.mark.parametrize("hook", ["ruff check", "ruff format", "mypy", "clang-format", "codespell"])
def test_the_program_of_a_hook_is_part_of_the_set_up(hook: str) -> None:
    program = hooks()[hook].split()[0]
    listed = (ROOT / "pyproject.toml").read_text() + (ROOT / "jobs/setup.sh").read_text()
    assert re.search(rf'[" ]{program}>=', listed)
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


def test_the_citation_names_the_release_and_what_a_reader_needs() -> None:
    found = read_yaml("CITATION.cff")
    assert found["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "license"} <= set(found)
    assert str(found["version"]) == mpips.__version__.removesuffix(".dev0")
    assert ("date-released" in found) == (".dev" not in mpips.__version__)
    assert found["license"] == "Apache-2.0"


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_a_form_for_issues_has_fields_with_labels(name: str) -> None:
    form = read_yaml(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) > 0
    assert all(field["attributes"]["label"] for field in fields)
