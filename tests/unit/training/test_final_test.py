"""Train, validation and test data in one job: the test data is evaluated once, with the values that stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_rig import dense_csv, mixed_csv
from thread_ranks import prepared

import mpips
from mpips.checkpoint import list_checkpoints
from mpips.cli.train import make_report
from mpips.config.schema import load_config
from mpips.errors import ConfigError, DataError
from mpips.mpi.messages import Evaluated
from mpips.rundir.directory import RunFolder
from mpips.rundir.files import Event
from mpips.scheduler.rank_table import RankTable
from mpips.training import epochs, final_test
from mpips.training import train as train_module
from mpips.training.train import train

EPOCHS, STEPS = 4, 17  # with wide_deep; steps of an epoch
BEST = 3  # epoch with the least log loss on the held-out samples


def job(folder: Path, *more: tuple[str, Any], task: str = "wide_deep") -> Any:
    write = mixed_csv if task == "wide_deep" else dense_csv
    pairs = [
        ("task", task),
        ("data.train", str(write(folder / "train.csv", 600, 1))),
        ("data.test", str(write(folder / "test.csv", 150, 2))),
        ("data.validation", 0.2),
        ("train.epochs", EPOCHS),
        ("train.batch_size", 30),
        ("train.eval_every", 1),
        ("checkpoint.folder", str(folder / "model")),
        *more,
    ]
    return load_config(None, pairs)


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Each evaluation of the jobs of a test: its name and the number of samples."""
    found = []
    for module in (epochs, final_test, train_module):
        real = module.evaluate  # type: ignore[attr-defined]

        def counting(*given: Any, real: Any = real) -> Any:
            found.append((given[4], given[2].n))
            return real(*given)

        monkeypatch.setattr(module, "evaluate", counting)
    return found


@pytest.mark.parametrize("keeps_best", [True, False])
def test_the_test_data_is_evaluated_once_with_the_values_that_stay(
    tmp_path: Path, evaluated: list[tuple[str, int]], keeps_best: bool
) -> None:
    config = job(tmp_path, ("checkpoint.keep_best", keeps_best))
    outcome = train(config, "none", verbose=False)
    result = outcome.value
    assert [n for _, n in evaluated] == [115] * EPOCHS + [150]
    # Epochs are compared by the validation data.
    losses = [row["log_loss"] for row in result.history]
    assert losses.index(min(losses)) + 1 == BEST
    assert result.metrics["log_loss"] == losses[-1]
    # The test has the bits of `mpips evaluate` of the model that stays.
    model = mpips.load(tmp_path / "model", best=keeps_best)
    assert result.test_metrics == model.evaluate(tmp_path / "test.csv")
    assert result.test_epoch == (BEST if keeps_best else EPOCHS)
    assert model.manifest.step == result.test_epoch * STEPS
    report = make_report(outcome, config, None)
    assert report["evaluated_data"] == "validation"
    assert report["log_loss"] == losses[-1]
    assert report["test_metrics"] == result.test_metrics
    assert report["test_epoch"] == result.test_epoch


def test_dense_tables_are_tested_with_the_best_values(tmp_path: Path) -> None:
    more = (("checkpoint.keep_best", True), ("table.optimizer.lr", 3.0), ("train.batch_size", 60))
    result = train(job(tmp_path, *more, task="softmax"), "none", verbose=False).value
    assert 0 < result.test_epoch < EPOCHS
    model = mpips.load(tmp_path / "model", best=True)
    assert result.test_metrics == model.evaluate(tmp_path / "test.csv")
    assert result.test_metrics != mpips.load(tmp_path / "model").evaluate(tmp_path / "test.csv")


@pytest.mark.parametrize("keeps_best", [True, False])
def test_after_a_restart_the_test_data_is_evaluated_once_with_the_same_result(
    tmp_path: Path, evaluated: list[tuple[str, int]], keeps_best: bool
) -> None:
    more = (("checkpoint.keep_best", keeps_best), ("checkpoint.keep_last", 99))
    config = job(tmp_path, *more, ("checkpoint.every_steps", 10))
    whole = train(config, "none", verbose=False).value
    # What was written in the last epoch is lost.
    for later in [c for c in list_checkpoints(tmp_path / "model") if c.step > BEST * STEPS]:
        for path in sorted(later.path.iterdir()):
            path.unlink()
        later.path.rmdir()
    evaluated.clear()
    rest = train(config, "none", verbose=False).value
    assert [n for _, n in evaluated].count(150) == 1
    assert evaluated[-1] == ("test", 150)
    assert (rest.test_metrics, rest.test_epoch) == (whole.test_metrics, whole.test_epoch)


def run_with(
    folder: Path, *lines: tuple[int, int, str], began: tuple[int, int] = (1, 68)
) -> RunFolder:
    """A run directory whose metrics.jsonl has evaluations: generation, step and JSON of the rest."""
    run = RunFolder.create(folder, "job")
    text = "".join(
        f'{{"time_s":1.0,"generation":{generation},"epoch":2,"step":{step},{rest}}}\n'
        for generation, step, rest in lines
    )
    run.metrics_file.write_text(text)
    run.note(Event(time_s=1.0, generation=began[0], event="began", step=began[1], source="memory"))
    return run


def test_an_attempt_that_begins_at_the_end_takes_the_recorded_test(
    tmp_path: Path, evaluated: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = (0, EPOCHS * STEPS, '"test":{"auc":0.625,"log_loss":null}')
    run = run_with(tmp_path, (0, EPOCHS * STEPS, '"validation":{"auc":0.75}'), line)
    found = final_test.recorded(run, EPOCHS * STEPS)
    assert found is not None
    assert (found.metrics["auc"], found.epoch) == (0.625, 3)
    assert np.isnan(found.metrics["log_loss"])
    assert final_test.recorded(run, EPOCHS * STEPS + 1) is None
    # An attempt that trains the last steps again tests again.
    assert final_test.recorded(run_with(tmp_path, line, began=(1, 60)), EPOCHS * STEPS) is None
    assert final_test.recorded(RunFolder.create(tmp_path, "empty"), EPOCHS * STEPS) is None

    config = job(tmp_path)
    program = train_module.TrainingProgram(config, "none", False, folder=run)
    result = train_module.drive(program, None, None, 1).value
    assert result.test_metrics["auc"] == 0.625
    assert result.test_epoch == 3
    assert 150 not in [n for _, n in evaluated]


def test_a_best_checkpoint_that_is_damaged_costs_the_test_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    real = final_test.open_checkpoint

    def damaged(path: Path) -> Any:
        data = next(path.glob("*.h5"))
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
        return real(path)

    monkeypatch.setattr(final_test, "open_checkpoint", damaged)
    config = job(tmp_path, ("checkpoint.keep_best", True))
    outcome = train(config, "none", verbose=False)
    assert outcome.value.test_metrics == {}
    assert make_report(outcome, config, None)["test_metrics"] is None
    text = "the test data was not evaluated, because the best checkpoint cannot be read"
    assert text in outcome.value.notes[-1]
    assert text in capfd.readouterr().err
    assert mpips.load(tmp_path / "model").manifest.step == EPOCHS * STEPS


def test_validation_data_may_be_files(tmp_path: Path, evaluated: list[tuple[str, int]]) -> None:
    other = mixed_csv(tmp_path / "validation.csv", 90, 3)
    result = train(job(tmp_path, ("data.validation", str(other))), "none", verbose=False).value
    assert result.n_samples == 600
    assert [n for _, n in evaluated] == [90] * EPOCHS + [150]
    model = mpips.load(tmp_path / "model")
    found = model.evaluate(other)
    assert {name: result.metrics[name] for name in found} == found
    assert result.test_metrics == model.evaluate(tmp_path / "test.csv")
    # Each of three workers has a share of all three files.
    inputs = prepared(job(tmp_path, ("data.validation", [str(other)])), 3)
    for name, total in (("train", 600), ("test", 90)):
        assert sum(getattr(one, name).n for one in inputs) == total
    assert sum(one.final_test.data.n for one in inputs) == 150  # type: ignore[union-attr]
    assert {one.final_test.n_total for one in inputs} == {150}  # type: ignore[union-attr]


def test_a_job_with_test_data_alone_reports_it_as_before(tmp_path: Path) -> None:
    config = job(tmp_path, ("data.validation", 0.0))
    outcome = train(config, "none", verbose=False)
    report = make_report(outcome, config, None)
    assert report["evaluated_data"] == "test"
    assert report["test_metrics"] == {k: report[k] for k in ("accuracy", "auc", "log_loss")}
    assert report["test_epoch"] == EPOCHS
    assert mpips.load(tmp_path / "model").evaluate(tmp_path / "test.csv") == report["test_metrics"]
    without = job(tmp_path, ("data.test", ""), ("checkpoint.folder", ""))
    report = make_report(train(without, "none", verbose=False), without, None)
    assert (report["evaluated_data"], report["test_metrics"]) == ("validation", None)


def test_evaluations_are_reported_by_their_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found: list[Evaluated] = []
    real = RankTable.evaluated

    def noting(table: RankTable, one: Evaluated) -> None:
        found.append(one)
        real(table, one)

    monkeypatch.setattr(RankTable, "evaluated", noting)
    train(job(tmp_path, ("checkpoint.keep_best", True)), "none", verbose=True)
    assert [(one.of, one.epochs, one.step) for one in found] == [
        *(("validation", epoch, epoch * STEPS) for epoch in range(1, EPOCHS + 1)),
        ("test", BEST, EPOCHS * STEPS),
    ]
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("epoch ")]
    assert [line.split(":")[0] for line in lines] == [f"epoch {i}/4" for i in (1, 2, 3)]
    assert all(line.endswith("(validation)") for line in lines)


@pytest.mark.parametrize(
    ("more", "kind", "message"),
    [
        ([("data.validation", 1.0)], ConfigError, "data.validation = 1.0: must be"),
        ([("data.validation", "absent.csv")], ConfigError, "absent.csv: no such file"),
        ([("task", "mf"), ("data.validation", 0.1)], ConfigError, "has no effect: task 'mf' reads"),
        ([("data.validation", "other.csv")], DataError, "other.csv"),
    ],
)
def test_validation_data_that_cannot_be_used_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: Any, kind: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    dense_csv(tmp_path / "other.csv", 20, 1)
    with pytest.raises(kind, match=message):
        train(job(tmp_path, *more), "none", verbose=False)


@pytest.mark.parametrize(
    ("n_train", "n_evaluated", "every", "more", "expected"),
    [
        (600, 60, "auto", [], [60] * 3),
        (600, 61, "auto", [], [61]),
        (600, 60, 0, [], [60]),
        (600, 61, "auto", [("train.patience", 9)], [61] * 3),
        (600, 60, 2.0, [], [60, 60]),
        (600, 60, "auto", [("table.backup", 1)], [60]),
    ],
)
def test_each_epoch_is_evaluated_where_that_takes_a_small_part_of_it(
    tmp_path: Path,
    evaluated: list[tuple[str, int]],
    n_train: int,
    n_evaluated: int,
    every: Any,
    more: list[Any],
    expected: list[int],
) -> None:
    train_file = mixed_csv(tmp_path / "train.csv", n_train, 1)
    test_file = mixed_csv(tmp_path / "test.csv", n_evaluated, 2)
    pairs = [("task", "wide_deep"), ("data.train", str(train_file)), ("data.test", str(test_file))]
    pairs += [("train.epochs", 3), ("train.batch_size", 300), ("train.eval_every", every), *more]
    result = train(load_config(None, pairs), "none", verbose=False).value
    assert [n for _, n in evaluated] == expected
    assert sum("auc" in row for row in result.history) == len(expected)


def test_metrics_of_a_task_itself_are_not_cheap(tmp_path: Path) -> None:
    inputs = prepared(job(tmp_path, ("data.validation", 0.05)), 1)[0]
    assert epochs.is_evaluation_cheap(inputs)
    inputs.task.own_metrics = {"mrr": "higher"}  # type: ignore[misc]
    inputs.task.metrics = ("mrr",)
    assert not epochs.is_evaluation_cheap(inputs)


def test_the_report_has_the_best_epoch_and_the_hint(tmp_path: Path) -> None:
    more = [("table.optimizer.lr", 3.0), ("checkpoint.folder", "")]
    config = job(tmp_path, *more, task="softmax")
    outcome = train(config, "none", verbose=False)
    report = make_report(outcome, config, None)
    losses = [row["cross_entropy"] for row in outcome.value.history]
    best = report["best_epoch"]
    assert (best["metric"], best["value"]) == ("cross_entropy", min(losses))
    assert best["epoch"] == losses.index(min(losses)) + 1
    assert best["last"] == losses[-1] > 1.05 * min(losses)
    assert "train.patience = 3 ends training earlier, and checkpoint.keep_best" in report["hint"]
    short = job(tmp_path, ("train.epochs", 1), ("checkpoint.folder", ""))
    report = make_report(train(short, "none", verbose=False), short, None)
    assert (report["best_epoch"], report["hint"]) == (None, "")
