"""The rule Replace: values become what is pushed, on every instruction set, in tables and after restarts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mpips
from mpips import kernels
from mpips.kernels import reference
from mpips.model.optimizer import Replace, from_config

LENGTHS = [1, 7, 8, 9, 31, 64, 65, 1000]
GREATEST = np.finfo(np.float32).max


@pytest.mark.parametrize("rule", [Replace(), Replace(0.5, weight_decay=0.1, clip_value=2.0)])
@pytest.mark.parametrize("isa", kernels.available_kernels())
@pytest.mark.parametrize("n", LENGTHS)
def test_it_has_the_bits_of_the_definition(n: int, isa: str, rule: Replace) -> None:
    rng = np.random.default_rng(n)
    found = rng.normal(size=n).astype(np.float32)
    expected, none = found.copy(), np.zeros((0, n), np.float32)
    for step in range(1, 4):
        pushed = (rng.normal(size=n) * 10.0 ** rng.integers(-40, 38, n)).astype(np.float32)
        kernels.update(rule.native(), found, none, pushed, step, 0.5, 0.75, kernels=isa)
        reference.update(rule.native(), expected, none, pushed, step, 0.5, 0.75)
        assert found.tobytes() == expected.tobytes()


def test_finite_values_are_stored_as_they_are() -> None:
    pushed = np.array([1.1, -GREATEST, GREATEST, 1e-45, -1e-40, 65535, 0, 3], np.float32)
    values = np.full(8, -GREATEST, np.float32)
    kernels.update(Replace().native(), values, np.zeros((0, 8), np.float32), pushed)
    assert values.tobytes() == pushed.tobytes()


def test_it_is_a_rule_of_dense_tables_and_of_rows(tmp_path: Path) -> None:
    assert from_config("replace") == Replace(1.0)
    tables = [
        mpips.DenseTable("d", (3,), "replace", consistency="bsp"),
        mpips.EmbeddingTable("e", 2, mpips.Replace(), consistency="asp"),
    ]

    def push(worker: mpips.Worker) -> None:
        dense, rows = worker.table("d"), worker.table("e")
        for i in range(3):
            dense.push(np.array([i, -i, 0.1], np.float32))
            rows.push(np.array([5, 9]), np.array([[i, 1], [2, i]], np.float32))
            worker.clock()
        read(worker)

    def read(worker: mpips.Worker) -> None:
        assert worker.table("d").pull().tolist() == [2, -2, np.float32(0.1)]
        assert worker.table("e").pull(np.array([5, 9, 1])).tolist() == [[2, 1], [2, 2], [0, 0]]

    mpips.run(push, tables, save=tmp_path, verbose=False)
    mpips.run(read, tables, save=tmp_path, verbose=False)
