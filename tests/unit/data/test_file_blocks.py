"""Blocks of a file: together the samples that the readers return, each in one block of one process."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mpips.data import DataInfo, Dataset, DenseData, ReadOptions, SparseData, align, read
from mpips.data import file_blocks as blocks_module
from mpips.data.file_blocks import blocks, labelled_blocks
from mpips.errors import ConfigError, DataError

N = 100


def rng() -> np.random.Generator:
    return np.random.default_rng(4)


def libsvm(folder: Path) -> Path:
    lines = []
    for i in range(N):
        keys = np.sort(rng().permutation(30)[: i % 4]) + 1
        lines.append(f"{i % 2} " + " ".join(f"{key}:{0.25 * key + i}" for key in keys))
        if i % 9 == 0:
            lines += ["", "# nothing"]
    return write(folder / "a.svm", "\n".join(lines))


def compressed(folder: Path) -> Path:
    path = folder / "a.svm.gz"
    path.write_bytes(gzip.compress(libsvm(folder).read_bytes()))
    return path


def text_csv(folder: Path) -> Path:
    rows = [f'"a{i % 3}\nb, ""c""",{i / 7:.6f},{i % 2},{"" if i % 5 else i}' for i in range(N)]
    return write(folder / "text.csv", "\n".join(["colour,size,label,age", *rows]) + "\n")


def number_csv(folder: Path) -> Path:
    rows = [f"{i % 2};{i / 7:.9f};{1.7e9 + i / 3:.3f}" for i in range(N)]
    return write(folder / "a.csv", "\r\n".join(["label;a;time", *rows]))


def parquet(folder: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files

    columns = {
        "label": [i % 2 for i in range(N)],
        "kind": [None if i % 7 == 0 else f"k{i % 4}" for i in range(N)],
        "size": rng().random(N),
    }
    files.write_table(pyarrow.table(columns), folder / "a.parquet", row_group_size=17)
    return folder / "a.parquet"


def arrow(folder: Path) -> Path:
    pytest.importorskip("pyarrow")
    from pyarrow import feather
    from pyarrow import parquet as files

    table = files.read_table(parquet(folder))
    feather.write_feather(table, folder / "a.feather", compression="zstd", chunksize=33)
    return folder / "a.feather"


def npy(folder: Path) -> Path:
    np.save(folder / "x.npy", rng().random((N, 2, 3)))
    np.save(folder / "y.npy", np.arange(N) % 2)
    return folder / "x.npy"


def records(folder: Path) -> Path:
    array = np.zeros(N, [("a", "f4"), ("label", "i4"), ("b", "f8")])
    array["a"], array["b"], array["label"] = rng().random(N), np.arange(N) / 7, np.arange(N) % 2
    np.save(folder / "a.npy", array)
    return folder / "a.npy"


def npz(folder: Path) -> Path:
    np.savez(folder / "a.npz", x=rng().random((N, 2, 3), np.float32), y=np.arange(N) % 2)
    return folder / "a.npz"


def packed_npz(folder: Path) -> Path:
    x = np.asfortranarray(rng().random((N, 5)))
    np.savez_compressed(folder / "b.npz", X=x, Y=np.arange(N) % 2)
    return folder / "b.npz"


def hdf5(folder: Path) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"] = rng().integers(0, 9, (N, 4))
        file["y"] = np.arange(N) % 2
    return folder / "a.h5"


def several(folder: Path) -> Path:
    for i in range(3):
        write(folder / f"part{i}.csv", f"label,a\n0,{i}\n1,{i + 0.5}\n0,{i + 0.75}\n")
    return folder / "part*.csv"


def write(path: Path, text: str) -> Path:
    path.write_text(text, newline="")
    return path


FORMS = [
    libsvm,
    compressed,
    text_csv,
    number_csv,
    parquet,
    arrow,
    npy,
    records,
    npz,
    packed_npz,
    hdf5,
    several,
]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file of 100 samples have many blocks."""
    monkeypatch.setattr(blocks_module, "_PIECE_BYTES", 150)
    monkeypatch.setattr(blocks_module, "_MOST_ROWS", 7)


def rows_of(data: Dataset) -> list[tuple[bytes, ...]]:
    """Return the bytes of each sample."""
    if isinstance(data, DenseData):
        return [(row.tobytes(),) for row in data.x]
    assert isinstance(data, SparseData)
    found = []
    for begin, end in zip(data.indptr[:-1].tolist(), data.indptr[1:].tolist(), strict=True):
        arrays = [data.indices, data.values] + ([] if data.fields is None else [data.fields])
        found.append(tuple(array[begin:end].tobytes() for array in arrays))
    return found


def trained(path: Path) -> tuple[DataInfo, list[tuple[bytes, ...]]]:
    """Return the description of the data, and its samples as tasks take them."""
    part = read(path, options=ReadOptions(empty="zero"))
    return part.info, rows_of(align(part.data, part.info))


@pytest.mark.parametrize("make", FORMS, ids=lambda make: make.__name__)
def test_blocks_are_the_samples_of_the_file(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path)
    info, expected = trained(path)
    found = [rows_of(block) for block in blocks(path, ReadOptions(empty="zero"), info)]
    assert len(found) >= 3
    assert [row for block in found for row in block] == expected


@pytest.mark.parametrize("make", FORMS, ids=lambda make: make.__name__)
def test_processes_share_the_same_blocks(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path)
    options, info = ReadOptions(empty="zero"), trained(path)[0]
    whole = [rows_of(block) for block in blocks(path, options, info)]
    for parts in (2, 3, 50):
        for part in range(parts):
            own = blocks(path, options, info, part=part, parts=parts)
            assert [rows_of(block) for block in own] == whole[part::parts]


def test_digits_are_one_block() -> None:
    pytest.importorskip("sklearn")
    info = read("digits").info
    [block] = blocks("digits", ReadOptions(split="test"), info)
    assert block.n == 359


@pytest.mark.parametrize("make", [libsvm, number_csv], ids=lambda make: make.__name__)
def test_an_error_names_the_line_in_the_file(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path)
    info, _ = trained(path)
    lines = path.read_text().splitlines()
    samples = [i for i, line in enumerate(lines) if line[:1].isdigit()]
    for at in (samples[1], samples[40], samples[-1]):
        cells = "1 x:2" if path.suffix == ".svm" else "1;x;2"
        path.write_text("\n".join([*lines[:at], cells, *lines[at + 1 :]]) + "\n")
        with pytest.raises(DataError, match=f"{path}:{at + 1}:"):
            list(blocks(path, ReadOptions(), info))


def test_a_block_of_another_process_is_not_converted(tmp_path: Path) -> None:
    path = number_csv(tmp_path)
    info, _ = trained(path)
    path.write_text(path.read_text() + "\n1;x;2\n")
    assert len(list(blocks(path, ReadOptions(), info, part=0, parts=10_000))) == 1
    with pytest.raises(DataError, match="contains 'x'"):
        list(blocks(path, ReadOptions(), info))


def test_a_note_is_made_once(tmp_path: Path) -> None:
    path = several(tmp_path)
    info, _ = trained(path)
    for file in tmp_path.glob("part*.csv"):
        file.write_text("more,label,a\nx,0,1\ny,1,2\n")
    notes: list[str] = []
    assert sum(b.n for b in blocks(path, ReadOptions(), info, say=notes.append)) == 6
    assert notes == [
        f"{tmp_path}/part{i}.csv: column 'more' not in the training data: left out"
        for i in range(3)
    ]


@pytest.mark.parametrize(
    ("name", "content", "error", "text"),
    [
        ("a.csv", "a\n1\n", DataError, "column 'time' that this file lacks"),
        ("a.csv.gz", "no gzip", DataError, "is damaged"),
        ("a.npz", "no archive", DataError, "is not an npz file of plain arrays"),
        ("absent.csv", None, DataError, "absent.csv: cannot be read: No such file"),
        ("a.unknown", "\0", ConfigError, "cannot tell the format"),
        ("a.npz.gz", "", DataError, "decompress the file"),
    ],
)
def test_a_wrong_file_is_one_sentence(
    name: str, content: str | None, error: type[Exception], text: str, tmp_path: Path
) -> None:
    info, _ = trained(number_csv(tmp_path))
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(error, match=text):
        list(blocks(path, ReadOptions(), info))


def test_rows_of_another_width_are_refused(tmp_path: Path) -> None:
    info, _ = trained(npz(tmp_path))
    np.savez(tmp_path / "wide.npz", x=np.zeros((3, 9)))
    with pytest.raises(DataError, match="data has 9 features, the training data 6"):
        list(blocks(tmp_path / "wide.npz", ReadOptions(), info))
    np.savez(tmp_path / "nan.npz", x=np.full((3, 6), np.nan))
    with pytest.raises(DataError, match="contains NaN"):
        list(blocks(tmp_path / "nan.npz", ReadOptions(), info))
    np.savez(tmp_path / "text.npz", x=np.full((3, 6), "a"))
    with pytest.raises(DataError, match="has dtype"):
        list(blocks(tmp_path / "text.npz", ReadOptions(), info))


@pytest.mark.parametrize("make", FORMS, ids=lambda make: make.__name__)
def test_labelled_blocks_are_the_samples_and_labels_of_the_file(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = make(tmp_path)
    part = read(path, options=ReadOptions(empty="zero"))
    expected = align(part.data, part.info)
    found = [*labelled_blocks(path, ReadOptions(empty="zero"), part.info)]
    assert len(found) >= 3
    assert [row for block in found for row in rows_of(block)] == rows_of(expected)
    assert np.concatenate([block.labels for block in found]).tolist() == expected.labels.tolist()


@pytest.mark.parametrize(
    ("trained_on", "labels", "classes"),
    [
        ("0 1", "2 2 2 2 2 2 2 2 1 1", [1] * 8 + [0] * 2),
        ("-1 1", "1 1 1 1 1 1 1 1 0 1", [1] * 8 + [0, 1]),
        ("1 2", "-1 1 -1", [0, 1, 0]),
        # One label alone means itself.
        ("0 1", "1 1 1", [1, 1, 1]),
        ("1 2", "1 1 1", [0, 0, 0]),
        ("3 4", "4 3 4", [1, 0, 1]),
    ],
)
def test_two_classes_are_found_also_where_the_first_blocks_have_one(
    trained_on: str, labels: str, classes: list[int], tmp_path: Path
) -> None:
    def lines(name: str, found: list[str]) -> Path:
        # A block of 150 bytes has one line.
        return write(tmp_path / name, "".join(f"{label} {KEYS}\n" for label in found))

    info = read(lines("train.svm", trained_on.split())).info
    path, notes = lines("test.svm", labels.split()), []
    found = labelled_blocks(path, ReadOptions(), info, say=notes.append)
    assert [label for block in found for label in block.labels.tolist()] == classes
    known = sorted(map(float, set(labels.split())))
    same = len(known) < 2 or tuple(known) == info.labels
    assert len(notes) == (0 if same else 1)


KEYS = " ".join(f"{key}:1" for key in range(1, 30))


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ("1 2 2 0", "label 0 is none of the two labels before it, 1 and 2"),
        ("0 1 1 2", "label 2 does not occur in the training data, whose labels are 0, 1"),
        ("7", "label 7 does not occur"),
    ],
)
def test_a_third_label_is_refused(labels: str, text: str, tmp_path: Path) -> None:
    info = read(write(tmp_path / "train.svm", "0 1:1\n1 1:2\n")).info
    path = write(tmp_path / "a.svm", "".join(f"{label} {KEYS}\n" for label in labels.split()))
    with pytest.raises(DataError, match=text):
        list(labelled_blocks(path, ReadOptions(), info))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_labels_of_text_are_those_of_the_training_data(ending: str, tmp_path: Path) -> None:
    def table(name: str, labels: list[object]) -> Path:
        path = tmp_path / f"{name}.{ending}"
        if ending == "csv":
            return write(path, "a,label\n" + "".join(f"{i}.25,{x}\n" for i, x in enumerate(labels)))
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet as files

        a = [i + 0.25 for i in range(len(labels))]
        files.write_table(pyarrow.table({"a": a, "label": labels}), path)
        return path

    info = read(table("train", ["no", "yes", "maybe"])).info
    found = labelled_blocks(table("test", ["yes"] * 40 + ["maybe"]), ReadOptions(), info)
    assert [x for block in found for x in block.labels.tolist()] == [2] * 40 + [0]
    with pytest.raises(DataError, match="label 'never' does not occur in the training data"):
        list(labelled_blocks(table("b", ["yes"] * 40 + ["never"]), ReadOptions(), info))
    numbers = read(table("numbers", [0, 1])).info
    with pytest.raises(DataError, match="its labels are no, yes, those of the training data 0, 1"):
        list(labelled_blocks(table("c", ["yes", "no"]), ReadOptions(), numbers))
    with pytest.raises(DataError, match=r"numbers, the labels|label '0' does not occur"):
        list(labelled_blocks(table("d", [0, 1]), ReadOptions(), info))


def test_a_label_of_another_kind_in_a_later_block_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"{i},{i % 2}" for i in range(400)]
    info = read(write(tmp_path / "train.csv", "\n".join(["a,label", *rows]))).info
    mixed = write(tmp_path / "m.csv", "\n".join(["a,label", *rows, *["1,cat"] * 300]))
    monkeypatch.setattr(blocks_module, "_PIECE_BYTES", 400)
    with pytest.raises(
        DataError, match=r"m\.csv:402: column 'label' contains 'cat': labels are finite"
    ):
        list(labelled_blocks(mixed, ReadOptions(), info))


def test_notes_of_a_file_without_a_block_are_said(tmp_path: Path) -> None:
    x, y = np.ones((4, 3), np.float32), np.arange(4) % 2
    np.savez(tmp_path / "train.npz", x=x, y=y)
    info = read(tmp_path / "train.npz").info
    for name, n in (("some", 4), ("none", 0)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", x[:n])
        np.save(tmp_path / name / "y.npy", y[:n])
        notes: list[str] = []
        assert (
            sum(
                len(d.labels)
                for d in labelled_blocks(
                    tmp_path / name / "x.npy", ReadOptions(), info, say=notes.append
                )
            )
            == n
        )
        assert any("labels from" in note for note in notes), name
