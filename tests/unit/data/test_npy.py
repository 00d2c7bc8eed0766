"""npy: the samples are those that NumPy saved, wherever the labels are; a wrong file is one sentence."""

from __future__ import annotations

import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.recfunctions import repack_fields

import mpips
from mpips.config.schema import load_config
from mpips.data import DenseData, ReadOptions, read
from mpips.data.file_blocks import blocks, labelled_blocks
from mpips.data.shares import numbers
from mpips.errors import CapabilityError, DataError, MpipsError
from mpips.training.train import train
from tests.support.streaming import convert, drafted, streamed, whole

N = 101


def rng(seed: int = 5) -> np.random.Generator:
    return np.random.default_rng(seed)


def save(path: Path, array: np.ndarray) -> Path:
    np.save(path, array)
    return path


DTYPES = ["f4", "f8", ">f8", "f2", "i1", "u2", "i8", "?"]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_samples_are_those_of_numpy(tmp_path: Path, dtype: str, order: Any, n_workers: int) -> None:
    x = np.asarray(rng().integers(0, 2 if dtype == "?" else 100, (N, 7)), dtype, order=order)
    y = rng(6).integers(0, 3, N).astype("i2")
    path = save(tmp_path / "x.npy", x)
    save(tmp_path / "y.npy", y)
    for worker in range(n_workers):
        part = read(path, stride=n_workers, offset=worker, shares="mixed")
        own = numbers(N, n_workers, worker, "mixed")
        assert isinstance(part.data, DenseData)
        assert part.data.x.tolist() == x[own].astype(np.float64).tolist()
        assert part.data.labels.tolist() == y[own].tolist()
        assert part.info.n_samples_total == N
    # Read in windows, each sample is read by one worker.
    data = whole(streamed([path], tmp_path / "cache", n_workers=n_workers, memory=1 << 12))
    assert isinstance(data, DenseData)
    assert data.x.tolist() == x.astype(np.float64).tolist()
    assert data.labels.tolist() == y.tolist()


@pytest.mark.parametrize("place", [0, 2, 4, -1, -3])
def test_labels_in_a_column(tmp_path: Path, place: int) -> None:
    whole_array = rng().integers(0, 4, (N, 5)).astype("f4")
    path = save(tmp_path / "data.npy", whole_array)
    options = ReadOptions(label=str(place))
    part = read(path, options=options)
    x = np.delete(whole_array, place, axis=1)
    assert isinstance(part.data, DenseData)
    assert part.data.x.tolist() == x.tolist()
    assert part.data.labels.tolist() == whole_array[:, place].tolist()
    assert part.notes == (f"{path}: labels from column {place % 5} of 5 columns, 0 to 4",)
    found = streamed([path], tmp_path / "cache", options=options, n_workers=2, memory=1 << 12)
    data = whole(found)
    assert isinstance(data, DenseData)
    assert data.x.tolist() == x.tolist()
    assert data.labels.tolist() == part.data.labels.tolist()
    assert found[0].index.notes == part.notes
    # An array to be predicted has the column, or lacks it.
    bare = save(tmp_path / "bare.npy", x)
    for file in (path, bare):
        [block] = blocks(file, options, part.info)
        assert isinstance(block, DenseData)
        assert block.x.tolist() == x.tolist()


@pytest.mark.parametrize(
    ("x_name", "y_name", "label"),
    [
        ("x.npy", "y.npy", None),
        ("X.npy", "Y.npy", None),
        ("X_train.npy", "y_train.npy", None),
        ("day-1.x.npy", "day-1.y.npy", None),
        ("box.npy", "labels.npy", "labels.npy"),
        ("x.npy", "z.npy", "z.npy"),
    ],
)
def test_labels_in_a_second_file(
    tmp_path: Path, x_name: str, y_name: str, label: str | None
) -> None:
    x, y = rng().random((N, 2, 3)), np.arange(N) % 2
    path, other = save(tmp_path / x_name, x), save(tmp_path / y_name, y)
    part = read(path, options=ReadOptions(label=label))
    assert isinstance(part.data, DenseData)
    assert part.data.x.tolist() == x.reshape(N, 6).tolist()
    assert part.data.labels.tolist() == y.tolist()
    assert part.notes == (f"{path}: labels from {other}",)


@pytest.mark.parametrize("name", ["x_x.npy", "x.X.npy"])
def test_a_name_with_several_x_does_not_tell_its_labels(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / name, rng().random((N, 2)))
    for first, second in (("y", "x"), ("x", "y"), ("y", "y")):
        save(tmp_path / (first + name[1] + second + name[3:]), np.arange(N) % 2)
        save(tmp_path / (first + name[1] + second.upper() + name[3:]), np.arange(N) % 2)
    with pytest.raises(DataError, match="where its labels are is not clear"):
        read(path)


def test_a_pattern_of_pairs_is_read_as_one(tmp_path: Path) -> None:
    for i in range(3):
        save(tmp_path / f"x_{i}.npy", np.full((4, 2), i))
        save(tmp_path / f"y_{i}.npy", np.full(4, i % 2))
    part = read(tmp_path / "x_*.npy")
    assert isinstance(part.data, DenseData)
    assert part.data.x[:, 0].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert part.data.labels.tolist() == [0] * 4 + [1] * 4 + [0] * 4


def table(n: int = N) -> np.ndarray:
    found = np.zeros(n, [("größe", "f4"), ("time", "f8"), ("label", "i2"), ("id", "U4")])
    found["größe"] = rng().normal(size=n)
    found["time"] = 1.7e9 + rng(1).integers(0, 10**6, n) / 8
    found["label"] = rng(2).integers(0, 3, n)
    return found


def test_fields_are_columns_as_of_csv(tmp_path: Path) -> None:
    array = table()
    path = save(tmp_path / "a.npy", array)
    rows = [f"{float(r['größe'])!r},{float(r['time'])!r},{r['label']},x" for r in array]
    csv = tmp_path / "a.csv"
    csv.write_text("\n".join(["größe,time,label,id", *rows]) + "\n")
    options = ReadOptions(ignore=("id",))
    found, expected = read(path, options=options), read(csv, options=options)
    assert found.info == expected.info
    assert found.info.columns == ("größe", "time")
    assert isinstance(found.data, DenseData)
    assert isinstance(expected.data, DenseData)
    assert found.data.x.dtype == expected.data.x.dtype == np.float64
    assert found.data.x.tolist() == expected.data.x.tolist()
    # A model that was trained on one format predicts from the other, also in another order of columns.
    turned = save(tmp_path / "b.npy", repack_fields(array[["time", "größe"]]))
    notes: list[str] = []
    [block] = blocks(turned, options, expected.info, say=notes.append)
    assert notes == []
    assert isinstance(block, DenseData)
    assert block.x.tolist() == found.data.x.tolist()
    shares = streamed([path], tmp_path / "cache", options=options, n_workers=3, memory=1 << 12)
    data = whole(shares)
    assert isinstance(data, DenseData)
    assert data.x.tolist() == found.data.x.tolist()
    assert shares[0].index.columns == ("größe", "time")
    assert shares[0].index.label_column == "label"


def test_a_field_that_the_training_data_lacks_is_left_out_with_a_note(tmp_path: Path) -> None:
    info = read(save(tmp_path / "a.npy", table()), options=ReadOptions(ignore=("id",))).info
    more = save(tmp_path / "b.npy", table(9))
    notes: list[str] = []
    [block] = blocks(more, ReadOptions(), info, say=notes.append)
    assert block.n == 9
    assert notes == [f"{more}: column 'id' not in the training data: left out"]
    # Where labels came from is said, too.
    x, y = save(tmp_path / "x.npy", np.eye(4)), save(tmp_path / "y.npy", np.arange(4) % 2)
    notes.clear()
    list(labelled_blocks(x, ReadOptions(), read(x).info, say=notes.append))
    assert f"{x}: labels from {y}" in notes


def test_a_changed_file_of_labels_is_another_cache(tmp_path: Path) -> None:
    path = save(tmp_path / "x.npy", rng().random((N, 3)))
    save(tmp_path / "y.npy", np.arange(N) % 2)
    options = ReadOptions()
    plan = drafted([path], options, 1 << 12, tmp_path)
    convert(plan, options, 1, tmp_path / plan.key)
    assert drafted([path], options, 1 << 12, tmp_path).is_there
    save(tmp_path / "y.npy", np.arange(N) % 3)
    assert not drafted([path], options, 1 << 12, tmp_path).is_there


def test_a_model_is_trained_evaluated_and_predicts(tmp_path: Path) -> None:
    x = rng().normal(size=(400, 3))
    y = (x[:, 0] > x[:, 1]) * 2 + 5
    path = save(tmp_path / "data", np.column_stack([x, y]))  # found by its content
    path = path.with_name("data.npy").rename(path)
    config = load_config(
        None,
        [
            ("task", "softmax"),
            ("data.train", str(path)),
            ("data.label", "-1"),
            ("train.epochs", 20),
            ("checkpoint.folder", str(tmp_path / "model")),
        ],
    )
    train(config, "none", verbose=False)
    model = mpips.load(tmp_path / "model")
    assert model.evaluate(path)["accuracy"] > 0.95
    bare = save(tmp_path / "bare.npy", x)
    predicted = model.predict(str(bare))
    assert predicted.tolist() == model.predict(str(path)).tolist() == model.predict(x).tolist()
    assert set(predicted.tolist()) == {5, 7}


def header(text: str, version: tuple[int, int] = (1, 0)) -> bytes:
    form = "<H" if version == (1, 0) else "<I"
    body = text.encode() + b"\n"
    return b"\x93NUMPY" + bytes(version) + struct.pack(form, len(body)) + body


def of(shape: str, descr: str = "'<f4'", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}"


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "16 TiB": (lambda: header(of("(4398046511104, 1)")), r"17,592,186,044,416 bytes, and 0 follow"),
    "beyond 64 bits": (lambda: header(of(f"({2**62}, {2**62})")), "cut off or damaged"),
    "rows of nothing": (lambda: header(of(f"({2**50}, 0)")), "has no column of features"),
    "negative": (lambda: header(of("(-1, 4)")) + b"\0" * 64, "cut off or damaged"),
    "objects": (lambda: header(of("(2, 2)", "'|O'")) + b"\0" * 64, "contains Python objects"),
    "complex": (lambda: header(of("(1, 1)", "'<c8'")) + b"\0" * 8, "dtype complex64, expected num"),
    "text": (lambda: header(of("(1, 1)", "'<U2'")) + b"\0" * 8, "dtype <U2, expected numbers"),
    "dates": (lambda: header(of("(1, 1)", "'<M8[s]'")) + b"\0" * 8, "expected numbers"),
    "1-D": (lambda: header(of("(2,)")) + b"\0" * 8, r"x has shape \(2,\)"),
    "0-D": (lambda: header(of("()")) + b"\0" * 4, r"x has shape \(\)"),
    "no samples": (lambda: header(of("(0, 4)")), "contains no samples"),
    "NaN": (lambda: header(of("(1, 1)")) + b"\xff" * 4, "contains NaN"),
    "empty": (lambda: b"", "is not an array of NumPy"),
    "cut header": (lambda: header(of("(2, 2)"))[:30], "is not an array of NumPy"),
    "cut": (lambda: header(of("(2, 2)")) + b"\0" * 15, "16 bytes, and 15 follow"),
    "no header": (lambda: b"\x93NUMPY\x01\x00\xff\xffabc", "is not an array of NumPy"),
    "version": (lambda: b"\x93NUMPY\x09\x00" + b"\0" * 99, "is not an array of NumPy"),
    "code": (lambda: header("__import__('os').abort()"), "is not an array of NumPy"),
    "nested": (lambda: header("(" * 9000), "is not an array of NumPy"),
    "long header": (lambda: header(" " * 10**6, (2, 0)), "is not an array of NumPy"),
    "archive": (lambda: b"PK\x03\x04" + b"\0" * 99, "is not an array of NumPy"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_one_sentence(tmp_path: Path, kind: str) -> None:
    content, text = HOSTILE[kind]
    path = tmp_path / "x.npy"
    path.write_bytes(content())
    rows = {"1-D": 2, "0-D": 0, "no samples": 0, "rows of nothing": 0}.get(kind, 1)
    save(tmp_path / "y.npy", np.zeros(rows))
    if kind == "rows of nothing":
        (tmp_path / "y.npy").write_bytes(header(of(f"({2**50},)", "'|V0'")))
        text = "labels are numbers"
    with pytest.raises(MpipsError, match=text) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value) or "y.npy" in str(caught.value)
    info = read(save(tmp_path / "good.npy", np.zeros((2, 4))), options=ReadOptions(label="0")).info
    if kind not in ("no samples", "complex", "text", "dates"):
        with pytest.raises(MpipsError):
            list(blocks(path, ReadOptions(), info))
    with pytest.raises((DataError, CapabilityError)):
        streamed([path], tmp_path / "cache")


FIELDS = [("a", "f4"), ("b", "i4")]


@pytest.mark.parametrize(
    ("array", "options", "text"),
    [
        (np.zeros((3, 2)), {}, r"where its labels are is not clear: set data\.label"),
        (np.zeros((3, 2)), {"label": "price"}, r"data\.label = 'price', but the columns"),
        (np.zeros((3, 2)), {"label": "2"}, r"data\.label = 2: the array has 2 columns, 0 to 1"),
        (np.zeros((3, 2)), {"label": "-3"}, r"data\.label = -3: the array has 2 columns"),
        (np.zeros((3, 2, 2)), {"label": "0"}, r"shape \(3, 2, 2\): labels can be a column"),
        (np.zeros((3, 1)), {"label": "0"}, "has no column of features"),
        (np.zeros((3, 2)), {"label": "none.npy"}, r"none\.npy: cannot be read|No such file"),
        (np.zeros((3, 2)), {"label": "other.npy"}, r"x has shape \(3, 2\) and y \(5,\)"),
        (np.zeros((3, 2)), {"label": "words.npy"}, r"words\.npy: has shape .*labels are numbers"),
        (np.zeros(3, FIELDS), {}, "no column is named 'label'"),
        (np.zeros(3, FIELDS), {"label": "c"}, "no label column 'c'"),
        (np.zeros(3, FIELDS), {"label": "b", "categorical": ("a",)}, "are numbers; use CSV"),
        (np.zeros(3, FIELDS), {"label": "b", "ignore": ("a",)}, "has no column of features"),
        (np.zeros((3, 2), FIELDS), {"label": "b"}, "is an array of records of shape"),
        (np.zeros(3, [("a", "S3"), ("y", "i1")]), {}, "field 'a' has dtype .S3, expected numbers"),
        (np.zeros(3, [("a", "f4", 2), ("y", "i1")]), {}, "field 'a' has dtype"),
        (np.zeros(3, [("a", FIELDS), ("y", "i1")]), {}, "field 'a' has dtype"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, array: np.ndarray, options: dict[str, Any], text: str
) -> None:
    path = save(tmp_path / "a.npy", array)
    save(tmp_path / "other.npy", np.zeros(5))
    save(tmp_path / "words.npy", np.full(3, "no"))
    with pytest.raises(DataError, match=text) as caught:
        read(path, options=ReadOptions(**options))
    assert "\n" not in str(caught.value)


def test_a_format_that_the_file_has_not_is_named(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npy", np.zeros((3, 2)))
    with pytest.raises(DataError, match=r"is a single array.*data\.format = 'npy'"):
        read(path, options=ReadOptions(format="npz"))
    with pytest.raises(DataError, match="decompress the file"):
        read(path.rename(tmp_path / "a.npy.gz"), options=ReadOptions(format="npy"))


def test_classes_of_two_labels_are_matched_in_windows_of_a_file_to_evaluate(tmp_path: Path) -> None:
    info = read(
        save(tmp_path / "a.npy", np.array([[0.0, 1], [1, 2]])), options=ReadOptions(label="-1")
    ).info
    other = save(tmp_path / "b.npy", np.array([[0.0, -1], [1, 1], [2, 1]]))
    found = [*labelled_blocks(other, ReadOptions(label="-1"), info)]
    assert np.concatenate([block.labels for block in found]).tolist() == [0, 1, 1]


OWN_ROWS = """
import resource, sys
from mpips.data import ReadOptions, read
import mpips.data.readers

options = ReadOptions(label="-1")
read(sys.argv[1], options=options)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
part = read(sys.argv[2], stride=64, offset=1, options=options, shares="mixed")
print(part.data.n, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_worker_reads_its_own_rows_alone(tmp_path: Path) -> None:
    small = save(tmp_path / "small.npy", np.eye(2))
    # A file of 1 GiB without content, whose rows have 16 pages.
    n, width = 1 << 14, 1 << 14
    with (tmp_path / "a.npy").open("wb") as file:
        file.write(header(of(f"({n}, {width})")))
        file.truncate(file.tell() + n * width * 4)
    found = subprocess.run(
        [sys.executable, "-c", OWN_ROWS, small, tmp_path / "a.npy"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    n_own, kib = map(int, found.stdout.split())
    assert n_own == n // 64
    # Own rows have 16 MiB; pages of the file count as memory while it is mapped.
    assert kib < 100 << 10


def lying_npz(path: Path) -> Path:
    """Write an npz file whose array and directory claim almost 4 GiB that are not there."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header(of("(536870000, 2)")) + b"\0" * 64)
        archive.writestr("y.npy", header(of("(536870000,)", "'|u1'")) + b"\0" * 64)
    content = bytearray(path.read_bytes())
    for name in (b"x.npy", b"y.npy"):
        find = content.index if name == b"x.npy" else content.rindex
        entry = find(b"PK\x01\x02")
        assert content[entry + 46 : entry + 51] == name
        content[entry + 20 : entry + 28] = struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0)
    path.write_bytes(content)
    return path


def test_an_npz_file_whose_directory_lies_is_one_sentence(tmp_path: Path) -> None:
    path = lying_npz(tmp_path / "a.npz")
    with pytest.raises(MpipsError, match=r"a\.npz: ") as caught:
        read(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(MpipsError, match=r"a\.npz: "):
        streamed([path], tmp_path / "cache")


@pytest.mark.parametrize("save_as", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npz_is_the_same_mapped_or_unpacked(tmp_path: Path, save_as: Any, order: Any) -> None:
    x = np.asarray(rng().normal(size=(N, 2, 3)), order=order)
    y = np.arange(N) % 3
    save_as(tmp_path / "a.npz", x=x, y=y)
    for worker in range(3):
        part = read(tmp_path / "a.npz", stride=3, offset=worker, shares="mixed")
        own = numbers(N, 3, worker, "mixed")
        assert isinstance(part.data, DenseData)
        assert part.data.x.tolist() == x[own].reshape(-1, 6).tolist()
        assert part.data.labels.tolist() == y[own].tolist()
        # The samples outlive the file.
        assert part.data.x.flags.owndata or part.data.x.base.flags.owndata
