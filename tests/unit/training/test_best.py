"""The best checkpoint: which one is marked and stays, restarts, and jobs that cannot have it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from training import content

import mpips
from mpips.checkpoint import list_checkpoints
from mpips.checkpoint.find import choose_checkpoint, order
from mpips.checkpoint.reader import open_checkpoint
from mpips.checkpoint.retention import Retention, retain
from mpips.cli.ckpt import command as ckpt
from mpips.cli.evaluate import command as evaluate_command
from mpips.cli.export import command as export_command
from mpips.cli.predict import command as predict_command
from mpips.config.schema import load_config
from mpips.errors import CheckpointError, ConfigError
from mpips.model.best_value import BestValue
from mpips.training.train import train

JOB = [
    ("task", "mlp"),
    ("data.train", "digits"),
    ("data.test", "digits"),
    ("train.epochs", 6),
    ("train.batch_size", 160),
    ("train.metric", "accuracy"),
    ("table.optimizer.lr", 0.08),
    ("checkpoint.keep_best", True),
]
STEPS = 9  # of an epoch


def trained(folder: Path, *more: tuple[str, Any]) -> Any:
    pairs = [*JOB, ("checkpoint.folder", str(folder)), *more]
    return train(load_config(None, pairs), "none", verbose=False).value


def best_of(history: list[dict[str, float]]) -> tuple[float, int]:
    """The greatest accuracy, and the first epoch that has it."""
    value = max(row["accuracy"] for row in history)
    return value, next(int(row["epoch"]) for row in history if row["accuracy"] == value)


def test_the_best_checkpoint_has_the_values_that_were_evaluated_and_stays(tmp_path: Path) -> None:
    result = trained(tmp_path, ("checkpoint.keep_last", 1))
    value, epoch = best_of(result.history)
    assert 1 < epoch < 6, "the best epoch is neither the first nor the last one"
    best = tmp_path / f"step-{epoch * STEPS:012d}"
    assert result.best == {
        "metric": "accuracy",
        "value": value,
        "epoch": epoch,
        "path": str(best),
    }
    # Only the best and the newest one are left.
    assert [c.step for c in list_checkpoints(tmp_path)] == [epoch * STEPS, 6 * STEPS]
    assert mpips.load(tmp_path, best=True).path == best
    assert mpips.load(tmp_path, best=True).evaluate("digits")["accuracy"] == value
    # The values are those of a run that ends there.
    short = tmp_path / "short"
    trained(short, ("train.epochs", epoch), ("checkpoint.keep_best", False))
    for name, array in content(str(best)).items():
        assert array.tobytes() == content(str(list_checkpoints(short)[-1].path))[name].tobytes()


def test_commands_use_mark_and_keep_the_best_one(tmp_path: Path) -> None:
    result = trained(tmp_path)
    name = Path(result.best["path"]).name
    runner = CliRunner()
    lines = runner.invoke(ckpt, ["ls", str(tmp_path)]).stdout.splitlines()
    marked = [line for line in lines if "BEST" in line]
    text = f"BEST: accuracy {result.best['value']:.4f} after epoch {result.best['epoch']}"
    assert [line.split()[0] for line in marked] == [name]
    assert text in marked[0]
    assert text in runner.invoke(ckpt, ["show", str(tmp_path / name)]).stdout
    found = runner.invoke(evaluate_command, [str(tmp_path), "--best", "--data", "digits"])
    assert name in found.stdout
    assert f"accuracy {result.best['value']:.4f}" in found.stdout
    assert "--best" not in found.output
    newest = list_checkpoints(tmp_path)[-1].path
    assert newest.name != name
    why = f"accuracy {result.best['value']:.4f} after epoch {result.best['epoch']}"
    note = f"{newest.name} is the newest checkpoint, {name} the best one ({why}): --best takes that"
    out = str(tmp_path / "out")
    for use, words in (
        (evaluate_command, ["--data", "digits"]),
        (predict_command, ["--data", "digits", "--out", f"{out}.csv"]),
        (export_command, ["--format", "npz", "--out", f"{out}.npz"]),
    ):
        assert note in " ".join(runner.invoke(use, [str(tmp_path), *words]).output.split())
        assert "--best" not in runner.invoke(use, [str(newest), *words]).output
    pruned = runner.invoke(ckpt, ["prune", str(tmp_path), "--keep-last", "1"])
    assert pruned.exit_code == 0, pruned.output
    assert name in {c.path.name for c in list_checkpoints(tmp_path)}


@pytest.mark.parametrize("step", [*range(STEPS - 1, 6 * STEPS, STEPS), STEPS, 3 * STEPS, 47])
def test_from_any_checkpoint_a_run_has_the_same_best_one(
    tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(tmp_path / "whole")
    trained(tmp_path / "part", ("checkpoint.every_steps", step), ("checkpoint.keep_last", 99))
    folder = tmp_path / "part"
    # What was written after the first checkpoint at this step is lost.
    names = list_checkpoints(folder)
    for later in [c for c in names if c.step > max(step, names[0].step)]:
        for path in sorted(later.path.iterdir()):
            path.unlink()
        later.path.rmdir()
    rest = trained(folder)
    assert {**rest.best, "path": ""} == {**whole.best, "path": ""}
    assert Path(rest.best["path"]).name.partition(".")[0] == Path(whole.best["path"]).name
    # No value is written twice.
    values = [m.value for m in marks(folder)]
    assert len(values) == len(set(values))


def marks(folder: Path) -> list[BestValue]:
    found = []
    for name in list_checkpoints(folder):
        with open_checkpoint(name.path) as checkpoint:
            found += [checkpoint.manifest.best] if checkpoint.manifest.best is not None else []
    return found


def test_a_run_that_begins_anew_in_the_folder_has_a_best_one_of_its_own(tmp_path: Path) -> None:
    first = trained(tmp_path)
    again = trained(
        tmp_path,
        ("checkpoint.resume", "never"),
        ("table.optimizer.lr", 0.001),
        ("train.epochs", 2),
    )
    assert again.best["value"] < first.best["value"]
    assert choose_checkpoint(tmp_path, best=True) == Path(again.best["path"])
    # Another metric has values of its own, too.
    other = trained(tmp_path, ("train.metric", "cross_entropy"), ("train.epochs", 3))
    assert other.best["metric"] == "cross_entropy"
    assert choose_checkpoint(tmp_path, best=True) == Path(other.best["path"])


def test_values_on_other_data_do_not_count(tmp_path: Path) -> None:
    rows = [f"{i % 7},{i % 5},{int(i % 7 > 3)}" for i in range(210)]
    for name, part in (("train", rows), ("test", rows[:70]), ("other", rows[:60])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,y", *part]) + "\n")
    folder = tmp_path / "model"
    pairs: list[tuple[str, Any]] = [
        ("data.train", str(tmp_path / "train.csv")),
        ("data.test", str(tmp_path / "test.csv")),
        ("train.metric", "log_loss"),
        ("train.patience", 3),
    ]
    first = trained(folder, *pairs, ("train.epochs", 3))
    assert marks(folder)[-1].data == "test: test.csv, 70 samples"
    # With validation data, the test data has no part in the choice, and the patience begins anew.
    more = [("data.validation", str(tmp_path / "other.csv")), ("train.epochs", 5)]
    moved = trained(folder, *pairs, ("table.optimizer.lr", 1e-9), *more)
    assert moved.best["value"] != first.best["value"]
    assert moved.best["epoch"] >= 3
    own = marks(folder)[-1]
    assert (own.value, own.data) == (moved.best["value"], "validation: other.csv, 60 samples")
    assert choose_checkpoint(folder, best=True) == Path(moved.best["path"])
    assert moved.test_epoch == moved.best["epoch"]


def test_with_early_stopping_the_best_one_is_that_of_the_patience(tmp_path: Path) -> None:
    result = trained(tmp_path, ("train.patience", 2), ("train.epochs", 40))
    assert f"(best {result.best['value']:.4f} after epoch {result.best['epoch']})" in result.stopped
    assert result.epochs == result.best["epoch"] + 2


def test_a_best_one_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from mpips.checkpoint import writer

    calls = 0
    real = writer.write_manifest

    def failing(*given: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise CheckpointError("the disk is full")
        real(*given)

    monkeypatch.setattr(writer, "write_manifest", failing)
    result = trained(tmp_path, ("checkpoint.keep_last", 99))
    assert "the disk is full; training continues" in capfd.readouterr().err
    saved = marks(tmp_path)
    # Each one is better than those before it; the second one is missing.
    accuracies = [row["accuracy"] for row in result.history]
    better = [v for i, v in enumerate(accuracies) if v > max(accuracies[:i], default=0.0)]
    assert [m.value for m in saved] == [better[0], *better[2:]]


def write_marked(folder: Path, copy_of: Path, step: int, **changes: Any) -> None:
    """Copy a checkpoint to another step, with another manifest."""
    import shutil

    import msgspec

    from mpips.checkpoint.manifest import MANIFEST, encode

    path = folder / f"step-{step:012d}"
    shutil.copytree(copy_of, path)
    with open_checkpoint(copy_of) as checkpoint:
        manifest = msgspec.structs.replace(checkpoint.manifest, step=step, **changes)
    (path / MANIFEST).write_bytes(encode(manifest, "0.2.0"))


@pytest.mark.parametrize(
    ("values", "chosen"),
    [
        # (metric, value, run), the oldest first
        ([("auc", 0.5, "a"), ("auc", 0.7, "a"), ("auc", 0.6, "a")], 1),
        ([("auc", 0.7, "a"), ("auc", 0.7, "a")], 1),
        ([("rmse", 0.7, "a"), ("rmse", 0.9, "a")], 0),
        ([("auc", 0.9, "a"), ("rmse", 0.9, "a"), ("rmse", 1.0, "a")], 1),
        ([("auc", 0.9, "a"), ("auc", 0.5, "b")], 1),
        # Values on other data than the newest one do not count, but for those on unknown data.
        ([("auc", 0.9, "a", "test: t"), ("auc", 0.5, "a", "validation: v")], 1),
        ([("auc", 0.9, "a", "v"), ("auc", 0.5, "a", "v")], 0),
        ([("auc", 0.9, "a"), ("auc", 0.5, "a", "v")], 0),
        ([("auc", 0.9, "a"), ("", 0.5, "b")], None),
        ([("auc", 0.9, "a"), ("", 0.5, "a")], 0),
        ([("", 0.9, "a")], None),
    ],
)
def test_the_best_of_a_folder(
    tmp_path: Path, values: list[tuple[Any, ...]], chosen: int | None
) -> None:
    trained(tmp_path / "one", ("train.epochs", 1), ("checkpoint.keep_best", False))
    source = list_checkpoints(tmp_path / "one")[0].path
    folder = tmp_path / "all"
    folder.mkdir()
    for i, (metric, value, run, *data) in enumerate(values):
        best = BestValue(
            metric=metric, value=value, higher=metric == "auc", epoch=i + 1, data="".join(data)
        )
        write_marked(folder, source, i + 1, best=best if metric else None, run_id=run, generation=i)
    found = order(folder).best
    assert (found.step - 1 if found is not None else None) == chosen
    stays = set(retain(folder, Retention(1)).remaining)
    newest = f"step-{len(values):012d}"
    assert stays == {newest} | ({f"step-{chosen + 1:012d}"} if chosen is not None else set())


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda f: mpips.load(f, best=True), "has no best checkpoint; train with checkpoint.keep"),
        (
            lambda f: mpips.load(list_checkpoints(f)[0].path, best=True),
            "is one checkpoint; the best one is chosen among those of a run",
        ),
        (lambda f: trained(f, ("data.test", "")), "keep_best = true watches a metric of the test"),
        (lambda f: trained(f, ("table.backup", 1)), "does not work with backup workers"),
        (lambda f: trained(Path(), ("checkpoint.folder", "")), "needs a folder for checkpoints"),
        (lambda f: trained(f, ("train.metric", "auc")), "train.metric = 'auc': the metrics of"),
    ],
)
def test_what_has_no_best_checkpoint_is_refused(
    tmp_path: Path, use: Callable[[Path], object], message: str
) -> None:
    trained(tmp_path, ("train.epochs", 1), ("checkpoint.keep_best", False))
    with pytest.raises(ConfigError, match=message):
        use(tmp_path)


def test_fit_has_the_best_model(tmp_path: Path) -> None:
    found = mpips.fit(
        "mlp",
        "digits",
        epochs=6,
        batch_size=160,
        lr=0.08,
        keep_best=True,
        settings={"train.metric": "accuracy"},
    )
    assert found.best is not None
    assert (found.best["value"], found.best["epoch"]) == best_of(found.history)
    assert found.best_model.evaluate("digits")["accuracy"] == found.best["value"]
    assert found.model.manifest.step == found.steps > found.best_model.manifest.step
    assert mpips.fit("mlp", "digits", epochs=1).best is None
