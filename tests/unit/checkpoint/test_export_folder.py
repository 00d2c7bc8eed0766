"""An export with force replaces earlier exports and no other files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints import Contents

from mpips.checkpoint import export as export_module
from mpips.checkpoint import open_checkpoint
from mpips.checkpoint.export import export
from mpips.checkpoint.export_folder import MARKER, remove
from mpips.errors import ConfigError


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., list[Path]]:
    """Exports a checkpoint, or some of its tables, with force."""
    Contents().write(tmp_path / "checkpoints", 100)

    def call(kind: str, out: Path, *tables: str) -> list[Path]:
        with open_checkpoint(tmp_path / "checkpoints" / f"step-{100:012d}") as checkpoint:
            return export(checkpoint, kind, out, tables, force=True)

    return call


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_an_export_replaces_an_earlier_one_of_any_form_and_tables(
    tmp_path: Path, write: Callable[..., list[Path]], kind: str
) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    out = tmp_path / "out"
    write("csv", out)
    written = write(kind, out, "users")
    assert names(out) == [MARKER, f"users.{kind}"]
    assert json.loads((out / MARKER).read_text()) == [path.name for path in written]
    # A file takes the place of a folder that an export wrote.
    write("npz", out)
    assert out.is_file()
    # An empty folder has nothing to lose.
    (tmp_path / "empty").mkdir()
    write(kind, tmp_path / "empty", "users")
    assert names(tmp_path / "empty") == [MARKER, f"users.{kind}"]


def test_an_export_of_an_earlier_version_has_no_marker_and_is_replaced(
    tmp_path: Path, write: Callable[..., list[Path]]
) -> None:
    out = tmp_path / "out"
    write("csv", out, "users", "weight")
    (out / MARKER).unlink()
    write("csv", out, "users", "weight")
    assert names(out) == [MARKER, "users.csv", "weight.csv"]
    # A file of another name may be the user's own.
    (out / MARKER).unlink()
    with pytest.raises(ConfigError, match=r"out: contains weight\.csv, which no export wrote"):
        write("csv", out, "users")


@pytest.mark.parametrize("kind", ["csv", "npz"])
@pytest.mark.parametrize("marked", [False, True])
def test_other_files_are_named_and_stay(
    tmp_path: Path, write: Callable[..., list[Path]], kind: str, marked: bool
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    if marked:
        write("csv", out, "users")
    for name in ("b.txt", "a.txt", "d.txt"):
        (out / name).write_text("mine")
    (out / "c").mkdir()
    before = names(out)
    with pytest.raises(ConfigError) as caught:
        write(kind, out, "users")
    text = str(caught.value)
    assert f"{out}: contains a.txt, b.txt, c/ and 1 more, which no export wrote" in text
    assert names(out) == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".out-")]


def test_a_marker_cannot_name_folders_or_files_elsewhere(
    tmp_path: Path, write: Callable[..., list[Path]]
) -> None:
    out, other = tmp_path / "out", tmp_path / "mine.txt"
    other.write_text("mine")
    (out / "data").mkdir(parents=True)
    (out / MARKER).write_text(json.dumps(["data", "../mine.txt", 3]))
    with pytest.raises(ConfigError, match="contains data/, which"):
        write("csv", out)
    (out / "data").rmdir()
    write("csv", out, "users")
    assert other.read_text() == "mine"
    for text in ("{", "3", "null"):
        (out / MARKER).write_text(text)
        (out / "a.txt").write_text("mine")
        with pytest.raises(ConfigError, match=r"contains .*a\.txt"):
            write("csv", out, "users")


def test_a_link_to_a_folder_is_refused_and_a_file_that_appears_stays(
    tmp_path: Path, write: Callable[..., list[Path]]
) -> None:
    out, link = tmp_path / "out", tmp_path / "link"
    write("csv", out, "users")
    link.symlink_to(out)
    with pytest.raises(ConfigError, match="is a link to a folder, which --force does not replace"):
        write("csv", link, "users")
    (out / "late.txt").write_text("mine")
    with pytest.raises(ConfigError):
        remove(out, ["users.csv"])
    assert names(out) == [MARKER, "late.txt", "users.csv"]


def test_a_folder_is_checked_before_the_work_and_again_before_it_is_removed(
    tmp_path: Path, write: Callable[..., list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write("csv", out, "users")

    def mark_late(folder: Path, files: list[str]) -> None:
        (out / "late.txt").write_text("mine")

    monkeypatch.setattr(export_module, "mark", mark_late)
    with pytest.raises(ConfigError, match=r"contains late\.txt"):
        write("csv", out, "users")
    assert names(out) == [MARKER, "late.txt", "users.csv"]

    def write_nothing(*_: object) -> list[str]:
        raise AssertionError("the export was written before the folder was checked")

    monkeypatch.setattr(export_module, "_write_csv", write_nothing)
    with pytest.raises(ConfigError, match=r"contains late\.txt"):
        write("csv", out, "users")
