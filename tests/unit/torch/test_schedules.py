"""The schedules of `mpips train` that PyTorch has, too."""

from __future__ import annotations

import pytest

from mpips.config.sections import ScheduleConfig
from mpips.training.rates import factor


def test_cosine_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50, eta_min=0.1)
    schedule, found = ScheduleConfig(name="cosine", end=0.1), []
    for _ in range(50):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert [factor(schedule, i, i / 50) for i in range(50)] == pytest.approx(found, abs=1e-12)
