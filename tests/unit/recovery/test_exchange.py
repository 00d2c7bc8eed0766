"""The exchange of a run: the folder in /dev/shm, and the choice between it and checkpoints on the disk."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from checkpoints import Contents

from mpips.checkpoint import open_checkpoint
from mpips.checkpoint import writer as writer_module
from mpips.checkpoint.start import find_start
from mpips.errors import DiskFullError
from mpips.recovery.exchange import Exchange, find_exchange, remove_exchange
from mpips.transport import region
from mpips.transport.region import SHM, own_segments, sweep, unlink_job


@pytest.fixture
def token() -> Iterator[str]:
    """The token of a run; what it leaves is removed."""
    made = f"k{uuid.uuid4().hex}"
    yield made
    remove_exchange(made)
    unlink_job(made)


def test_an_exchange_is_one_private_folder_that_is_found_by_the_token(token: str) -> None:
    exchange = Exchange(token)
    assert find_exchange(token) is None
    folder = Path(exchange.open())
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent == SHM
    assert find_exchange(token) == folder == Path(exchange.open())
    assert find_exchange(f"k{uuid.uuid4().hex}") is None
    exchange.refuse("there is no room")
    assert exchange.why_not == "there is no room"
    assert (exchange.open(), find_exchange(token)) == ("", None)


def test_without_room_for_the_folder_there_is_a_reason(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpips.recovery.exchange.SHM", Path("/proc"))
    exchange = Exchange(token)
    assert exchange.open() == ""
    assert exchange.why_not.startswith("/proc cannot be written to: ")


def test_the_exchange_stays_when_the_memory_of_the_old_size_is_removed(token: str) -> None:
    folder = Path(Exchange(token).open())
    (folder / "step-1").mkdir()
    name = region.new_name(token, "s0")
    (SHM / name).write_bytes(b"1")
    assert [part for part, _ in own_segments(token)] == ["s0"]
    unlink_job(token)
    assert not (SHM / name).exists()
    assert (folder / "step-1").exists()


def test_a_link_with_the_name_of_an_exchange_is_none(token: str, tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    link = SHM / region.new_name(token, region.EXCHANGE)
    link.symlink_to(tmp_path)
    try:
        assert find_exchange(token) is None
        remove_exchange(token)
        assert (tmp_path / "step-1").exists()
    finally:
        link.unlink()


def test_an_old_exchange_is_swept_and_a_young_one_stays(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(Exchange(token).open())
    sweep()
    assert folder.exists()
    monkeypatch.setattr(region, "is_old", lambda path: path == folder)
    assert folder.name in sweep()
    assert not folder.exists()


def test_the_newer_one_of_exchange_and_disk_is_the_start(token: str, tmp_path: Path) -> None:
    exchange = Path(Exchange(token).open())
    disk = tmp_path / "checkpoints"
    # Without a complete exchange the newest file is the start.
    Contents().write(disk, 100)
    found = find_start(disk, "auto", None, exchange)
    assert found.path is not None
    assert (found.path.parent, found.in_memory) == (disk, False)
    # An equally new exchange is used: no file of its launch was written after it.
    Contents().write(exchange, 100)
    for resume in ("auto", "never", str(found.path)):
        found = find_start(disk, resume, None, exchange)
        assert (found.in_memory, found.name) == (True, "shared memory")
        assert found.path is not None
        assert found.path.parent == exchange
        assert found.manifest is not None
        assert (found.manifest.step, found.generation) == (100, 2)
    # A stale one is not: a later step, or a later launch at an earlier step.
    Contents().write(disk, 101)
    assert not find_start(disk, "auto", None, exchange).in_memory
    Contents().write(exchange, 102)
    assert find_start(disk, "auto", None, exchange).in_memory
    Contents().write(disk, 50, generation=2)
    assert not find_start(disk, "auto", None, exchange).in_memory
    # Without files the exchange is all there is.
    assert find_start(tmp_path / "none", "auto", None, exchange).in_memory


def test_a_damaged_exchange_is_not_used_and_named(
    token: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    exchange = Path(Exchange(token).open())
    Contents().write(tmp_path, 5)
    (Contents().write(exchange, 7).path / "manifest.json").write_text("{")
    found = find_start(tmp_path, "auto", None, exchange)
    assert (found.in_memory, found.manifest and found.manifest.step) == (False, 5)
    said = capfd.readouterr().err
    assert "mpips: warning: shared memory of a launch of another size not used: " in said
    assert str(exchange) in said


def test_an_exchange_has_what_a_checkpoint_has(token: str, tmp_path: Path) -> None:
    exchange = Path(Exchange(token).open())
    written = Contents().write(exchange, 7).path
    with (
        open_checkpoint(written) as here,
        open_checkpoint(Contents().write(tmp_path, 7).path) as there,
    ):
        for name in ("weight", "vector"):
            n = here.manifest.table(name).shape
            values, state = here.read_dense(name, 0, int(np.prod(n)))
            expected, states = there.read_dense(name, 0, int(np.prod(n)))
            assert np.array_equal(values, expected)
            assert all(np.array_equal(state[key], states[key]) for key in states)


def test_an_exchange_for_which_the_node_has_too_little_memory_is_refused(
    token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = Path(Exchange(token).open())
    monkeypatch.setattr(writer_module, "free_bytes", lambda: (6000, 100_000))
    with pytest.raises(
        DiskFullError, match=r"too little memory: [\d,]+ bytes are needed, 1,000 may be used"
    ):
        Contents().write(exchange, 7)
    assert not list(exchange.glob("step-*"))
    # A disk needs no memory.
    assert Contents().write(tmp_path, 7).path.exists()
    assert os.listdir(exchange) == [".lock"]
