"""Damaged, incomplete and foreign checkpoints: each is refused with its reason, and none is used."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from checkpoints import Contents, flip, make_newer, names
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mpips
from mpips.checkpoint import Retention, find_newest, open_checkpoint, retain
from mpips.checkpoint.folder import FolderLock
from mpips.checkpoint.manifest import FORMAT, MANIFEST, STATE, decode, encode
from mpips.errors import CheckpointError, ConfigError, NewerFormatError


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    for step in (100, 200, 300):
        Contents(seed=step).write(folder, step)
    return folder


@pytest.fixture
def run(pristine: Path, tmp_path: Path) -> Path:
    """Copy a run with checkpoints of steps 100, 200 and 300 for this test."""
    shutil.copytree(pristine, tmp_path / "checkpoints", symlinks=True)
    return tmp_path / "checkpoints"


def step(folder: Path, number: int) -> Path:
    return folder / f"step-{number:012d}"


def newest(folder: Path) -> tuple[int | None, list[str]]:
    found = find_newest(folder)
    number = None if found.checkpoint is None else found.checkpoint.manifest.step
    return number, [refusal.reason for refusal in found.refused]


def test_the_newest_is_taken_and_nothing_else_is_named(run: Path) -> None:
    assert newest(run) == (300, [])


def test_no_folder_and_an_empty_folder_hold_nothing(tmp_path: Path) -> None:
    assert newest(tmp_path / "none") == (None, [])
    assert newest(tmp_path) == (None, [])


def remove_manifest(path: Path) -> None:
    (path / MANIFEST).unlink()


def remove_file(path: Path) -> None:
    (path / STATE).unlink()


def truncate(path: Path) -> None:
    with open(path / STATE, "r+b") as file:
        file.truncate((path / STATE).stat().st_size - 1)


def cut_manifest(path: Path) -> None:
    text = (path / MANIFEST).read_bytes()
    (path / MANIFEST).write_bytes(text[: len(text) // 2])


def lie(path: Path) -> None:
    text = (path / MANIFEST).read_text()
    (path / MANIFEST).write_text(text.replace('"step": 300', '"step": 301'))


def flip_value(path: Path) -> None:
    with open_checkpoint(path) as checkpoint:
        entry = checkpoint.manifest.table("users").dataset("state/v")
    flip(path / STATE, entry.offset + 17)


def flip_structure(path: Path) -> None:
    flip(path / STATE, 1)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (remove_manifest, "has no manifest.json"),
        (remove_file, "No such file"),
        (truncate, "bytes instead of"),
        (cut_manifest, "is not the manifest of a checkpoint"),
        (lie, "manifest's own checksum"),
        (flip_value, "state/v of table 'users', rows 0 to 105: the checksum does not match"),
        (flip_structure, "the HDF5 structure of state.h5"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bad_one_is_named_and_the_one_before_is_taken(run: Path, harm, reason: str) -> None:
    harm(step(run, 300))
    number, reasons = newest(run)
    assert number == 200
    assert len(reasons) == 1
    assert "step-000000000300" in reasons[0]
    assert reason in reasons[0]
    assert "\n" not in reasons[0]


def test_where_all_are_bad_none_is_taken(run: Path) -> None:
    for number in (100, 200, 300):
        truncate(step(run, number))
    number, reasons = newest(run)
    assert number is None
    assert len(reasons) == 3


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(which=st.sampled_from([STATE, MANIFEST]), data=st.data())
def test_any_flipped_bit_is_found(pristine: Path, which: str, data: st.DataObject) -> None:
    path = step(pristine, 200)
    place = data.draw(st.integers(0, (path / which).stat().st_size - 1))
    bit = data.draw(st.integers(0, 7))
    flip(path / which, place, bit)
    try:
        with pytest.raises(mpips.CheckpointError), open_checkpoint(path) as checkpoint:
            checkpoint.verify()
    finally:
        flip(path / which, place, bit)
    with open_checkpoint(path) as checkpoint:
        checkpoint.verify()


def test_a_newer_format_is_refused_and_nothing_older_is_taken_for_it(run: Path) -> None:
    make_newer(step(run, 300))
    sentence = (
        f"format {FORMAT + 1}, written by mpips 9.1.0, is newer than this mpips, .* install a "
        "newer mpips"
    )
    with pytest.raises(NewerFormatError, match=sentence):
        open_checkpoint(step(run, 300))
    with pytest.raises(NewerFormatError, match=sentence):
        find_newest(run)


def test_the_latest_launch_counts_more_than_the_greatest_step(run: Path) -> None:
    Contents().write(run, 150, generation=2)
    assert newest(run) == (150, [])


def test_a_half_written_one_is_never_read(run: Path) -> None:
    shutil.copytree(step(run, 300), run / ".writing-000000000400-x")
    assert newest(run) == (300, [])


# Retention.


def prune(folder: Path, last: int, every: int = 0, **options: bool) -> list[str]:
    retain(folder, Retention(last, every), **options)
    return names(folder)


def test_the_last_ones_and_every_so_many_steps_stay(tmp_path: Path) -> None:
    for number in (100, 250, 300, 420, 510, 600):
        Contents().write(tmp_path, number)
    everything = names(tmp_path)
    assert prune(tmp_path, 2, 250, dry_run=True) == everything
    expected = [f"step-{n:012d}" for n in (100, 250, 510, 600)]
    assert prune(tmp_path, 2, 250) == expected
    assert prune(tmp_path, 1) == expected[-1:]
    assert newest(tmp_path) == (600, [])


def test_the_last_good_one_stays_whatever_is_newer(run: Path) -> None:
    flip_value(step(run, 300))
    assert prune(run, 1, full=True) == ["step-000000000200", "step-000000000300"]
    assert newest(run)[0] == 200


def test_a_damaged_one_goes_once_a_good_one_is_newer(run: Path) -> None:
    truncate(step(run, 100))
    truncate(step(run, 300))
    assert prune(run, 5, full=True) == ["step-000000000200", "step-000000000300"]


def test_where_none_is_good_none_goes(run: Path) -> None:
    for number in (100, 200, 300):
        flip_value(step(run, number))
    assert len(prune(run, 1, full=True)) == 3


def test_checkpoints_of_a_newer_format_stay(run: Path) -> None:
    make_newer(step(run, 100))
    assert prune(run, 1) == ["step-000000000100", "step-000000000300"]


def test_what_a_failed_writer_left_is_removed_unless_a_writer_is_at_work(run: Path) -> None:
    (run / ".writing-000000000400-dead").mkdir()
    (run / ".writing-000000000400-dead" / STATE).write_bytes(b"half")
    (run / ".removing-step-000000000050-dead").mkdir()
    lock = FolderLock(run)
    with pytest.raises(mpips.CheckpointError, match="another process is writing or removing"):
        prune(run, 3)
    assert len(names(run)) == 5
    lock.release()
    assert len(prune(run, 3)) == 3


@pytest.mark.parametrize(("last", "every"), [(0, 0), (-1, 0), (1, -1)])
def test_a_rule_that_keeps_nothing_is_refused(last: int, every: int) -> None:
    with pytest.raises(ConfigError, match="must be"):
        Retention(last, every)


def forge(path: Path, **changes: object) -> None:
    """Replace the manifest of a checkpoint, with a valid checksum."""
    manifest = decode((path / MANIFEST).read_bytes(), path / MANIFEST)
    (path / MANIFEST).write_bytes(encode(msgspec.structs.replace(manifest, **changes), "0"))


def test_a_checkpoint_under_the_name_of_another_step_is_refused(run: Path) -> None:
    step(run, 300).rename(step(run, 900))
    number, reasons = newest(run)
    assert number == 200
    assert "its name has step 900, its manifest.json has step 300" in reasons[0]
    # Under a name without a step, the step of the manifest counts.
    step(run, 900).rename(run / "mine")
    with open_checkpoint(run / "mine") as checkpoint:
        assert checkpoint.manifest.step == 300


@pytest.mark.parametrize("name", ["../state.h5", "/etc/x", "a/b", "", ".", ".."])
def test_a_manifest_of_a_file_elsewhere_is_refused_before_the_file_is_touched(
    run: Path, name: str
) -> None:
    path = step(run, 300)
    manifest = decode((path / MANIFEST).read_bytes(), path / MANIFEST)
    forge(path, file=msgspec.structs.replace(manifest.file, name=name))
    with pytest.raises(CheckpointError, match="names a file in another folder"):
        # A delta holds a manifest as well, and makes the file that it names.
        decode((path / MANIFEST).read_bytes(), path)
    with pytest.raises(CheckpointError, match="names a file in another folder"):
        open_checkpoint(path)


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a/b", "", "a\nb", "a\0b"])
def test_a_table_with_a_name_that_leads_elsewhere_is_refused(run: Path, name: str) -> None:
    path = step(run, 300)
    tables = decode((path / MANIFEST).read_bytes(), path).tables
    forge(path, tables=(msgspec.structs.replace(tables[0], name=name), *tables[1:]))
    with pytest.raises(CheckpointError, match="is no name of a table"):
        open_checkpoint(path)
    assert newest(run)[0] == 200


@pytest.mark.parametrize("role", ["../../values", "state/../../x", "other"])
def test_a_dataset_with_a_role_that_no_table_has_is_refused(run: Path, role: str) -> None:
    path = step(run, 300)
    tables = decode((path / MANIFEST).read_bytes(), path).tables
    entry = msgspec.structs.replace(tables[0].datasets[0], role=role)
    forge(path, tables=(msgspec.structs.replace(tables[0], datasets=(entry,)), *tables[1:]))
    with pytest.raises(CheckpointError, match="is no dataset of a table"):
        open_checkpoint(path)
