"""Cells in the notations of data.convert, texts of data.missing, files without a header."""

from __future__ import annotations

import math
import random
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

import mpips
from mpips.config.schema import load_config
from mpips.data import ReadOptions, csv_table, read
from mpips.data.columns import hash_key
from mpips.data.conversions import DateParts, date_in, find_notation, number_in, part_in
from mpips.data.csv_plan import CsvPlan
from mpips.data.csv_quick import QuickReader, QuickRows
from mpips.data.headers import is_sample
from mpips.errors import DataError
from mpips.inference.parsing import samples_in
from mpips.training.drafting_columns import DraftColumns
from mpips.training.train import train


@pytest.mark.parametrize(
    ("notation", "text", "value"),
    [
        ("decimal_point", "1,234,567.5", 1234567.5),
        ("decimal_point", "1 234", 1234),
        ("decimal_point", "€93.85", 93.85),
        ("decimal_point", "-$12", -12),
        ("decimal_point", "$-12", -12),
        ("decimal_point", "12 EUR", 12),
        ("decimal_point", "5 %", 0.05),
        ("decimal_point", "1e5", 1e5),
        ("decimal_point", ".5", 0.5),
        ("decimal_point", "(1,200)", -1200),
        ("decimal_point", "($ 1,200.50)", -1200.5),
        ("decimal_point", "$(5)", -5),
        ("decimal_point", "(5) %", -0.05),
        ("decimal_point", "5.00-", -5),
        ("decimal_point", "5-", math.nan),
        ("decimal_point", "(-5)", math.nan),
        ("decimal_point", "(5.0-)", math.nan),
        ("decimal_point", "()", math.nan),
        ("decimal_point", "((5))", math.nan),
        ("decimal_comma", "1.234,5-", -1234.5),
        ("decimal_comma", "(12,50 €)", -12.5),
        ("decimal_point", "1,23", math.nan),
        ("decimal_point", "0,126", math.nan),
        ("decimal_point", "$", math.nan),
        ("decimal_point", "--1", math.nan),
        ("decimal_point", "12 apples", math.nan),
        ("decimal_comma", "1.234,5", 1234.5),
        ("decimal_comma", "1.234", 1234),
        ("decimal_comma", "0,126", 0.126),
        ("decimal_comma", "12,50 €", 12.5),
        ("decimal_comma", "12.5", math.nan),
    ],
)
def test_numbers_have_the_value_that_their_notation_says(
    notation: str, text: str, value: float
) -> None:
    assert number_in(notation, text) == pytest.approx(value, rel=1e-15, nan_ok=True)


@pytest.mark.parametrize(
    ("notation", "text", "parts"),
    [
        ("time_ymd", "2026-02-08 08:00:19", DateParts(2026, 2, 6, 8)),
        ("time_ymd", "2026-02-08T08:00:19.25+01:00", DateParts(2026, 2, 6, 8)),
        ("time_mdy", "12/31/2026 5:05 PM", DateParts(2026, 12, 3, 17)),
        ("time_mdy", "12/31/2026 12:05 am", DateParts(2026, 12, 3, 0)),
        ("date_dmy", "8.2.26", DateParts(2026, 2, 6, None)),
        ("date_dmy", "31.12.1969", DateParts(1969, 12, 2, None)),
        ("epoch_s", "1798736700", DateParts(2026, 12, 3, 17)),
        ("epoch_ms", "1798736700000", DateParts(2026, 12, 3, 17)),
        ("date_ymd", "2026-02-30", None),
        ("date_ymd", "2026-02/03", None),
        ("time_ymd", "2026-02-08 25:00", None),
        ("time_mdy", "12/31/2026 13:05 PM", None),
        ("date_mdy", "31/12/2026", None),
        ("epoch_s", "soon", None),
    ],
)
def test_dates_have_the_parts_that_their_text_shows(
    notation: str, text: str, parts: DateParts | None
) -> None:
    assert date_in(notation, text) == parts
    assert part_in(notation, "weekday", text) == (
        None
        if parts is None
        else (["mon", "tue", "wed", "thu", "fri", "sat", "sun"][parts.weekday])
    )


def test_a_notation_is_found_only_where_it_is_clear() -> None:
    found = {
        "decimal_point": ["1,234", "12,345"],
        "decimal_comma": ["0,126", "1,234"],
        "date_dmy": ["13/01/2026", "01/02/2026"],
        "date_mdy": ["01/13/2026", "01/02/2026"],
        "time_dmy": ["01.02.2026", "01.02.2026 10:00"],
        "": ["01/02/2026", "03/04/2026"],
    }
    assert {find_notation(texts): texts for texts in found.values()} == found
    assert find_notation(["12 EUR", "soon"]) == ""


OPTIONS = ReadOptions(
    label="y",
    missing=("unknown", "-999", "ß"),
    convert=(("at", "time_ymd"), ("bid*", "decimal_point")),
    categorical=("auto", "code"),
)


def table(source: random.Random, odd: float) -> str:
    def cell(*usual: str) -> str:
        rare = ["unknown", "UNKNOWN", "", " NA", "-999", "-999.0", "ß"]
        wrong = ["two", "x,y", "2026-13-01"]
        if source.random() < odd / 30:
            return f'"{source.choice(wrong)}"'
        return source.choice(rare) if source.random() < odd else source.choice(usual)

    lines = ["at,a,bid_1,code,w,y"]
    for _ in range(source.randint(1, 40)):
        at = f"2026-0{source.randint(1, 9)}-11 {source.randint(0, 23)}:00"
        own = [
            cell(at),
            cell("1", "2.5"),
            cell('"$1,000"', "3%", "4"),
            cell("1", "2"),
            cell("u", "v"),
        ]
        lines.append(",".join([*own, source.choice("01")]))
    return "\n".join(lines) + "\n"


class NoRows(QuickReader):
    """A reader that leaves all text to Python."""

    def rows(self, text: bytes) -> QuickRows | None:
        return None


def outcome(path: Path, options: ReadOptions) -> object:
    try:
        part = read(path, options=options)
    except DataError as error:
        return str(error)
    arrays = [
        getattr(part.data, name, None) for name in ("labels", "x", "indptr", "indices", "values")
    ]
    return part.info, part.notes, [a.tobytes() for a in arrays if a is not None]


def test_the_native_parser_and_the_csv_module_read_notations_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_table, "_PIECE", 300)
    source, path, errors = random.Random(3), tmp_path / "a.csv", 0
    for i in range(60):
        monkeypatch.setattr("mpips.data.csv_quick._MOST_TEXTS", (0, 2, 1 << 16)[i % 3])
        path.write_text(table(source, (0, 0.2)[i % 2]))
        dense = OPTIONS if i % 4 else ReadOptions(label="y", empty="zero", missing=("unknown",))
        found = outcome(path, dense)
        with monkeypatch.context() as patch:
            patch.setattr(csv_table, "QuickReader", NoRows)
            assert outcome(path, dense) == found
        errors += isinstance(found, str)
    assert 5 < errors < 50


def test_plain_notations_stay_with_the_native_parser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("read by Python")

    monkeypatch.setattr(csv_table, "PlainRows", refuse)
    path = tmp_path / "a.csv"
    path.write_text(table(random.Random(1), 0).replace("2.5", "unknown"))
    part = read(path, options=OPTIONS)
    assert part.info.columns[:4] == ("at.year", "at.month", "at.weekday", "at.hour")
    assert part.info.categorical == ("at.month", "at.weekday", "at.hour", "code", "w")


def test_values_are_those_of_the_cells(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('at,bid_1,code,y\n2026-02-08 08:00,"$1,000",7,0\nunknown,-999,unknown,1\n')
    data = read(path, options=OPTIONS).data
    own = dict(zip(data.indices[: data.indptr[1]].tolist(), data.values.tolist(), strict=False))
    assert own == {
        hash_key("at.year"): 2026.0,
        hash_key("at.month", "2"): 1.0,
        hash_key("at.weekday", "sun"): 1.0,
        hash_key("at.hour", "8"): 1.0,
        hash_key("bid_1"): pytest.approx(math.log1p(1000), rel=1e-6),
        hash_key("code", "7"): 1.0,
    }
    # Nothing of the second sample is there.
    assert data.indptr.tolist() == [0, 6, 6]


def test_a_cell_in_another_notation_is_named_by_its_line_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ["at,bid,y", *(f"2026-01-{i % 28 + 1:02d},€{i},{i % 2}" for i in range(40))]
    lines[21], lines[31] = "soon,€1,0", "2026-01-01,lots,1"
    Path("a.csv").write_text("\n".join(lines) + "\n")
    convert = (("at", "date_ymd"), ("bid", "decimal_point"))
    with pytest.raises(
        DataError, match=r"a.csv:22: column 'at' contains 'soon': data.convert reads"
    ):
        read("a.csv", options=ReadOptions(convert=convert))
    pairs = [("task", "wide_deep"), ("data.train", "a.csv"), ("train.epochs", 1)]
    pairs += [(f"data.convert.{name}", notation) for name, notation in convert]
    config = load_config(None, [*pairs, ("data.on_bad", "skip"), ("options.hidden", [4])])
    outcome = train(config, "none", verbose=False)
    assert outcome.value.n_samples == 38


def test_missing_numbers_of_dense_data_are_refused_by_their_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for cell in ("-999", "-999.0"):
        path.write_text("y,a,b\n" + "0,1,2\n" * 30 + f"1,{cell},3\n")
        with pytest.raises(DataError, match=rf":32: column 'a' contains '{cell}': set data.empty"):
            read(path, options=ReadOptions(missing=("-999",)))
        data = read(path, options=ReadOptions(missing=("-999",), empty="zero")).data
        assert data.x.tolist() == [[1, 2]] * 30 + [[0, 3]]


def test_text_in_another_notation_leaves_no_trace_in_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("at,w,y\n2026-01-01,u,0\n")
    with path.open("rb") as file:
        plan = CsvPlan.of(str(path), file, ReadOptions(convert=(("at", "date_ymd"),)))
    reader = QuickReader(plan)
    assert reader.rows(b"2026-01-01,u,0\nsoon,v,1\n") is None
    found = reader.rows(b"2026-01-02,u,0\n2026-02-02,v,1\n")
    assert found is not None
    assert found.cells()[1].keys[found.cells()[1].codes].tolist() == [
        hash_key("at.month", "1"),
        hash_key("at.month", "2"),
    ]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"convert": (("no", "date_ymd"),)}, "data.convert 'no' matches none of 'y', 'a', 'b'"),
        ({"convert": (("y", "date_ymd"),)}, "data.convert names the label's column 'y'"),
        (
            {"convert": (("a", "decimal_point"),), "categorical": ("a",)},
            "column 'a' is in data.categorical and in data.convert",
        ),
    ],
)
def test_options_that_contradict_are_refused(
    tmp_path: Path, options: dict[str, object], complaint: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("y,a,b\n0,1,2\n1,2,3\n")
    with pytest.raises(DataError, match=complaint):
        read(path, options=ReadOptions(**options))


def test_found_columns_and_named_ones_together(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("y,age,w,auto\n0,1,u,5\n1,2,v,6\n")
    assert read(path).info.categorical == ("w",)
    assert read(path, options=ReadOptions(categorical=("auto", "age"))).info.categorical == (
        "age",
        "w",
    )
    assert read(
        path, options=ReadOptions(categorical=("[a]uto",), ignore=("w",))
    ).info.categorical == ("auto",)


def test_the_error_of_a_cell_names_what_all_columns_need(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = [f"{i},{i},{i},w,{i % 2}" for i in range(30)]
    rows[4], rows[20], rows[25] = "unknown,4,4,w,0", "1,two,4,w,0", "1,2,-,w,0"
    path.write_text("\n".join(["a,b,c,w,y", *rows]) + "\n")
    with pytest.raises(DataError) as refused:
        read(path)
    said = str(refused.value)
    assert said.startswith(f"{path}:6: column 'a' contains 'unknown'")
    assert 'set data.missing = ["unknown", "-"], data.categorical = ["b", "w"]' in said
    options = ReadOptions(missing=("unknown", "-"), categorical=("b", "w"))
    assert read(path, options=options).data.n == 30


def test_a_number_beyond_float32_is_not_called_a_word(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("y,a,b\n0,1,2\n1,1e39,two\n")
    with pytest.raises(DataError, match=r"up to 3.4e38; scale the column; .* = \[\"b\"\]$"):
        read(path)


def test_a_first_line_is_a_sample_if_it_looks_like_one() -> None:
    names = [["5.1", "x"], ["4.9", "y"], ["4.7", "x"]]
    assert is_sample(["5.0", "x"], names)
    assert is_sample(["5.5", "z"], names)
    assert not is_sample(["5", "z"], names)
    assert is_sample(["n", "y", "n"], [["y", "n", "n"], ["n", "y", "y"]])
    assert not is_sample(["length", "x"], names)
    assert is_sample(["1", "2"], [["3", "4"]])
    assert not is_sample(["id", "2019", "2020"], [["1", "2", "3"]])
    assert not is_sample(["1", "2", "label"], [["3", "4", "a"]])
    assert not is_sample([], [])


def test_a_model_takes_raw_cells_in_files_rows_and_tables(tmp_path: Path) -> None:
    rows = [
        (f"2026-0{i % 3 + 1}-05 1{i % 5}:00", f"€{i}.50", "-" if i % 7 else i, i % 2)
        for i in range(60)
    ]
    lines = ["at,bid,age,y", *(",".join(map(str, row)) for row in rows)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(lines) + "\n")
    settings = {
        "data.missing": ["-"],
        "data.convert": {"at": "time_ymd", "bid": "decimal_point"},
        "options.hidden": [4],
    }
    model = mpips.fit("wide_deep", str(path), epochs=1, settings=settings).model
    assert model.inputs == ("at", "bid", "age")
    wanted = model.predict_proba(str(path))
    named = [{"at": at, "bid": bid, "age": age} for at, bid, age, _ in rows]
    assert np.array_equal(model.predict_proba(samples_in(named, model)), wanted)
    unlabelled = tmp_path / "b.csv"
    unlabelled.write_text("\n".join(line.rpartition(",")[0] for line in lines) + "\n")
    assert np.array_equal(model.predict_proba(str(unlabelled)), wanted)
    pyarrow = pytest.importorskip("pyarrow")
    columns = {name: [str(row[i]) for row in rows] for i, name in enumerate(("at", "bid"))}
    ages = [None if age == "-" else age for _, _, age, _ in rows]
    with pyarrow.ipc.new_file(
        tmp_path / "a.arrow", (own := pyarrow.table({**columns, "age": ages})).schema
    ) as file:
        file.write_table(own)
    assert np.array_equal(model.predict_proba(str(tmp_path / "a.arrow")), wanted)
    unlabelled.write_text("at,bid\n2026-01-01,€1\n")
    with pytest.raises(DataError, match="training data has column 'age' that this file lacks"):
        model.predict_proba(str(unlabelled))


def test_samples_without_a_header_are_predicted_with_and_without_the_label(tmp_path: Path) -> None:
    rows = [(i % 7, i % 2, ["u", "v", "w"][i % 3]) for i in range(60)]
    path, short = tmp_path / "a.csv", tmp_path / "b.csv"
    path.write_text("".join(f"{a},{y},{w}\n" for a, y, w in rows))
    short.write_text("".join(f"{a},{w}\n" for a, _, w in rows))
    settings = {"data.header": False, "data.label": "c2", "options.hidden": [4]}
    model = mpips.fit("wide_deep", str(path), epochs=1, settings=settings).model
    assert model.info.columns == ("c1", "c3")
    wanted = model.predict_proba(str(path))
    assert len(wanted) == 60
    assert np.array_equal(model.predict_proba(str(short)), wanted)
    named = [{"c1": a, "c3": w} for a, _, w in rows]
    assert np.array_equal(model.predict_proba(samples_in(named, model)), wanted)


def test_numbers_and_dates_that_have_a_type_need_no_notation(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rows = [(datetime(2026, 1 + i % 3, 5, 10 + i % 5), 1000.25 + i, i % 2) for i in range(60)]
    cells = [(at.strftime("%d.%m.%Y %H:%M"), f"{a:.2f}".replace(".", ","), y) for at, a, y in rows]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["at;a;y", *(";".join(map(str, row)) for row in cells)]) + "\n")
    convert = {"at": "time_dmy", "a": "decimal_comma"}
    settings = {"data.convert": convert, "options.hidden": [4]}
    model = mpips.fit("wide_deep", str(path), epochs=1, settings=settings).model
    wanted = model.predict_proba(str(path))
    frame = pandas.DataFrame({"at": [at for at, _, _ in rows], "a": [a for _, a, _ in rows]})
    assert np.array_equal(model.predict_proba(frame), wanted)
    named = [{"at": at, "a": a} for (at, _, _), (_, a, _) in zip(cells, rows, strict=True)]
    assert np.array_equal(model.predict_proba(samples_in(named, model)), wanted)
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(
        pytest.importorskip("pyarrow").Table.from_pandas(frame), tmp_path / "a.parquet"
    )
    assert np.array_equal(model.predict_proba(str(tmp_path / "a.parquet")), wanted)


@pytest.mark.parametrize(
    ("cells", "notation"),
    [
        (["47.09", "1,168.45", "-3"], "decimal_point"),
        (["47,09", "1.168,45", "3"], "decimal_comma"),
        (["5", "7 %", "20 %"], "decimal_point"),
        (["2026-12-31", "2026-01-02", "2025-07-08"], "date_ymd"),
    ],
)
def test_the_error_of_a_cell_and_the_draft_advise_the_same(
    tmp_path: Path, cells: list[str], notation: str
) -> None:
    """A number in another notation is no text to hash, and the draft says the same of its column."""
    lines = [f'"{cell}";{i % 7}.5;{i % 2}' for i, cell in enumerate(cells * 20)]
    (path := tmp_path / "own.csv").write_text("\n".join(["amount;size;label", *lines]) + "\n")
    options = ReadOptions(label="label", categorical=("size",))
    with pytest.raises(DataError) as refused:
        read(path, options=options)
    message = str(refused.value)
    assert "column 'amount' contains" in message
    assert (
        "is a number or a date in another notation, which data.convert names; to read all"
        in message
    )
    assert f'data.convert = {{ "amount" = "{notation}" }}' in message
    assert "hash" not in message
    draft = DraftColumns.of(str(path), "label")
    assert draft is not None
    assert f'"amount" = "{notation}"' in "\n".join(draft.section())
