"""The version stands in mpips/__init__.py, and everything that names one agrees with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner
from documents import DOCUMENTS

import mpips
from mpips import _native
from mpips.cli import cli

ROOT = Path(__file__).parents[2]
REBUILD = "the installed mpips is of another version: run bash jobs/setup.sh"


def release(version: str) -> str:
    """Return the release that a version is or leads to: 0.3.0 of 0.3.0.dev0."""
    found = re.fullmatch(r"(\d+\.\d+\.\d+)(\.dev0)?", version)
    assert found is not None, f"{version} is neither X.Y.Z nor X.Y.Z.dev0"
    return found[1]


def test_the_installed_package_and_its_native_module_have_this_version() -> None:
    assert metadata.version("mpips") == mpips.__version__, REBUILD
    assert _native.version == mpips.__version__, REBUILD


def test_the_command_line_prints_it() -> None:
    done = CliRunner().invoke(cli, ["--version"])
    assert done.exit_code == 0
    assert re.fullmatch(rf"mpips, version {re.escape(mpips.__version__)}( \(.*\))?\n", done.output)


def test_no_other_file_of_the_build_states_one() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    project = text.partition("[project]\n")[2].partition("\n[")[0]
    assert 'dynamic = ["version", ' in project
    assert not re.search(r"^version\b", project, re.M)
    assert not re.search(r"project\([^)]*VERSION \d", (ROOT / "native/CMakeLists.txt").read_text())


def shown(text: str) -> Iterator[str]:
    """Yield the versions that outputs of a page show: `versions      mpips 0.3.0, Open MPI ...`."""
    yield from re.findall(r"^ *versions +mpips (\S+),", text, re.M)


def test_outputs_on_pages_show_the_release() -> None:
    assert list(shown("a\n  versions      mpips 0.1.0, x")) == ["0.1.0"]
    found = [(path.name, each) for path in DOCUMENTS for each in shown(path.read_text())]
    assert found
    assert [each for each in found if each[1] != release(mpips.__version__)] == []


@pytest.mark.parametrize("version", ["0.3.0", "0.3.0.dev0"])
def test_a_development_version_leads_to_its_release(version: str) -> None:
    assert release(version) == "0.3.0"


def test_the_changelog_begins_with_the_release_or_the_one_before() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (\S+) \((\S+)\)$", text, re.M)
    name, date = headings[0]
    if ".dev" in mpips.__version__:
        # Until a release is written, its section is missing or has no date.
        assert date == "unreleased" if name == release(mpips.__version__) else date != "unreleased"
    else:
        assert name == mpips.__version__
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", date)
    assert all(date != "unreleased" for _, date in headings[1:])
