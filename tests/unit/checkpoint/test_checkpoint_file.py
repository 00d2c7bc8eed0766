"""A checkpoint written by one process: the content of its files, and reading it."""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from checkpoints import KEYS, TABLES, Contents
from harness import Rig
from hypothesis import given
from hypothesis import strategies as st

import mpips
from mpips import _native
from mpips.checkpoint import CheckpointWriter, ServerState, open_checkpoint, plan, write_checkpoint
from mpips.checkpoint import sinks as sinks_module
from mpips.checkpoint.manifest import MANIFEST, STATE, hexsum
from mpips.checkpoint.random_state import pack_random, unpack_random
from mpips.checkpoint.sinks import boxes
from mpips.checkpoint.sorting import find_keys, take_rows
from mpips.checkpoint.steps import Peers, finish
from mpips.checkpoint.structure import load_writer
from mpips.model.placement import place
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.recovery.restore import restore


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a checkpoint in the smallest blocks, so that blocks end at every place."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    return Contents().write(folder, block_bytes=64).path


def test_plain_h5py_finds_every_table_in_global_order(written: Path) -> None:
    contents = Contents()
    with load_writer().File(written / STATE, "r") as file:
        assert sorted(file["tables"]) == sorted(table.name for table in TABLES)
        for table in TABLES:
            group = file["tables"][table.name]
            columns = contents.columns[table.name]
            shape = table.shape if isinstance(table, DenseTable) else columns["values"].shape
            for role, column in columns.items():
                stored = group[role]
                assert stored.dtype == column.dtype
                expected = shape if column.dtype == np.float32 else column.shape
                assert stored.shape == expected
                assert np.array_equal(stored[()].reshape(column.shape), column)
                assert stored.chunks is None
                assert {"meaning", "units"} <= set(stored.attrs)
            if isinstance(table, EmbeddingTable):
                keys = group["keys"][()]
                assert (keys[1:] > keys[:-1]).all()
            assert group.attrs["kind"] in (b"dense", b"embedding")
            assert group.attrs["optimizer"].decode() == table.optimizer.name
            assert group.attrs["optimizer.lr"] == table.optimizer.lr
        assert (file.attrs["step"], file.attrs["run_id"]) == (1234, b"a-run")
        assert file["clocks"][()].tolist() == [9, 10]
        assert msgspec.json.decode(file["config"][()]) == {"train": {"epochs": 3}}


@pytest.mark.skipif(shutil.which("h5dump") is None, reason="needs hdf5-tools")
def test_the_tools_of_hdf5_explain_the_file(written: Path) -> None:
    def out(*command: str) -> str:
        return subprocess.run(
            [*command, str(written / STATE)], check=True, capture_output=True, text=True, timeout=60
        ).stdout

    listing = out("h5ls", "-r")
    assert "/tables/weight/state/m   Dataset {7, 13, 5}" in listing
    assert f"/tables/users/keys       Dataset {{{len(KEYS['users'])}}}" in listing
    attributes = out("h5dump", "-A")
    assert '"updates that each row has taken"' in attributes
    assert "optimizer.beta1" in attributes
    for line in ("least_clock: clock of the slowest worker", "consistency: which updates a pull"):
        assert line in attributes


def test_attributes_of_file_and_tables_explain_themselves(written: Path) -> None:
    with load_writer().File(written / STATE, "r") as file:
        for group in (file, *file["tables"].values()):
            lines = group.attrs["meaning"].decode().split("\n")[1:]
            explained = {line.partition(": ")[0] for line in lines}
            # Options of an optimizer are those of its constructor.
            own = {name for name in group.attrs if not name.startswith("optimizer.")}
            assert explained == own - {"meaning"}
            assert all(line.partition(": ")[2] for line in lines)
            if "state" in group:
                assert group["state"].attrs["meaning"].startswith(b"state of the optimizer")


def test_keys_are_the_dimension_scale_of_rows(written: Path) -> None:
    with load_writer().File(written / STATE, "r") as file:
        for table in TABLES:
            group = file["tables"][table.name]
            roles = [role for role in Contents().columns[table.name] if role != "keys"]
            for role in roles:
                scales = group[role].dims[0] if group[role].ndim else ()
                found = [scale.name for scale in scales.values()] if len(scales) else []
                wanted = [f"{group.name}/keys"] if isinstance(table, EmbeddingTable) else []
                assert found == wanted, (table.name, role)
                assert not wanted or scales["key"] == group["keys"]


def test_bytes_do_not_depend_on_the_size_of_blocks(written: Path, tmp_path: Path) -> None:
    for block_bytes in (1, 1000, 1 << 23):
        other = Contents().write(tmp_path / str(block_bytes), block_bytes=block_bytes).path
        assert (other / STATE).read_bytes() == (written / STATE).read_bytes()


def test_any_range_of_a_tensor_reads_back(written: Path) -> None:
    columns = Contents().columns["weight"]
    with open_checkpoint(written) as checkpoint:
        for start, stop in ((0, 455), (0, 0), (455, 455), (17, 400), (454, 455)):
            values, state = checkpoint.read_dense("weight", start, stop)
            assert np.array_equal(values, columns["values"][start:stop])
            assert np.array_equal(state["m"], columns["state/m"][start:stop])
            assert np.array_equal(state["v"], columns["state/v"][start:stop])
        assert checkpoint.read_dense("bias")[0].tolist() == Contents().columns["bias"]["values"]


@pytest.mark.parametrize("n_servers", [1, 2, 3, 7])
@pytest.mark.parametrize("block_rows", [1, 10, 0])
def test_every_row_reaches_the_server_that_owns_it_now(
    written: Path, n_servers: int, block_rows: int
) -> None:
    partition = mpips.HashPartition()
    for name in ("users", "linear", "empty"):
        columns = Contents().columns[name]
        owners = partition.owners(columns["keys"], n_servers)
        for server in range(n_servers):
            with open_checkpoint(written) as checkpoint:
                blocks = [
                    block.arrays
                    for block in checkpoint.iter_rows(
                        name, partition.partitioner(n_servers), server, block_rows
                    )
                ]
            for role, column in columns.items():
                got = [block[role] for block in blocks] or [column[:0]]
                assert np.array_equal(np.concatenate(got), column[owners == server])


def test_the_manifest_says_who_had_what(written: Path) -> None:
    with open_checkpoint(written) as checkpoint:
        manifest = checkpoint.manifest
    assert [server.applied for server in manifest.servers] == [(10, 20)]
    assert [worker.clock for worker in manifest.workers] == [9, 10]
    users = manifest.table("users")
    (shard,) = users.shards
    assert (shard.rows, shard.low, shard.high) == (105, min(KEYS["users"]), max(KEYS["users"]))
    assert users.state == ("m", "v")
    assert users.counts_steps
    assert users.consistency == {
        "name": "ssp",
        "bound": 2,
        "policy": {"name": "reject", "max_staleness": 4},
    }
    assert manifest.table("weight").optimizer["beta1"] == 0.9
    assert manifest.versions["mpips"] == mpips.__version__
    assert manifest.versions.get("commit", "") == _native.commit
    assert manifest.config == {"train": {"epochs": 3}}


def test_the_manifest_has_the_decisions_that_were_in_force(tmp_path: Path) -> None:
    tables: list[Table] = [
        DenseTable("fast", (3,), consistency=mpips.SSP("auto", max=5)),
        DenseTable("noisy", (3,), consistency=mpips.ASP(mpips.Reject("auto"))),
        DenseTable("plain", (3,)),
    ]
    contents = Contents(tables)
    info = write_checkpoint(
        None,
        tmp_path,
        contents.head(),
        contents.shards(0, 1),
        ServerState([10, 20], 4, thresholds={"noisy": 17}),
        timeout_s=60.0,
    )
    with open_checkpoint(info.path) as checkpoint:
        found = {table.name: table.consistency for table in checkpoint.manifest.tables}
    assert found["fast"] == {
        "name": "ssp",
        "bound": "auto",
        "policy": {"name": "accept"},
        "max": 5,
        "bound_in_force": 4,
    }
    assert found["noisy"]["threshold_in_force"] == 17
    assert found["plain"] == {"name": "bsp", "reduce": "mean", "backup": 0}
    server = Rig(*tables, n_workers=2).server
    restore(server, place(tables, 1, 2, 4, 1024), tables, info.path)
    assert server.bound_control is not None
    assert server.threshold_control is not None
    assert server.bound_control.bound == 4
    assert server.threshold_control.thresholds == {"noisy": 17}


def test_the_manifest_has_the_number_of_backup_workers_in_force(tmp_path: Path) -> None:
    tables: list[Table] = [
        DenseTable("w", (3,), consistency=mpips.BSP(backup="auto", max=3)),
        DenseTable("v", (3,), consistency=mpips.BSP(backup="auto", max=3)),
    ]
    contents = Contents(tables)
    state = ServerState([10, 20], backup=2)
    info = write_checkpoint(
        None, tmp_path, contents.head(), contents.shards(0, 1), state, timeout_s=60.0
    )
    with open_checkpoint(info.path) as checkpoint:
        found = [table.consistency for table in checkpoint.manifest.tables]
    expected = {"name": "bsp", "reduce": "mean", "backup": "auto", "max": 3, "backup_in_force": 2}
    assert found == [expected] * 2
    server = Rig(*tables, n_workers=5).server
    restore(server, place(tables, 1, 5, 4, 1024), tables, info.path)
    assert server.backup_control is not None
    assert server.backup_control.backup == 2
    # Each server decides for itself; a launch begins with the greatest number.
    shards = plan.describe_shards(0, contents.shards(0, 1))
    hellos = [
        plan.Hello(run=("run", 1, 5), hdf5="serial", shards=s, applied=[], backup=n)
        for s, n in ((shards, 0), ({}, 3), ({}, 1))
    ]
    plans = plan.plan_tables(contents.head(), hellos)
    assert [p.entry.consistency["backup_in_force"] for p in plans] == [3, 3]


def test_the_clock_of_a_switch_at_a_plateau_is_there_again_after_a_restart(tmp_path: Path) -> None:
    model = mpips.Switch(mpips.BSP(), mpips.ASP(), at="plateau")
    tables = [DenseTable("w", (8,), consistency=model), DenseTable("b", (4,), consistency=model)]
    contents = Contents(tables)
    found = []
    for clock in (-1, 9):
        state = ServerState([1, 2], switch=clock)
        folder = tmp_path / f"{clock}"
        info = write_checkpoint(
            None, folder, contents.head(), contents.shards(0, 1), state, timeout_s=60.0
        )
        server = Rig(*tables).server
        restore(server, place(tables, 1, 1, 4, 1024), tables, info.path)
        assert server.switch_control is not None
        found.append((server.switch_control.decided, server.core.has_switched()))
    assert found == [(-1, False), (9, False)]
    # Server 0 may be the only one that has it.
    shards = plan.describe_shards(0, contents.shards(0, 1))
    hellos = [
        plan.Hello(run=("run", 1, 5), hdf5="serial", shards=s, applied=[], switch=n)
        for s, n in ((shards, 9), ({}, -1))
    ]
    plans = plan.plan_tables(contents.head(), hellos)
    assert [p.entry.consistency["switch_in_force"] for p in plans] == [9, 9]


def test_a_threshold_is_that_of_the_servers_with_a_part() -> None:
    """A server without elements of a table never estimates, and reports that it drops nothing."""
    table = DenseTable("noisy", (16,), consistency=mpips.ASP(mpips.Reject("auto")))
    contents = Contents([table])
    entries = plan.describe_shards(0, contents.shards(0, 1))
    hellos = [
        plan.Hello(
            run=("run", 1, 5), hdf5="serial", shards=shards, applied=[], thresholds={"noisy": most}
        )
        for shards, most in ((entries, 7), ({}, _native.DelayThreshold.MOST))
    ]
    (planned,) = plan.plan_tables(contents.head(), hellos)
    assert planned.entry.consistency["threshold_in_force"] == 7


def test_a_table_or_range_that_is_not_there_is_named(written: Path) -> None:
    with open_checkpoint(written) as checkpoint:
        with pytest.raises(mpips.CheckpointError, match="no table 'w'; it has weight, bias"):
            checkpoint.read_dense("w")
        with pytest.raises(mpips.CheckpointError, match="'users' is embedding, not dense"):
            checkpoint.read_dense("users")
        with pytest.raises(mpips.CheckpointError, match="has 455 entries, not 1 to 456"):
            checkpoint.read_dense("weight", 1, 456)


def test_steps_are_bounded_and_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    write = sinks_module.Flusher.write

    def count(self: sinks_module.Flusher, data: np.ndarray, offset: int) -> None:
        sizes[-1] += data.nbytes
        write(self, data, offset)

    monkeypatch.setattr(sinks_module.Flusher, "write", count)
    contents = Contents()
    writer = CheckpointWriter(
        None, tmp_path, contents.head(), contents.shards(0, 1), block_bytes=400
    )
    sizes.append(0)
    for _ in writer.steps():
        sizes.append(0)
    total = sum(a.nbytes for columns in contents.columns.values() for a in columns.values())
    assert sum(sizes) == total
    assert max(sizes) <= 400
    assert open_checkpoint(writer.info.path).damage() == []


def test_the_file_is_open_for_writing_only(tmp_path: Path) -> None:
    """An NFS client that may read writes back whole pages, over bytes that another server has written."""
    (tmp_path / "file").write_bytes(bytes(8))
    flusher = sinks_module.Flusher(tmp_path / "file")
    assert fcntl.fcntl(flusher._fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
    flusher.close()


def test_a_table_may_have_any_name_that_tables_may_have(tmp_path: Path) -> None:
    tables = [DenseTable(name, (3,)) for name in (".", "..", "ä ö", "a.b", "tables")]
    contents = Contents(tables)
    path = contents.write(tmp_path).path
    with open_checkpoint(path) as checkpoint:
        checkpoint.verify()
        for table in tables:
            expected = contents.columns[table.name]["values"]
            assert np.array_equal(checkpoint.read_dense(table.name)[0], expected)


def test_a_rule_of_the_users_own_has_its_states(tmp_path: Path) -> None:
    rule = mpips.PythonRule(lambda values, state, gradient, step: None, n_state=2, name="mine")
    contents = Contents(
        [DenseTable("w", (5,), rule), EmbeddingTable("e", 2, rule)], 1, {"e": [4, 2]}
    )
    with open_checkpoint(contents.write(tmp_path).path) as checkpoint:
        checkpoint.verify()
        _, state = checkpoint.read_dense("w")
        assert np.array_equal(state["state_1"], contents.columns["w"]["state/state_1"])
        (block,) = checkpoint.iter_rows("e")
        assert block.keys.tolist() == [2, 4]
        assert block.steps is None


def test_strided_rows_are_taken_as_they_are(tmp_path: Path) -> None:
    # Make strided views, as in a server: value, m, v and steps of a row follow each other.
    table = EmbeddingTable("e", 2, mpips.Adam())
    packed = np.random.default_rng(0).random((50, 7), dtype=np.float32)
    packed[:, 6].view(np.uint32)[:] = np.arange(50)
    keys = np.random.default_rng(1).permutation(50)
    shard = mpips.checkpoint.EmbeddingShardData(
        "e",
        keys,
        packed[:, :2],
        {"m": packed[:, 2:4], "v": packed[:, 4:6]},
        packed[:, 6].view(np.uint32),
    )
    head = Contents([table]).head()
    path = mpips.checkpoint.write_checkpoint(None, tmp_path, head, [shard], block_bytes=100).path
    with open_checkpoint(path) as checkpoint:
        blocks = list(checkpoint.iter_rows("e"))
    by_key = np.argsort(keys)
    assert np.array_equal(np.concatenate([b.values for b in blocks]), packed[by_key, :2])
    assert np.array_equal(np.concatenate([b.state["v"] for b in blocks]), packed[by_key, 4:6])
    assert np.concatenate([b.steps for b in blocks if b.steps is not None]).tolist() == [*by_key]


def test_large_pieces_get_several_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpips.checkpoint.record.PIECE_BYTES", 256)
    path = Contents().write(tmp_path, block_bytes=100).path
    with open_checkpoint(path) as checkpoint:
        pieces = checkpoint.manifest.table("weight").dataset("values").pieces
        assert len(pieces) > 5
        assert pieces[-1].stop == 455
        # Readers that share the work read each byte once.
        assert all(checkpoint.damage(part, 3) == [] for part in range(3))


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_a_checksum_does_not_depend_on_how_data_are_cut(parts: list[bytes]) -> None:
    assert hexsum(*parts) == hexsum(b"".join(parts))


def test_a_checksum_is_over_contiguous_data_only() -> None:
    assert hexsum(b"") == "2d06800538d394c2"  # XXH3-64 of no bytes
    with pytest.raises(ValueError, match="contiguous"):
        _native.Xxh3().update(np.zeros(8)[::2])


@given(st.lists(st.integers(1, 5), max_size=4).map(tuple), st.integers(0, 700), st.integers(0, 700))
def test_boxes_cover_a_range_in_order(shape: tuple[int, ...], a: int, b: int) -> None:
    n = int(np.prod(shape))
    start, stop = sorted((a % (n + 1), b % (n + 1)))
    array = np.arange(n).reshape(shape)
    found = boxes(shape, start, stop)
    parts = [
        array[tuple(slice(o, o + c) for o, c in zip(offset, count, strict=True))].reshape(-1)
        for offset, count in found
    ]
    assert [*itertools.chain(*parts)] == [*range(start, stop)]
    assert len(found) <= max(1, 2 * len(shape) - 1)


@given(st.sets(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=50), st.data())
def test_bisecting_finds_the_key_at_each_position(keys: set[int], data: st.DataObject) -> None:
    ordered = np.array(sorted(keys), np.int64)
    positions = np.array(sorted(data.draw(st.sets(st.integers(0, len(keys) - 1)))), np.int64)
    found = finish(find_keys(Peers(None, 1.0, "a test"), ordered, positions))
    assert found.tolist() == ordered[positions].tolist()


@pytest.mark.parametrize("first", [-(2**63), -5, 0, 2**63 - 1001])
def test_the_rounds_of_bisecting_are_the_bits_of_the_range_of_keys(first: int) -> None:
    ordered = np.array([first, first + 3, first + 1000], np.int64)
    steps = find_keys(Peers(None, 1.0, "a test"), ordered, np.array([0, 1, 2]))
    rounds = 0
    while next(steps, None) is not None:
        rounds += 1
    assert 0 < rounds <= 10


@pytest.mark.parametrize(
    "part", [np.s_[:, :], np.s_[:, 2:5], np.s_[::2, 1:2], np.s_[:, ::2], np.s_[:, 3]]
)
@pytest.mark.parametrize("n", [0, 1, 50])
def test_rows_are_taken_from_any_layout(part: Any, n: int) -> None:
    column = np.random.default_rng(0).random((40, 6), dtype=np.float32)[part]
    rows = np.random.default_rng(1).integers(0, len(column), n)
    taken = take_rows(column, rows)
    assert taken.flags.c_contiguous
    assert taken.dtype == column.dtype
    assert np.array_equal(taken, column[rows])


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox])
def test_a_random_generator_goes_on_from_its_packed_state(kind: type) -> None:
    generator = np.random.Generator(kind(7))
    generator.random(3, dtype=np.float32)
    packed = msgspec.json.decode(msgspec.json.encode(pack_random(generator.bit_generator.state)))
    other = np.random.Generator(kind(0))
    other.bit_generator.state = unpack_random(packed)
    assert np.array_equal(generator.random(9), other.random(9))


def test_a_second_checkpoint_of_a_step_leaves_the_first(tmp_path: Path) -> None:
    first = Contents(seed=0).write(tmp_path).path
    before = (first / STATE).read_bytes()
    second = Contents(seed=1).write(tmp_path, generation=2).path
    assert second.name == f"{first.name}.2"
    assert (tmp_path / "latest").resolve() == second.resolve()
    assert (first / STATE).read_bytes() == before
    assert sorted(p.name for p in second.iterdir()) == [MANIFEST, STATE]
