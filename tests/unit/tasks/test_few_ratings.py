"""Matrix factorisation of users with few ratings: the penalty that is chosen by the data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mpips.cli import cli
from mpips.data import DataInfo
from mpips.tasks.mf import MatrixFactorization
from mpips.tasks.mf_options import MfOptions


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (4 * 50, {"options.l2": 0.4}),
        (16 * 50, {"options.l2": 0.2}),
        (64 * 50, {}),
        (1, {"options.l2": 0.4}),
    ],
)
def test_the_penalty_falls_with_the_ratings_of_a_user(
    lines: int, expected: dict[str, float]
) -> None:
    arrays = ("vocabulary/items", "vocabulary/users")
    info = DataInfo(lines, lines, 0, (), "own", wants="targets", arrays=arrays, sizes=(9, 50))
    assert MatrixFactorization.choose(info, MfOptions()) == expected
    assert MatrixFactorization.choose(info, MfOptions(l2=0.1)) == {}
    assert MatrixFactorization.choose(info, MfOptions(implicit=True)) == {}


def test_few_ratings_are_predicted_better_with_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    users, items = rng.normal(0, 0.4, (120, 5)), rng.normal(0, 0.4, (60, 5))
    pairs = np.unique(np.c_[rng.integers(0, 120, 1300), rng.integers(0, 60, 1300)], axis=0)
    pairs = rng.permutation(pairs)
    u, i = pairs.T
    bias = users[u, 0] + items[i, 0]
    values = 3.5 + bias + (users[u] * items[i]).sum(axis=1) + rng.normal(0, 0.6, len(u))
    lines = [f"u{a},i{b},{c:.3f}\n" for (a, b), c in zip(pairs, values, strict=True)]
    for name, part in (("train", lines[:1000]), ("test", lines[1000:])):
        (tmp_path / f"{name}.csv").write_text("user,item,rating\n" + "".join(part))
    found = []
    for option in ((), ("--set", "options.l2=0.1")):
        argv = ["train", "mf", "--quiet", "--json", *option]
        for name in ("train", "test"):
            argv += [f"--{name}", str(tmp_path / f"{name}.csv")]
        done = CliRunner().invoke(cli, argv)
        assert done.exit_code == 0, done.output
        found.append(json.loads(done.output.splitlines()[-1])["test_metrics"]["rmse"])
    assert found[0] < 0.98 * found[1]
