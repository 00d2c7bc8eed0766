"""States that handlers of signals and of exceptions read."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch_rig import torch_job

import mpips.torch
from mpips.errors import ConfigError
from mpips.torch.parameters import ParameterTable
from mpips.worker.dense import DenseHandle
from mpips.worker.worker import Worker


def prepared() -> tuple[Any, Any]:
    model = torch.nn.Linear(2, 1)
    return mpips.torch.prepare(model, torch.optim.Adam(model.parameters(), 0.1))


def step(model: Any, optimizer: Any, factor: float = 1.0) -> None:
    optimizer.zero_grad()
    (model(torch.ones(1, 2)).sum() * factor).backward()
    optimizer.step()


@pytest.fixture
def on_signal() -> Iterator[Callable[[Any], None]]:
    """Set a handler of SIGUSR2 within a test."""
    before = signal.getsignal(signal.SIGUSR2)
    yield lambda call: signal.signal(signal.SIGUSR2, lambda *_: call())
    signal.signal(signal.SIGUSR2, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGUSR2)


@pytest.mark.parametrize(
    "where", [(Worker, "clock"), (DenseHandle, "push"), (ParameterTable, "_note_change")]
)
@pytest.mark.parametrize("of", ["model", "optimizer"])
def test_a_handler_within_a_call_of_mpips_is_refused_and_the_script_goes_on(
    monkeypatch: pytest.MonkeyPatch, on_signal: Any, where: tuple[Any, str], of: str
) -> None:
    found: list[str] = []
    with torch_job() as script:
        model, optimizer = prepared()
        read = {"model": model, "optimizer": optimizer}[of].state_dict

        def save() -> None:
            with pytest.raises(ConfigError) as error:
                read()
            found.append(str(error.value))

        on_signal(save)
        step(model, optimizer)
        original = getattr(*where)

        # A function of the module of the method, which a signal interrupts.
        code = "def call(*a, **n):\n    interrupt()\n    return original(*a, **n)"
        names: dict[str, Any] = {
            "__name__": where[0].__module__,
            "interrupt": interrupt,
            "original": original,
        }
        exec(code, names)
        monkeypatch.setattr(*where, names["call"])
        step(model, optimizer)
        model.state_dict()
        monkeypatch.undo()
        assert optimizer.state_dict()["state"][0]["step"] == 2
    assert script.worker is not None
    assert found
    assert all(one.startswith(f"{of}.state_dict() was called by a handler") for one in found)


def test_a_handler_between_calls_has_the_state_of_the_newest_step(on_signal: Any) -> None:
    found: list[Any] = []
    with torch_job():
        model, optimizer = prepared()
        on_signal(
            lambda: found.append((model.state_dict(), optimizer.state_dict()["state"][0]["step"]))
        )
        step(model, optimizer)
        interrupt()
        assert found[0][1] == 1
        assert torch.equal(found[0][0]["weight"], model.weight)


def test_the_state_behind_a_step_that_failed_is_that_before_it() -> None:
    with torch_job():
        model, optimizer = prepared()
        step(model, optimizer)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with pytest.raises(ValueError, match="nan"):
            step(model, optimizer, float("nan"))
        assert optimizer.state_dict()["state"][0]["step"] == 1
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name])
