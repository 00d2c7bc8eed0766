"""Planned rows of embedding tables: how many there are, where they lie and what they take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from planning_rig import job, planned

from mpips import EmbeddingTable, StreamTable
from mpips.errors import ConfigError
from mpips.model.placement import place
from mpips.plan.rows import Rows, expected_rows
from mpips.training.train import train


def test_planned_rows_are_those_that_a_run_makes(svm: Path) -> None:
    config = job("fm", svm, ("train.epochs", 1))
    served = train(config, "none", verbose=False).statistics["servers"][0]["tables"]
    rows = planned(config, 1, n_steps=1).needs.rows
    assert {name: r.total for name, r in rows.items()} == {n: t["rows"] for n, t in served.items()}
    assert rows["weight"].total == rows["factor"].total + 1  # the bias
    assert rows["weight"].source == "keys of the training data"


def test_columns_of_numbers_have_no_rows_in_a_table_of_words(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    path = tmp_path / "mixed.csv"
    lines = [
        f"{rng.choice(list('abcde'))},{i % 7},{'' if i % 5 == 0 else round(rng.normal(), 4)},w{i},{i % 2}"
        for i in range(96)
    ]
    path.write_text("job,age,late,word,label\n" + "\n".join(lines) + "\n")
    config = job("wide_deep", path, ("train.epochs", 1), ("data.label", "label"))
    served = train(config, "none", verbose=False).statistics["servers"][0]["tables"]
    found = planned(config, 1, n_steps=1).needs.rows
    assert found
    for name, rows in found.items():
        # The bias, 5 jobs and 96 words: 'age' and 'late' are inputs of the network.
        assert rows.total == served[name]["rows"], name
        assert 101 <= rows.total <= 102, name


def test_planned_memory_of_rows_is_near_what_a_run_takes(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    path = tmp_path / "many.svm"
    lines = [
        f"{i % 2} " + " ".join(f"{k}:1" for k in sorted(rng.choice(60_000, 60, replace=False) + 1))
        for i in range(3000)
    ]
    path.write_text("\n".join(lines) + "\n")
    config = job("logistic", path, ("train.epochs", 1), ("train.batch_size", 500))
    served = train(config, "none", verbose=False).statistics["servers"][0]["tables"]["weight"]
    server = planned(config, 1, n_steps=1).needs.servers[0]
    assert server.rows == served["rows"] > 50_000
    # A server reserves memory for further rows, in steps of a MiB.
    assert server.embedding + server.maps == pytest.approx(served["memory_bytes"], rel=0.5)


def test_keys_of_a_partition_lie_on_their_owners(svm: Path) -> None:
    plan = planned(job("logistic", svm, ("cluster.servers", 3)), 6)
    rows = plan.needs.rows["weight"]
    assert plan.inputs.train is not None
    keys = np.union1d(plan.inputs.train.indices, [-1])  # type: ignore[union-attr]
    owners = plan.placement.partitioners["weight"].owners(keys)
    assert rows.per_server == tuple(np.bincount(owners, minlength=3).tolist())
    assert rows.total == 91


def test_given_rows_take_the_place_of_keys(svm: Path) -> None:
    config = job("fm", svm, ("cluster.servers", 2))
    plan = planned(config, 4, rows={"factor": 10_000_001})
    assert plan.needs.rows["factor"].per_server == (5_000_001, 5_000_000)
    dim = 8
    assert plan.needs.servers[0].embedding >= 5_000_001 * (8 + 4 * dim)
    with pytest.raises(ConfigError, match="no such embedding table; there are: weight, factor"):
        planned(config, 4, rows={"nosuch": 5})


def test_declared_rows_take_the_place_of_those_of_the_steps() -> None:
    stream = StreamTable("s", {"x": (27,)}, 101, producers=3)
    unknown = EmbeddingTable("e", 4)
    tables = [*stream.tables, unknown]
    found = expected_rows(tables, place(tables, 2, 1, 8, 4096), None, None, {})
    assert found["s.samples"] == Rows((50, 49), "as declared, in equal shares")
    assert found["s.counts"].per_server == (3, 2)
    assert found["e"].source == "unknown; give --rows e=N"


def test_rows_of_a_table_with_buckets_are_its_buckets(svm: Path) -> None:
    options = [("table.hash_buckets", 16), ("train.epochs", 1)]
    config = job("fm", svm, *options)
    served = train(config, "none", verbose=False).statistics["servers"][0]["tables"]
    rows = planned(config, 1, n_steps=1).needs.rows
    assert {name: r.total for name, r in rows.items()} == {n: t["rows"] for n, t in served.items()}
    assert 0 < rows["weight"].total <= 16
    given = planned(config, 1, rows={"weight": 300_000_000}).needs.rows["weight"]
    assert given.total == 16
    # Keys outside of a partition of the buckets, such as that of the bias, have a bucket.
    split = job("fm", svm, *options, ("table.partition", {"name": "range", "low": 0, "high": 16}))
    assert planned(split, 1, n_steps=1).needs.rows["weight"].total == rows["weight"].total


def test_keys_that_are_not_in_the_data_are_reported_as_a_lower_bound(
    tmp_path: Path, svm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crossed.py").write_text(
        "import numpy as np\n"
        "from mpips import EmbeddingTable\n"
        "from mpips.tasks import StepResult, Task\n"
        "class Crossed(Task):\n"
        "    name = 'crossed'\n"
        "    def __init__(self, info, options, seed): pass\n"
        "    def tables(self): return [EmbeddingTable('pairs', 2), EmbeddingTable('idle', 2)]\n"
        "    def step(self, worker, batch):\n"
        "        keys = np.unique(batch.keys * 1000 + 500_000)\n"
        "        worker.table('pairs').push(keys, np.zeros((len(keys), 2), np.float32))\n"
        "        return StepResult(0.0, batch.n)\n"
        "    def predict(self, worker, batch): return np.zeros(batch.n, np.float32)\n"
    )
    monkeypatch.chdir(tmp_path)
    rows = planned(job("crossed:Crossed", svm), 3).needs.rows
    assert rows["pairs"].total > 0
    assert "--rows pairs=N" in rows["pairs"].source
    assert (rows["idle"].total, "--rows idle=N" in rows["idle"].source) == (0, True)
