"""The files of workers in a checkpoint: adopted, checked, removed, and read, also those of format 2."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mpips.checkpoint import open_checkpoint, worker_files
from mpips.checkpoint.agreement import is_disk_full
from mpips.checkpoint.manifest import ImageFile, WorkerState
from mpips.checkpoint.residuals import handed_over, read_residuals, without
from mpips.checkpoint.worker_files import LAST, read_worker, temporary_name, write_file
from mpips.checkpoint.worker_image import (
    LOCAL,
    RESIDUALS,
    PartImage,
    image_bytes,
    pieces,
    read_image,
)
from mpips.errors import CheckpointError, DiskFullError

FORMAT2 = Path(__file__).parents[2] / "support" / "format2"


def values(worker: int) -> dict[str, np.ndarray]:
    return {
        "a": np.arange(6, dtype=np.float32) + 100 * worker,
        "b": np.full(5, worker + 1, np.float32),
    }


def image(worker: int) -> dict[str, PartImage]:
    local = PartImage(b'{"steps":4}', {"w/values": np.full(17, worker, np.float32)})
    return {RESIDUALS: PartImage(b"{}", values(worker)), LOCAL: local}


def written(folder: Path, number: int = 5, workers: int = 3) -> list[WorkerState]:
    return [
        WorkerState(
            worker=w, files=(write_file(folder, temporary_name(f"a{w}", number, w), image(w)),)
        )
        for w in range(workers)
    ]


def adopted(folder: Path, states: list[WorkerState]) -> tuple[WorkerState, ...]:
    """Adopt the files as a published checkpoint does, after a try that was not published."""
    for name in ("try", "new"):
        (folder / name).mkdir()
        found = worker_files.adopt(folder, folder / name, states)
    shutil.rmtree(folder / "try")
    worker_files.remove(folder, states)
    return found


def waiting(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


class States(msgspec.Struct):
    workers: tuple[WorkerState, ...]


def residuals_of(folder: Path, states: tuple[WorkerState, ...], worker: int) -> dict[str, Any]:
    return {n: v.tolist() for n, v in read_residuals(folder, States(states), worker).items()}


def test_files_of_a_cut_are_taken_and_those_of_other_processes_removed(tmp_path: Path) -> None:
    states = written(tmp_path)
    for name in (".worker-c-9-0", ".worker-c-0-1.new", ".residual-2-5-1", ".local-ab-5-1"):
        (tmp_path / name).write_bytes(b"of an earlier launch")
    for name in (".lock", ".worker-a1-0-1"):
        (tmp_path / name).write_bytes(b"")
    worker_files.sweep(tmp_path, states)
    found = adopted(tmp_path, states)
    assert worker_files.damage(tmp_path / "new", found) == []
    for worker, state in enumerate(found):
        assert [file.name for file in state.files] == [f"worker-{worker:05d}.image"]
        parts = read_worker(tmp_path / "new", state)
        assert parts[LOCAL].notes == b'{"steps":4}'
        for name, part in image(worker).items():
            assert parts[name].arrays.keys() == part.arrays.keys()
            assert all((parts[name].arrays[k] == a).all() for k, a in part.arrays.items())
    # A finished worker of this launch has written its last file for all later checkpoints.
    assert waiting(tmp_path) == [".lock", ".worker-a1-0-1"]
    worker_files.discard(tmp_path)
    assert waiting(tmp_path) == [".lock"]


def test_the_file_of_a_finished_worker_stays_until_the_last_checkpoint(tmp_path: Path) -> None:
    states = written(tmp_path)
    states[1] = written(tmp_path, LAST, 2)[1]
    adopted(tmp_path, states)
    assert waiting(tmp_path) == [".worker-a0-0-0", ".worker-a1-0-1", ".worker-a1-5-1"]
    (tmp_path / "new").rename(tmp_path / "first")
    found = adopted(tmp_path, written(tmp_path, LAST))
    assert residuals_of(tmp_path / "new", found, 1)["a"] == values(1)["a"].tolist()


def test_without_the_file_of_a_worker_there_is_no_checkpoint(tmp_path: Path) -> None:
    states = written(tmp_path)
    (tmp_path / states[2].files[0].name).unlink()
    with pytest.raises(CheckpointError, match="image of worker 2 cannot be read: No such file"):
        adopted(tmp_path, states)
    states[2] = WorkerState(worker=2)
    shutil.rmtree(tmp_path / "try")
    with pytest.raises(CheckpointError, match="worker 2 has written no image, but other workers"):
        adopted(tmp_path, states)
    assert worker_files.adopt(tmp_path, tmp_path, states[2:]) == (states[2],)


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    states = written(tmp_path)
    (tmp_path / states[1].files[0].name).write_bytes(b"1234")
    with pytest.raises(CheckpointError, match=r"worker-a1-5-1: has 4 bytes instead of \d+"):
        adopted(tmp_path, states)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["full", "other"])
def test_a_failed_write_is_described_and_counts_until_the_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """An error of another kind with such a text in it is no full disk."""
    states = written(tmp_path, LAST, 2)
    name = temporary_name("a2", LAST, 2)

    def refused(*_: object) -> None:
        raise OSError(number, "No space left on device", "x")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refused)
        failed = write_file(tmp_path, name, image(2))
    assert waiting(tmp_path) == [".worker-a0-0-0", ".worker-a1-0-1"]
    states.append(WorkerState(worker=2, files=(failed,)))
    (tmp_path / "first").mkdir()
    with pytest.raises(CheckpointError, match=r"worker 2 could not write its image: .*No sp") as e:
        worker_files.adopt(tmp_path, tmp_path / "first", states)
    is_full = number == errno.ENOSPC
    assert isinstance(e.value, DiskFullError) == is_full == is_disk_full(e.value)
    # The worker tries again: the file is that which the first try described.
    assert write_file(tmp_path, name, image(2)).xxh3 == failed.xxh3
    found = adopted(tmp_path, states)
    assert residuals_of(tmp_path / "new", found, 2)["a"] == values(2)["a"].tolist()
    assert found[2].files[0].error == ""


@pytest.mark.parametrize(
    ("groups", "clocks", "finished", "expected"),
    [
        (((0, 1, 2),), [4, 4, 4], [0], []),  # the next leader has not ended clock 4
        (((0, 1, 2),), [4, 5, 5], [0], [0]),
        (((0, 1, 2),), [4, 4, 5], [0, 1], [0, 1]),
        (((0, 1, 2),), [4, 4, 4], [0, 1, 2], []),
        (((0, 1, 2),), [4, 7, 6], [0, 1, 2], [0, 2]),
        (((0, 2),), [4, 9, 4], [0], []),
        ((), [4, 9, 9], [0], []),
    ],
)
def test_residuals_of_a_finished_leader_are_in_one_file(
    tmp_path: Path, groups: Any, clocks: list[int], finished: list[int], expected: list[int]
) -> None:
    handed = handed_over(groups, clocks, finished)
    assert handed == set(expected)
    found = adopted(tmp_path, without(written(tmp_path), handed, {"a"}))
    for worker in range(3):
        of_worker = {name: array.tolist() for name, array in values(worker).items()}
        if worker in expected:
            del of_worker["a"]
        assert residuals_of(tmp_path / "new", found, worker) == of_worker
        # The other parts of the image stay.
        assert LOCAL in read_worker(tmp_path / "new", found[worker])
    assert worker_files.damage(tmp_path / "new", found) == []


def test_damage_is_found(tmp_path: Path) -> None:
    found = adopted(tmp_path, written(tmp_path))
    path = tmp_path / "new" / "worker-00001.image"
    data = bytearray(path.read_bytes())
    data[-70] ^= 1
    path.write_bytes(data)
    (tmp_path / "new" / "worker-00002.image").unlink()
    damaged = worker_files.damage(tmp_path / "new", found)
    assert [text.partition(": ")[0] for text in damaged] == [
        "image of worker 1",
        "image of worker 2",
    ]
    assert "00001.image: the checksum does not match" in damaged[0]
    assert "00002.image: cannot be read: No such file" in damaged[1]


@pytest.mark.parametrize("name", ["../x", "sub/x", "..", ""])
def test_files_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    state = WorkerState(worker=0, files=(ImageFile(name),))
    for use in (read_worker, worker_files.read_heads):
        with pytest.raises(CheckpointError, match="names a file in another folder"):
            use(tmp_path, state)


@pytest.mark.parametrize("cut", [1, 4, 64, 70, 128])
def test_an_image_that_is_too_short_is_refused(cut: int) -> None:
    data = np.concatenate(list(pieces(image(1))))
    assert read_image(data).keys() == {RESIDUALS, LOCAL}
    # Memory for an image may be longer than the image.
    assert read_image(np.append(data, np.zeros(64, np.uint8))).keys() == {RESIDUALS, LOCAL}
    with pytest.raises(CheckpointError, match="is damaged: its length is wrong"):
        read_image(data[:-cut])
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_image(data[:cut])


def test_an_image_has_the_bytes_that_were_predicted() -> None:
    arrays = {name: np.zeros(n, np.float32) for name, n in (("a", 1), ("b", 16), ("c", 33))}
    data = np.concatenate(list(pieces({LOCAL: PartImage(b"{}", arrays)})))
    assert len(data) == image_bytes(60, [1, 16, 33])


def test_a_checkpoint_of_format_2_is_read() -> None:
    """Written by mpips at the commit before format 3: two files of each worker in place of an image."""
    (path,) = (FORMAT2 / "three").iterdir()
    with open_checkpoint(path) as checkpoint:
        checkpoint.verify()
        states = checkpoint.manifest.workers
        assert [state.clock for state in states] == [8, 9, 10]
        for w, state in enumerate(states):
            of_worker = read_residuals(path, checkpoint.manifest, w)
            assert {n: v.tolist() for n, v in of_worker.items()} == {
                n: v.tolist() for n, v in values(w).items()
            }
            local = read_worker(path, state)[LOCAL]
            assert {n: v.tolist() for n, v in local.arrays.items()} == {
                f"plain/{name}": [10.0 * w + i] * 4 for i, name in enumerate(("values", "m", "v"))
            }
            heads = worker_files.read_heads(path, state)
            assert bytes(heads[LOCAL].notes) == local.notes
            assert heads[RESIDUALS].arrays == (("a", 6), ("b", 5))


@pytest.mark.parametrize("name", ["residual-00001.f32", "worker-1.local"])
def test_damage_in_a_checkpoint_of_format_2_is_found(tmp_path: Path, name: str) -> None:
    (source,) = (FORMAT2 / "three").iterdir()
    path = shutil.copytree(source, tmp_path / source.name)
    data = bytearray((path / name).read_bytes())
    data[-20] ^= 8
    (path / name).write_bytes(data)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.damage() == [
            f"image of worker 1: {path / name}: the checksum does not match"
        ]


def test_an_exchange_has_the_images_of_finished_workers(tmp_path: Path) -> None:
    disk, exchange = tmp_path / "disk", tmp_path / "exchange"
    # Worker 0 has finished and has written its image for the disk; worker 1 has come to the cut.
    states = [*written(disk, LAST, 1), written(exchange, 7, 2)[1]]
    into = exchange / "new"
    into.mkdir()
    found = worker_files.adopt(exchange, into, states, disk)
    worker_files.remove(exchange, states)
    for state in found:
        read = read_worker(into, state)
        assert np.array_equal(read[RESIDUALS].arrays["b"], values(state.worker)["b"])
    # The file of the finished worker stays for checkpoints on the disk.
    assert waiting(disk) == [temporary_name("a0", LAST, 0)]
    with pytest.raises(CheckpointError, match="the image of worker 0 cannot be read"):
        worker_files.adopt(exchange, tmp_path, states)
