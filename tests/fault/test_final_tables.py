"""`Outcome.tables` of a job on several ranks: from the checkpoint on every rank, else one clear sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launcher import launch

PROGRAM = """
import sys
import numpy as np
import mpips

def main(worker):
    worker.table("w").push(np.full(5, -1, np.float32))
    worker.table("e").push(np.array([7, 3]), np.full((2, 1), -1, np.float32))
    worker.clock()

one = mpips.SGD(lr=1.0)
tables = [
    mpips.DenseTable("w", (5,), optimizer=one, placement=sys.argv[1]),
    mpips.EmbeddingTable("e", 1, optimizer=one),
]
outcome = mpips.run(main, tables, verbose=False, save=(sys.argv[2:] or [None])[0], servers=2)
try:
    keys, rows = outcome.tables["e"]
    print(outcome.tables["w"].tolist(), keys.tolist(), rows.tolist(), flush=True)
except mpips.ConfigError as error:
    print(error, flush=True)
"""


@pytest.mark.parametrize(
    "placement", [pytest.param("servers", marks=pytest.mark.long), "replicated"]
)
def test_every_rank_reads_the_tables_of_the_last_checkpoint(placement: str, tmp_path: Path) -> None:
    assert (
        lines(placement, str(tmp_path / "c"))
        == ["[1.0, 1.0, 1.0, 1.0, 1.0] [3, 7] [[1.0], [1.0]]"] * 5
    )


def test_without_a_folder_a_sentence_says_so() -> None:
    expected = (
        "table 'e' cannot be read: the servers have ended, and the job had no folder for checkpoints: "
        "give it one (mpips.run(..., save=FOLDER))"
    )
    assert lines("servers") == [expected] * 5


def lines(*arguments: str) -> list[str]:
    with launch(5, [sys.executable, "-c", PROGRAM, *arguments], None, 60) as job:
        assert job.wait() == 0, job.tail()
        return job.stdout().splitlines()
