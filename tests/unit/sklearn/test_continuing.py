"""Restarts of scripts with fits: they continue in the fit, the epoch and at the batch of the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from script_rig import script_job, wait_for_checkpoint

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

import mpips
from mpips.errors import ConfigError
from mpips.session.script import Script
from mpips.sklearn import MpipsClassifier, MpipsRegressor
from mpips.sklearn.training import LOSSES, Training
from mpips.snapshot import cut
from mpips.worker.worker import Worker

pytestmark = pytest.mark.filterwarnings("ignore:max_iter = .* epochs")
N_STEPS = 3 * 4 + 3 * 4 + 5 * 2


class CrashError(Exception):
    """The end of a script in the middle."""


@pytest.fixture(autouse=True)
def _planned_by_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan a checkpoint some clocks ahead, however fast the script is, so that none is left out."""
    monkeypatch.setattr(cut, "_MARGIN_S", 0.0)


def run(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path | None = None,
    crash: int = 0,
    alpha: float = 0.01,
    other: bool = False,
) -> tuple[int, list[Any]]:
    """Run the script; return the number of its steps, and values and losses of its fits.

    Args:
        monkeypatch: Counts steps.
        folder: Folder for checkpoints, of which there is one at each third clock.
        crash: The step at which the script crashes, before its pushes.
        alpha: Parameter of the first fit.
        other: The script ends with another fit.
    """
    step, clock = Training._step, Worker.clock
    made = [0]

    def counted(self: Training, epoch: int, samples: Any) -> None:
        made[0] += 1
        if made[0] == crash:
            raise CrashError
        step(self, epoch, samples)

    def waiting(self: Worker) -> None:
        clock(self)
        now = self.now + (self.start.step if self.start else 0)
        if folder and now % 3 == 0:
            wait_for_checkpoint(script, folder, now, LOSSES)

    monkeypatch.setattr(Training, "_step", counted)
    monkeypatch.setattr(Worker, "clock", waiting)
    options: dict[str, Any] = {"save": folder, "every_steps": 3} if folder else {}
    rng = np.random.default_rng(1)
    x = rng.normal(size=(32, 5)).astype(np.float32)
    y = x[:, 0] + x[:, 1] * x[:, 2]
    script: Script
    try:
        with script_job(**options) as script:
            first = MpipsClassifier((6,), alpha=alpha, batch_size=9, max_iter=3).fit(x, y > 0)
            online = MpipsRegressor(optimizer="momentum", batch_size=8)
            for _ in range(3):
                online.partial_fit(x, y)
            # It ends after five epochs of six: with this rate its loss does not fall.
            named: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 1e-9, "tol": 0.1}
            if other:
                named["alpha"] = 0.5
            last = MpipsRegressor(**named, n_iter_no_change=4, max_iter=6, batch_size=16).fit(x, y)
            values = [
                *first.coefs_,
                *first.intercepts_,
                first.loss_curve_,
                online.coef_,
                online.intercept_,
                online.loss_curve_,
                last.coef_,
                last.loss_curve_,
            ]
    finally:
        monkeypatch.undo()
        monkeypatch.setattr(cut, "_MARGIN_S", 0.0)
    return made[0], values


def assert_equal(found: list[Any], wanted: list[Any]) -> None:
    for mine, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, other)


# The newest checkpoint before a crash is that of clock 3 * ((crash - 1) // 3): within the first fit, at the
# end of an epoch (8), at the end of a fit (12, with the crash at 13), within and between calls of
# partial_fit (16, 24), and in the last fit.
@pytest.mark.parametrize("crash", [5, 9, 13, 18, 25, 34])
def test_a_restart_has_the_bits_of_an_undisturbed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: int
) -> None:
    n_steps, wanted = run(monkeypatch)
    assert n_steps == N_STEPS
    with pytest.raises(CrashError):
        run(monkeypatch, tmp_path, crash)
    n_steps, found = run(monkeypatch, tmp_path)
    assert n_steps == N_STEPS - 3 * ((crash - 1) // 3)
    assert_equal(found, wanted)


def test_a_run_that_is_complete_trains_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, wanted = run(monkeypatch, tmp_path)
    n_steps, found = run(monkeypatch, tmp_path)
    assert n_steps == 0
    assert_equal(found, wanted)


@pytest.mark.parametrize("change", [{"alpha": 0.02}, {"other": True}])
def test_a_restart_of_another_script_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    run(monkeypatch, tmp_path)
    number = 1 if "alpha" in change else 5
    with pytest.raises(ConfigError, match=rf"fit {number} of this script has other data or param"):
        run(monkeypatch, tmp_path, **change)


def test_a_checkpoint_of_another_library_is_refused(tmp_path: Path) -> None:
    def other() -> None:
        with script_job(save=tmp_path) as script:
            rules = "sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam"
            for name in rules:
                rate = {"adam": 0.01, "momentum": 0.01, "nesterov": 0.01, "rmsprop": 0.01}
                rule = {"name": name, "lr": rate.get(name, 0.1)}
                script.declare(mpips.EmbeddingTable(f"sklearn.{name}", 128, optimizer=rule))
            reduce = mpips.BSP(reduce="sum")
            script.declare(
                mpips.EmbeddingTable(LOSSES, 1, optimizer=mpips.SGD(1.0), consistency=reduce)
            )
            worker = script.start()
            worker.set_cursor({"other": 1})
            worker.clock()

    other()

    def again() -> None:
        with script_job(save=tmp_path):
            MpipsRegressor().fit(np.eye(3), np.arange(3))

    with pytest.raises(ConfigError, match=r"the checkpoint is of a script without mpips.sklearn"):
        again()


def test_a_cursor_has_the_released_format():
    with script_job() as script:
        x = np.ones((8, 2), np.float32)
        for n_epochs in (2, 3):
            MpipsRegressor(max_iter=n_epochs, batch_size=4).fit(x, x[:, 0])
        assert script.worker is not None
        assert script.worker.cursor == {"sklearn": 1, "fit": 2, "place": [3, 0, 0]}
