"""One value is one word in all its forms, and models say where words are none that they were trained on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpips
from mpips.config.schema import load_config
from mpips.data import DataInfo, ReadOptions, read
from mpips.data.known_words import KnownWords
from mpips.data.words import SCALED, TEXTS, VALUES, text_of, whole, word_of
from mpips.model.distinct import distinct
from mpips.training.train import train

pandas = pytest.importorskip("pandas")

SEVEN = ["7", "7.0", "007", "+7", "7.", "7e+00", "7.000000000000000000e+00", "70.0e-1", " 7 "]


@pytest.mark.parametrize("text", SEVEN)
def test_forms_of_a_whole_number_are_one_word(text: str) -> None:
    assert word_of(text) == "7"
    assert word_of(text, TEXTS) == text.strip()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("-0.0", "0"),
        ("-07.0", "-7"),
        ("1e+16", "10000000000000000"),
        ("1.2345e+03", "1.2345e+03"),
        ("12345678901234567890", "12345678901234567890"),
        ("True", "true"),
        ("FALSE", "false"),
        ("3.10", "3.10"),
        ("3.1", "3.1"),
        ("12e3", "12e3"),
        ("u7", "u7"),
        ("1_0", "1_0"),
        ("٧", "٧"),
        ("2024-01-01", "2024-01-01"),
        ("1.2.0", "1.2.0"),
        *((cell, "") for cell in ("", " ", "NA", "n/a", "NaN", "null", "None", "?", "<NA>", "NaT")),
    ],
)
def test_other_texts_are_their_own_word_and_missing_ones_have_none(text: str, word: str) -> None:
    assert word_of(text) == word


@pytest.mark.parametrize("value", [7, 7.0, np.float32(7), np.int64(7), np.float64(7), True])
def test_values_of_python_and_numpy_have_the_word_of_their_text(value: Any) -> None:
    assert word_of(text_of(value)) == ("true" if value is True else "7")
    assert text_of(np.float32(0.1)) == "0.1"
    assert text_of(math.nan) == text_of(None) == ""


def test_the_value_does_not_change_when_a_number_is_written() -> None:
    rng = np.random.default_rng(0)
    for number in rng.integers(-(2**53), 2**53, 200).tolist():
        assert whole(repr(float(number))) == whole(f"{number:.17e}") == str(number)


def frame(n: int = 240) -> Any:
    rng = np.random.default_rng(1)
    k = rng.integers(1, 13, n)
    return pandas.DataFrame(
        {
            "k": k,
            "flag": k % 3 == 0,
            "a": rng.normal(size=n).round(3),
            "label": np.where(k % 2, "yes", "no"),
        }
    )


FORMS = {
    "int": lambda k: k,
    "float": lambda k: k.astype(float),
    "float32": lambda k: k.astype("float32"),
    "nullable": lambda k: k.astype("Int64"),
    "text": lambda k: k.astype(str),
    "padded": lambda k: k.map("{:03}".format),
    "exponent": lambda k: k.map("{:.6e}".format),
    "category": lambda k: k.astype(float).astype("category"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("words")
    frame().to_csv(folder / "train.csv", index=False)
    settings = {"data.categorical": ["k", "flag"]}
    return mpips.fit(
        "fm", str(folder / "train.csv"), epochs=2, settings=settings, folder=folder / "m"
    ).model


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["frame", "csv", "parquet", "arrow"])
def test_a_model_predicts_the_same_of_all_forms(
    model: Any, form: str, kind: str, tmp_path: Path
) -> None:
    data = frame().drop(columns="label")
    expected = model.predict_proba(data)
    assert not model.notes
    data["k"] = FORMS[form](data["k"])
    if kind == "frame":
        given: Any = data
    elif kind == "csv":
        given = tmp_path / "a.csv"
        data.to_csv(given, index=False)
    else:
        pytest.importorskip("pyarrow")
        if form == "category":
            data["k"] = data["k"].astype(str).astype("category")
        given = tmp_path / f"a.{kind}"
        data.to_parquet(given) if kind == "parquet" else data.to_feather(given)
    assert np.array_equal(model.predict_proba(given), expected)
    assert not model.notes


def test_a_missing_cell_has_no_word_in_any_form(model: Any, tmp_path: Path) -> None:
    data = frame(4).drop(columns="label")
    data["k"] = data["k"].astype(object)
    data.loc[2, "k"] = None
    expected = model.predict_proba(data)
    for text in ("", "NA", "nan", "None", "<NA>"):
        data.loc[2, "k"] = text
        data.to_csv(tmp_path / "a.csv", index=False)
        assert np.array_equal(model.predict_proba(tmp_path / "a.csv"), expected)


def test_unknown_words_are_counted_by_column_above_a_tenth(model: Any, tmp_path: Path) -> None:
    data = frame().drop(columns="label")
    texts = data["k"].astype(str)
    data["k"] = "id" + texts
    model.predict(data)
    assert [note for note in model.notes if "column 'k'" in note and "240 of 240" in note]
    assert not [note for note in model.notes if "'flag'" in note]
    # A tenth of the cells is not named, more are.
    for unknown, named in ((24, False), (25, True)):
        data["k"] = texts
        data.loc[: unknown - 1, "k"] = "new"
        data.to_csv(tmp_path / "a.csv", index=False)
        model.predict(tmp_path / "a.csv")
        assert bool(model.notes) is named
    data["label"] = "yes"
    data.to_csv(tmp_path / "a.csv", index=False)
    model.evaluate(tmp_path / "a.csv")
    assert len(model.notes) == 1
    assert "25 of 240" in model.notes[0]


def test_training_counts_unknown_words_of_the_test_file() -> None:
    data = frame()
    other = data.assign(k="id" + data["k"].astype(str))
    settings = {"data.categorical": ["k"]}
    notes = mpips.fit("fm", data, other, epochs=1, settings=settings).notes
    assert [note for note in notes if "column 'k'" in note and "240 of 240" in note]


def test_a_checkpoint_without_a_rule_keeps_the_words_that_it_was_trained_with(
    model: Any, tmp_path: Path
) -> None:
    config = model.info.to_config()
    assert config["words"] == SCALED
    del config["words"]
    old = DataInfo.from_config(config)
    assert old.words == TEXTS
    data = frame(4)
    data["k"] = ["7", "7.0", "NA", ""]
    data.to_csv(tmp_path / "a.csv", index=False)
    by_text = read(tmp_path / "a.csv", like=old).data
    by_value = read(tmp_path / "a.csv", like=model.info).data
    place = model.info.columns.index("k")
    own = [part.indices[part.fields == place] for part in (by_text, by_value)]
    assert len(distinct(own[0])) == 3
    assert len(distinct(own[1])) == 1


@pytest.mark.parametrize("rule", [TEXTS, VALUES])
def test_training_that_goes_on_keeps_the_rule_of_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: int
) -> None:
    data = frame()
    data["k"] = data["k"].astype(float)
    data.to_csv(tmp_path / "a.csv", index=False)

    def run(epochs: int) -> Any:
        pairs = [
            ("task", "fm"),
            ("data.train", str(tmp_path / "a.csv")),
            ("data.categorical", ["k"]),
            ("train.epochs", epochs),
            ("checkpoint.folder", str(tmp_path / "m")),
        ]
        train(load_config(None, pairs), "none", verbose=False)
        return mpips.load(tmp_path / "m")

    with monkeypatch.context() as patch:
        patch.setattr("mpips.training.prepare.SCALED", rule)
        patch.setattr("mpips.training.prepare.earlier_words", lambda *_: rule)
        assert run(1).info.words == rule
    later = run(2)
    assert later.info.words == rule
    assert later.predict(tmp_path / "a.csv").shape == (240,)
    assert not later.notes


def test_a_record_of_words_knows_all_of_them_and_few_others() -> None:
    rng = np.random.default_rng(5)
    keys = rng.integers(0, 1 << 62, 40_000)
    mine, others = keys[:20_000], keys[20_000:]
    halves = [KnownWords.of(mine[i::2], 60_000).bits for i in range(2)]
    whole_one = KnownWords.of(mine, 20_000)
    known = KnownWords(halves[0] | halves[1]).halved()
    # The result does not depend on the number of workers and on their bounds.
    assert np.array_equal(known.bits, whole_one.halved().bits)
    assert known.has(mine).all()
    share = known.has(others).mean()
    assert share < 0.05
    assert share == pytest.approx(known.false_share, abs=0.01)


def test_texts_that_look_like_numbers_stay_apart_as_labels() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(60, 2)), np.array(["0.0", "1", "01"] * 20)
    found = mpips.fit("softmax", (x, y), (x, y), epochs=1)
    assert found.model.classes.tolist() == ["0.0", "01", "1"]
    data = pandas.DataFrame(x, columns=["a", "b"]).assign(label=y)
    assert mpips.fit("softmax", data, epochs=1).model.classes.tolist() == ["0.0", "01", "1"]


def test_truth_values_are_numbers_where_the_training_had_numbers(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    data = frame().drop(columns="k")
    data.to_parquet(tmp_path / "a.parquet")
    model = mpips.fit("softmax", str(tmp_path / "a.parquet"), epochs=1).model
    expected = model.predict_proba(tmp_path / "a.parquet")
    data.to_csv(tmp_path / "a.csv", index=False)
    assert np.array_equal(model.predict_proba(data), expected)
    assert np.array_equal(model.predict_proba(tmp_path / "a.csv"), expected)


def test_options_have_the_rule_of_this_version() -> None:
    assert ReadOptions().words == SCALED
