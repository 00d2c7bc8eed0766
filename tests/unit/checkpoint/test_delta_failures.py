"""Deltas that cannot be written, are damaged, or would replace what must stay: one sentence, no crash."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from checkpoints import KEYS, ROW_TABLES, TABLES, Contents, flip
from msgspec.structs import replace as replaced

import mpips
from mpips.checkpoint import (
    Checkpoint,
    apply_delta,
    delta_apply,
    delta_file,
    find_newest,
    open_checkpoint,
    write_delta,
)
from mpips.checkpoint.delta_file import FORMAT, HEAD_BYTES, DeltaFile
from mpips.checkpoint.manifest import MANIFEST, STATE
from mpips.errors import CheckpointError, ConfigError

# A dense table, and rows with counts and uses.
ALL = [TABLES[2], ROW_TABLES[0], mpips.EmbeddingTable("recent", 2, evict=mpips.Idle(50))]
WIDE = [mpips.EmbeddingTable("users", 64, mpips.Adagrad(0.1))]
# Write a delta with a limit of the size of files for each argument, in a child that exits as programs do.
LIMITED = """
import os, resource, sys
from pathlib import Path
from mpips.checkpoint import open_checkpoint, write_delta
from mpips.data.hdf5 import load_hdf5
from mpips.errors import ConfigError

load_hdf5("writing")
a, b, out, *limits = sys.argv[1:]
with open_checkpoint(Path(a)) as first, open_checkpoint(Path(b)) as second:
    for limit in limits:
        if not (pid := os.fork()):
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
            try:
                write_delta(first, second, Path(out))
            except ConfigError as error:
                print(error)
            sys.exit()
        status = os.waitpid(pid, 0)[1]
        print(limit, "status", status, flush=True)
"""


def write(folder: Path, tables=ALL, **keys) -> tuple[Path, Path]:
    """Write two checkpoints with other values, in folders of their own."""
    contents = [Contents(tables, seed, {**KEYS, **keys}) for seed in (0, 1)]
    return tuple(
        c.write(folder / name, step).path
        for c, name, step in zip(contents, "ab", (100, 200), strict=True)
    )


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Path, Path]:
    return write(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def good(pair, tmp_path_factory) -> Path:
    """Return the delta of the pair; tests copy it."""
    file = tmp_path_factory.mktemp("good") / "d.h5"
    made(pair, file)
    return file


def made(pair, file: Path, force: bool = False):
    with open_checkpoint(pair[0]) as first, open_checkpoint(pair[1]) as second:
        return write_delta(first, second, file, force)


def applied(a: Path, file: Path, out: Path) -> Path:
    with open_checkpoint(a) as first:
        return apply_delta(first, file, out)


def same(one: Path, other: Path) -> bool:
    names = (MANIFEST, STATE)
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def listing(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# Writing.


@pytest.mark.parametrize(
    ("tables", "rows", "every"),
    [(ALL, 40, 4001), pytest.param(WIDE, 40_000, 3_000_017, marks=pytest.mark.long)],
)
def test_a_full_disk_at_any_place_ends_with_one_sentence(tmp_path, tables, rows, every) -> None:
    a, b = write(tmp_path, tables, users=range(rows))
    out = tmp_path / "out"
    out.mkdir()
    n_bytes = made((a, b), tmp_path / "d.h5").n_bytes
    limits = [0, 1, HEAD_BYTES - 1, *range(HEAD_BYTES, n_bytes, every), n_bytes - 1]
    command = [sys.executable, "-c", LIMITED, *map(str, (a, b, out / "d.h5", *limits))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    sentence = f"{out / 'd.h5'}: cannot be written: File too large"
    expected = [line for n in limits for line in (sentence, f"{n} status 0")]
    assert (done.stdout.splitlines(), done.stderr) == (expected, "")
    assert list(out.iterdir()) == []


def test_after_a_failure_little_is_kept_in_memory_and_the_file_is_closed(
    tmp_path, monkeypatch
) -> None:
    pair = write(tmp_path, WIDE, users=range(20_000))
    files = []

    class Full(DeltaFile):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            files.append(self)

    def write_some(fd, data, offset) -> None:
        if offset + len(data) > 1_000_000:
            os.pwrite(fd, bytes(data)[:5], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.pwrite(fd, data, offset)

    monkeypatch.setattr(delta_file, "DeltaFile", Full)
    monkeypatch.setattr(delta_file, "write_all", write_some)
    with pytest.raises(ConfigError) as caught:
        made(pair, tmp_path / "d.h5")
    assert str(caught.value) == (f"{tmp_path / 'd.h5'}: cannot be written: No space left on device")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]
    (file,) = files
    assert file.closed
    assert 0 < sum(len(data) for _, data in file._unwritten) < 4_000_000
    kinds = h5py.h5f.OBJ_FILE | h5py.h5f.OBJ_GROUP | h5py.h5f.OBJ_DATASET
    assert h5py.h5f.get_obj_count(types=kinds) == 0


def test_the_file_object_reads_what_was_and_was_not_written(tmp_path, monkeypatch) -> None:
    """Random writes, of which those after the first failure stay in memory, read as in one array."""
    random = np.random.default_rng(0)
    left = [30]

    def write_some(fd, data, offset) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.pwrite(fd, bytes(data)[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, "full")
        os.pwrite(fd, data, offset)

    monkeypatch.setattr(delta_file, "write_all", write_some)
    expected = np.zeros(5000, np.uint8)
    with DeltaFile(tmp_path / "f", "x+b") as file:
        for _ in range(300):
            at, n = int(random.integers(4000)), int(random.integers(1, 900))
            data = random.integers(0, 256, n).astype(np.uint8)
            file.seek(at)
            assert file.write(data) == n
            assert file.tell() == at + n
            expected[at : at + n] = data
            at, n = int(random.integers(4000)), int(random.integers(1, 900))
            found = np.full(n, 7, np.uint8)
            file.seek(at)
            file.readinto(found)
            assert found.tobytes() == expected[at : at + n].tobytes()
            assert file.seek(0, os.SEEK_END) == int(np.flatnonzero(expected)[-1]) + 1 or left[0] > 0
        with pytest.raises(OSError, match="full"):
            file.check()
        with pytest.raises(OSError, match="full"):
            file.seal()
    assert left[0] == -1


def test_files_in_checkpoints_folders_and_devices_are_not_replaced(tmp_path) -> None:
    a, b = write(tmp_path)
    other = tmp_path / "other"
    shutil.copytree(b, other)
    link = tmp_path / "link"
    link.symlink_to(a)
    (a / "folder").mkdir()
    (tmp_path / "inner").symlink_to(a / "folder")
    os.mkfifo(tmp_path / "fifo")
    before = listing(tmp_path)
    inside = [
        a / STATE,
        b / MANIFEST,
        a / "d.h5",
        link / STATE,
        other / STATE,
        b / ".." / b.name / "x",
        tmp_path / "inner" / "x",
    ]
    for out in inside:
        with pytest.raises(ConfigError, match=r"lies in the checkpoint .*; name a place outside"):
            made((a, b), out, force=True)
    # A link to a device, and not the device, which a failing test would replace.
    (tmp_path / "device").symlink_to("/dev/full")
    for out in (tmp_path / "device", tmp_path / "fifo"):
        with pytest.raises(
            ConfigError, match="is not a regular file; give the name of another file"
        ):
            made((a, b), out, force=True)
    for out in (a, tmp_path, link, Path(), Path("/")):
        with pytest.raises(ConfigError, match="is a folder; give the name of a file"):
            made((a, b), out, force=True)
    with pytest.raises(ConfigError, match="there is no such folder"):
        made((a, b), tmp_path / "no" / "d.h5")
    assert listing(tmp_path) == before


def test_force_replaces_a_file_or_a_link_and_not_what_the_link_names(pair, tmp_path) -> None:
    file, link = tmp_path / "d.h5", tmp_path / "link"
    file.write_bytes(b"precious")
    link.symlink_to(file)
    for out in (file, link):
        with pytest.raises(ConfigError, match="already exists; use --force"):
            made(pair, out)
    made(pair, link, force=True)
    assert not link.is_symlink()
    assert file.read_bytes() == b"precious"
    made(pair, file, force=True)
    assert file.read_bytes() == link.read_bytes()


def test_the_longest_names_are_written_and_longer_ones_refused(pair, good, tmp_path) -> None:
    file, out = tmp_path / ("d" * 255), tmp_path / ("c" * 255)
    made(pair, file)
    assert same(applied(pair[0], file, out), pair[1])
    for call in (lambda p: made(pair, p), lambda p: applied(pair[0], good, p)):
        with pytest.raises(ConfigError, match="cannot be written: File name too long"):
            call(tmp_path / ("e" * 256))
    assert sorted(p.name for p in tmp_path.iterdir()) == [out.name, file.name]


def test_a_file_of_the_second_checkpoint_that_cannot_be_read_is_named(tmp_path) -> None:
    a, b = write(tmp_path)
    with open_checkpoint(a) as first, open_checkpoint(b) as second:
        os.truncate(b / STATE, 5000)
        with pytest.raises(CheckpointError, match=f"{b.name}: .*ends"):
            write_delta(first, second, tmp_path / "d.h5")
        (b / MANIFEST).unlink()
        with pytest.raises(CheckpointError, match=f"{MANIFEST}: cannot be read: No such file"):
            write_delta(first, second, tmp_path / "d.h5")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_rows_of_a_damaged_base_do_not_stop_the_merge(pair, good, tmp_path) -> None:
    """A flipped bit in keys of the base, which apply has not verified, must not loop or give other rows."""
    a = tmp_path / pair[0].name
    with open_checkpoint(pair[0]) as first:
        keys = first.manifest.table("users").dataset("keys")
    for place, bit in ((0, 7), (3, 0), (keys.n_units - 1, 7)):
        shutil.copytree(pair[0], a)
        flip(a / STATE, keys.offset + 8 * place + (7 if bit == 7 else 0), bit)
        with pytest.raises(
            CheckpointError, match=r"keys of table 'users' do not ascend|does not give"
        ):
            applied(a, good, tmp_path / "c")
        shutil.rmtree(a)
    assert list(tmp_path.iterdir()) == []


# Reading.


def test_no_flipped_bit_is_applied_or_crashes(pair, good, tmp_path) -> None:
    copy, out = tmp_path / "d.h5", tmp_path / "c"
    shutil.copy(good, copy)
    n_bytes = copy.stat().st_size
    with open_checkpoint(pair[0]) as first:
        for offset in range(0, n_bytes, 7):
            flip(copy, offset, offset % 8)
            with pytest.raises(CheckpointError) as caught:
                apply_delta(first, copy, out)
            assert str(caught.value).startswith(f"{copy}: ")
            if offset > HEAD_BYTES:
                assert str(caught.value) == f"{copy}: is damaged: the checksum does not match"
            flip(copy, offset, offset % 8)
        assert same(apply_delta(first, copy, out), pair[1])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c", "d.h5"]


def test_every_byte_of_the_head_is_compared(pair, good, tmp_path) -> None:
    copy = tmp_path / "d.h5"
    shutil.copy(good, copy)
    with open_checkpoint(pair[0]) as first:
        for offset in range(HEAD_BYTES):
            flip(copy, offset, 1)
            with pytest.raises(CheckpointError):
                apply_delta(first, copy, tmp_path / "c")
            flip(copy, offset, 1)


def test_files_that_are_no_whole_deltas(pair, good, tmp_path) -> None:
    a, b = pair
    copy = tmp_path / "d.h5"
    data = good.read_bytes()
    n = len(data)
    future = data.replace(b"format %d," % FORMAT, b"format %d," % (FORMAT + 1), 1)
    cases = [
        (b"", "is not a delta of checkpoints"),
        (data[:20], "is not a delta of checkpoints"),
        (data[:50], "is damaged: it has 50 bytes instead of"),
        (data[:HEAD_BYTES], f"is damaged: it has 512 bytes instead of {n:,}"),
        (data[:-1], f"is damaged: it has {n - 1:,} bytes instead of {n:,}"),
        (data + b"\0", f"is damaged: it has {n + 1:,} bytes instead of {n:,}"),
        (data[HEAD_BYTES:], "is not a delta of checkpoints"),
        ((b / STATE).read_bytes(), "is not a delta of checkpoints"),
        (
            future,
            f"format {FORMAT + 1} of deltas is newer than this mpips, which reads up to {FORMAT}: ",
        ),
        (future[:100], f"format {FORMAT + 1} of deltas is newer"),
    ]
    for content, message in cases:
        copy.write_bytes(content)
        with pytest.raises(CheckpointError) as caught:
            applied(a, copy, tmp_path / "c")
        assert str(caught.value).startswith(f"{copy}: {message}")
    for path, message in (
        (tmp_path / "no", "there is no such file"),
        (tmp_path, "cannot be read: Is a"),
    ):
        with pytest.raises(CheckpointError, match=f"{path}: {message}"):
            applied(a, path, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def replace(file, name: str, array) -> None:
    del file[name]
    file[name] = array


def cut(name: str, n: int = 1):
    return lambda file: replace(file, name, file[name][:n])


def put(name: str, array):
    return lambda file: replace(file, name, np.array(array))


def without(name: str):
    return lambda file: file.pop(name)


@pytest.mark.parametrize(
    "edit",
    [
        cut("tables/users/values"),
        cut("tables/users/steps"),
        cut("tables/recent/uses", 3),
        cut("tables/users/keys", 2),
        cut("tables/vector/values"),
        cut("tables/vector/state/momentum"),
        cut("tables/vector/starts", 0),
        put("workers", [1.0, 2.0]),
        lambda file: file["workers"].create_dataset("worker-00000.image", data=[1, 2, 3]),
        put("tables/users", [1.0]),
        put("tables/users/keys", np.zeros((2, 2), np.int64)),
        put("tables/users/keys", np.arange(105)[::-1]),
        put("tables/users/keys", [b"a"] * 105),
        put("tables/users/keys", np.arange(10**6, 10**6 + 105)),
        put("tables/users/removed", np.array([1.5])),
        put("tables/vector/starts", np.array([-33])),
        put("tables/vector/stops", np.array([34])),
        put("tables/vector/values", np.zeros((33, 1), np.float32)),
        put("tables/vector/values", np.zeros(33, np.float64)),
        put("structure/offsets", np.array([[-1, 5]])),
        put("structure/offsets", np.array([[1 << 50, 5]])),
        put("structure/offsets", np.array([1, 5])),
        put("structure/offsets", np.array([[0, 10**9]])),
        put("structure", [0]),
        put("manifest", np.uint8(5)),
        put("manifest", np.zeros(9, np.uint8)),
        without("tables/users"),
        without("tables/users/values"),
        without("structure/bytes"),
        without("manifest"),
        lambda file: file.attrs.pop("base_manifest_xxh3"),
    ],
)
def test_files_of_another_structure_whose_checksum_is_right_are_refused(
    pair, good, tmp_path, edit
) -> None:
    copy, out = tmp_path / "d.h5", tmp_path / "c"
    shutil.copy(good, copy)
    with h5py.File(copy, "r+") as file:
        edit(file)
    with DeltaFile(copy, "r+b") as file:
        file.seal()
    with pytest.raises(CheckpointError) as caught:
        applied(pair[0], copy, out)
    assert str(caught.value).startswith(f"{copy}: ")
    assert [p.name for p in tmp_path.iterdir()] == ["d.h5"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            cut("tables/recent/uses", 3),
            "is damaged: the datasets of /tables/recent have different le",
        ),
        (
            cut("tables/vector/state/momentum"),
            "is damaged: the datasets of /tables/vector have diff",
        ),
        (
            put("tables/recent/uses", np.zeros((40, 3), np.uint32)),
            r"uses has shape \(40, 3\) and dtype u",
        ),
        (
            put("tables/users/removed", np.zeros((2, 1), np.int64)),
            r"removed has shape \(2, 1\) and dt",
        ),
    ],
)
def test_the_dataset_of_another_length_or_shape_is_named(
    pair, good, tmp_path, edit, message
) -> None:
    copy = tmp_path / "d.h5"
    shutil.copy(good, copy)
    with h5py.File(copy, "r+") as file:
        edit(file)
    with DeltaFile(copy, "r+b") as file:
        file.seal()
    with pytest.raises(CheckpointError, match=message):
        applied(pair[0], copy, tmp_path / "c")


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", MANIFEST, "..", "", "a/b"])
def test_a_manifest_that_names_files_elsewhere_is_refused(tmp_path, name, monkeypatch) -> None:
    a, b = write(tmp_path)
    real = delta_apply.decode

    def decode(data, where):
        manifest = real(data, where)
        return replaced(manifest, file=replaced(manifest.file, name=name))

    made((a, b), tmp_path / "d.h5")
    monkeypatch.setattr(delta_apply, "decode", decode)
    before = listing(tmp_path)
    with pytest.raises(CheckpointError, match="is not a name of a file in the checkpoint"):
        applied(a, tmp_path / "d.h5", tmp_path / "c")
    assert listing(tmp_path) == before


def test_a_checkpoint_is_not_made_in_a_checkpoint(pair, good, tmp_path) -> None:
    a = tmp_path / "checkpoints" / pair[0].name
    other = tmp_path / "other"
    shutil.copytree(pair[0], a)
    shutil.copytree(pair[1], other)
    before = listing(tmp_path)
    for out in (a, a / "new", other, tmp_path / "checkpoints" / ".." / "other" / "new"):
        with pytest.raises(ConfigError, match=r"lies in the checkpoint .*; name a place outside"):
            applied(a, good, out)
    with pytest.raises(ConfigError, match="already exists; remove it"):
        applied(a, good, good)
    with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
        applied(a, good, tmp_path / "no" / "c")
    assert listing(tmp_path) == before
    # Beside it the result is found.
    applied(a, good, a.parent)
    found = find_newest(a.parent).checkpoint
    assert isinstance(found, Checkpoint)
    assert found.manifest.step == 200
    found.close()
    with pytest.raises(ConfigError, match=f"{pair[1].name}: already exists; remove it"):
        applied(a, good, a.parent)


def test_a_full_disk_while_a_delta_is_applied(pair, good, tmp_path, monkeypatch) -> None:
    def full(fd, data, offset) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(delta_apply, "write_all", full)
    with pytest.raises(ConfigError) as caught:
        applied(pair[0], good, tmp_path / "c")
    assert str(caught.value) == f"{tmp_path / 'c'}: cannot be written: No space left on device"
    assert list(tmp_path.iterdir()) == []
