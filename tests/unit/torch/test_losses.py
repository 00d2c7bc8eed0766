"""Losses that are noted on a device: copies, which are read only when a report is due."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch

from mpips.torch.losses import WaitingLosses, term_of


def test_a_loss_on_a_device_is_a_copy_since_its_memory_may_be_written_again() -> None:
    class OnDevice:
        """A scalar that claims to be on a device."""

        device = torch.device("cuda")

        def __init__(self, value: torch.Tensor) -> None:
            self.detach = value.detach

    buffer = torch.tensor([3.0], requires_grad=True)
    term: Any = term_of(OnDevice(buffer))  # type: ignore[arg-type]
    with torch.no_grad():
        buffer.fill_(9.0)
    assert (term.item(), term.shape, term.requires_grad) == (3.0, (), False)


def test_losses_on_a_device_are_read_when_a_report_is_due() -> None:
    waiting = WaitingLosses()
    losses = [torch.tensor(float(i)) for i in range(1, 4)]
    for loss in losses:
        waiting.add([loss, loss.half(), 0.5])
    assert waiting.n_steps == 3
    assert waiting.read() == ((1 + 1 + 0.5) + (2 + 2 + 0.5) + (3 + 3 + 0.5)) / 3
    assert (waiting.n_steps, waiting.read()) == (0, None)
