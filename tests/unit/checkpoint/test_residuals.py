"""The files of residuals in a checkpoint: moved, checked, and given to other numbers of workers."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mpips.checkpoint import residuals
from mpips.checkpoint.agreement import is_disk_full
from mpips.checkpoint.file_error import FileError
from mpips.checkpoint.manifest import Manifest
from mpips.checkpoint.residual_entry import ResidualEntry
from mpips.checkpoint.shards import ManifestHead
from mpips.errors import CheckpointError, DiskFullError
from mpips.model.codec import OneBit, TopK
from mpips.model.consistency import ASP, BSP, Consistency
from mpips.model.table import DenseTable
from mpips.worker.feedback.start import _taking

CUT = residuals.ResidualCut(launch=2, number=5, n_workers=3)


def tables(model: Consistency | None = None) -> list[DenseTable]:
    model = model or ASP()
    return [
        DenseTable("a", (2, 3), consistency=model, compression=TopK(0.5)),
        DenseTable("plain", (4,), consistency=model),
        DenseTable("b", (5,), consistency=model, compression=OneBit()),
    ]


def values(worker: int) -> dict[str, np.ndarray]:
    return {
        "a": np.arange(6, dtype=np.float32) + 100 * worker,
        "b": np.full(5, worker + 1, np.float32),
    }


def written(folder: Path, cut: residuals.ResidualCut = CUT, workers: int = 3) -> None:
    for worker in range(workers):
        residuals.ResidualFolder(folder, cut.launch, worker).write(cut.number, values(worker))


def collected(folder: Path, cut: residuals.ResidualCut = CUT) -> ResidualEntry:
    target = folder / "new"
    target.mkdir()
    entry = residuals.collect(folder, target, ManifestHead("r", 0, 1, 0.0, tables(), residuals=cut))
    assert entry is not None
    # A try that is not published leaves the files for the next one.
    (folder / "again").mkdir()
    head = ManifestHead("r", 0, 1, 0.0, tables(), residuals=cut)
    assert residuals.collect(folder, folder / "again", head) == entry
    shutil.rmtree(folder / "again")
    residuals.remove(folder, cut)
    return entry


def manifest(entry: ResidualEntry | None) -> Manifest:
    plain = {
        "run_id": "r", "generation": 0, "step": 1, "wall_time_s": 0.0, "servers": [], "workers": [],
        "tables": [], "file": {"name": "state.h5", "n_bytes": 0, "structure_xxh3": ""}, "versions": {},
        "config": {},
    }  # fmt: skip
    return msgspec.structs.replace(msgspec.convert(plain, Manifest), residuals=entry)


def test_files_of_the_cut_are_moved_and_older_ones_removed(tmp_path: Path) -> None:
    written(tmp_path)
    written(tmp_path, residuals.ResidualCut(1, 9, 3))
    written(tmp_path, residuals.ResidualCut(2, residuals.LAST, 3))
    entry = collected(tmp_path)
    assert entry.tables == (("a", 6), ("b", 5))
    assert list(residuals.damage(tmp_path / "new", manifest(entry))) == []
    for worker in range(3):
        found = residuals.read_file(tmp_path / "new", entry, worker)
        assert all((found[name] == array).all() for name, array in values(worker).items())
    # The workers may be writing those of the end of this launch.
    left = sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("."))
    assert left == [f".residual-2-0-{worker}" for worker in range(3)]


def test_without_the_file_of_a_worker_there_is_no_checkpoint(tmp_path: Path) -> None:
    written(tmp_path, workers=2)
    with pytest.raises(CheckpointError, match="worker 2 has not written its residuals"):
        collected(tmp_path)


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / ".residual-2-5-1").write_bytes(b"1234")
    with pytest.raises(CheckpointError, match="has 4 bytes instead of 44"):
        collected(tmp_path)


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / ".residual-2-5-1.new").mkdir()
    residuals.ResidualFolder(tmp_path, 2, 1).write(5, values(1))
    assert not (tmp_path / ".residual-2-5-1").exists()


@pytest.mark.parametrize("is_full", [False, True])
def test_a_full_disk_at_a_worker_is_a_full_disk_until_the_file_is_there(
    tmp_path: Path, is_full: bool
) -> None:
    """The worker tries again; an error of another kind with such a text in it is no full disk."""
    written(tmp_path, residuals.ResidualCut(2, residuals.LAST, 3), workers=2)
    error = FileError.of(
        OSError(errno.ENOSPC if is_full else errno.EIO, "", "No space left on device")
    )
    cut = residuals.ResidualCut(2, residuals.LAST, 3, frozenset(range(3)), errors={2: error})
    (tmp_path / "first").mkdir()
    with pytest.raises(CheckpointError, match="worker 2 could not write its residuals") as raised:
        residuals.collect(
            tmp_path, tmp_path / "first", ManifestHead("r", 0, 1, 0.0, tables(), residuals=cut)
        )
    assert isinstance(raised.value, DiskFullError) == is_full == is_disk_full(raised.value)
    assert residuals.ResidualFolder(tmp_path, 2, 2).write(residuals.LAST, values(2)) is None
    found = residuals.read_file(tmp_path / "new", collected(tmp_path, cut), 2)
    assert (found["a"] == values(2)["a"]).all()


@pytest.mark.parametrize(
    ("groups", "clocks", "finished", "expected"),
    [
        ([[0, 1, 2]], [4, 4, 4], [0], []),  # the next leader has not ended clock 4
        ([[0, 1, 2]], [4, 5, 5], [0], [0]),
        ([[0, 1, 2]], [4, 4, 5], [0, 1], [0, 1]),
        ([[0, 1, 2]], [4, 4, 4], [0, 1, 2], []),
        ([[0, 1, 2]], [4, 7, 6], [0, 1, 2], [0, 2]),
        ([[0, 2]], [4, 9, 4], [0], []),
        ([], [4, 9, 9], [0], []),
    ],
)
def test_residuals_of_a_finished_leader_are_in_one_file(
    tmp_path: Path,
    groups: list[list[int]],
    clocks: list[int],
    finished: list[int],
    expected: list[int],
) -> None:
    assert residuals.handed_over(groups, clocks, finished) == set(expected)
    written(tmp_path, residuals.ResidualCut(2, residuals.LAST, 3))
    cut = residuals.ResidualCut(
        2, residuals.LAST, 3, frozenset(finished), frozenset(expected), frozenset({"a"})
    )
    entry = collected(tmp_path, cut)
    for worker in range(3):
        found = residuals.read_file(tmp_path / "new", entry, worker)
        assert (found["a"] == (0 if worker in expected else values(worker)["a"])).all()
        assert (found["b"] == values(worker)["b"]).all()
    assert list(residuals.damage(tmp_path / "new", manifest(entry))) == []


@pytest.mark.parametrize("n_workers", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "groups", [(), ((0, 1),), ((1, 2),), ((0, 2), (1, 3, 4)), ((0, 1, 2, 3, 4),)]
)
def test_the_leader_of_a_group_takes_the_residuals_of_its_workers(
    tmp_path: Path, n_workers: int, groups: tuple[tuple[int, ...], ...]
) -> None:
    groups = tuple(group for group in groups if max(group) < n_workers)
    written(tmp_path)
    described, path = manifest(collected(tmp_path)), tmp_path / "new"
    taking = _taking(groups, n_workers, {"a"})
    found = [
        residuals.restored(path, described, tables(), worker, n_workers, taking)
        for worker in range(n_workers)
    ]
    for name in ("a", "b"):
        assert (
            sum(f[name] for f in found if name in f) == sum(values(w)[name] for w in range(3))
        ).all()
    led = {worker for group in groups for worker in group[1:]}
    assert all("a" not in found[worker] for worker in led)


def test_damage_is_found(tmp_path: Path) -> None:
    written(tmp_path)
    entry = collected(tmp_path)
    path = tmp_path / "new" / entry.files[1].name
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)
    (tmp_path / "new" / entry.files[2].name).unlink()
    found = list(residuals.damage(tmp_path / "new", manifest(entry)))
    assert len(found) == 2
    assert "residual-00001.f32, the residuals of a worker: the checksum" in found[0]
    assert "residual-00002.f32 cannot be read" in found[1]


def test_files_elsewhere_are_refused(tmp_path: Path) -> None:
    written(tmp_path)
    entry = collected(tmp_path)
    files = (entry.files[0], msgspec.structs.replace(entry.files[1], name="../x"), entry.files[2])
    entry = msgspec.structs.replace(entry, files=files)
    with pytest.raises(CheckpointError, match=r"names '\.\./x' for the residuals of worker 1"):
        residuals.read_file(tmp_path / "new", entry, 1)
    with pytest.raises(CheckpointError, match="instead of residual-00001"):
        list(residuals.damage(tmp_path / "new", manifest(entry)))


@pytest.mark.parametrize("n_workers", [1, 2, 3, 5])
@pytest.mark.parametrize("model", [ASP(), BSP(reduce="sum"), BSP(reduce="mean")], ids=str)
def test_another_number_of_workers_keeps_the_contribution(
    tmp_path: Path, model: Consistency, n_workers: int
) -> None:
    written(tmp_path)
    described, path = manifest(collected(tmp_path)), tmp_path / "new"
    found = [
        residuals.restored(path, described, tables(model), worker, n_workers)
        for worker in range(n_workers)
    ]
    if n_workers == 3:
        assert all((f["a"] == values(w)["a"]).all() for w, f in enumerate(found))
    for name in ("a", "b"):
        before = sum(values(worker)[name] for worker in range(3))
        after = sum(f[name] for f in found if name in f)
        if isinstance(model, BSP) and model.reduce == "mean":
            assert np.allclose(after / n_workers, before / 3, rtol=1e-6)
        else:
            assert (after == before).all()


def test_residuals_of_a_table_that_has_another_codec_now_are_not_used(tmp_path: Path) -> None:
    written(tmp_path)
    described = manifest(collected(tmp_path))
    now = [tables()[0], DenseTable("b", (5,), compression="int8")]
    assert set(residuals.restored(tmp_path / "new", described, now, 0, 3)) == {"a"}
    assert residuals.unused(described, now) == ["b"]
    assert residuals.unused(manifest(None), now) == []


def test_the_file_of_a_finished_worker_is_copied_until_the_last_checkpoint(tmp_path: Path) -> None:
    """It has written only the file of the end; periodic checkpoints and the last one need it."""
    written(tmp_path, residuals.ResidualCut(2, residuals.LAST, 3))
    for worker in (0, 2):
        residuals.ResidualFolder(tmp_path, 2, worker).write(5, values(worker + 10))
    cut = msgspec.structs.replace(CUT, finished=frozenset({1}))
    entry = collected(tmp_path, cut)
    for worker, expected in enumerate((10, 1, 12)):
        found = residuals.read_file(tmp_path / "new", entry, worker)
        assert all((found[name] == array).all() for name, array in values(expected).items())
    (tmp_path / "new").rename(tmp_path / "first")
    # The servers of the last checkpoint know that all workers have finished. Of an earlier, larger job:
    residuals.ResidualFolder(tmp_path, 2, 7).write(residuals.LAST, values(7))
    everyone = frozenset(range(3))
    entry = collected(tmp_path, residuals.ResidualCut(2, residuals.LAST, 3, everyone))
    for worker in range(3):
        found = residuals.read_file(tmp_path / "new", entry, worker)
        assert all((found[name] == array).all() for name, array in values(worker).items())
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_without_the_last_file_of_a_finished_worker_there_is_no_checkpoint(tmp_path: Path) -> None:
    written(tmp_path, workers=2)
    with pytest.raises(CheckpointError, match="worker 2 has not written its residuals"):
        collected(tmp_path, msgspec.structs.replace(CUT, finished=frozenset({2})))
