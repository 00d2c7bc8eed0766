"""Schedules of learning rates: their shape, the changes that are sent, and the bits of a restart."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from model_rig import dense_csv

from mpips import FTRL, Adagrad, DenseTable, EmbeddingTable, PythonRule
from mpips.checkpoint import list_checkpoints, open_checkpoint
from mpips.config.schema import load_config
from mpips.config.sections import ScheduleConfig
from mpips.errors import ConfigError
from mpips.training import epochs
from mpips.training.rates import POINTS, Rates, factor
from mpips.training.train import train


def factors(n: int = 8, **options: Any) -> list[float]:
    """Return the factor at n equal steps of a run of n epochs."""
    schedule = ScheduleConfig(**options)
    return [factor(schedule, i, i / n) for i in range(n)]


def test_shapes_of_the_schedules() -> None:
    assert factors() == [1.0] * 8
    assert factors(4, name="linear") == [1, 0.75, 0.5, 0.25]
    assert factors(4, name="linear", end=0.5) == [1, 0.875, 0.75, 0.625]
    assert factors(6, name="step", every=2, factor=0.5) == [1, 1, 0.5, 0.5, 0.25, 0.25]
    cosine = [(1 + math.cos(math.pi * i / 8)) / 2 for i in range(8)]
    assert factors(8, name="cosine") == pytest.approx(cosine, abs=1e-15)
    # one_cycle rises over 0.3 of the run and falls over the rest.
    cycle = factors(10, name="one_cycle")
    assert np.argmax(cycle) == 3
    assert cycle[3] == 1
    assert cycle[:4] == sorted(cycle[:4])
    assert cycle[3:] == sorted(cycle[3:], reverse=True)
    # The warm-up begins above 0 and ends at 1, without a jump.
    assert factors(4, warmup=0.5) == pytest.approx([1 / 501, 251 / 501, 1, 1])


class Noting:
    """A worker that notes the rates that are sent."""

    def __init__(self) -> None:
        self.sent: list[float] = []

    def table(self, name: str) -> Noting:
        assert name == "w"
        return self

    def set_optimizer(self, rule: Any) -> None:
        self.sent.append(rule.lr)


def test_a_change_is_sent_once_and_a_long_run_sends_few() -> None:
    tables = [DenseTable("w", (2,), optimizer=Adagrad(0.5))]
    worker: Any = Noting()
    rates = Rates(ScheduleConfig(name="step", every=1, factor=0.5), tables, 3)
    for epoch in range(3):
        for step in range(10):
            rates.set(worker, epoch, step, 10)
    assert worker.sent == [0.5, 0.25, 0.125]
    worker.sent.clear()
    rates = Rates(ScheduleConfig(name="cosine"), tables, 1)
    for step in range(100_000):
        rates.set(worker, 0, step, 100_000)
    assert len(worker.sent) == POINTS
    assert min(worker.sent) > 0
    # A worker that begins in the middle sends the rate that is in force there.
    later: Any = Noting()
    Rates(ScheduleConfig(name="cosine"), tables, 1).set(later, 0, 50_049, 100_000)
    assert later.sent == [worker.sent[500]]


def test_the_rates_of_reports_are_those_in_force() -> None:
    worker: Any = Noting()
    tables: list[Any] = [DenseTable("w", (2,), optimizer=Adagrad(0.5)), EmbeddingTable("e", 1)]
    plain = Rates(ScheduleConfig(), [tables[0], replace(tables[1], optimizer=Adagrad(0.5))], 3)
    assert plain.current(object()) == [0.5]
    assert Rates(ScheduleConfig(), [tables[0], EmbeddingTable("f", 1, Adagrad(0.1))], 3).current(
        object()
    ) == [0.5, 0.1]
    rates = Rates(ScheduleConfig(name="step", every=1, factor=0.5), tables[:1], 3)
    rates.set(worker, 2, 0, 10)
    assert rates.current(object()) == [0.125]
    # A task that applies a rate itself, such as word2vec, has tables of the rate 1.
    assert rates.current(SimpleNamespace(current_rate=0.01)) == [0.01]
    rule = PythonRule(lambda values, state, gradient, context: None)
    assert Rates(ScheduleConfig(), [DenseTable("w", (2,), rule)], 1).current(object()) == []


def test_a_training_reports_its_rate_as_the_schedule_changes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(epochs, "_REPORT_INTERVAL_S", 0.0)  # each step is reported
    data = dense_csv(tmp_path / "d.csv", 300, 1)
    pairs = [("task", "mlp"), ("data.train", str(data)), ("options.learning_rate", 0.25)]
    pairs += [("schedule.name", "step"), ("schedule.every", 1), ("schedule.factor", 0.5)]
    train(load_config(None, [*pairs, ("train.epochs", 3)]), "plain", verbose=False)
    shown = re.findall(r"epoch (\d)/3 .* lr ([\d.]+) ", capsys.readouterr().err)
    assert shown[-1] == ("3", "0.0625")
    assert set(shown) <= {("1", "0.25"), ("2", "0.125"), ("3", "0.0625"), ("2", "0.25")}


def test_without_a_schedule_nothing_is_sent() -> None:
    worker: Any = Noting()
    Rates(ScheduleConfig(), [EmbeddingTable("e", 1, optimizer=FTRL())], 3).set(worker, 0, 0, 1)
    assert worker.sent == []


def test_rules_without_a_rate_that_can_change_are_refused() -> None:
    schedule = ScheduleConfig(name="linear")
    with pytest.raises(
        ConfigError, match="'e' has the optimizer ftrl, whose weights follow from its rate"
    ):
        Rates(schedule, [EmbeddingTable("e", 1, optimizer=FTRL())], 1)
    rule = PythonRule(lambda values, state, gradient, context: None)
    with pytest.raises(ConfigError, match=r"which has no rate; choose another one"):
        Rates(schedule, [DenseTable("w", (2,), optimizer=rule)], 1)


def trained(folder: Path, *more: tuple[str, Any]) -> dict[str, float]:
    data = dense_csv(folder.with_suffix(".csv"), 300, 1)
    pairs = [
        ("task", "mlp"),
        ("data.train", str(data)),
        ("data.test", str(data)),
        ("train.epochs", 8),
        ("schedule.name", "cosine"),
        ("schedule.warmup", 0.1),
        ("checkpoint.folder", str(folder)),
        ("checkpoint.keep_last", 100),
        *more,
    ]
    return train(load_config(None, pairs), "none", verbose=False).value.metrics


def content(path: Path) -> dict[str, bytes]:
    with open_checkpoint(path) as checkpoint:
        return {
            dataset.path: checkpoint.read(dataset, 0, dataset.n_units).tobytes()
            for table in checkpoint.manifest.tables
            for dataset in table.datasets
        }


def test_a_run_that_goes_on_from_a_checkpoint_has_the_bits_of_an_undisturbed_one(
    tmp_path: Path,
) -> None:
    whole = trained(tmp_path / "a", ("checkpoint.every_steps", 35))
    names = list_checkpoints(tmp_path / "a")
    assert names[0].step == 35  # in the middle of an epoch of 10 steps
    rest = trained(tmp_path / "b", ("checkpoint.resume", str(names[0].path)))
    assert rest["accuracy"] == whole["accuracy"]
    last = list_checkpoints(tmp_path / "b")[-1]
    assert content(last.path) == content(names[-1].path)
    # The schedule has an effect at all.
    constant = trained(tmp_path / "c", ("schedule.name", "constant"), ("schedule.warmup", 0.0))
    assert constant["loss"] != whole["loss"]
