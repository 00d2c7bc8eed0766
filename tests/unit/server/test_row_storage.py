"""Tables larger than memory: rows in a file have the values that a model in Python expects."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from harness import Rig

from mpips import Storage
from mpips.config.triggers import Triggers
from mpips.errors import ConfigError, DiskFullError, RegionError
from mpips.model import storage
from mpips.model.consistency import BSP
from mpips.model.grouping import grouped_rows
from mpips.model.optimizer import SGD, Momentum, PythonRule
from mpips.model.placement import place
from mpips.model.row_limits import Idle, MinCount
from mpips.model.table import DenseTable, EmbeddingTable
from mpips.recovery.saving import Saving
from mpips.server import storage_files
from mpips.server.look_ups import described
from mpips.server.storage_files import remove_unused_files
from mpips.session import recording
from mpips.session.storage_options import refuse_combinations
from mpips.snapshot.copy import ServerCopy, shards_in_place

DIM = 4


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tables have as few rows in memory as these tests need."""
    monkeypatch.setattr(storage, "LEAST_ROWS", 2)


def stored(folder: Path, n_rows: int, dim: int = DIM, **options) -> EmbeddingTable:
    """A table of which `n_rows` rows lie in memory."""
    options = {"optimizer": SGD(1.0), "consistency": BSP(), "init": "constant(2)", **options}
    table = EmbeddingTable("e", dim, **options)
    return EmbeddingTable(
        "e", dim, storage=Storage(str(folder), n_rows * table.row_bytes / 2**20), **options
    )


class Player:
    """A server, its workers and a model of all rows."""

    def __init__(self, table: EmbeddingTable, n_workers: int = 1, seed: int = 1) -> None:
        self.rig = Rig(table, n_workers=n_workers, n_slots=16)
        self.workers = [self.rig.worker(w) for w in range(n_workers)]
        self.rng = np.random.default_rng(seed)
        self.model: dict[int, float] = {}

    def play(self, steps: int, n_keys: int, most: int) -> None:
        for _ in range(steps):
            for worker in self.workers:
                self.pull(worker, self.rng.choice(n_keys, most, replace=False))
                self.push(worker, self.rng.choice(n_keys, self.rng.integers(1, most), False))
            for worker in self.workers:
                worker.clock()

    def pull(self, worker, keys) -> None:
        keys = np.sort(keys).astype(np.int64) - 5
        found = worker.table("e").pull(keys)
        wanted = [[self.model.get(key, 2.0)] * found.shape[1] for key in keys.tolist()]
        assert found.tolist() == wanted

    def push(self, worker, keys) -> None:
        keys = np.sort(keys).astype(np.int64) - 5
        updates = self.rng.integers(-3, 4, len(keys))
        n = len(self.workers)
        for key, update in zip(keys.tolist(), updates.tolist(), strict=True):
            self.model[key] = self.model.get(key, 2.0) - update / n
        dim = self.rig.tables[0].dim
        worker.table("e").push(keys, np.repeat(updates[:, None], dim, 1).astype(np.float32))

    def rows(self) -> dict[int, float]:
        keys, values = self.rig.core.embedding_rows(0)
        assert (values == values[:, :1]).all()
        return dict(zip(keys.tolist(), values[:, 0].tolist(), strict=True))


@pytest.mark.parametrize("n_rows", [2, 3, 17, 64])
@pytest.mark.parametrize("dim", [1, DIM, 70])
def test_every_row_has_the_value_that_the_model_expects(tmp_path, n_rows, dim):
    player = Player(stored(tmp_path, n_rows, dim))
    player.play(40, 200, 30)
    assert player.rows() == player.model
    counts = player.rig.core.storage_counts(0)
    assert counts["cold"] == len(player.model) - n_rows
    assert counts["demoted"] - counts["promoted"] == counts["cold"]
    assert counts["promoted"] > 100


def test_rows_of_two_workers_are_summed_before_they_are_applied(tmp_path):
    player = Player(stored(tmp_path, 10), n_workers=2)
    for _ in range(30):
        for worker in player.workers:
            player.push(worker, player.rng.choice(100, 12, False))
        for worker in player.workers:
            worker.clock()
    assert player.rows() == player.model


def test_the_rows_at_a_cut_are_read_while_rows_move_on(tmp_path):
    # The file of these rows has few slots, so slots that are free are soon written again.
    dim = 100
    player = Player(stored(tmp_path, 12, dim, optimizer=Momentum(1.0, momentum=0.0)))
    player.play(20, 150, 20)
    copy = ServerCopy(player.rig.server, player.rig.placement, player.rig.tables)
    (shard,) = copy.copy()
    at_cut, n = dict(player.model), len(player.model)
    for part in np.array_split(np.argsort(shard.keys), 7):
        player.play(20, 200, 20)
        values = shard.values[part]
        assert values[:, 0].tolist() == [at_cut[key] for key in shard.keys[part].tolist()]
        assert next(iter(shard.state.values()))[part].shape == (len(part), dim)
    assert len(shard.keys) == n < len(player.model)
    grown = player.rig.core.storage_counts(0)["file_bytes"]
    copy.release()
    player.play(30, 200, 20)
    assert player.rig.core.storage_counts(0)["file_bytes"] == grown
    (shard,) = shards_in_place(player.rig.server, player.rig.placement, player.rig.tables)
    values = shard.values[np.arange(len(shard.keys))][:, 0]
    assert dict(zip(shard.keys.tolist(), values.tolist(), strict=True)) == player.model


def test_a_full_disk_is_a_sentence_and_ends_a_view_before_it_stops_a_server(tmp_path):
    # A limit of the process for the size of files stands for a full disk.
    dim = 100
    player = Player(stored(tmp_path, 40, dim))
    player.play(40, 300, 20)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    copy = ServerCopy(player.rig.server, player.rig.placement, player.rig.tables)
    (shard,) = copy.copy()
    size = player.rig.core.storage_counts(0)["file_bytes"] + 4096
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        player.play(120, 300, 20)
        assert player.rows() == player.model
        with pytest.raises(DiskFullError, match="no space for the rows of a checkpoint"):
            shard.values[np.arange(len(shard.keys))]
        known = {}

        def push_new_keys() -> None:
            for first in range(1000, 9000, 20):
                known.clear()
                known.update(player.model)
                player.push(player.workers[0], np.arange(first, first + 20))
                player.workers[0].clock()

        with pytest.raises(
            DiskFullError,
            match=r"^server 0: table 'e': cannot enlarge the file of rows .* memory_mib",
        ):
            push_new_keys()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, old)
    # The push that did not fit has changed nothing.
    assert player.rows() == known


def test_a_damaged_record_is_refused(tmp_path):
    player = Player(stored(tmp_path, 2))
    player.play(3, 100, 20)
    (number,) = (
        int(fd.name)
        for fd in Path("/proc/self/fd").iterdir()
        if str(tmp_path) in os.path.realpath(fd)
    )
    size = os.fstat(number).st_size
    for at in range(4096 + 16, size, 40):
        os.pwrite(number, b"\xff", at)
    with pytest.raises(
        RegionError,
        match=r"^server 0: table 'e': the file of rows .* is damaged: the record of key",
    ):
        player.play(3, 100, 20)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evict": Idle(3)}, "storage does not combine with evict"),
        ({"admit": MinCount(3)}, "storage does not combine with admit"),
        (
            {"optimizer": PythonRule(lambda v, s, u, n: None)},
            "storage does not combine with a PythonRule",
        ),
        ({"storage": {"path": "/tmp"}}, "storage has path, memory_mib, not path"),
        ({"storage": {"path": "tmp", "memory_mib": 1}}, "must be the absolute path of a folder"),
        ({"storage": {"path": "/tmp", "memory_mib": 0}}, "memory_mib = 0: must be"),
        (
            {"storage": {"path": "/tmp", "memory_mib": 1e-5}},
            "no room for 2 rows of 16 bytes: give it at",
        ),
        ({"storage": "/tmp"}, r"must be Storage\(path, memory_mib\)"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message):
        EmbeddingTable("e", 4, **{"consistency": BSP(), "storage": Storage("/tmp", 1), **options})


def test_memory_for_fewer_rows_than_the_journal_numbers_is_refused(monkeypatch):
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="no room for 4096 rows of 256 bytes: give it at least 1"):
        EmbeddingTable("e", 64, storage=Storage("/tmp", 0.999))
    assert EmbeddingTable("e", 64, storage=Storage("/tmp", 1)).storage is not None


@pytest.mark.parametrize(
    ("options", "has_partners", "message"),
    [
        ({}, True, "redundancy.partner = true"),
        ({"triggers": Triggers(incremental=10)}, False, "checkpoint.incremental = 10"),
    ],
)
def test_options_of_a_job_that_do_not_combine_are_refused(options, has_partners, message):
    table, saving = (
        EmbeddingTable("e", 4, storage=Storage("/tmp", 1)),
        Saving(None, "run", **options),
    )
    refuse_combinations([table], Saving(None, "run"), None, False)
    refuse_combinations([EmbeddingTable("e", 4)], saving, None, has_partners)
    with pytest.raises(ConfigError, match=f"table 'e': storage does not combine with {message}"):
        refuse_combinations([table], saving, None, has_partners)


@pytest.mark.parametrize("option", ["elastic = true", "max_workers = 9", "min_workers = 1", ""])
def test_a_run_whose_shape_may_change_is_refused(tmp_path, option):
    (tmp_path / "config.toml").write_text(
        f'task = "logistic"\n[data]\ntrain = "x"\n[run]\n{option}\n'
    )
    folder = SimpleNamespace(config_file=tmp_path / "config.toml")
    table = EmbeddingTable("e", 4, storage=Storage("/tmp", 1))
    refused = (
        pytest.raises(ConfigError, match=r"combine with run\.elastic") if option else nullcontext()
    )
    with refused:
        refuse_combinations([table], Saving(None, "run"), SimpleNamespace(folder=folder), False)


def test_groups_look_ups_and_records_leave_such_tables_out():
    tables = [EmbeddingTable("e", 4, consistency=BSP()), DenseTable("w", (3,))]
    tables.append(EmbeddingTable("s", 4, consistency=BSP(), storage=Storage("/tmp", 1)))
    assert list(grouped_rows(tables, True)) == [0]
    assert [table.name for table in described(tables, place(tables, 1, 1, 4, 1024))] == ["e", "w"]
    parts = SimpleNamespace(
        links=SimpleNamespace(transports=["shm"]),
        has_partners=False,
        groups=(),
        declared=tables,
        tables=tables,
    )
    with pytest.raises(ConfigError, match="table 's' has storage, whose files are not recorded"):
        recording.refuse(parts, is_replay=False)
    parts.tables = tables[:2]
    recording.refuse(parts, is_replay=False)


def test_folders_that_cannot_hold_the_rows_are_refused(tmp_path, monkeypatch):
    def check(folder: Path, **options) -> None:
        table = EmbeddingTable("e", 64, storage=Storage(str(folder), 1), **options)
        storage_files.check_folders([EmbeddingTable("other", 3), table], 2, 2)

    check(tmp_path, expected_rows=10_000)
    with pytest.raises(RegionError, match="is not there on this node"):
        check(tmp_path / "none")
    with pytest.raises(RegionError, match=r"rows need .* MiB on this node; free space"):
        check(tmp_path, expected_rows=2**32 - 1)
    with monkeypatch.context() as patch:
        patch.setattr(storage_files, "_file_system", lambda folder: "nfs4")
        with pytest.raises(RegionError, match="is on nfs4, a network file system"):
            check(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        with pytest.raises(RegionError, match="cannot be written"):
            check(tmp_path)


def test_files_whose_memory_is_gone_are_removed(tmp_path):
    (tmp_path / "mpips-1-gone.rows").touch()
    (tmp_path / "other.rows").touch()
    assert remove_unused_files(str(tmp_path)) == ["mpips-1-gone.rows"]
    assert [path.name for path in tmp_path.iterdir()] == ["other.rows"]
