"""Restarts of Keras scripts: they continue in the fit, the epoch and at the batch of the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_rig import data, keras, make_model, weights
from script_rig import script_job, wait_for_checkpoint

import mpips
import mpips.keras
from mpips.errors import ConfigError
from mpips.keras.job import KerasJob
from mpips.session.script import Script
from mpips.snapshot import cut


@pytest.fixture(autouse=True)
def _planned_by_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan a checkpoint some clocks ahead, however fast the script is, so that none is left out."""
    monkeypatch.setattr(cut, "_MARGIN_S", 0.0)


class CrashError(Exception):
    """The end of a script in the middle."""


class Steps(keras.callbacks.Callback):
    """Notes the steps and epochs that are made, and crashes."""

    def __init__(self, crash: str) -> None:
        super().__init__()
        self.crash = crash
        self.made: list[str] = []
        self.fit = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self.fit += 1

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        step = mpips.keras.steps()
        self.note(f"{step}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.note(f"{self.fit}:{epoch}")

    def note(self, what: str) -> None:
        if what == self.crash:
            raise CrashError
        self.made.append(what)


def waiting_for_checkpoints(script: Script, folder: Path) -> None:
    """Let each third clock end when its checkpoint is complete."""
    job = KerasJob.of_script("a test")
    settle = job.settle

    def waiting() -> None:
        was_open = job.is_open
        settle()
        assert script.worker is not None
        start = script.worker.start
        clock = script.worker.now + (start.step if start else 0)
        if was_open and clock % 3 == 0:
            wait_for_checkpoint(script, folder, clock, "net.last.bias")

    job.settle = waiting  # type: ignore[method-assign]


def train(crash: str = "", folder: Path | None = None, epochs: int = 3) -> Any:
    """Two fits with dropout and moving rates; return what was made, the values, the last logs, the clocks."""
    options: dict[str, Any] = {"save": folder, "every_steps": 3} if folder else {}
    x, y = data()
    with script_job(seed=4, **options) as script:
        layers = keras.layers.Dropout(0.4), keras.layers.BatchNormalization()
        model = mpips.keras.prepare(make_model(keras.optimizers.Adam(0.02), *layers))
        if folder:
            waiting_for_checkpoints(script, folder)
        steps = Steps(crash)
        rate = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7)
        for count in (2, epochs):
            found = model.fit(x, y, batch_size=13, epochs=count, verbose=0, callbacks=[rate, steps])
        assert script.worker is not None
        start = script.worker.start
        clocks = script.worker.now + (start.step if start else 0)
        return (
            steps.made,
            weights(model),
            {name: x[-1:] for name, x in found.history.items()},
            clocks,
        )


def epochs_of(made: list[str]) -> list[str]:
    return [x for x in made if ":" in x]


# An epoch has four steps and a clock for its metrics, a fit a last clock. Checkpoints are those of each third
@pytest.mark.parametrize(
    ("crash", "epochs"),
    [
        ("5", ["1:1", "2:0", "2:1", "2:2"]),
        ("1:0", ["1:0", "1:1", "2:0", "2:1", "2:2"]),
        ("8", ["1:1", "2:0", "2:1", "2:2"]),
        ("14", ["2:1", "2:2"]),
        ("17", ["2:1", "2:2"]),  # the checkpoint is that of the metrics' clock
        ("2:2", ["2:2"]),
    ],
)
def test_a_restart_has_the_bits_and_the_logs_of_an_undisturbed_run(
    tmp_path: Path, crash: str, epochs: list[str]
) -> None:
    made, wanted, logs, clocks = train()
    assert [x for x in made if ":" not in x] == [str(n) for n in range(20)]
    with pytest.raises(CrashError):
        train(crash, tmp_path)
    made, found, again, ended = train(folder=tmp_path)
    for got, value in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, value)
    assert again == logs
    # One more or fewer on a worker, and its metrics would be in another sum than those of the others.
    assert ended == clocks == 20 + 5 + 2
    assert epochs_of(made) == epochs


class Score(keras.callbacks.Callback):
    """Gives each epoch a score, of which the second is the best."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["score"] = (3.0, 1.0, 2.0, 1.75, 1.5, 1.25, 1.125)[epoch]


def early_stopped(folder: Path, crash: str = "", **stopping: Any) -> tuple[list[str], list[str]]:
    """A fit that ends when three scores were not the best; the epochs made, the files of the best ones."""
    x, y = data()
    with script_job(seed=4, save=folder / "saved", every_steps=3) as script:
        model = mpips.keras.prepare(make_model(keras.optimizers.Adam(0.02)))
        waiting_for_checkpoints(script, folder / "saved")
        steps, watched = Steps(crash), {"monitor": "score", "mode": "min"}
        callbacks = [
            Score(),
            steps,
            keras.callbacks.EarlyStopping(patience=3, **watched, **stopping),
            keras.callbacks.ReduceLROnPlateau(patience=2, factor=0.5, **watched),
            keras.callbacks.ModelCheckpoint(
                folder / "best-{epoch}.keras", save_best_only=True, **watched
            ),
        ]
        model.fit(x, y, batch_size=13, epochs=7, verbose=0, callbacks=callbacks)
        if not stopping:
            assert float(model.optimizer.learning_rate.value) == pytest.approx(0.01, rel=1e-6)
    return epochs_of(steps.made), sorted(path.name for path in folder.glob("best-*"))


@pytest.mark.parametrize("crash", ["1:2", "14", "17"])
def test_callbacks_of_keras_continue_with_their_best_values(tmp_path: Path, crash: str) -> None:
    files = ["best-1.keras", "best-2.keras"]
    whole = tmp_path / "whole"
    whole.mkdir()
    assert early_stopped(whole) == ([f"1:{n}" for n in range(5)], files)
    with pytest.raises(CrashError):
        early_stopped(tmp_path, crash)
    made, found = early_stopped(tmp_path)
    assert (made[-1], found) == ("1:4", files)


def test_a_restart_warns_that_best_weights_are_lost(tmp_path: Path) -> None:
    with pytest.raises(CrashError):
        early_stopped(tmp_path, "14", restore_best_weights=True)
    with pytest.warns(UserWarning, match="begins anew after this restart"):
        made, _ = early_stopped(tmp_path, restore_best_weights=True)
    assert made[-1] == "1:6"


def test_a_run_that_is_complete_trains_no_more(tmp_path: Path) -> None:
    _, wanted, _, clocks = train(folder=tmp_path)
    made, found, _, ended = train(folder=tmp_path)
    for got, value in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, value)
    assert made == []
    assert ended == clocks


@pytest.mark.parametrize("crash", ["2", "9", "12"])
def test_steps_by_hand_before_between_and_behind_fits(tmp_path: Path, crash: str) -> None:
    x, y = data()

    def trained(crash: str = "", folder: Path | None = None) -> tuple[list[Any], list[str]]:
        options: dict[str, Any] = {"save": folder, "every_steps": 3} if folder else {}
        with script_job(seed=4, **options) as script:
            # As many numbers of metrics as a cursor takes.
            metrics = [keras.metrics.SparseCategoricalAccuracy(f"m{i}") for i in range(7)]
            optimizer = keras.optimizers.SGD(0.1, momentum=0.5)
            model = mpips.keras.prepare(make_model(optimizer, metrics=metrics))
            if folder:
                waiting_for_checkpoints(script, folder)
            steps = Steps(crash)

            def by_hand(first: int, last: int) -> None:
                for step in range(max(first, mpips.keras.steps()), last):
                    steps.note(str(step))
                    model.train_on_batch(x[step:], y[step:])

            by_hand(0, 4)
            model.fit(x, y, batch_size=25, epochs=2, verbose=0, callbacks=[steps])
            by_hand(8, 11)
            model.fit(x, y, batch_size=25, epochs=1, verbose=0, callbacks=[steps])
            by_hand(13, 15)
            return weights(model), steps.made

    wanted, made = trained()
    assert [x for x in made if ":" not in x] == [str(n) for n in range(15)]
    with pytest.raises(CrashError):
        trained(crash, tmp_path)
    found, _ = trained(folder=tmp_path)
    for got, value in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, value)


def test_a_checkpoint_of_other_models_is_refused(tmp_path: Path) -> None:
    def main(worker: mpips.Worker) -> None:
        worker.set_cursor({"mine": 1})
        worker.table("net.first.bias").push(np.ones(6, np.float32))
        worker.clock()

    mpips.run(main, [mpips.DenseTable("net.first.bias", (6,))], save=tmp_path, verbose=False)

    def script() -> None:
        with script_job(save=tmp_path):
            model = mpips.keras.prepare(make_model("sgd"))
            model.fit(*data(), verbose=0)

    with pytest.raises((ConfigError, mpips.CheckpointError)):
        script()


def test_steps_of_all_workers_are_compared_at_the_end_of_each_fit_and_of_the_script():
    found: list[tuple[str, int]] = []
    x, y = data()
    with script_job() as script:
        script.compare_steps = lambda *counted: found.append(counted[:2])  # type: ignore[method-assign]
        model = mpips.keras.prepare(make_model(keras.optimizers.SGD(0.02)))
        for _ in range(2):
            model.fit(x, y, batch_size=len(x), epochs=3, verbose=0)
        model.train_on_batch(x, y)
    places = ["the end of fit 1", "the end of fit 2", "the end of the script"]
    assert found == list(zip(places, (3, 6, 7), strict=True))


def test_a_cursor_has_the_released_format():
    with script_job() as script:
        x, y = data()
        model = mpips.keras.prepare(make_model(keras.optimizers.SGD(0.25)))
        model.fit(x, y, batch_size=len(x), epochs=2, verbose=0)
        model.train_on_batch(x, y)
        assert mpips.keras.steps() == 3
        assert script.worker is not None
        found = dict(script.worker.cursor)
        assert [len(states) for states in found.pop("metrics")] == [4]
        assert found == {
            "keras": 1,
            "steps": 3,
            "fit": 1,
            "within": False,
            "epoch": 1,
            "batch": 2,
            "collected": True,
            "rates": [[3, 0.25]],
        }
