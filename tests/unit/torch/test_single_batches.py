"""A torch script that counts steps and takes batches one by one, and is run again after an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")
pytest.importorskip("h5py", reason="checkpoints need h5py")

import torch
from script_rig import wait_for_checkpoint
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset
from torch_rig import State, assert_equal, torch_job, values_of

import mpips
from mpips.snapshot import cut
from mpips.torch import prepare

N_BATCHES, N_STEPS = 4, 14


class CrashError(Exception):
    """The end of a script in the middle."""


@pytest.fixture(autouse=True)
def _planned_by_clocks(monkeypatch):
    """Plan a checkpoint some clocks ahead, however fast the script is, so that none is left out."""
    monkeypatch.setattr(cut, "_MARGIN_S", 0.0)


def from_generator(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


class Again(Iterator[Any]):
    """Begins the next epoch once where one ends, as many scripts do."""

    def __init__(self, loader: Any) -> None:
        self._loader, self._batches = loader, iter(loader)

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            self._batches = iter(self._loader)
            return next(self._batches)


def run(make: Any, crash_at: int = -1, **options: Any) -> tuple[list[int], State]:
    """Return the steps that were made, and the values at the end."""
    made = []
    with torch_job(seed=4, **options) as script:
        torch.manual_seed(1)
        model: Any = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
        data = TensorDataset(torch.arange(16.0).reshape(8, 2))
        model, optimizer, loader = prepare(
            model, SGD(model.parameters(), 0.01), DataLoader(data, batch_size=2, shuffle=True)
        )
        batches = make(loader)
        for step in range(mpips.torch.steps(), N_STEPS):
            (x,) = next(batches)
            if "save" in options and step and step % 5 == 0:
                wait_for_checkpoint(script, options["save"], step, "0.weight")
            if step == crash_at:
                raise CrashError
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            made.append(step)
        return made, values_of(model)


@pytest.mark.parametrize("crash_at", [6, 11, 13])
def test_a_generator_of_single_batches_passes_complete_epochs(tmp_path, crash_at):
    _, expected = run(from_generator)
    with pytest.raises(CrashError):
        run(from_generator, crash_at, save=tmp_path, every_steps=5)
    made, found = run(from_generator, save=tmp_path, every_steps=5)
    assert made == list(range(crash_at // 5 * 5, N_STEPS))
    assert_equal(found, expected)


def test_a_script_that_passes_one_end_alone_meets_a_message_in_the_second_complete_epoch(tmp_path):
    with pytest.raises(CrashError):
        run(Again, 11, save=tmp_path, every_steps=5)
    with pytest.raises(
        StopIteration, match=r"^epoch 1 of the loader was complete before the restart"
    ):
        run(Again, save=tmp_path, every_steps=5)
