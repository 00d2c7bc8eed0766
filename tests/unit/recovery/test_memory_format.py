"""Formats of memory and files: numbers follow layouts, and nothing of another format is removed."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import mpips
from mpips import _native
from mpips.checkpoint import manifest, worker_image
from mpips.checkpoint.position import PositionPart
from mpips.errors import ConfigError
from mpips.model.build import Build, this_build
from mpips.model.codec import TopK
from mpips.model.consistency import ASP
from mpips.model.local_sgd import LocalSGD
from mpips.model.placement import place
from mpips.model.table import DenseTable
from mpips.recovery import memory as memory_file
from mpips.recovery.memory import FORMAT, Memory
from mpips.recovery.takeover import Takeover
from mpips.rundir.directory import RunFolder, Supervised
from mpips.worker.image.memory import worker_bytes
from mpips.worker.local import state as local_state

# The layout of each format so far. A layout that changes gets a new number and a new line. A line that is
# here never changes, since memory and files of that format exist.
MEMORY_LAYOUTS = {9: "1448a965d08b7ac7", 10: "49f0f53f97f693d4", 11: "bee0af586cf5b0e0"}
FILE_LAYOUTS = {
    2: "5aa64e0b1e3c8c14",
    3: "5b51ae6a3a14aa23",
    4: "9d4f1ca9c95dbd17",
    5: "904a7482bc5bdc43",
    6: "3841c35b7cd87f25",
}

KEPT = (
    *(Memory, PositionPart, local_state.LocalHead, local_state.LocalTableHead),
    *(manifest.ImageFile, worker_image.PartHead),
)
FILES = (
    *(manifest.Manifest, manifest.TableEntry, manifest.DatasetEntry, manifest.Piece),
    *(manifest.ShardEntry, manifest.ServerEntry, manifest.WorkerState, manifest.ImageFile),
    *(manifest.FileEntry, worker_image.PartHead, manifest.Link, manifest.LinkRef),
)


def digest(*parts: Any) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()


def fields(*structs: type[msgspec.Struct]) -> list[Any]:
    return [[s.__name__, [f.name for f in msgspec.structs.fields(s)]] for s in structs]


def test_the_format_of_memory_changes_with_its_layout():
    table = DenseTable("w", (1000,), consistency=LocalSGD(steps=2))
    coded = DenseTable("v", (1000,), consistency=ASP(), compression=TopK(0.1))
    size = worker_bytes([coded], place([coded], 1, 1, 4, 1024), [table], True)
    layout = digest(_native.memory_layout(), fields(*KEPT), size)
    assert MEMORY_LAYOUTS.get(FORMAT) == layout, (
        f"memory has another layout ({layout}): raise memory_format in native/src/shm/memory_format.hpp and "
        "add a line to MEMORY_LAYOUTS"
    )


def test_the_format_of_checkpoints_changes_with_their_layout():
    layout = digest(fields(*FILES), manifest.DTYPES)
    assert FILE_LAYOUTS.get(manifest.FORMAT) == layout, (
        f"manifests have another layout ({layout}): raise FORMAT in mpips/checkpoint/manifest.py and add a "
        "line to FILE_LAYOUTS"
    )


class OneRank:
    """A cluster of one rank, which is the scheduler of one server and two workers."""

    is_scheduler = True
    server = worker = None
    assignment = SimpleNamespace(scheduler=0, servers=[0], workers=[0, 0])

    def __init__(self, token: str) -> None:
        self.token = token

    def agree(self, what: str, work: Any) -> list[Any]:
        return [work()]


class Start:
    """The start of launch 1 of a run whose launch 0 has left memory."""

    def __init__(self, folder: Path, written: dict[str, Any]) -> None:
        self.run = RunFolder.create(folder, "job")
        info = self.run.info()
        token = f"k{info.token}"
        self.mark = Path(f"/dev/shm/mpips-kept-{os.geteuid()}-{info.token}.0a-s0-mark")
        self.mark.write_text("0")
        path = self.run.path / memory_file.FILE
        path.write_text(json.dumps({"tables": "t", "shape": [1, 2], "generation": 0, **written}))
        run = Supervised(self.run, info.run_id, info.token, 1)
        partnership: Any = SimpleNamespace(held=list, choose=lambda *_: "no set is there", notes=[])
        given: Any = (OneRank(token), run, partnership, "t", None, None, False, None)
        self.takeover = Takeover(*given)

    def choose(self) -> str:
        """Return why the launch does not continue in memory."""
        saving = SimpleNamespace(
            steps_before=0, run_id="", origin=None, beginning=(), sampling={}, data={}
        )
        saving.checkpoint_generation = lambda _: 0
        self.takeover.choose(saving, lambda exchange: saving)  # type: ignore[arg-type, return-value]
        return self.takeover.cold


@pytest.fixture
def start(tmp_path):
    made = []

    def make(**written):
        made.append(Start(tmp_path, written))
        return made[-1]

    yield make
    for one in made:
        one.mark.unlink(missing_ok=True)


OTHER = {"version": "0.1.9", "commit": "0123456789ab"}


@pytest.mark.parametrize(
    ("written", "writer"),
    [
        ({}, "an earlier mpips (version unknown) in format 0"),
        ({"format": 0, "shape": "?"}, "an earlier mpips (version unknown) in format 0"),
        (
            {"format": FORMAT + 1, "build": OTHER, "served": "?"},
            f"mpips 0.1.9 (commit 0123456789ab) in format {FORMAT + 1}",
        ),
        (
            {"format": FORMAT, "build": OTHER, "tables": "u"},
            "mpips 0.1.9 (commit 0123456789ab) with other tables or options",
        ),
    ],
)
def test_memory_of_another_mpips_stays_until_a_person_discards_it(start, written, writer):
    one = start(**written)
    before = (one.run.path / memory_file.FILE).read_bytes()
    with pytest.raises(ConfigError) as refused:
        one.choose()
    text = str(refused.value)
    assert refused.value.exit_code == 2
    assert f"was written by {writer}" in text
    assert f"this is {this_build()}" in text or f"has with {this_build()}" in text
    assert "the memory stays as it is" in text
    assert f"mpips run --discard-memory {one.run.path}" in text
    assert one.mark.exists()
    assert (one.run.path / memory_file.FILE).read_bytes() == before
    # Memory that is gone holds no run up.
    one.mark.unlink()
    assert one.choose() in ("it is not there any more", "tables or options have changed")
    assert json.loads((one.run.path / memory_file.FILE).read_text())["format"] == FORMAT


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ({"tables": "u"}, "tables or options have changed"),
        (
            {"shape": [2, 1]},
            "it is of servers = 2, workers = 1, and this launch has servers = 1, workers = 2",
        ),
        ({}, "no set is there"),
    ],
)
def test_memory_of_this_mpips_that_does_not_fit_is_replaced(start, written, why):
    one = start(format=FORMAT, build=msgspec.to_builtins(this_build()), **written)
    assert one.choose() == why
    assert not one.mark.exists()


@pytest.mark.parametrize("commit", ["", "0123456789ab"])
def test_a_build_names_its_version_and_its_commit(commit):
    known = f"commit {commit}" if commit else "no commit known"
    assert str(Build("0.2.0", commit)) == f"mpips 0.2.0 ({known})"
    assert this_build() == Build(mpips.__version__, _native.commit)


def test_memory_of_another_commit_is_continued_with_a_note(start):
    one = start(format=FORMAT, build=OTHER)
    done: list[str] = []
    notes: list[str] = []
    one.takeover._partnership = SimpleNamespace(
        notes=notes,
        make_copies=lambda _: done,
        mark=lambda _: done.append("marked"),
        clean=lambda: done.append("cleaned"),
    )
    one.takeover._memory = memory_file.read_memory(one.takeover._run)
    assert one.takeover.join(None) is None
    assert done == ["marked", "cleaned"]
    assert notes == [
        f"the memory is from mpips 0.1.9 (commit 0123456789ab), and this is {this_build()}"
    ]
    written = memory_file.read_memory(one.takeover._run)
    assert (written.build, written.served) == (this_build(), 1)
