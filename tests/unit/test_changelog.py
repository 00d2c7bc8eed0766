"""The changelog, and its fragments in packaging/changelog.d."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = "packaging/changelog.d"
KINDS = ("breaking", "added", "changed", "fixed")
# What is no fragment: the page for people and the form of a release.
OTHERS = {"README.md", "template.md"}


def wrong(folder: Path) -> Iterator[str]:
    """Yield what is wrong with each fragment of a folder."""
    for path in sorted(folder.iterdir()):
        if path.name in OTHERS:
            continue
        if not re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(KINDS)})\.md", path.name):
            yield f"{path.name}: its name must be NAME.KIND.md, KIND one of {', '.join(KINDS)}"
            continue
        text = path.read_text().strip()
        if text.startswith(("#", "-", "*")) or not text.endswith("."):
            yield f"{path.name}: it must be sentences, without a heading or a list mark"
        if len(text) > 400:
            yield f"{path.name}: it has {len(text)} characters, the most is 400"


def test_fragments_are_sentences_of_a_known_kind() -> None:
    assert list(wrong(ROOT / FOLDER)) == []


def test_a_wrong_fragment_is_named(tmp_path: Path) -> None:
    for name, text in {
        "README.md": "",
        "good-1.fixed.md": "A table is right.\n",
        "bad.news.md": "A table is right.",
        "heading.added.md": "# New.",
        "open.added.md": "no end",
        "long.added.md": "x" * 400 + ".",
    }.items():
        (tmp_path / name).write_text(text)
    names = [line.partition(":")[0] for line in wrong(tmp_path)]
    assert names == ["bad.news.md", "heading.added.md", "long.added.md", "open.added.md"]


def towncrier(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "towncrier", "build", "--version", "9.9.9", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_draft_of_the_next_release_can_be_made() -> None:
    pytest.importorskip("towncrier")
    assert "## 9.9.9 (" in towncrier(ROOT, "--draft")


def test_a_release_collects_the_fragments_above_the_last_one(tmp_path: Path) -> None:
    pytest.importorskip("towncrier")
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / FOLDER, tmp_path / FOLDER)
    before = (tmp_path / "CHANGELOG.md").read_text()
    for kind in KINDS:
        (tmp_path / FOLDER / f"trial.{kind}.md").write_text(f"A table is {kind}.\n")
    towncrier(tmp_path, "--yes", "--date", "2030-01-02")
    text = (tmp_path / "CHANGELOG.md").read_text()
    above, below = before.split("<!-- towncrier release notes start -->\n")
    assert text.startswith(above)
    assert text.endswith(below)
    added = text.removeprefix(above).removesuffix(below)
    assert [line for line in added.splitlines() if line.startswith("#")] == [
        "## 9.9.9 (2030-01-02)",
        *(f"### {kind.capitalize()}" for kind in KINDS),
    ]
    assert "\n- A table is breaking.\n" in added
    assert {path.name for path in (tmp_path / FOLDER).iterdir()} == OTHERS


def test_releases_stand_newest_first_and_name_what_breaks() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    found = re.findall(r"^## (\d+)\.(\d+)\.(\d+) \((\d{4}-\d\d-\d\d|unreleased)\)$", text, re.M)
    versions = [tuple(map(int, each[:3])) for each in found]
    assert len(versions) == text.count("\n## ") >= 3
    assert versions == sorted(versions, reverse=True)
    assert "\n### Breaking\n" in text.partition("\n## 0.3.0 ")[2].partition("\n## ")[0]
