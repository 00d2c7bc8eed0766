"""Readers of every format, shares, and agreement between workers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reading import HASH, dense, sparse, write

from mpips.data import (
    READERS,
    DenseData,
    ReadOptions,
    SparseData,
    read,
)
from mpips.data.columns import hash_key
from mpips.errors import CapabilityError, ConfigError, DataError

DATA = Path(os.environ.get("MPIPS_TEST_DATA") or Path(__file__).parents[4] / "shared" / "data")


def arrays(n: int, d: int = 3) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x = np.arange(n * d, dtype=np.float64).reshape(n, d)
    return x, np.arange(n) % 3


def save_npz(path: Path, n: int) -> None:
    x, y = arrays(n)
    np.savez(path, x=x, y=y)


def save_hdf5(path: Path, n: int) -> None:
    h5py = pytest.importorskip("h5py")
    x, y = arrays(n)
    with h5py.File(path, "w") as file:
        file["X"], file["y"] = x, y


def save_csv(path: Path, n: int) -> None:
    x, y = arrays(n)
    lines = [f"{a},{label},{b},{c}" for (a, b, c), label in zip(x, y, strict=True)]
    write(path, "a,label,b,c\n" + "\n".join(lines) + "\n")


SAVERS = {".npz": save_npz, ".h5": save_hdf5, ".csv": save_csv}


@pytest.mark.parametrize("ending", SAVERS)
@pytest.mark.parametrize("n_workers", [1, 2, 3, 11])
def test_dense_formats_hold_the_samples_of_each_worker(
    tmp_path: Path, ending: str, n_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpips.data.arrays.BLOCK_BYTES", 96)  # a block is four rows of x
    path = tmp_path / f"data{ending}"
    SAVERS[ending](path, 10)
    x, y = arrays(10)
    for worker in range(n_workers):
        part = read(path, stride=n_workers, offset=worker)
        assert isinstance(part.data, DenseData)
        assert part.data.x.dtype == np.float32
        np.testing.assert_array_equal(part.data.x, x[worker::n_workers])
        np.testing.assert_array_equal(part.data.labels, y[worker::n_workers])
        assert (part.info.n_samples_total, part.info.n_features) == (10, 3)
        assert part.info.n_local == len(y[worker::n_workers])


def test_further_axes_of_x_are_flattened(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.uint8).reshape(3, 2, 4)
    np.savez(tmp_path / "images.npz", X=x, Y=np.zeros(3, dtype=np.int32))
    np.testing.assert_array_equal(dense(tmp_path / "images.npz").x, x.reshape(3, 8))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"x": np.zeros((2, 2))}, r"expected arrays x and y .*found \['x'\]"),
        ({"x": np.zeros((2, 2)), "y": np.zeros(3)}, r"x has shape \(2, 2\) and y \(3,\)"),
        ({"x": np.zeros(2), "y": np.zeros(2)}, r"expected \(n, d\) and \(n,\)"),
        ({"x": np.zeros((2, 2)), "y": np.array(["a", "b"])}, "y has dtype <U1"),
        ({"x": np.zeros((2, 2), complex), "y": np.zeros(2)}, "x has dtype complex128"),
        ({"x": np.full((2, 2), np.nan), "y": np.zeros(2)}, "contains NaN"),
        ({"x": np.full((2, 2), 1e39), "y": np.zeros(2)}, "beyond float32"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0)}, "contains no samples"),
        ({"x": np.array([[None]]), "y": np.zeros(1)}, "plain arrays: Object arrays"),
    ],
)
def test_unfit_npz_is_refused(tmp_path: Path, content: dict[str, Any], complaint: str) -> None:
    np.savez(tmp_path / "bad.npz", **content)
    with pytest.raises(DataError, match=complaint):
        read(tmp_path / "bad.npz")


def test_files_that_are_not_what_their_ending_says_are_refused(tmp_path: Path) -> None:
    for ending in (".npz", ".h5"):
        with pytest.raises(DataError, match="is not an"):
            read(write(tmp_path / f"text{ending}", "1 2:3\n"))
    np.save(tmp_path / "single", np.zeros(3))
    (tmp_path / "single.npy").rename(tmp_path / "single.npz")
    with pytest.raises(DataError, match="is a single array"):
        read(tmp_path / "single.npz")


def test_hdf5_group_in_place_of_dataset_is_refused(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "bad.h5", "w") as file:
        file.create_group("x")
        file["y"] = np.zeros(2)
    with pytest.raises(DataError, match="must be datasets"):
        read(tmp_path / "bad.h5")


@pytest.mark.parametrize("ending", [*SAVERS, ".svm"])
def test_missing_file_is_named(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"none{ending}"
    with pytest.raises(DataError, match=r"none\S+: cannot be read: No such file"):
        read(path)


def test_hdf5_that_leads_to_other_files_is_refused(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    secret = tmp_path / "secret"
    np.arange(12, dtype="<f8").tofile(secret)
    save_hdf5(tmp_path / "other.h5", 4)
    virtual = h5py.VirtualLayout((4, 3), "f8")
    virtual[:] = h5py.VirtualSource(tmp_path / "other.h5", "x", (4, 3))

    def make(name: str, put) -> Path:
        with h5py.File(tmp_path / name, "w") as file:
            file["y"] = np.zeros(4)
            put(file)
        return tmp_path / name

    cases = {
        "external.h5": lambda f: f.create_dataset(
            "x", (4, 3), "f8", external=[(str(secret), 0, 96)]
        ),
        "link.h5": lambda f: f.__setitem__("x", h5py.ExternalLink("other.h5", "x")),
        "soft.h5": lambda f: (
            f.__setitem__("g", h5py.ExternalLink("other.h5", "/")),
            f.__setitem__("x", h5py.SoftLink("/g/x")),
        ),
        "virtual.h5": lambda f: f.create_virtual_dataset("x", virtual),
    }
    for name, put in cases.items():
        with pytest.raises(DataError, match=r"x (is a link, which may lead|lies in other files)"):
            read(make(name, put))


@pytest.mark.parametrize("cell", ["2021_05", "1_000", "\u0661\u0662", "\uff11", "0x10", "infinity"])
def test_what_only_python_calls_a_number_is_no_number_in_csv(tmp_path: Path, cell: str) -> None:
    path = write(tmp_path / "a.csv", f"label,a\n1,7\n1,{cell}\n")
    with pytest.raises(DataError, match=f"column 'a' contains '{cell}'"):
        read(path)
    path = write(tmp_path / "b.csv", f"label,a\n7,1\n{cell},1\n")
    with pytest.raises(DataError, match=f"column 'label' contains '{cell}'"):
        read(path)


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(CapabilityError, match="pip install"):
        read("some.h5")


def test_unknown_format_and_content_list_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"valid are auto, {', '.join(READERS)}"):
        read("a.csv", options=ReadOptions(format="sav"))
    with pytest.raises(
        ConfigError,
        match=r"extension '\.sav' or the content; add --set data\.format=libsvm \(or csv",
    ):
        read(write(tmp_path / "a.sav", "$FL2\x00"))
    with pytest.raises(DataError, match=r"absent\.sav: cannot be read: No such file"):
        read(tmp_path / "absent.sav")


def test_explicit_format_overrules_the_ending(tmp_path: Path) -> None:
    path = write(tmp_path / "odd.csv", "1 1:2\n")
    assert sparse(path, ReadOptions(format="libsvm")).n_features == 1


def test_csv_label_column_is_label_or_a_usual_name_or_chosen(tmp_path: Path) -> None:
    for header, label in (("a,label", 1), ("y,label", 1), ("a,Target", 1), ("Y,a", 5)):
        part = read(write(tmp_path / "named.csv", f"{header}\n5,1\n"))
        assert part.data.labels.tolist() == [label]
        assert part.info.label_column == header.split(",")[0 if label == 5 else 1]
    unnamed = write(tmp_path / "unnamed.csv", "a,b\n5,1\n")
    with pytest.raises(
        DataError, match=r"not clear: no column is named 'label'; set data.label to"
    ):
        read(unnamed)
    with pytest.raises(DataError, match=r"not clear: columns \['y', 'class'\]; set data.label to"):
        read(write(tmp_path / "two.csv", "y,class,a\n5,1,2\n"))
    assert dense(unnamed, ReadOptions(label="b")).labels.tolist() == [1]
    with pytest.raises(
        DataError, match=r"no label column 'c'; set data[.]label to one of 'a', 'b'"
    ):
        read(unnamed, options=ReadOptions(label="c"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no header"),
        ("y,a\n", "contains no samples"),
        ("y,a,a\n1,2,3\n", "names 'a' twice"),
        ("y,a\n1,2\n\n1,2,3\n", r":4: 3 cells, the header names 2"),
        ("y,a\n1,2\n1,red\n", r":3: column 'a' contains 'red': .*categorical = \[\"a\"\]"),
        ("y,a\n1,\n", r":2: column 'a' contains an empty cell: set data.empty = \"zero\""),
        ("y,a\n1,nan\n", "column 'a' contains 'nan'"),
        ("y,a\n1,1e39\n", "column 'a' contains '1e39'"),
        ("y,a\n,1\n", "column 'y' contains an empty cell: labels"),
        ("y,a\n1,1\nyes,1\n", "column 'y' contains 'yes': labels"),
        ("y,a\nyes,1\n1,1\n", "column 'y' contains '1': labels are finite numbers, or all"),
        ("1,2\n3,4\n", "first line has only numbers; put a line above it"),
        ('y,a\n1,"2\n', "is not CSV"),
    ],
)
def test_unfit_csv_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        read(write(tmp_path / "bad.csv", text))


def test_csv_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_bytes(b"y,a\n1,\xff\n")
    with pytest.raises(DataError, match="not UTF-8"):
        read(tmp_path / "bad.csv")


def test_csv_empty_cell_may_be_zero_but_not_as_label(tmp_path: Path) -> None:
    zero = ReadOptions(empty="zero")
    assert dense(write(tmp_path / "a.csv", "y,a\n1, \n"), zero).x.tolist() == [[0]]
    with pytest.raises(DataError, match="column 'y' contains an empty cell"):
        read(write(tmp_path / "b.csv", "y,a\n,1\n"), options=zero)


def test_csv_log_keeps_the_sign(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "y,a,b\n3,-1,0\n")
    x = dense(path, ReadOptions(numeric="log")).x
    np.testing.assert_allclose(x, [[-np.log(2), 0]], rtol=1e-6)


def test_csv_categorical_columns_become_hashed_keys(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "label,I1,C1,C2\n1,4,red,\n0,,blue,red\n")
    data = sparse(path, ReadOptions(categorical=("C*",), numeric="raw"))
    assert data.indptr.tolist() == [0, 2, 4]
    assert data.indices.tolist() == [
        hash_key("I1"),
        hash_key("C1", "red"),
        hash_key("C1", "blue"),
        hash_key("C2", "red"),
    ]
    assert data.values.tolist() == [4, 1, 1, 1]
    assert data.fields is not None
    assert data.fields.tolist() == [0, 1, 1, 2]
    assert data.n_fields == 3
    second = data.take(np.array([1, 0]))
    assert second.fields is not None
    assert second.fields.tolist() == [1, 2, 0, 1]
    logged = sparse(path, ReadOptions(categorical=("C*",)))
    np.testing.assert_allclose(logged.values[0], np.log(5), rtol=1e-6)


def test_csv_categorical_pattern_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "label,a\n1,2\n")
    with pytest.raises(DataError, match=r"categorical 'C\*' matches none of \['a'\]"):
        read(path, options=HASH)


def test_hash_is_the_same_everywhere_and_tells_columns_apart() -> None:
    assert hash_key("C1", "05db9164") == 2995689658037929773
    keys = [hash_key("ab", "c"), hash_key("a", "bc"), hash_key("abc"), hash_key("", "abc")]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 1 << 62 for key in keys)


def test_criteo_sample_is_read_whole() -> None:
    path = DATA / "criteo_sample.csv"
    if not path.exists():
        pytest.skip(f"no {path.name} in {DATA}; set MPIPS_TEST_DATA to the folder that holds it")
    rows = [line.split(",") for line in path.read_text().splitlines()[1:]]
    data = sparse(path, HASH)
    assert data.labels.tolist() == [float(row[0]) for row in rows]
    filled = [sum(cell != "" for cell in row[1:]) for row in rows]
    assert np.diff(data.indptr).tolist() == filled


def test_digits_are_split_alike_for_all_and_cover_each_image_once() -> None:
    test = ReadOptions(split="test")
    parts = [dense("digits", stride=3, offset=w) for w in range(3)]
    parts += [dense("digits", test, stride=2, offset=w) for w in range(2)]
    images = np.concatenate([part.x for part in parts])
    assert images.shape == (1797, 64)
    # The images are part of mpips; scikit-learn has the same.
    load_digits = pytest.importorskip("sklearn.datasets").load_digits
    everything = load_digits().data.astype(np.float32)
    assert sorted(map(bytes, images)) == sorted(map(bytes, everything))
    counts = np.bincount(np.concatenate([p.labels for p in parts[3:]]).astype(int))
    whole = np.bincount(load_digits().target)
    np.testing.assert_array_equal(counts, np.round(0.2 * whole))


def test_digits_split_depends_on_its_seed() -> None:
    one, other = (dense("digits", ReadOptions(split_seed=seed)) for seed in (0, 1))
    assert not np.array_equal(one.x, other.x)


def test_taking_rows_of_sparse_data_equals_taking_them_one_by_one() -> None:
    generator = np.random.default_rng(3)
    x = generator.random((20, 9)) * (generator.random((20, 9)) < 0.4)
    x[[4, 19]] = 0
    rows, columns = np.nonzero(x)
    indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=20))))
    data = SparseData(indptr, columns, x[rows, columns].astype(np.float32), np.arange(20), 9)
    for chosen in ([19, 3, 3, 4, 0], [4], [], list(range(20))):
        batch = data.take(np.array(chosen, dtype=np.int64), weight=0.5)
        np.testing.assert_array_equal(batch.densify(9), x[chosen].astype(np.float32))
        assert batch.labels.tolist() == chosen
        assert (batch.n, batch.weight) == (len(chosen), 0.5)
