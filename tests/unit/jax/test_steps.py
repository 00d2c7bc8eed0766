"""Steps of a JAX script: restarts, keys, and the end of the script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from script_rig import script_job, wait_for_checkpoint

pytest.importorskip("jax", reason="jax is not installed")

import jax
import jax.numpy as jnp

import mpips
import mpips.jax
from mpips.errors import ConfigError
from mpips.snapshot import cut


@pytest.fixture(autouse=True)
def _planned_by_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan a checkpoint some clocks ahead, however fast the script is, so that none is left out."""
    monkeypatch.setattr(cut, "_MARGIN_S", 0.0)


class CrashError(Exception):
    """The end of a script in the middle."""


def train(crash_at: int = -1, folder: Path | None = None) -> tuple[list[int], list[Any]]:
    """Train with noise of each step's key; return the steps that were made, and the values."""
    made: list[int] = []
    options: dict[str, Any] = {"save": folder, "every_steps": 3} if folder else {}
    with script_job(seed=4, **options) as script:
        model = mpips.jax.declare({"w": jnp.zeros(3)}, optimizer=mpips.Adam(0.1))
        items = mpips.jax.embedding("items", 2, optimizer=mpips.Adagrad(0.1))
        for step in range(mpips.jax.steps(), 12):
            if step == crash_at:
                raise CrashError
            model.set_optimizer(mpips.Adam(0.1 / (1 + step // 2 % 3)))
            model.push({"w": jax.random.normal(mpips.jax.key(), 3) + model.pull()["w"]})
            found = items.pull(np.arange(step, step + 3))
            found.push(jnp.ones_like(found.rows))
            mpips.jax.step()
            made.append(step)
            if folder and (step + 1) % 3 == 0:
                wait_for_checkpoint(script, folder, step + 1, "w")
        rows = items.pull(np.arange(15))
        return made, [np.asarray(model.pull()["w"]), np.asarray(rows.rows)]


def test_a_restart_continues_at_its_step_with_the_bits_of_an_undisturbed_run(
    tmp_path: Path,
) -> None:
    made, wanted = train()
    assert made == list(range(12))
    with pytest.raises(CrashError):
        train(crash_at=7, folder=tmp_path)
    made, found = train(folder=tmp_path)
    assert made == list(range(6, 12))
    for got, value in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, value)


def test_keys_depend_on_seed_and_step() -> None:
    def keys(seed: int) -> list[bytes]:
        found = []
        with script_job(seed=seed):
            mpips.jax.declare({"w": jnp.zeros(1)}, optimizer=mpips.SGD(1.0))
            for _ in range(3):
                found.append(np.asarray(jax.random.key_data(mpips.jax.key())).tobytes())
                mpips.jax.step()
        return found

    assert keys(1) == keys(1)
    assert len({*keys(1), *keys(2)}) == 6


def test_a_push_without_a_step_at_the_end_is_refused() -> None:
    def script() -> None:
        with script_job():
            model = mpips.jax.declare({"w": jnp.zeros(1)}, optimizer=mpips.SGD(1.0))
            model.push({"w": jnp.ones(1)})

    with pytest.raises(ConfigError, match=r"ended after a push without mpips\.jax\.step"):
        script()


def test_a_checkpoint_of_another_library_is_refused(tmp_path: Path) -> None:
    def main(worker: mpips.Worker) -> None:
        worker.set_cursor({"mine": 1})
        worker.table("w").push(np.ones(3, np.float32))
        worker.clock()

    mpips.run(
        main, [mpips.DenseTable("w", (3,), optimizer=mpips.SGD(1.0))], save=tmp_path, verbose=False
    )

    def script() -> None:
        with script_job(save=tmp_path):
            mpips.jax.declare({"w": jnp.zeros(3)}, optimizer=mpips.SGD(1.0)).pull()

    with pytest.raises(ConfigError, match=r"script without mpips\.jax"):
        script()


def test_steps_of_all_workers_are_compared_at_the_end():
    found: list[tuple[str, int]] = []
    with script_job() as script:
        script.compare_steps = lambda *counted: found.append(counted[:2])  # type: ignore[method-assign]
        model = mpips.jax.declare({"w": jnp.zeros(3)}, optimizer=mpips.SGD(0.1))
        for step in range(4):
            if step != 2:
                model.push({"w": jnp.ones_like(model.pull()["w"])})
            mpips.jax.step()
    assert found == [("the end of the script", 4)]


def test_a_cursor_has_the_released_format():
    with script_job() as script:
        mpips.jax.declare({"w": jnp.zeros(3)}, optimizer=mpips.SGD(0.1))
        for _ in range(3):
            mpips.jax.step()
        assert script.worker is not None
        assert script.worker.cursor == {"jax": 1, "steps": 3}
