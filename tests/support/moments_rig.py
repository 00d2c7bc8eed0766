"""Optimizers of torch whose state moves between plain scripts and jobs, and a model for them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop
from torch_rig import batches

OPTIMIZERS = {
    "momentum": lambda p: SGD(p, 0.05, momentum=0.9),
    "nesterov": lambda p: SGD(p, 0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: Adam(p, 0.05, betas=(0.8, 0.9)),
    "adamw": lambda p: AdamW(p, 0.05),
    "adagrad": lambda p: Adagrad(p, 0.1),
    "rmsprop": lambda p: RMSprop(p, 0.02),
}


class Net(nn.Module):
    """A model with a scalar, and with a parameter that never has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 1)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x))) * self.scale


def train(model: nn.Module, optimizer: Any, first: int, stop: int) -> None:
    for x in batches(8, 5, 4)[first:stop]:
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()


def loaded(make: Any, state: dict[str, Any], moments: dict[str, Any] | None) -> Any:
    model = Net()
    model.load_state_dict(state)
    optimizer = make(model.parameters())
    if moments is not None:
        optimizer.load_state_dict(copy.deepcopy(moments))
    return model, optimizer
