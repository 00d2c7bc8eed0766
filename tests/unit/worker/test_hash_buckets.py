"""Tables of a fixed size: keys of a bucket share a row, wherever a program or a model names them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from config_rig import load, sentence
from harness import Rig, rows
from local_job import run_local

import mpips
from mpips.checkpoint import list_checkpoints, open_checkpoint
from mpips.checkpoint.start import check_start
from mpips.config.options import SessionOptions
from mpips.config.overrides import apply_overrides
from mpips.errors import ConfigError
from mpips.inference.stored_tables import StoredTables
from mpips.model.consistency import BSP
from mpips.model.hash_buckets import MOST_BUCKETS, bucket_keys
from mpips.model.optimizer import SGD
from mpips.model.table_config import from_config, to_config
from mpips.recovery.saving import Saving
from mpips.training.example import TablesInFile
from mpips.worker.ahead.table_ahead import TableAhead

KEYS = np.array([5, -3, 2**62, 17, 99, 12345, -(2**63)])
N = 4


def table(**options):
    return rows(3, optimizer=SGD(1.0), init="normal(0.1)", hash_buckets=N, **options)


def test_buckets_are_those_of_the_definition() -> None:
    """Rows of checkpoints have these numbers: no version may change them."""
    mask = 2**64 - 1

    def mixed(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
        return x ^ (x >> 31)

    for n in (1, 10, 2**31, MOST_BUCKETS):
        expected = [mixed((key + 0x9E3779B97F4A7C15) & mask) % n for key in KEYS.tolist()]
        assert bucket_keys(KEYS, n).tolist() == expected
    assert bucket_keys(np.arange(-5, 5), 10).tolist() == [4, 6, 3, 3, 6, 5, 5, 0, 3, 8]


def test_keys_of_a_bucket_share_a_row() -> None:
    worker = Rig(table(consistency=BSP())).worker(timeout_s=10.0)
    handle, buckets = worker.table("e"), bucket_keys(KEYS, N)
    before = handle.pull(KEYS)
    assert (before == handle.initial(KEYS)).all()
    for bucket in np.unique(buckets):
        assert len(np.unique(before[buckets == bucket], axis=0)) == 1
    handle.push(KEYS, np.ones((len(KEYS), 3), np.float32))
    after = handle.push_pull(KEYS[:1], np.ones((1, 3), np.float32))
    # All pushes of a bucket are summed: those of its keys, and the second one.
    times = (buckets == buckets[0]).sum() + 1
    assert np.allclose(after, before[:1] - np.float32(times), atol=1e-6)
    assert (handle.prefetch(KEYS).wait() == handle.pull(KEYS)).all()
    keys, values = handle.all_rows()
    assert keys.tolist() == np.unique(buckets).tolist()
    assert (handle.pull(KEYS) == values[np.searchsorted(keys, buckets)]).all()


def test_a_look_ahead_fetches_the_rows_of_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    real, cached = TableAhead.pull, []

    def pull(self, *arguments):
        found = real(self, *arguments)
        cached.append(found is not None)
        return found

    monkeypatch.setattr(TableAhead, "pull", pull)

    def run(depth: int) -> list[bytes]:
        worker = Rig(table(consistency=BSP()), n_slots=64, slot_bytes=4096).worker(timeout_s=10.0)
        batches = [np.random.default_rng(i).integers(-(2**62), 2**62, 9) for i in range(12)]
        loop = (
            mpips.lookahead(batches, keys=lambda keys: keys, worker=worker, depth=depth)
            if depth
            else batches
        )
        found = []
        for keys in loop:
            found.append(worker.table("e").pull(keys).tobytes())
            worker.table("e").push(keys, np.ones((len(keys), 3), np.float32))
            worker.clock()
        return found

    assert run(3) == run(0)
    # All rows were in the cache: keys are announced as they are pulled.
    assert cached == [True] * 12


def test_checkpoints_have_buckets_and_models_take_keys(tmp_path) -> None:
    def main(worker):
        handle = worker.table("e")
        handle.push(KEYS[:3], np.ones((3, 3), np.float32))
        worker.clock()
        return handle.pull(KEYS)

    own = table()
    pulled, _ = run_local(main, [own], SessionOptions(seed=3), Saving(tmp_path, "job"))
    (saved,) = list_checkpoints(tmp_path)
    plain = dataclasses.replace(own, hash_buckets=0)
    with open_checkpoint(saved.path) as checkpoint:
        assert checkpoint.manifest.table("e").hash_buckets == N
        check_start(checkpoint, [own])
        assert sentence(check_start, checkpoint, [plain]) == (
            f"{checkpoint.path}: table 'e' has hash_buckets = 4 in the checkpoint, but 0 in this job: its "
            "rows belong to other keys; use the former, or resume = 'never'"
        )
        # A task describes its tables without the options of the job.
        rows_in_file = TablesInFile(checkpoint, [plain], 3).table("e")
        assert (rows_in_file.pull(KEYS) == pulled).all()
        stored = StoredTables(checkpoint, [plain], 3).table("e")
        assert (stored.pull(KEYS) == pulled).all()
        with pytest.raises(ConfigError, match="this export has a row for each key"):
            stored.check_keys()


def test_options_of_a_job_file() -> None:
    tables = [mpips.DenseTable("bias", (4,)), mpips.EmbeddingTable("weight", 2)]
    bias, weight = apply_overrides(tables, load("table.hash_buckets=100"), None)
    assert weight.hash_buckets == 100
    assert bias == tables[0]
    assert from_config(to_config(weight)) == weight
    assert sentence(apply_overrides, tables, load("tables.bias.hash_buckets=7"), None) == (
        "table 'bias': remove hash_buckets = 7: dense tables have no rows by key"
    )


@pytest.mark.parametrize(
    ("n", "partition", "part"),
    [
        (-1, "hash", "hash_buckets = -1: must be a whole number from 1 to 4294967295"),
        (2**32, "hash", "hash_buckets = 4294967296: must be a whole number"),
        (True, "hash", "hash_buckets = True: must be a whole number"),
        (10, mpips.RangePartition(0, 9), "buckets are the keys 0 to 9, which the range must contain"),
        (10, mpips.RangePartition(1, 20), "buckets are the keys 0 to 9, which the range must contain"),
        (10, mpips.FrequencyPartition.from_counts(np.array([1]), np.array([2])), "FrequencyPartition, whose"),
    ],
)  # fmt: skip
def test_what_a_table_cannot_have(n, partition, part) -> None:
    with pytest.raises(ConfigError) as caught:
        mpips.EmbeddingTable("e", 2, hash_buckets=n, partition=partition)
    assert part in str(caught.value)
    assert mpips.EmbeddingTable(
        "e", 2, hash_buckets=10, partition=mpips.RangePartition(-5, 10)
    ).hash_buckets == 10  # fmt: skip
