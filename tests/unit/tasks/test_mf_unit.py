"""The unit in which mf learns ratings: who chooses it, and that the scale does not matter in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from mf_rig import job

import mpips
from mpips.data import DataInfo
from mpips.tasks.mf import MatrixFactorization
from mpips.tasks.mf_options import MfOptions
from mpips.training.train import train


def info(*target_range: float) -> DataInfo:
    return DataInfo(9, 9, 0, (), "own", wants="targets", target_range=target_range)


@pytest.mark.parametrize(
    ("low", "high", "unit"),
    [
        (1, 5, 1.0),
        (0.5, 5, 1.0),
        (1, 10, 1.0),
        (0, 10, 1.0),
        (3, 3, 1.0),
        (0, 1, 0.25),
        (0, 100, 25.0),
        (-10, 10, 5.0),
    ],
)
def test_stars_have_the_unit_of_earlier_versions_and_other_ratings_a_quarter_of_their_range(
    low: float, high: float, unit: float
) -> None:
    own = MfOptions()
    chosen = MatrixFactorization.choose(info(low, high), own)
    assert chosen == {"options.unit": unit}
    assert own.scale(chosen) == unit


def test_a_given_unit_wins_and_given_penalties_and_rates_mean_what_they_did() -> None:
    chosen = MatrixFactorization.choose(info(0, 100), MfOptions())
    assert MfOptions(unit=2.0, l2=0.1).scale(chosen) == 2.0
    for options in (MfOptions(l2=0.1), MfOptions(learning_rate=0.1), MfOptions(init_std=0.2)):
        assert options.scale(chosen) == 1.0
    assert MfOptions().scale({}) == 1.0  # a run of an earlier version
    pairs = MfOptions(implicit=True)
    assert MatrixFactorization.choose(info(0, 100), pairs) == {}
    assert "unit" in pairs.idle()
    assert "unit" not in MfOptions().idle()


def write(folder: Path, factor: int) -> None:
    """Write ratings of multiples of 1/8, times a factor."""
    folder.mkdir()
    draw = np.random.default_rng(3)
    users, items = draw.integers(0, 20, 400), draw.integers(0, 15, 400)
    ratings = np.round(8 * (2 + users % 3 + items % 2 + draw.normal(size=400) / 4)) / 8 * factor
    lines = [f"u{u},i{i},{r!r}" for u, i, r in zip(users, items, ratings.tolist(), strict=True)]
    for name, part in (("train", lines[:320]), ("test", lines[320:])):
        (folder / f"{name}.csv").write_text("user,item,rating\n" + "\n".join(part) + "\n")


def test_ratings_in_another_unit_have_the_same_model(tmp_path: Path) -> None:
    found: list[Any] = []
    for factor in (1, 32):
        folder = tmp_path / str(factor)
        write(folder, factor)
        more = [("options.unit", float(factor)), ("train.epochs", 3)]
        found.append(train(job(folder, *more), "none", verbose=False).value)
    # 32 is a power of two, so that all values are exact multiples.
    assert found[1].metrics["rmse"] == pytest.approx(32 * found[0].metrics["rmse"], rel=1e-12)
    assert found[1].metrics["loss"] == pytest.approx(1024 * found[0].metrics["loss"], rel=1e-12)
    small, large = (mpips.load(tmp_path / str(factor) / "c") for factor in (1, 32))
    for name in ("user", "item"):
        np.testing.assert_array_equal(
            small.tables.table(name).values, large.tables.table(name).values
        )
    (tmp_path / "ask.csv").write_text("user,item\nu1,i2\nu3,?\n")
    predictions = [model.columns(tmp_path / "ask.csv") for model in (small, large)]
    assert predictions[0] is not None
    assert predictions[1] is not None
    assert len(predictions[0]["prediction"]) == 11
    np.testing.assert_array_equal(32 * predictions[0]["prediction"], predictions[1]["prediction"])


def test_the_chosen_unit_is_kept_in_the_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "d", 32)
    train(job(tmp_path / "d", ("train.epochs", 1)), "none", verbose=False)
    model = mpips.load(tmp_path / "d" / "c")
    low, high = model.info.target_range
    assert model.info.chosen == {"options.unit": (high - low) / 4}
    assert f"; ratings in units of {(high - low) / 4:g}" in model.task.report()
    plain = msgspec.structs.replace(MfOptions(), dim=4)
    assert (
        "units"
        not in MatrixFactorization(model.info, msgspec.structs.replace(plain, l2=0.1), 7).report()
    )
