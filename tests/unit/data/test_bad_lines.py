"""Bad lines that are left out: which ones, the same for all workers and pieces, and what stays an error."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from thread_ranks import prepared

from mpips.config.schema import load_config
from mpips.data.bad_lines import BadLines, good_csv, good_libsvm
from mpips.data.csv_plan import CsvPlan
from mpips.data.options import ReadOptions
from mpips.errors import ConfigError, DataError, MpipsError
from mpips.training.train import train

# (line, what its sentence says); each alone cannot be read.
BAD_SVM = [
    (b"1 1:x 2:3", "x"),
    (b"one 1:2", "one"),
    (b"1 1:2 1", ""),
    (b"\x00\xff\xfe", ""),
    (b"1 99999999999999999999:1", ""),
    (b"1 1:1e999", ""),
]
BAD_CSV = [
    (b"1,2", "2 cells, the header names 3"),
    (b"1,2,0,4", "4 cells, the header names 3"),
    (b"x,2,0", "column 'a' contains 'x'"),
    (b",2,0", "column 'a' contains an empty cell"),
    (b"1,inf,0", "column 'b' contains 'inf'"),
    (b"1,\xff,0", "utf-8"),
    (b'1,"2"x,0', "expected after"),
    (b"1,2,nan", "label 'nan' is neither text nor a finite number"),
]


def good_line(form: str, i: int) -> bytes:
    return b"%d 1:%d 2:1" % (i % 2, i + 1) if form == "svm" else b"%d,5,%d" % (i + 1, i % 2)


def written(folder: Path, form: str, every: int = 7, n: int = 600) -> tuple[Path, int, list[int]]:
    """Write a file with bad lines; return it, the number of bad lines, and the lines of the first ones."""
    bad = BAD_SVM if form == "svm" else BAD_CSV
    lines = [b"a,b,y"] if form == "csv" else []
    places = []
    for i in range(n):
        if i % every == every - 1:
            places.append(len(lines) + 1)
            lines.append(bad[(i // every) % len(bad)][0])
        lines.append(good_line(form, i))
    path = folder / f"data.{form}"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path, len(places), places


def numbers(path: Path, n_workers: int, *more: tuple[str, Any]) -> tuple[list[int], str]:
    """The numbers of the samples of all workers, and the note about bad lines."""
    pairs = [("task", "softmax"), ("data.train", str(path)), ("data.on_bad", "skip"), *more]
    inputs = prepared(load_config(None, pairs), n_workers)
    found: list[int] = []
    for one in inputs:
        assert one.train is not None
        batch = one.train.take(np.arange(one.train.n))
        found += (np.rint(batch.densify(4)[:, 0]).astype(int) - 1).tolist()
    assert inputs[0].info.n_samples_total == len(found)
    return sorted(found), next((n for n in inputs[0].notes if "bad line" in n), "")


@pytest.mark.parametrize("form", ["svm", "csv"])
@pytest.mark.parametrize("memory_mib", [1024.0, 0.01], ids=["in memory", "in windows"])
@pytest.mark.parametrize("n_workers", [1, 2, 3, 5])
def test_all_good_lines_are_read_once_and_the_bad_ones_counted(
    tmp_path: Path, form: str, memory_mib: float, n_workers: int
) -> None:
    path, n_bad, places = written(tmp_path, form)
    found, note = numbers(path, n_workers, ("data.memory_mib", memory_mib))
    assert found == list(range(600))
    assert note.startswith(f"{path}: skipped {n_bad} bad lines, the first: {path}:{places[0]}:")
    for place in places[:3]:
        assert f"{path}:{place}:" in note
    # Without the option the first one is an error.
    with pytest.raises(DataError, match=f"{path.name}:"):
        numbers(path, 1, ("data.on_bad", "error"))


@pytest.mark.parametrize(
    ("form", "line", "reason"),
    [("svm", *one) for one in BAD_SVM] + [("csv", *one) for one in BAD_CSV],
)
def test_each_kind_of_bad_line_is_left_out_alone(
    tmp_path: Path, form: str, line: bytes, reason: str
) -> None:
    for place in (0, 1, 5):
        lines = [good_line(form, i) for i in range(5)]
        lines.insert(place, line)
        for end in (b"", b"\n"):
            text = b"\n".join(lines) + end
            bad = BadLines()
            if form == "svm":
                kept = good_libsvm("f", text, 0, bad, lambda: 10)
            else:
                path = tmp_path / "f.csv"
                path.write_bytes(b"a,b,y\n" + text)
                with open(path, "rb") as file:
                    plan = CsvPlan.of("f", file, ReadOptions(on_bad="skip"))
                kept = good_csv(plan, text, bad, lambda: 10)
            assert list(filter(None, kept.split(b"\n"))) == [good_line(form, i) for i in range(5)]
            assert bad.n == 1
            assert bad.first[0][0] == 11 + place
            assert bad.first[0][1].startswith(f"f:{11 + place}:")
            assert reason in bad.first[0][1]


def test_compressed_files_and_several_files_have_counts_of_their_own(tmp_path: Path) -> None:
    for name, every in (("a", 7), ("b", 50)):
        folder = tmp_path / name
        folder.mkdir()
        path, _, _ = written(folder, "csv", every)
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    pairs = [
        ("task", "softmax"),
        ("data.train", str(tmp_path / "*.csv.gz")),
        ("data.on_bad", "skip"),
    ]
    inputs = prepared(load_config(None, pairs), 2)
    assert inputs[0].info.n_samples_total == 1200
    notes = [note for note in inputs[0].notes if "bad line" in note]
    assert [note.partition(", ")[0] for note in notes] == [
        f"{tmp_path / 'a.csv.gz'}: skipped 85 bad lines",
        f"{tmp_path / 'b.csv.gz'}: skipped 12 bad lines",
    ]


def test_the_files_of_a_second_run_are_not_read_again_and_have_the_same_note(
    tmp_path: Path,
) -> None:
    path, _, _ = written(tmp_path, "svm")
    cache = ("data.cache", str(tmp_path / "cache"))
    first, again = numbers(path, 2, cache), numbers(path, 3, cache)
    assert first == again
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_quote_over_several_lines_is_one_record(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text('a,b,y\n1,"x\ny\nz",0\n2,3,1\n3,4,0\n4,5\n5,5,1\n')
    found, note = numbers(path, 1)
    assert found == [1, 2, 4]
    # The record has three lines.
    assert "skipped 4 bad lines" in note
    assert f"{path}:4: column 'b' contains" in note
    assert f"{path}:7: 2 cells" in note


@pytest.mark.parametrize("memory_mib", [1024.0, 0.01], ids=["in memory", "in windows"])
def test_bad_records_leave_no_texts_and_labels_behind(tmp_path: Path, memory_mib: float) -> None:
    path = tmp_path / "data.csv"
    lines = [b"y,color,n"]
    for i in range(900):
        if i in (0, 500):
            lines += [b"# exported,2024,01,02", b"maybe,red", b"yes,gr\xfcn,3", b"never,\xff,1,2"]
        lines.append(b"%s,red,%d" % ((b"no", b"yes")[i % 2], i))
    path.write_bytes(b"\n".join(lines) + b"\n")
    pairs = [
        ("task", "logistic"),
        ("data.train", str(path)),
        ("data.on_bad", "skip"),
        ("data.memory_mib", memory_mib),
    ]
    for n_workers in (1, 3):
        info = prepared(load_config(None, pairs), n_workers)[0].info
        assert info.label_names == ("no", "yes")
        assert info.n_samples_total == 900


def test_a_wrong_label_behind_bad_lines_is_named_with_its_own_line(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,y\n1,0\n2\n3\n4,yes\n5,1\n")
    with pytest.raises(DataError, match=r"data.csv:5: column 'y' contains 'yes'"):
        numbers(path, 1)


def test_a_quote_that_is_not_closed_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,y\n" + "1,0\n2,1\n" * 50 + '3,"7\n' + "1,0\n" * 100)
    with pytest.raises(DataError, match=r"data.csv:102: a quote is not closed; correct this line"):
        numbers(path, 1)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        # Labels that do not fit to each other concern all lines.
        (
            "a,y\n1,0\n2,1\n3,yes\n",
            "data.csv",
            "labels are finite numbers, or all of them are text",
        ),
        ("a,y\n1\n2\n", "data.csv", "contains no samples; .*skipped 2 bad lines"),
        ("1 x\n0 y\n", "data.svm", "contains no samples; .*skipped 2 bad lines"),
        ("", "data.csv", "data.csv"),
    ],
)
def test_what_no_line_alone_is_guilty_of_is_an_error(
    tmp_path: Path, content: str, name: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    more = [("data.categorical", []), ("data.ignore", [])]
    with pytest.raises(MpipsError, match=message):
        numbers(path, 1, *more)


def test_formats_without_lines_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.ones((3, 2)), y=np.arange(3))
    for source, message in (
        (str(path), "on_bad = 'skip': .*data.npz is npz, which has no lines"),
        ("digits", "data.on_bad = 'skip': digits is no file"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(
                load_config(
                    None, [("task", "softmax"), ("data.train", source), ("data.on_bad", "skip")]
                ),
                "none",
                verbose=False,
            )
