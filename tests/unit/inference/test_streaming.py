"""Predictions of a file block by block: those of the whole file, in every form, and in bounded memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_rig import ENDING, JOBS, make

from mpips import load
from mpips.data import file_blocks as blocks_module
from mpips.errors import ConfigError, DataError
from mpips.inference import writing
from mpips.inference.exporting import export
from mpips.inference.streaming import predict_file

pytest.importorskip("h5py")


@pytest.fixture(scope="module")
def softmax(tmp_path_factory: Any) -> Path:
    return make("softmax", tmp_path_factory.mktemp("softmax"))[0]


@pytest.fixture(scope="module")
def hashed(tmp_path_factory: Any) -> Path:
    return make("hashed fm", tmp_path_factory.mktemp("hashed"))[0]


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "_PIECE_BYTES", 500)


def expected(folder: Path, test: Path) -> dict[str, np.ndarray]:
    """Return the columns of the predictions of a whole file."""
    model = load(folder / "checkpoints")
    found = {"prediction": model.predict(test)}
    for name, column in zip(model.info.class_names, model.predict_proba(test).T, strict=True):
        found[f"probability_{name}"] = column
    return found


def test_an_output_below_a_file_is_refused_by_one_sentence(softmax: Path, tmp_path: Path) -> None:
    # Removing what could not be made fails as well, as it does on a read-only file system.
    (tmp_path / "file").write_text("")
    out, data = tmp_path / "file" / "out.csv", str(softmax / "test.csv")
    with pytest.raises(ConfigError, match=r"out\.csv: cannot be written: Not a directory"):
        predict_file(softmax / "checkpoints", data, out)
    with pytest.raises(ConfigError, match="cannot be written: Not a directory"):
        export(load(softmax / "checkpoints"), "npz", tmp_path / "file" / "out.npz")


def test_predictions_never_replace_the_data(softmax: Path, tmp_path: Path) -> None:
    content = (softmax / "test.csv").read_bytes()
    data, link = tmp_path / "data.csv", tmp_path / "link.csv"
    data.write_bytes(content)
    link.symlink_to(data)
    for out in (data, link, tmp_path / "." / "data.csv"):
        with pytest.raises(ConfigError, match="is a file of --data, and would be replaced"):
            predict_file(softmax / "checkpoints", str(tmp_path / "d*.csv"), out)
    assert data.read_bytes() == content


@pytest.mark.parametrize("name", ["softmax", "logistic", "hashed fm", "wide_deep"])
def test_many_blocks_give_the_predictions_of_the_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = make(name, tmp_path)
    test = folder / f"test.{ENDING[JOBS[name][1]]}"
    columns = expected(folder, test)
    small(monkeypatch)
    monkeypatch.setattr(writing, "_GROUP_ROWS", 20)
    for ending in ("csv", "npz"):
        written = predict_file(folder / "checkpoints", str(test), tmp_path / f"out.{ending}")
        assert written.n == 90
    table = np.genfromtxt(tmp_path / "out.csv", delimiter=",", names=True, deletechars="")
    with np.load(tmp_path / "out.npz") as archive:
        assert archive.files == list(columns)
        for column, values in columns.items():
            assert archive[column].dtype == values.dtype
            # A product of matrices has other last bits for other numbers of rows.
            assert np.allclose(archive[column], values, atol=1e-6, rtol=0)
            assert table[column].astype(values.dtype).tobytes() == archive[column].tobytes()


@pytest.mark.parametrize("kind", [writing.CsvWriter, writing.NpzWriter, writing.ParquetWriter])
@pytest.mark.parametrize("n", [0, 3])
def test_columns_of_a_task_are_written_also_without_rows(
    kind: type[Any], n: int, tmp_path: Path
) -> None:
    if kind is writing.ParquetWriter:
        pytest.importorskip("pyarrow")
    columns = {"name": np.array(["a", "bcd", "c"][:n], np.str_), "score": np.arange(n) / 4}
    own = writing.OwnColumns(columns)
    with (tmp_path / "out").open("wb") as file:
        writer = kind(own, file)
        # The texts of the second block are longer, and the third one has no rows.
        for block in (slice(0, 1), slice(1, n), slice(n, n)):
            rows = own.joined(
                {name: np.array(c[block].tolist(), c.dtype.kind) for name, c in columns.items()}
            )
            writer.add(kind.encode(own, rows))
        writer.close()
    if kind is writing.CsvWriter:
        rows = ["name,score", "a,0", "bcd,0.25", "c,0.5"][: n + 1]
        assert (tmp_path / "out").read_text().splitlines() == rows
    elif kind is writing.NpzWriter:
        with np.load(tmp_path / "out") as found:
            assert {name: found[name].tolist() for name in found} == {
                name: column.tolist() for name, column in columns.items()
            }
    else:
        from pyarrow import parquet

        found = parquet.read_table(tmp_path / "out").to_pydict()
        assert found == {name: column.tolist() for name, column in columns.items()}


def test_npz_has_the_bytes_of_savez(softmax: Path, tmp_path: Path) -> None:
    test = softmax / "test.csv"
    predict_file(softmax / "checkpoints", str(test), tmp_path / "out.npz")
    np.savez(tmp_path / "savez.npz", **expected(softmax, test))
    assert (tmp_path / "out.npz").read_bytes() == (tmp_path / "savez.npz").read_bytes()


def test_parquet_is_written_in_row_groups(
    hashed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    small(monkeypatch)
    monkeypatch.setattr(writing, "_GROUP_ROWS", 50)
    test = hashed / "test.csv"
    predict_file(hashed / "checkpoints", str(test), tmp_path / "out.parquet")
    assert parquet.ParquetFile(tmp_path / "out.parquet").num_row_groups == 2
    found = parquet.read_table(tmp_path / "out.parquet").to_pydict()
    for name, values in expected(hashed, test).items():
        assert np.allclose(found[name], values, atol=1e-6)


def test_an_error_in_the_last_block_leaves_the_earlier_output(
    softmax: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    data, out = tmp_path / "data.csv", tmp_path / "out" / "a.csv"
    out.parent.mkdir()
    out.write_text("earlier")
    data.write_text((softmax / "test.csv").read_text() + "x,1,1,1,1\n")
    with pytest.raises(DataError, match=r"data\.csv:92: column 'big' contains 'x'"):
        predict_file(softmax / "checkpoints", str(data), out)
    assert [path.read_text() for path in out.parent.iterdir()] == ["earlier"]
    data.write_text("big,small,flat,wide\n")
    with pytest.raises(DataError, match=r"data\.csv: contains no samples"):
        predict_file(softmax / "checkpoints", str(data), out)
    assert [path.read_text() for path in out.parent.iterdir()] == ["earlier"]


@pytest.mark.parametrize("ending", ["csv", "npz", "parquet"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    ending: str, softmax: Path, tmp_path: Path
) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    data = tmp_path / "data.csv"
    lines = (softmax / "test.csv").read_text().splitlines()
    data.write_text("\n".join([lines[0], *(lines[1:] * 20)]) + "\n")
    out = tmp_path / "out" / f"a.{ending}"
    out.parent.mkdir()
    command = f"import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (2000, 2000)); {PREDICT}"
    arguments = [str(softmax / "checkpoints"), "--data", str(data), "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", command, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == ConfigError.exit_code
    assert done.stderr == f"mpips: error: {out}: cannot be written: File too large\n"
    assert not list(out.parent.iterdir())


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_stdout_is_written_whole_or_not_at_all(
    unbuffered: str, softmax: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data.csv"
    lines = (softmax / "test.csv").read_text().splitlines()
    data.write_text("\n".join([lines[0], *(lines[1:] * 20)]) + "\n")
    arguments = [str(softmax / "checkpoints"), "--data", str(data)]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    for limit, code in ((1 << 30, 0), (2000, ConfigError.exit_code)):
        command = (
            f"import resource as r; r.setrlimit(r.RLIMIT_FSIZE, ({limit}, {limit})); {PREDICT}"
        )
        with (tmp_path / "out").open("wb") as out:
            done = subprocess.run(
                [sys.executable, "-c", command, *arguments],
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                env=environment,
            )
        assert done.returncode == code, done.stderr
        written = len((tmp_path / "out").read_text().splitlines())
        assert written == 1 + 20 * (len(lines) - 1) if code == 0 else "stdout cannot" in done.stderr


PREDICT = "import sys; from mpips.cli import main; sys.argv[1:1] = ['predict']; main()"

MEMORY = """
import resource, sys
from pathlib import Path
from mpips.inference.streaming import predict_file

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

model, small, large, out = map(Path, sys.argv[1:])
predict_file(model, str(small), out)
before = peak()
print(predict_file(model, str(large), out).n, peak() - before)
"""


def test_the_memory_does_not_grow_with_the_file(softmax: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(1).random((1_200_000, 4)).astype(np.float32)
    for name, n in (("small", 40_000), ("large", len(x))):
        np.savez(tmp_path / f"{name}.npz", x=x[:n])
    files = [str(tmp_path / f"{name}.npz") for name in ("small", "large", "out")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(softmax / "checkpoints"), *files],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=environment,
    )
    n, growth = map(int, done.stdout.split())
    assert n == len(x)
    # The samples have 18 MiB, the predictions 23 MiB.
    assert growth < 8
