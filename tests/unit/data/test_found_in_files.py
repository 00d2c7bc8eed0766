"""What readers find out by themselves: formats by content, delimiters, text as labels and in columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mpips.data import ReadOptions, combine, read
from mpips.data.columns import hash_key
from mpips.data.dataset import DenseData, SparseData
from mpips.data.info import Part, align, matching_labels, relabel
from mpips.errors import DataError


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def shares(path: Path, n: int, **options: object) -> list[Part]:
    return [read(path, stride=n, offset=i, options=ReadOptions(**options)) for i in range(n)]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_the_one_that_divides_the_lines_alike(
    tmp_path: Path, delimiter: str
) -> None:
    rows = [["label", "a", "b"], ["1", "2", "3.5"], ["0", "4", "5"]]
    part = read(write(tmp_path / "a.csv", "\n".join(map(delimiter.join, rows))))
    assert isinstance(part.data, DenseData)
    assert part.data.x.tolist() == [[2, 3.5], [4, 5]]
    assert part.info.columns == ("a", "b")


def test_other_delimiters_within_cells_mislead_nobody(tmp_path: Path) -> None:
    # Commas stand in text, with a different number in each line.
    path = write(tmp_path / "a.csv", "note;label;a\nx, y, z;1;2\nx;0;3\n\n")
    part = read(path)
    assert part.info.columns == ("note", "a")
    assert part.info.categorical == ("note",)
    # A quoted cell may contain the delimiter and the end of a line.
    part = read(write(tmp_path / "b.csv", 'note,label,a\n"x, y\nz",1,2\nx,0,3\n'))
    assert isinstance(part.data, SparseData)
    assert hash_key("note", "x, y\nz") in part.data.indices
    # One column and no delimiter at all.
    with pytest.raises(DataError, match="which column holds the label"):
        read(write(tmp_path / "c.csv", "a\n1\n"))


def test_columns_of_text_are_categorical_and_said_so(tmp_path: Path) -> None:
    text = "colour,size,y,empty\nred,1,1,\nNA,2,0,\nblue,,1,\n"
    found = read(write(tmp_path / "a.csv", text))
    chosen = read(tmp_path / "a.csv", options=ReadOptions(categorical=("colour",)))
    assert found.notes == (
        f"{tmp_path}/a.csv: column 'colour' with text: categorical (data.categorical sets which are)",
    )
    assert found.info == chosen.info
    assert found.info.categorical == ("colour",)
    for name in ("indptr", "indices", "values"):
        assert getattr(found.data, name).tobytes() == getattr(chosen.data, name).tobytes()


def test_a_column_with_numbers_and_text_is_a_mistake(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "y,a\n1,2\n0,two\n")
    with pytest.raises(
        DataError, match=r":3: column 'a' contains 'two': .*data.categorical = \[\"a\"\]"
    ):
        read(path)


def test_text_behind_the_first_rows_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "y,a\n" + "1,3\n" * 1200 + "0,late\n")
    with pytest.raises(DataError, match=r":1202: column 'a' contains 'late': .*data.categorical"):
        read(path)
    part = read(path, options=ReadOptions(categorical=("a",)))
    assert part.info.n_samples_total == 1201


@pytest.mark.parametrize("cell", ["NA", "n/a", "NaN", "null", "None", "?", ""])
def test_missing_numbers_have_many_names(tmp_path: Path, cell: str) -> None:
    path = write(tmp_path / "a.csv", f"y,a,b\n1,{cell},2\n0,3,4\n")
    with pytest.raises(DataError, match=r'set data\.empty = "zero" to read missing numbers as 0'):
        read(path)
    part = read(path, options=ReadOptions(empty="zero"))
    assert isinstance(part.data, DenseData)
    assert part.data.x.tolist() == [[0, 2], [3, 4]]
    # In sparse data a missing number has no entry.
    part = read(write(tmp_path / "b.csv", f"y,a,c\n1,{cell},x\n0,3,x\n"))
    assert isinstance(part.data, SparseData)
    assert np.diff(part.data.indptr).tolist() == [1, 2]


def test_ignored_columns_are_not_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "id_1,y,a,id_2\nx,1,2,7\ny,0,3,abc\n")
    part = read(path, options=ReadOptions(ignore=("id_*",)))
    assert isinstance(part.data, DenseData)
    assert part.info.columns == ("a",)
    assert part.notes == ()


def test_labels_of_text_are_classes_that_all_workers_number_alike(tmp_path: Path) -> None:
    labels = ["yes", "no", "maybe", "no", "no"]
    path = write(
        tmp_path / "a.csv", "y,a\n" + "".join(f"{label},{i}\n" for i, label in enumerate(labels))
    )
    parts = shares(path, 3)
    assert {part.info.label_names for part in parts} == {("maybe", "no", "yes")}
    info = combine([part.info for part in parts])
    assert (info.labels, info.counts) == ((0, 1, 2), (1, 3, 1))
    assert info.class_names == ("maybe", "no", "yes")
    for worker, part in enumerate(parts):
        wanted = [info.label_names.index(label) for label in labels[worker::3]]
        assert align(part.data, info).labels.tolist() == wanted


def test_texts_that_mean_a_missing_number_are_labels_like_others(tmp_path: Path) -> None:
    part = read(write(tmp_path / "a.csv", "y,a\nnone,1\nNA,2\nsome,3\n"))
    assert part.info.label_names == ("NA", "none", "some")
    for label in ("", "nan"):
        with pytest.raises(DataError, match="labels are finite numbers, or all of them are text"):
            read(write(tmp_path / "b.csv", f"y,a\nnone,1\n{label},2\n"))


def test_labels_of_text_in_other_data_are_those_of_the_training_data(tmp_path: Path) -> None:
    train = read(write(tmp_path / "a.csv", "y,a\nyes,1\nno,2\nperhaps,3\n"))
    other = read(write(tmp_path / "b.csv", "a,y\n5,yes\n"), like=train.info)
    assert align(other.data, train.info).labels.tolist() == [2]
    with pytest.raises(
        DataError, match=r"b.csv:2: label 'never' does not occur .* 'no', 'perhaps', 'yes'"
    ):
        read(write(tmp_path / "b.csv", "a,y\n5,never\n"), like=train.info)
    numbers = read(write(tmp_path / "c.csv", "y,a\n1,1\n0,2\n"))
    with pytest.raises(DataError, match="its labels are no, yes, those of the training data 0, 1"):
        read(write(tmp_path / "b.csv", "a,y\n5,yes\n5,no\n"), like=numbers.info)


def test_targets_are_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "y,a\nyes,1\n")
    with pytest.raises(DataError, match=":2: column 'y' contains 'yes': labels are finite numbers"):
        read(path, options=ReadOptions(wants="targets"))
    part = read(
        write(tmp_path / "b.csv", "y,a\n1.5,1\n-2,1\n"), options=ReadOptions(wants="targets")
    )
    assert part.data.labels.tolist() == [1.5, -2]


def test_too_many_texts_as_labels_are_refused_early(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "y,a\n" + "".join(f"t{i},1\n" for i in range(70_000)))
    with pytest.raises(
        DataError, match="more than 65536 distinct texts as labels; check the label column"
    ):
        read(path)


CONTENTS = {
    "libsvm": ("a9a", "-1 3:1 11:1 14:0.5 \n+1 2:-0.25\n1\n"),
    "libsvm, ranking": ("rank.txt", "2 qid:1 1:3 # a comment\n"),
    "csv": ("adult.data", "label,a\n1,2\n0,3\n"),
    "tsv": ("x.txt", "label\ta\n1\t2\n0\t3\n"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_formats_are_recognised_by_content(tmp_path: Path, name: str) -> None:
    file, text = CONTENTS[name]
    part = read(write(tmp_path / file, text))
    assert part.info.kind == ("sparse" if name.startswith("libsvm") else "dense")
    assert part.info.n_samples_total == (text.count("\n") if part.info.kind == "sparse" else 2)


def test_archives_are_recognised_by_content(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    x, y = np.arange(6.0).reshape(3, 2), np.array([0, 1, 0])
    with (tmp_path / "numpy").open("wb") as file:
        np.savez(file, x=x, y=y)
    with h5py.File(tmp_path / "hdf", "w") as file:
        file["x"], file["y"] = x, y
    for name in ("numpy", "hdf"):
        assert read(tmp_path / name).data.x.tolist() == x.tolist()


def test_a_long_first_line_is_recognised(tmp_path: Path) -> None:
    # The sample of the beginning ends within a line.
    long = "1 " + " ".join(f"{i}:1" for i in range(1, 5000)) + "\n"
    part = read(write(tmp_path / "long", "0 1:1\n" + long + long))
    assert (part.info.n_samples_total, part.info.n_features) == (3, 4999)


@pytest.mark.parametrize(
    ("train", "other", "same"),
    [
        ((0, 1), (-1, 1), {-1: 0, 1: 1}),
        ((-1, 1), (1, 2), {1: -1, 2: 1}),
        ((1, 2), (0, 1), {0: 1, 1: 2}),
        ((0, 1), (0, 1), {}),
        ((0, 1), (1,), {}),
        ((0, 1), (0, 2), {}),
        ((0, 1, 2), (-1, 1), {}),
    ],
)
def test_two_usual_classes_of_two_files_are_matched(
    tmp_path: Path, train: tuple[int, ...], other: tuple[int, ...], same: dict[int, int]
) -> None:
    def part(name: str, labels: tuple[int, ...]) -> Part:
        return read(write(tmp_path / f"{name}.svm", "".join(f"{label} 1:1\n" for label in labels)))

    first, second = part("a", train), part("b", other)
    meant = matching_labels(first.info, second.info)
    assert meant == same
    assert relabel(second.data, meant).labels.tolist() == [
        same.get(label, label) for label in other
    ]
