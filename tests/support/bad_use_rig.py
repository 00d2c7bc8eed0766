"""Wrong uses of mpips.torch: a small model, a training step, and the error that a test expects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from mpips.errors import ConfigError


def pair(*shape: int) -> tuple[nn.Module, Any]:
    model = nn.Linear(*(shape or (2, 1)))
    return model, SGD(model.parameters(), 0.1)


def fails(match: str) -> Any:
    """Expect a ConfigError whose message matches."""
    return pytest.raises(ConfigError, match=match)


def step(model: nn.Module, optimizer: Any) -> None:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
