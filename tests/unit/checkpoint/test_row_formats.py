"""Rows of other formats in a checkpoint: bf16, one state for a row, int8 in exports."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from checkpoints import KEYS, ROW_TABLES, Contents, flip
from config_rig import sentence
from local_job import run_local

import mpips
from mpips.checkpoint import list_checkpoints, open_checkpoint
from mpips.checkpoint.compare import compare
from mpips.checkpoint.export import export
from mpips.checkpoint.manifest import STATE
from mpips.checkpoint.start import check_start
from mpips.checkpoint.structure import load_writer
from mpips.config.options import SessionOptions
from mpips.model.row_values import bf16_values
from mpips.recovery.saving import Saving


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    return Contents(ROW_TABLES).write(folder, block_bytes=64).path


def expected(name: str) -> dict[str, np.ndarray]:
    columns = dict(Contents(ROW_TABLES).columns[name])
    if columns["values"].dtype == np.uint16:
        columns["values"] = bf16_values(columns["values"])
    return columns


def test_rows_are_read_as_float32(written: Path) -> None:
    with open_checkpoint(written) as checkpoint:
        checkpoint.verify()
        for table in ROW_TABLES:
            columns = expected(table.name)
            blocks = [block.arrays for block in checkpoint.iter_rows(table.name, block_rows=7)]
            for role, column in columns.items():
                found = np.concatenate([np.zeros_like(column[:0]), *(b[role] for b in blocks)])
                assert found.dtype == column.dtype
                assert found.tobytes() == column.tobytes()
        found, rows = checkpoint.find_rows("users", np.array([-1, 2, 1099]))
        assert found.tolist() == [True, False, True]
        wanted = expected("users")["values"][np.isin(sorted(KEYS["users"]), [-1, 1099])]
        assert (rows == wanted).all()


def test_plain_h5py_reads_bf16_as_float32(written: Path) -> None:
    with load_writer().File(written / STATE, "r") as file:
        for table in ROW_TABLES:
            group, columns = file["tables"][table.name], expected(table.name)
            for role, column in columns.items():
                assert group[role][()].tobytes() == column.tobytes()
                assert group[role].dtype == column.dtype
            assert group.attrs.get("row_dtype", b"float32").decode() == table.row_dtype
            assert group.attrs.get("hash_buckets", 0) == table.hash_buckets
            lines = group.attrs["meaning"].decode().split("\n")[1:]
            own = {name for name in group.attrs if not name.startswith("optimizer.")}
            assert {line.partition(": ")[0] for line in lines} == own - {"meaning"}
        assert file["tables/users/values"].id.get_storage_size() == 2 * 3 * len(KEYS["users"])
        meaning = file["tables/linear/state/row_accumulator"].attrs["meaning"]
        assert b"squared gradients of a row" in meaning


@pytest.mark.skipif(shutil.which("h5dump") is None, reason="needs hdf5-tools")
def test_the_tools_of_hdf5_show_the_values(written: Path) -> None:
    command = ["h5dump", "-d", "/tables/users/values", "-c", "1,3", str(written / STATE)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    (line,) = (line for line in done.stdout.splitlines() if "(0,0):" in line)
    shown = [float(text) for text in line.split(":")[1].split(",")]
    assert np.allclose(shown, expected("users")["values"][0], rtol=1e-4)


def test_bytes_do_not_depend_on_the_size_of_blocks(written: Path, tmp_path: Path) -> None:
    other = Contents(ROW_TABLES).write(tmp_path / "checkpoints", block_bytes=1 << 20).path
    assert (other / STATE).read_bytes() == (written / STATE).read_bytes()


def test_damage_in_bf16_is_found(written: Path, tmp_path: Path) -> None:
    copy = tmp_path / written.name
    shutil.copytree(written, copy)
    with open_checkpoint(copy) as checkpoint:
        offset = checkpoint.manifest.table("users").dataset("values").offset
        flip(copy / STATE, offset + 11)
        (damage,) = checkpoint.damage()
        with open_checkpoint(written) as good:
            (users, *others) = compare(checkpoint, good)
    assert "values of table 'users'" in damage
    assert users.changed["values"] == 1
    assert all(other.same for other in others)


def test_other_states_and_rules_are_refused(written: Path) -> None:
    linear = ROW_TABLES[1]
    with open_checkpoint(written) as checkpoint:
        check_start(checkpoint, ROW_TABLES)
        # The dtype of rows may change: values are rounded to the nearest.
        check_start(checkpoint, [dataclasses.replace(linear, row_dtype="bf16")])
        other = dataclasses.replace(linear, optimizer=mpips.Adagrad(0.1))
        assert sentence(check_start, checkpoint, [other]) == (
            f"{written}: table 'linear' has the state of row_adagrad, but this job's optimizer is adagrad; "
            "use the former, or resume = 'never'"
        )


@pytest.mark.parametrize("first", ["float32", "bf16"])
@pytest.mark.parametrize("then", ["float32", "bf16"])
@pytest.mark.parametrize("rule", [mpips.SGD(0.5), mpips.RowAdagrad(0.1), mpips.Adam(0.1)])
def test_a_job_goes_on_with_the_same_bits(tmp_path: Path, first, then, rule) -> None:
    """Also with rows of another dtype, which begin as the nearest values."""
    keys = np.arange(20) * 7 - 50

    def table(dtype):
        return mpips.EmbeddingTable("e", 5, rule, init="normal(0.1)", row_dtype=dtype)

    def steps(worker, clocks):
        handle = worker.table("e")
        for clock in clocks:
            rng = np.random.default_rng(clock)
            own = rng.choice(keys, 9, replace=False)
            handle.push(own, rng.normal(size=(9, 5)).astype(np.float32))
            worker.clock()
        return handle.pull(keys), handle.all_states()

    one, other = tmp_path / "one", tmp_path / "other"
    options = SessionOptions(seed=4)
    run_local(lambda worker: steps(worker, range(6)), [table(first)], options, Saving(one, "a"))
    (saved,) = list_checkpoints(one)
    with open_checkpoint(saved.path) as checkpoint:
        saving = Saving(other, "b", start=saved.path, origin=checkpoint.manifest)
    again, states = run_local(
        lambda worker: steps(worker, range(6, 9)), [table(then)], options, saving
    )[0]
    if first == then:
        whole, wanted = run_local(lambda worker: steps(worker, range(9)), [table(first)], options)[
            0
        ]
        assert again.tobytes() == whole.tobytes()
        assert [s.tobytes() for s in states[1]] == [s.tobytes() for s in wanted[1]]
        assert (states[2] is None) == (wanted[2] is None)
        assert states[2] is None or (states[2] == wanted[2]).all()
    else:
        assert (states[2] is not None) == (then == "bf16" or isinstance(rule, mpips.Adam))
    assert (bf16_values((again.view(np.uint32) >> 16).astype(np.uint16)) == again).all() == (
        then == "bf16"
    )


def test_exports_have_int8_with_a_scale_for_each_row(written: Path, tmp_path: Path) -> None:
    with open_checkpoint(written) as checkpoint:
        export(checkpoint, "npz", tmp_path / "a.npz", row_dtype="int8")
        export(checkpoint, "npz", tmp_path / "b.npz")
        text = sentence(export, checkpoint, "csv", tmp_path / "c", row_dtype="int8")
        assert text == "row_dtype = 'int8' with CSV, which is text: use npz or parquet"
        export(checkpoint, "csv", tmp_path / "d")
    with np.load(tmp_path / "a.npz") as small, np.load(tmp_path / "b.npz") as whole:
        for name in ("users", "linear", "empty"):
            values, scale = small[f"{name}/values"], small[f"{name}/scale"]
            wide = whole[f"{name}/values"]
            assert (values.dtype, scale.dtype) == (np.int8, np.float32)
            assert scale.shape == (len(wide),)
            assert (np.abs(values * scale[:, None] - wide) <= 0.5001 * scale[:, None]).all()
            assert not len(values) or np.abs(values).max(axis=1).min() == 127
            assert (small[f"{name}/keys"] == whole[f"{name}/keys"]).all()
        assert whole["users/values"].tobytes() == expected("users")["values"].tobytes()
        assert small["linear/state/row_accumulator"].shape == (len(set(KEYS["linear"])),)
    lines = (tmp_path / "d" / "linear.csv").read_text().splitlines()
    assert lines[0] == "key,value_0,value_1,value_2,value_3,value_4,row_accumulator"
    cells = np.array([line.split(",") for line in lines[1:]])
    assert (cells[:, 6].astype(np.float32) == expected("linear")["state/row_accumulator"]).all()


def test_rows_of_two_formats_are_compared_in_what_both_have(tmp_path: Path) -> None:
    of = [mpips.EmbeddingTable("users", 3, row_dtype=dtype) for dtype in ("bf16", "float32")]
    contents = [Contents([table]) for table in of]
    contents[1].columns["users"]["values"] = bf16_values(contents[0].columns["users"]["values"])
    contents[1].columns["users"]["values"][2] += 1
    paths = [c.write(tmp_path / f"{i}").path for i, c in enumerate(contents)]
    for order in ((0, 1), (1, 0)):
        with open_checkpoint(paths[order[0]]) as a, open_checkpoint(paths[order[1]]) as b:
            (found,) = compare(a, b)
        assert found.note == ""
        assert found.compared == len(contents[0].columns["users"]["keys"])
        assert found.changed == {"values": 1}
        which = "first" if order[0] == 0 else "second"
        assert found.lacks == [f"numbers of updates of rows only in the {which}"]
        assert not found.same


def test_rows_of_other_buckets_are_not_compared(tmp_path: Path) -> None:
    tables = [mpips.EmbeddingTable("users", 3, hash_buckets=n) for n in (16, 17)]
    paths = [Contents([t]).write(tmp_path / t.name / str(t.hash_buckets)).path for t in tables]
    with open_checkpoint(paths[0]) as a, open_checkpoint(paths[1]) as b:
        (found,) = compare(a, b)
    assert found.note == "different hash_buckets: 16 and 17"
    assert found.compared == 0


def test_rows_that_int8_cannot_have(tmp_path: Path) -> None:
    contents = Contents([mpips.EmbeddingTable("users", 2)])
    contents.columns["users"]["values"][3] = [0, 0]
    contents.columns["users"]["values"][4] = [1e-44, -3e-45]
    contents.columns["users"]["values"][5] = [3.4028235e38, -3.4028235e38]
    path = contents.write(tmp_path / "a").path
    with open_checkpoint(path) as checkpoint:
        export(checkpoint, "npz", tmp_path / "a.npz", row_dtype="int8")
    with np.load(tmp_path / "a.npz") as found:
        assert found["users/scale"][3] == 0
        assert not found["users/values"][3:5].any()
        # The greatest floats stay finite.
        decoded = found["users/values"][5] * found["users/scale"][5]
        assert decoded.tolist() == pytest.approx([3.4028235e38, -3.4028235e38], rel=1e-6)
    contents.columns["users"]["values"][3] = [0, np.nan]
    path = contents.write(tmp_path / "b").path
    with open_checkpoint(path) as checkpoint:
        text = sentence(export, checkpoint, "npz", tmp_path / "b.npz", row_dtype="int8")
    assert text == "table 'users' has rows with infinity or NaN, which int8 lacks: use float32"
    assert not (tmp_path / "b.npz").exists()


def test_tables_of_an_ended_job_are_float32() -> None:
    def main(worker):
        worker.table("e").push(np.arange(4), np.ones((4, 3), np.float32))
        worker.clock()
        return worker.table("e").pull(np.arange(4))

    table = mpips.EmbeddingTable("e", 3, mpips.SGD(0.3), row_dtype="bf16")
    outcome = mpips.run(main, [table])
    keys, values = outcome.tables["e"]
    assert keys.tolist() == [0, 1, 2, 3]
    assert values.dtype == np.float32
    assert values.tobytes() == outcome.value.tobytes()
