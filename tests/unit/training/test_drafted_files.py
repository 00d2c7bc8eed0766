"""`mpips init` writes a draft that trains for files as people have them, or says in one sentence why not."""

from __future__ import annotations

import random
import zipfile
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from mpips.config.schema import load_config
from mpips.data import read
from mpips.errors import DataError, MpipsError
from mpips.training.drafting import draft
from mpips.training.reading import read_options
from mpips.training.train import train

N = 120
BEGIN = datetime(2025, 11, 3, 7, 30)


def table(columns: dict[str, Callable[[int], object]], n: int = N, delimiter: str = ",") -> str:
    lines = [delimiter.join(columns)]
    lines += [delimiter.join(str(cell(i)) for cell in columns.values()) for i in range(n)]
    return "\n".join(lines) + "\n"


def days(form: str) -> Callable[[int], object]:
    return lambda i: (BEGIN + timedelta(hours=31 * i)).strftime(form)


def words(*given: str) -> Callable[[int], object]:
    return lambda i: given[i % len(given)]


def value(i: int) -> float:
    return random.Random(i).randint(1, 9999) / 100


def comma(i: int) -> str:
    return f"{value(i):.2f}".replace(".", ",")


FLAG = words("0", "1", "1")
WORD = words("red", "green", "blue", "")

# Text of a file, and what the draft says.
FILES: dict[str, tuple[str | bytes, list[str]]] = {
    "pipes": (
        table({"a": value, "w": WORD, "label": FLAG}, delimiter="|"),
        ['categorical = ["w"]'],
    ),
    "quoted numbers": (
        table(
            {
                "a": lambda i: f'"{value(i)}"',
                "b": lambda i: f'"{i % 7}"',
                "y": lambda i: f'"{i % 2}"',
            }
        ),
        ['task = "mlp"', 'label = "y"'],
    ),
    "decimal commas": (
        table({"a": comma, "b": lambda i: f"1.{i % 9}00,5", "y": FLAG}, delimiter=";"),
        ['"a" = "decimal_comma"', '"b" = "decimal_comma"', 'task = "mlp"'],
    ),
    "byte order mark": (("\ufeff" + table({"y": FLAG, "ä": value})).encode(), ['label = "y"']),
    "words alone": (
        table({"a": WORD, "b": words("x", "y"), "class": words("p", "e")}),
        ["2 classes"],
    ),
    "a constant and an empty column": (
        table({"a": value, "k": words("7"), "e": words(""), "y": FLAG}),
        ['"k",  # has one value in all rows', '"e",  # has no values'],
    ),
    "three rows": (
        table({"a": value, "b": WORD, "y": words("0", "1")}, n=3),
        ['categorical = ["b"]'],
    ),
    "labels in words": (
        table({"a": value, "species": words("cat", "dog", "ape")}),
        ['label = "species"'],
    ),
    "yes and no": (table({"a": value, "churn": words("yes", "no")}), ["by its name; --label"]),
    "a price to predict": (
        table(
            {"rooms": lambda i: i % 7, "area": value, "price": lambda i: f'"${1000 + 7 * i:,}.50"'}
        ),
        ['labels = "targets"', '"price" = "decimal_point"', "the last column, since none has"],
    ),
    "seconds since 1970": (
        table({"created_at": lambda i: 1760000000 + 86399 * i, "a": value, "y": FLAG}),
        ['"created_at" = "epoch_s"'],
    ),
    "identifiers of 64 bits": (
        table({"user_id": lambda i: 9007199254740993 + i % 11, "a": value, "y": FLAG}),
        ['"user_id",  # whole numbers that a feature cannot tell apart'],
    ),
    "identifiers and row numbers": (
        table({"n": lambda i: i + 1, "key": lambda i: f"k{i * 7}", "a": value, "y": FLAG}),
        ['"n",  # counts the rows', '"key",  # has 120 values in 120 cells, like an identifier'],
    ),
    "identifiers that return": (
        table({"storeId": lambda i: i % 7, "paid": lambda i: i % 3, "y": FLAG}),
        ['"storeId",  # whole numbers that its name calls identifiers', '    "storeId"'],
    ),
    "one number in several forms": (
        table(
            {
                "a": words("1", "1.0", "2"),
                "sales": lambda i: 900000000 + (i if i < 3 else 5000 * i),
                "y": FLAG,
            }
        ),
        ['task = "mlp"', "# ignore = ["],
    ),
    "a timestamp": (
        table({"timestamp": lambda i: 1760000000000 + 8639900 * i, "y": FLAG}),
        ['"timestamp" = "epoch_ms"'],
    ),
    "a few words among numbers": (
        table({"a": lambda i: "free" if i == 77 else i % 9, "y": FLAG}),
        ["numbers and words, such as 'free'; to read numbers, data.missing = [\"free\"]"],
    ),
    "words of missing numbers": (
        table(
            {
                "a": lambda i: ["", "NA", "unknown", "\\N", "-"][i % 5] if i % 3 else value(i),
                "y": FLAG,
            }
        ),
        ['missing = ["unknown", "-", "\\\\N"]  # read as empty cells', 'empty = "zero"'],
    ),
    "dates": (
        table(
            {
                "a": days("%Y-%m-%d"),
                "b": days("%d.%m.%Y %H:%M"),
                "c": days("%m/%d/%Y"),
                "d": days("%Y-%m-%dT%H:%M:%SZ"),
                "y": FLAG,
            }
        ),
        ['"a" = "date_ymd"', '"b" = "time_dmy"', '"c" = "date_mdy"', '"d" = "time_ymd"'],
    ),
    "dates in both orders": (
        table({"day": lambda i: f"0{i % 9 + 1}/0{i % 5 + 1}/2025", "y": FLAG}),
        ["in which day and month look alike: name date_dmy or date_mdy in [data.convert]"],
    ),
    "per cent and lists": (
        table({"rate": lambda i: f"{i % 40} %", "tags": words("a|b", "c", "a|c|d"), "y": FLAG}),
        ['"rate" = "decimal_point"', "each list is one word"],
    ),
    "flowers without a header": (
        "".join(f"{value(i)},{value(i + 9)},Iris-{'ab'[i % 2]}\n" for i in range(60)),
        ["header = false", 'label = "c3"  # the last column'],
    ),
    "people without a header": (
        "".join(
            f"{20 + i % 50}, {'Private' if i % 3 else 'State-gov'}, <={i % 2}0K\n"
            for i in range(60)
        ),
        ["header = false", 'categorical = ["c2"]'],
    ),
    "numbers without a header": (
        "".join(f"{value(i)},{i % 5},{i % 2}\n" for i in range(60)),
        ["header = false", 'label = "c3"'],
    ),
    "a column named auto": (
        table({"auto": WORD, "b": lambda i: f"{i % 3:03d}", "y": FLAG}),
        ['"[a]uto",', '"b",  # codes with zeros in front'],
    ),
    "a delimiter at the end": (
        table({"a": value, "outcome_2": FLAG, "": words("")}),
        ['label = "outcome_2"'],
    ),
    "negative amounts": (
        table(
            {
                "a": lambda i: f'"({i * 37 + 1000:,})"' if i % 4 else f'"{i * 37 + 1000:,}"',
                "b": lambda i: (
                    f'"$({i * 37 + 1000:,}.50)"' if i % 3 else f'"${i * 37 + 1000:,}.50"'
                ),
                "c": lambda i: f"{value(i):.2f}-" if i % 3 else f"{value(i):.2f}",
                "y": FLAG,
            }
        ),
        ['"a" = "decimal_point"', '"b" = "decimal_point"', '"c" = "decimal_point"'],
    ),
    "few cells of another kind": (
        table(
            {
                "a": lambda i: "oops" if i == 77 else value(i),
                "day": lambda i: "2025-02-30" if i == 50 else days("%Y-%m-%d")(i),
                "b": lambda i: ("Infinity", "-inf", "+inf")[i % 3] if i % 9 == 0 else value(i),
                "y": FLAG,
            }
        ),
        ['"day" = "date_ymd"', "correct \"oops\" of column 'a', \"2025-02-30\" of column 'day'"],
    ),
    "thousands beside decimal commas": (
        table(
            {
                "a": comma,
                "n": lambda i: f"{i * 511 % 9000:,}".replace(",", "."),
                "x": lambda i: f"0.{i:03d}",
                "y": FLAG,
            },
            delimiter=";",
        ),
        ['"n" = "decimal_comma"  # such as', "thousands, since other columns have decimal commas"],
    ),
    "years of two digits in front": (
        table({"day": days("%y-%m-%d"), "a": value, "y": FLAG}),
        ['"day",  # has'],
    ),
    "what no notation reads": (
        table(
            {
                "mixed": lambda i: days("%Y-%m-%d" if i % 2 else "%d.%m.%Y")(i),
                "month": days("%d %b %Y"),
                "mass": lambda i: f"{value(i)} kg",
                "size": words("1 m", "2 m"),
                "v": words("5 m", "3 km"),
                "a": value,
                "y": FLAG,
            }
        ),
        [
            '"mixed",  # has 120 values in 120 cells, like an identifier; dates in several notations',
            "; dates with names of months, such as 03 Nov 2025: write",
            "; numbers with a unit, such as ",
            '"size",  # numbers with a unit, such as 1 m',
            '    "v",\n',
        ],
    ),
    "labels in two ways": (
        table({"a": value, "y": words("Yes", "yes", "No", "NA")}),
        ["labels 'Yes' and 'yes' are two classes here", "label 'NA', of 30 samples, is a class"],
    ),
    "many whole numbers": (
        table({"a": value, "y": lambda i: 1000 + 37 * i}),
        ['labels = "targets"'],
    ),
}


def written(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_a_draft_with_which_it_is_read(tmp_path: Path, name: str) -> None:
    content, said = FILES[name]
    path = written(tmp_path / "a.csv", content)
    text = draft(path, path)
    assert [line for line in said if line not in text] == []
    (tmp_path / "job.toml").write_text(text)
    config = load_config(str(tmp_path / "job.toml"), [])
    wants = "targets" if config.options.get("labels") == "targets" else "classes"
    part = read(path, options=read_options(config, "train", wants))
    rows = content.decode() if isinstance(content, bytes) else content
    n = rows.count("\n") - (config.data.header is True)
    assert part.info.n_samples_total == n
    # What the draft says leaves nothing to be said about notations.
    assert not any("are words here, not numbers" in note for note in part.notes)


@pytest.mark.parametrize("name", ["dates", "a price to predict", "people without a header"])
def test_drafts_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path / "a.csv", FILES[name][0])
    Path("job.toml").write_text(draft(path, path))
    outcome = train(load_config("job.toml", [("train.epochs", 1)]), "none", verbose=False)
    assert np.isfinite(list(outcome.value.metrics.values())).all()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("x\n1\n2\n", "has one column, 'x': samples need a label and features"),
        (table({"a": value, "y": FLAG, "target": FLAG}), "name one with --label: 'y', 'target'"),
        (table({"click": FLAG, "a": value, "churn": FLAG}), "with --label: 'click', 'churn'"),
        (table({"a": value, "k": words("7")}), "the last one, 'k', has one value in all rows"),
        (table({"k": words("7"), "y": FLAG}), "no column to learn from beside the label 'y'"),
        (table({"y": FLAG, "a": value}).replace("a", "y"), "names 'y' twice"),
        ("y,a\n0,Ulm\n1,Köln\n".encode("latin-1"), "a.csv:3: is not UTF-8 text (byte 0xf6)"),
        (table({"a": value, "y": FLAG}).encode("utf-16"), "a.csv: is UTF-16 text: convert"),
        ("y,a\n", "contains no samples"),
        ("", "no header"),
        (
            table({"a": value, "y": lambda i: f"t{i}"}, n=1100),
            "1,100 distinct texts in 1,100 samples",
        ),
        (
            table({"a": value, "y": days("%Y-%m-%d")}),
            "120 distinct texts in 120 samples, which are",
        ),
    ],
)
def test_a_file_without_a_draft_is_refused_in_one_sentence(
    tmp_path: Path, content: str | bytes, complaint: str
) -> None:
    path = written(tmp_path / "a.csv", content)
    with pytest.raises(DataError) as refused:
        draft(path)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("decimal", [comma, value])
def test_points_are_thousands_only_beside_decimal_commas(
    tmp_path: Path, decimal: Callable[[int], object]
) -> None:
    columns: dict[str, Callable[[int], object]] = {
        "a": decimal,
        "n": lambda i: f"{i * 511 % 9000:,}".replace(",", "."),
        "x": lambda i: f"0.{i:03d}",
        "bid": lambda i: f"${i % 9}",
        "y": FLAG,
    }
    path = written(tmp_path / "a.csv", table(columns, delimiter=";"))
    (tmp_path / "job.toml").write_text(draft(path))
    data = load_config(str(tmp_path / "job.toml"), []).data
    assert set(data.convert) == ({"a", "n", "bid"} if decimal is comma else {"bid"})
    assert data.categorical == ()


def test_many_cells_of_another_kind_are_no_missing_values(tmp_path: Path) -> None:
    columns: dict[str, Callable[[int], object]] = {
        "a": lambda i: "oops" if i % 20 == 0 else value(i),
        "b": value,
        "y": FLAG,
    }
    text = draft(written(tmp_path / "a.csv", table(columns)))
    assert "missing" not in text
    assert '"a",  # has ' in text


def test_few_cells_that_come_late_are_missing_values(tmp_path: Path) -> None:
    columns: dict[str, Callable[[int], object]] = {
        "a": value,
        "day": days("%Y-%m-%d"),
        "y": FLAG,
    }
    train_file = written(tmp_path / "a.csv", table(columns))
    columns |= {"a": lambda i: "oops" if i == 9 else value(i)}
    columns |= {"day": lambda i: "soon" if i == 5 else days("%Y-%m-%d")(i)}
    text = draft(train_file, written(tmp_path / "b.csv", table(columns)))
    assert 'missing = ["oops", "soon"]' in text
    assert '"day" = "date_ymd"' in text
    assert "categorical" not in text


def test_columns_of_a_typed_table_that_cannot_be_used_are_left_out(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    n, path = 80, str(tmp_path / "a.parquet")
    days = [datetime(2024, 1, 1 + i % 28) for i in range(n)]
    columns = {"a": [i / 7 for i in range(n)], "day[1]": days, "list": [[1, 2]] * n}
    columns |= {"none": pyarrow.nulls(n), "y": [i % 2 for i in range(n)]}
    parquet.write_table(pyarrow.table(columns), path)
    text = draft(path)
    assert 'ignore = ["day[[]1]", "list", "none"]  # neither numbers nor text' in text
    (tmp_path / "job.toml").write_text(text)
    config = load_config(str(tmp_path / "job.toml"), [])
    assert read(path, options=read_options(config, "train")).info.n_features == 1
    with pytest.raises(DataError) as error:
        read(path)
    assert str(error.value) == (
        f"{path}: column 'day[1]' is timestamp[us], column 'list' is list<element: int64>, column 'none' is "
        'null, neither numbers nor text; leave them out: data.ignore = ["day[[]1]", "list", "none"], or read '
        'the parts of dates: data.convert = { "day[1]" = "time_ymd" }'
    )
    with pytest.raises(DataError, match=r"column 'day.1.' is timestamp"):
        draft(path, label="day[1]")


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "y": 0}\n{"a": 2, "y": 1}\n',
        '[{"a": 1, "y": 0}, {"a": 2, "y": 1}]',
        '[\n  {"a": 1,\n   "y": 0}]\n',
        '{"a": [1, 2], "y": [0, 1]}',
        '{"a": {"0": 1, "1": 2},\n "y": {"0": 0, "1": 1}}',
    ],
)
@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a"])
def test_json_is_named_whatever_its_file_is_called(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(
        MpipsError, match=r"is JSON, which mpips does not read: write CSV or Parquet"
    ):
        draft(str(tmp_path / name), None, None)


def test_a_workbook_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
    with pytest.raises(MpipsError, match="is a workbook, such as of Excel"):
        draft(str(tmp_path / "a.xlsx"), None, None)


def test_words_in_braces_are_cells(tmp_path: Path) -> None:
    lines = [f"{{{'ab'[i % 2]}}},{i},{i % 2}" for i in range(40)]
    (tmp_path / "a.csv").write_text("word,n,y\n" + "\n".join(lines) + "\n")
    assert 'label = "y"' in draft(str(tmp_path / "a.csv"), None, None)


def test_text_of_vowpal_wabbit_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "1 |user id:1 old |ad size:2.5\n-1 'x |user id:2\n" * 9)
    with pytest.raises(MpipsError, match=r"Vowpal Wabbit.*LIBSVM"):
        draft(path)
    # A table with the same characters is none.
    path = written(tmp_path / "b.txt", table({"a": value, "y": FLAG}, delimiter="|"))
    assert 'label = "y"' in draft(path)


def test_what_comes_late_in_the_files_is_part_of_the_draft(tmp_path: Path) -> None:
    late = table(
        {"a": lambda i: "unknown" if i == 110 else i % 9, "b": WORD, "c": value, "y": FLAG}
    )
    path = written(
        tmp_path / "a.csv", table({"a": lambda i: i % 9, "b": WORD, "c": value, "y": FLAG})
    )
    test = written(tmp_path / "b.csv", late.replace("\n8,", "\neight,", 1))
    text = draft(path, test)
    assert "\"a\",  # also has 'unknown', 'eight'" in text or "\"a\",  # also has 'eight'" in text
    test = written(tmp_path / "b.csv", late)
    assert 'missing = ["unknown"]' in draft(path, test)
