"""Changes of an optimizer's groups and state after prepare are refused, since servers would not follow."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn

from mpips.errors import ConfigError
from mpips.torch import prepare


def remove(optimizer: Any, model: Any) -> None:
    group = optimizer.param_groups[0]
    group["params"] = [p for p in group["params"] if p is not model[0].weight]


def move(optimizer: Any, model: Any) -> None:
    first, second = optimizer.param_groups
    second["params"].append(first["params"].pop(0))


def add(optimizer: Any, model: Any) -> None:
    optimizer.param_groups[1]["params"].append(nn.Parameter(torch.zeros(2)))


def replace(optimizer: Any, model: Any) -> None:
    optimizer.param_groups[1]["params"][0] = nn.Parameter(torch.zeros(1, 3))


def swap(optimizer: Any, model: Any) -> None:
    first, second = optimizer.param_groups
    first["params"], second["params"] = second["params"], first["params"]


def made() -> tuple[Any, Any]:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    groups = [
        {"params": list(model[0].parameters()), "lr": 1.0},
        {"params": list(model[1].parameters()), "lr": 0.5},
    ]
    return prepare(model, torch.optim.SGD(groups, momentum=0.5))


def step(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (remove, "group 0 were changed after prepare: '0.weight' is not in it any more"),
        (move, "group 0 were changed after prepare: '0.weight' is not in it any more"),
        (swap, "group 0 were changed after prepare: '0.weight' is not in it any more"),
        (add, "group 1 were changed after prepare: it has others now"),
        (replace, "group 1 were changed after prepare: '1.weight' is not in it any more"),
    ],
)
def test_a_changed_group_is_refused_by_name(
    job: Any, change: Callable[[Any, Any], None], what: str
) -> None:
    model, optimizer = made()
    step(model, optimizer)
    change(optimizer, model)
    with pytest.raises(ConfigError, match=what):
        step(model, optimizer)


def test_hyperparameters_and_a_new_list_of_the_same_parameters_are_no_change(job: Any) -> None:
    model, optimizer = made()
    step(model, optimizer)
    for group in optimizer.param_groups:
        group["params"] = list(group["params"])
        group["lr"] *= 0.5
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {}})
    step(model, optimizer)


def clear(optimizer: Any) -> None:
    optimizer.state.clear()


def pop(optimizer: Any) -> None:
    optimizer.state.pop(optimizer.param_groups[0]["params"][0])


def assign(optimizer: Any) -> None:
    optimizer.state = collections.defaultdict(dict)


@pytest.mark.parametrize("reset", [clear, pop, assign])
@pytest.mark.parametrize("loaded", [False, True])
def test_moments_on_servers_cannot_be_reset(
    job: Any, reset: Callable[[Any], None], loaded: bool
) -> None:
    model, optimizer = made()
    step(model, optimizer)
    if loaded:
        optimizer.load_state_dict({**optimizer.state_dict(), "state": {}})
    with pytest.raises(
        ConfigError, match="lies on the servers, so a script cannot reset or replace it"
    ):
        reset(optimizer)
    assert dict(optimizer.state) == {}
    step(model, optimizer)
    # A copy is a plain optimizer of torch, whose state is its own.
    copied = copy.deepcopy(optimizer)
    copied.state.clear()
    copied.state = collections.defaultdict(dict)
