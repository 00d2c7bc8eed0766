"""Files that kge, mf and word2vec read themselves are predicted in parts: bounded memory, the same output."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_rig import trained_on_text

from mpips import load
from mpips.data import rows, text
from mpips.errors import DataError
from mpips.inference.streaming import predict_file

pytest.importorskip("h5py")

PART = 64  # lines of a part in these tests
# Training data, 2 * PART lines to predict, options, and what the note on unknown names counts in them.
JOBS: dict[str, tuple[str, list[str], dict[str, Any], str]] = {
    "kge": (
        "".join(f"a{i % 7}\tknows\tb{i % 11}\n" for i in range(70)),
        ["a1\tknows\t?", "?\tknows\tb3", "a1\tknows\tb1", "stranger-with-a-long-name\tknows\tb1"]
        * 32,
        {"options.dim": 4},
        "{0} of {1} triples have an entity",
    ),
    "mf": (
        "".join(f"u{i % 7},i{i % 11},{i % 5}\n" for i in range(60)),
        ["u1,i2", "u3,?", "u2,i4", "nobody-of-this-name,i4"] * 32,
        {"options.dim": 4},
        "{0} of {1} lines have a user or item",
    ),
    "word2vec": (
        "the cat sat on the mat and the dog sat too\n" * 40,
        ["cat", "dog", "mat", "unheard"] * 32,
        {"options.dim": 4, "options.min_count": 2},
        "{0} of {1} words are not in the model: unheard, unheard",
    ),
}


@pytest.fixture(scope="module", params=JOBS)
def model(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("parts")
    train_text, _, options, _ = JOBS[request.param]
    return request.param, trained_on_text(folder, request.param, train_text, options)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "PART", PART)
    monkeypatch.setattr(text, "_BLOCK", 1 << 11)


def predicted(checkpoints: Path, data: Path, out: Path) -> tuple[int, int, list[str]]:
    """Predict a file; return the greatest memory meanwhile in bytes, the number of rows, and the notes."""
    notes: list[str] = []
    tracemalloc.start()
    try:
        n = predict_file(checkpoints, str(data), out, notes.append).n
        return tracemalloc.get_traced_memory()[1], n, notes
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_file(model: tuple[str, Path], tmp_path: Path) -> None:
    name, checkpoints = model
    lines, note = JOBS[name][1], JOBS[name][3]
    for times in (1, 40):
        (tmp_path / f"{times}.txt").write_text(("\n".join(lines) + "\n") * times)
    # The first prediction of a process imports modules.
    predicted(checkpoints, tmp_path / "1.txt", tmp_path / "0.csv")
    small, n, notes = predicted(checkpoints, tmp_path / "1.txt", tmp_path / "1.csv")
    large, n_large, notes_large = predicted(checkpoints, tmp_path / "40.txt", tmp_path / "40.csv")
    assert n_large == 40 * n
    assert large < 1.25 * small + 50_000
    assert [note.format("32", "128") in one for one in notes] == [True]
    n_unknown, n_lines = (f"{k * 40:,}" if name != "word2vec" else f"{k * 40}" for k in (32, 128))
    assert [note.format(n_unknown, n_lines) in one for one in notes_large] == [True]
    header, *body = (tmp_path / "1.csv").read_text().splitlines(keepends=True)
    assert (tmp_path / "40.csv").read_text() == header + "".join(body) * 40


def test_all_forms_of_output_have_the_columns_of_the_model(
    model: tuple[str, Path], tmp_path: Path
) -> None:
    """Names of the file are longer in some parts than in others."""
    parquet = pytest.importorskip("pyarrow.parquet")
    name, checkpoints = model
    lines = JOBS[name][1]
    data = tmp_path / "asked.txt"
    data.write_text("\n".join([*lines[:3] * PART, *lines]) + "\n")
    expected = load(checkpoints).columns(data)
    assert expected is not None
    predict_file(checkpoints, str(data), tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as found:
        assert found.files == list(expected)
        for key, values in expected.items():
            assert found[key].dtype == values.dtype
            assert found[key].tobytes() == values.tobytes()
    predict_file(checkpoints, str(data), tmp_path / "out.parquet")
    table = parquet.read_table(tmp_path / "out.parquet").to_pydict()
    texts = [key for key, values in expected.items() if values.dtype.kind == "U"]
    assert texts
    assert all(table[key] == expected[key].tolist() for key in texts)


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_lines_is_one_sentence(
    content: str, model: tuple[str, Path], tmp_path: Path
) -> None:
    data = tmp_path / "empty.txt"
    data.write_text(content)
    with pytest.raises(DataError, match=r"empty\.txt: contains no (samples|words)"):
        predict_file(model[1], str(data), tmp_path / "out.csv")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty.txt"]


def test_a_wrong_line_in_a_late_part_leaves_no_output(
    model: tuple[str, Path], tmp_path: Path
) -> None:
    name, checkpoints = model
    data = tmp_path / "bad.txt"
    good = "\n".join(JOBS[name][1] * 20) + "\n"
    data.write_bytes(good.encode() + b"a\xff\n")
    where = f"line {good.count(chr(10)) + 1}" if name == "word2vec" else "behind line"
    with pytest.raises(DataError, match=rf"bad\.txt.*{where}.*UTF-8"):
        predict_file(checkpoints, str(data), tmp_path / "out.csv")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.txt"]


@pytest.mark.parametrize("model", ["word2vec"], indirect=True)
def test_words_that_a_model_lacks_are_one_sentence(tmp_path: Path, model: tuple[str, Path]) -> None:
    data = tmp_path / "unknown.txt"
    data.write_text("\ufeff" + "heard never " * 500)
    with pytest.raises(
        DataError, match=r"has none of its words \(heard, never, heard, never, heard, \.\.\.\)"
    ):
        load(model[1]).columns(data)
