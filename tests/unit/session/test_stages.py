"""Jobs whose tables belong to stages: one worker has all of them, and what such a job refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpips
from mpips import BSP, SGD, ConfigError, DenseTable, EmbeddingTable, Worker
from mpips.config.monitoring import MonitorConfig
from mpips.config.options import SessionOptions
from mpips.mpi.one_rank import OneRank
from mpips.rundir.directory import RunFolder, Supervised
from mpips.session.job import Job
from mpips.session.session import refuse_elastic

TABLES = [
    DenseTable("first", (3,), SGD(1.0), BSP(), stage=0),
    EmbeddingTable("last", 2, SGD(1.0), BSP(), stage=1),
]
PLAIN = [DenseTable("first", (3,), SGD(1.0)), EmbeddingTable("last", 2, SGD(1.0))]


def main(worker: Worker) -> tuple[int, int, int, list[float]]:
    """Push to all tables."""
    worker.table("first").push(-np.ones(3, np.float32))
    worker.table("last").push([5], -np.ones((1, 2), np.float32))
    worker.clock()
    values = [worker.table("first").pull().sum(), worker.table("last").pull([5]).sum()]
    return worker.stages, worker.stage, worker.pipeline, list(map(float, values))


def test_one_worker_has_all_tables_and_continues_without_stages(tmp_path: Path) -> None:
    found = [
        mpips.run(main, tables, save=tmp_path, verbose=False).value
        for tables in (TABLES, PLAIN, TABLES)
    ]
    assert found == [(1, 0, 0, [3.0 * n, 2.0 * n]) for n in (1, 2, 3)]


@pytest.mark.parametrize("option", [{"elastic": True}, {"max_workers": 4}, {"min_workers": 1}, {}])
def test_a_run_that_may_have_any_number_of_workers_is_refused(
    tmp_path: Path, option: dict[str, Any]
) -> None:
    run = Supervised(RunFolder(tmp_path), "r", "t", 0)
    refuse_elastic(TABLES, run)  # `mpips run` has not made the directory
    run.folder.config_file.write_text(json.dumps({"run": {"script": "a.py", **option}}))
    refuse_elastic(PLAIN, run)
    refuse_elastic(TABLES, None)
    if not option:
        refuse_elastic(TABLES, run)
        return
    with pytest.raises(ConfigError, match=r"^the tables belong to stages .*leave out run\.elastic"):
        refuse_elastic(TABLES, run)


def test_a_record_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^monitor\.record = true with tables that belong"):
        Job(OneRank(), TABLES, SessionOptions(), monitor=MonitorConfig(record=True))
