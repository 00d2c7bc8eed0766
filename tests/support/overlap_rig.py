"""A small network and its optimizer, for tests of gradients that leave while backward runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import SGD


def net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.ReLU(), nn.Linear(3, 2))


def sgd(model: nn.Module) -> SGD:
    return SGD(model.parameters(), 0.5, momentum=0.9)


def plain_step(model: nn.Module, optimizer: Any, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
