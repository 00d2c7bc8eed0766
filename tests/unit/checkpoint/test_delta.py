"""Deltas: an earlier checkpoint and a file give the later one, byte for byte."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from checkpoints import KEYS, ROW_TABLES, TABLES, Contents

import mpips
from mpips.checkpoint import apply_delta, delta_apply, open_checkpoint, write_delta
from mpips.checkpoint import delta as deltas
from mpips.checkpoint.delta_file import FORMAT, HEAD_BYTES
from mpips.errors import CheckpointError

RECENT = mpips.EmbeddingTable("recent", 2, mpips.Adagrad(0.1), evict=mpips.Idle(50))
ALL = [*TABLES[:3], *ROW_TABLES, RECENT]


def pair(folder: Path, tables=ALL, change=None, **keys) -> tuple[Path, Path]:
    """Write two checkpoints; `change` changes the columns of the second one."""
    first = Contents(tables)
    second = Contents(tables, keys={**KEYS, **keys})
    for name, columns in second.columns.items():
        # Rows that both have are equal, whatever the keys of the second one.
        if "keys" in columns:
            old = first.columns[name]
            _, i, j = np.intersect1d(old["keys"], columns["keys"], return_indices=True)
            for role in columns:
                columns[role][j] = old[role][i]
    if change is not None:
        change(second.columns)
    return first.write(folder / "a", 100).path, second.write(folder / "b", 200).path


def same(one: Path, other: Path) -> bool:
    names = sorted(p.name for p in one.iterdir())
    return names == sorted(p.name for p in other.iterdir()) and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )


def made(a: Path, b: Path, file: Path):
    with open_checkpoint(a) as first, open_checkpoint(b) as second:
        return write_delta(first, second, file)


def applied(a: Path, file: Path, out: Path) -> Path:
    with open_checkpoint(a) as first:
        return apply_delta(first, file, out)


def some(columns) -> None:
    columns["weight"]["values"][[0, 300, 454]] += 1
    columns["weight"]["state/m"][200] = -0.0
    columns["users"]["values"][20, 1] ^= 1
    columns["linear"]["state/row_accumulator"][[0, 7, -1]] += 1
    columns["users"]["steps"][30] += 1
    columns["recent"]["uses"][[3, 4], [0, 1]] += 1


@pytest.mark.parametrize("block", [200, 1000, 1 << 20])
def test_the_second_checkpoint_comes_back_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(deltas, "BLOCK", block)
    monkeypatch.setattr(delta_apply, "BLOCK", block)
    monkeypatch.setattr(deltas, "PIECE", 16)
    new = {"users": [*KEYS["users"][3:], 5, 6, 2**40], "linear": KEYS["linear"][:150], "empty": [4]}
    a, b = pair(tmp_path, change=some, **new)
    found = made(a, b, tmp_path / "d.h5")
    by_name = {table.table: table for table in found.tables}
    assert by_name["weight"].changed >= 4
    assert by_name["weight"].changed <= 4 * 32
    assert by_name["bias"].changed == 0
    assert (by_name["users"].changed, by_name["users"].removed) == (3 + 2, 3)
    assert by_name["linear"].removed == 50
    assert (by_name["empty"].changed, by_name["empty"].total) == (1, 1)
    assert (by_name["recent"].changed, by_name["recent"].total) == (2, 40)
    path = applied(a, tmp_path / "d.h5", tmp_path)
    assert path == tmp_path / b.name
    assert same(path, b)
    # And the other way round.
    made(b, a, tmp_path / "back.h5")
    assert same(applied(b, tmp_path / "back.h5", tmp_path / "back"), a)


def test_tables_of_all_optimizers_come_back(tmp_path: Path) -> None:
    def change(columns) -> None:
        for own in columns.values():
            for role, array in own.items():
                if role != "keys" and array.size:
                    array.reshape(-1)[len(array.reshape(-1)) // 2] = 3

    a, b = pair(tmp_path, TABLES, change)
    found = made(a, b, tmp_path / "d.h5")
    assert [t.changed > 0 for t in found.tables] == [True] * 5 + [False]
    assert same(applied(a, tmp_path / "d.h5", tmp_path / "c"), b)


def test_equal_checkpoints_have_an_empty_delta(tmp_path: Path) -> None:
    a, b = pair(tmp_path)
    found = made(a, b, tmp_path / "d.h5")
    assert all(t.changed == t.removed == 0 for t in found.tables)
    assert same(applied(a, tmp_path / "d.h5", tmp_path / "c"), b)


def test_tables_that_are_new_or_have_another_form_are_there_as_a_whole(tmp_path: Path) -> None:
    other = [
        mpips.EmbeddingTable("users", 3),
        mpips.EmbeddingTable("recent", 2, mpips.Adagrad(0.1)),
    ]
    a = Contents([ALL[0], *other]).write(tmp_path / "a", 100).path
    b = Contents(ALL).write(tmp_path / "b", 200).path
    found = made(a, b, tmp_path / "d.h5")
    assert [t.changed == t.total for t in found.tables] == [False, *[True] * (len(ALL) - 1)]
    assert same(applied(a, tmp_path / "d.h5", tmp_path / "c"), b)


def test_a_few_rows_of_many_take_few_bytes(tmp_path: Path) -> None:
    keys = {"users": range(20_000), "linear": [], "empty": []}
    table = [mpips.EmbeddingTable("users", 64, mpips.Adagrad(0.1))]

    def change(columns) -> None:
        columns["users"]["values"][::100] += 1

    first, second = Contents(table, keys=keys), Contents(table, keys=keys)
    change(second.columns)
    a, b = first.write(tmp_path / "a", 100).path, second.write(tmp_path / "b", 200).path
    found = made(a, b, tmp_path / "d.h5")
    assert found.tables[0].changed == 200
    assert found.n_bytes / found.full_bytes < 0.03
    assert same(applied(a, tmp_path / "d.h5", tmp_path / "c"), b)


def test_h5py_shows_what_has_changed(tmp_path: Path) -> None:
    a, b = pair(tmp_path, change=some)
    made(a, b, tmp_path / "d.h5")
    with h5py.File(tmp_path / "d.h5") as file:
        assert file.attrs["mpips_delta"] == FORMAT
        assert (file.attrs["base_step"], file.attrs["this_step"]) == (100, 200)
        users = file["tables/users"]
        assert (
            len(users["keys"]) == len(users["values"]) == len(users["state/row_accumulator"]) == 2
        )
        assert users["removed"].shape == (0,)
        # Both pieces of the table differ, and they are joined.
        assert file["tables/weight/starts"][()].tolist() == [0]
        assert file["tables/weight/stops"][()].tolist() == [455]
        assert len(file["tables/weight/values"]) == 455
        assert file["tables/recent/keys"][()].tolist() == [3, 4]
        assert file["tables/recent/uses"].shape == (2, 2)
    # The first line is for people.
    line = (tmp_path / "d.h5").read_bytes()[:HEAD_BYTES].decode().rstrip("\0")
    size = (tmp_path / "d.h5").stat().st_size
    assert re.fullmatch(
        rf"mpips delta of checkpoints, format {FORMAT}, {size} bytes, xxh3 [0-9a-f]{{16}}\n", line
    )


def test_a_delta_of_another_base_is_refused(tmp_path: Path) -> None:
    a, b = pair(tmp_path, change=some)
    made(a, b, tmp_path / "d.h5")
    with pytest.raises(CheckpointError) as caught:
        applied(b, tmp_path / "d.h5", tmp_path / "c")
    assert str(caught.value) == (
        f"{tmp_path / 'd.h5'}: begins at step 100 of generation 1 of run 'a-run', and {b} is step 200 of "
        "generation 1 of run 'a-run': apply it to the former"
    )
    assert not (tmp_path / "c").exists()
