"""The charts of the page are uPlot's, whose files are those of its npm package."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from importlib.resources import files
from pathlib import Path

import pytest

from mpips.web.files import SCRIPTS, STYLES, page_file

ROOT = Path(__file__).parents[3]
# Of uPlot 1.6.32: `npm pack uplot@1.6.32`, then package/dist and package/LICENSE.
DIGESTS = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


@pytest.mark.parametrize("name", sorted(DIGESTS))
def test_files_are_those_of_the_package(name: str) -> None:
    content = (files("mpips.web") / "page/uplot" / name).read_bytes()
    # The repository adds a newline to a file that has none at its end.
    found = {hashlib.sha256(text).hexdigest() for text in (content, content.rstrip(b"\n"))}
    assert DIGESTS[name] in found


def test_the_page_loads_it_before_its_own_parts() -> None:
    assert SCRIPTS[0] == "uPlot.iife.min.js"
    assert STYLES[0] == "uPlot.min.css"
    for name in (*SCRIPTS, *STYLES):
        assert page_file(name), name
    assert page_file("LICENSE") is None, "it is a file of the package, not of the page"


def test_nothing_else_draws() -> None:
    own = "".join(page_file(name) or "" for name in SCRIPTS[1:])
    assert "new uPlot(" in own
    for word in (
        "createElementNS",
        "getContext",
        "<svg",
        "innerHTML",
        "insertAdjacentHTML",
        "eval(",
    ):
        assert word not in own, word


@pytest.mark.long
def test_a_source_distribution_has_it_and_its_licence(tmp_path: Path) -> None:
    build = pytest.importorskip("scikit_build_core.build", reason="nothing builds here")
    done = subprocess.run(
        [sys.executable, "-c", f"from {build.__name__} import *; build_sdist({str(tmp_path)!r})"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"mpips/web/page/uplot/{name}" for name in DIGESTS} <= names


def test_the_licence_is_one_of_the_distribution() -> None:
    # A wheel has the files that are named here, and all others of the package that git does not ignore.
    text = (ROOT / "pyproject.toml").read_text()
    assert (
        '"mpips/web/page/uplot/LICENSE",'
        in text.partition("license-files = [")[2].partition("]")[0]
    )
    assert 'license = "Apache-2.0 AND MIT AND ' in text
    paths = [f"mpips/web/page/uplot/{name}" for name in DIGESTS]
    assert all((ROOT / path).is_file() for path in paths)
    done = subprocess.run(["git", "check-ignore", *paths], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == ""
