"""The oldest Python of pyproject.toml: no file uses what came later; others compile all files (long)."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
import pytest

from mpips import SGD, Adam, ConfigError
from mpips.model import accepted
from tests.support.python_names import newer_names

ROOT = Path(__file__).parents[2]


def oldest() -> tuple[int, int]:
    found = re.search(r'requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert found is not None
    return 3, int(found[1])


@pytest.mark.parametrize("folder", ["mpips", "tests", "jobs", "docs"])
def test_no_file_uses_what_came_after_the_oldest_python(folder: str) -> None:
    pytest.importorskip("mypy")
    listed = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = path.read_text()
        ast.parse(text, feature_version=oldest())
        listed += [
            f"{path.relative_to(ROOT)}:{n}: {name}" for n, name in newer_names(text, oldest())
        ]
    assert listed == []


def test_the_check_finds_what_came_later() -> None:
    pytest.importorskip("mypy")
    source = """
import sys, enum, typing as t, datetime
import tomllib
from typing import Any, Self
from dataclasses import KW_ONLY
x: t.Self
y = enum.StrEnum
z = datetime.UTC
if sys.version_info >= (3, 11):
    import wsgiref.types
try:
    import tomllib
except ImportError:
    pass
"""
    names = [name for _, name in newer_names(source, (3, 10))]
    assert names == ["tomllib", "typing.Self", "typing.Self", "enum.StrEnum", "datetime.UTC"]
    assert newer_names(source, (3, 14)) == []


def test_annotations_are_evaluated_as_python_3_10_must(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def strict(cls: Any, **options: Any) -> Any:
        seen.extend(cls.__annotations__.values())
        return get_type_hints(cls, **options)

    monkeypatch.setattr(accepted, "get_type_hints", strict)
    for kind in (SGD, Adam):
        assert set(accepted.field_hints(kind)) == {f.name for f in dataclasses.fields(kind)}
    assert not [hint for hint in seen if "KW_ONLY" in str(hint)]
    with pytest.raises(ConfigError, match="must be"):
        Adam(lr=-1.0)


def test_the_oldest_msgspec_describes_constraints_as_the_messages_need_them() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert '"msgspec>=0.22"' in text
    hint = Annotated[int, msgspec.Meta(ge=0, le=5)]
    assert accepted.accepted(hint, "x") == "a whole number from 0 to 5"


def others() -> list[Path]:
    """Return interpreters of other versions that are installed here and accepted, by pyenv."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = []
    for path in sorted(root.glob("3.*/bin/python")):
        version = tuple(int(n) for n in path.parts[-3].split(".")[:2] if n.isdigit())
        if version >= oldest() and version != sys.version_info[:2]:
            found.append(path)
    return found


@pytest.mark.long
def test_every_module_compiles_with_other_interpreters() -> None:
    here = others()
    if not here:
        pytest.skip("no other interpreter (pyenv)")
    program = """
import pathlib, sys
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    compile(path.read_text(), str(path), "exec", dont_inherit=True)
"""
    for python in here:
        command = [str(python), "-W", "error", "-c", program, str(ROOT / "mpips")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{python}: {done.stderr}"
