"""A training of plain torch goes on in a job: servers begin with the moments that the optimizer has."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop
from torch_rig import batches, relative, torch_job

from mpips.errors import ConfigError
from mpips.torch import prepare

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


@pytest.mark.parametrize("placement", ["servers", "replicated"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_job_goes_on_with_the_moments_of_torch(name, placement):
    make = OPTIMIZERS[name]
    plain = Net()
    own = make(plain.parameters())
    train(plain, own, 0, 4)
    state, moments = copy.deepcopy((plain.state_dict(), own.state_dict()))
    train(plain, own, 4, 8)
    expected = plain.state_dict()
    found = []
    for given in (moments, None):
        with torch_job():
            model, optimizer = prepare(*loaded(make, state, given), placement=placement)
            assert not optimizer.state_dict()["state"]
            train(model, optimizer, 4, 8)
            values = {key: one.clone() for key, one in model.state_dict().items()}
        found.append(max(relative(values[key], one) for key, one in expected.items()))
    assert found[0] <= 1e-5
    assert found[1] >= 1e-2


def test_a_restart_has_the_moments_of_the_run(tmp_path):
    pytest.importorskip("h5py", reason="checkpoints need h5py")
    make = OPTIMIZERS["adam"]
    plain = Net()
    own = make(plain.parameters())
    train(plain, own, 0, 3)
    state, moments = copy.deepcopy((plain.state_dict(), own.state_dict()))
    train(plain, own, 3, 8)
    for first, stop in ((3, 5), (5, 8)):
        with torch_job(save=tmp_path):
            model, optimizer = prepare(*loaded(make, state, moments))
            train(model, optimizer, first, stop)
            values = {key: one.clone() for key, one in model.state_dict().items()}
    for key, one in plain.state_dict().items():
        assert relative(values[key], one) <= 1e-5, key


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: s.pop("exp_avg_sq"), "'exp_avg_sq' of the parameter 'first.weight' is missing"),
        (
            lambda s: s.update(exp_avg=torch.zeros(3)),
            r"'exp_avg' of the parameter 'first.weight' is of shape \(3,\): must be a tensor",
        ),
    ],
)
def test_state_that_does_not_fit_is_refused_before_anything_changes(change, sentence):
    model = Net()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    train(model, optimizer, 0, 1)
    change(optimizer.state[model.first.weight])
    with torch_job():
        with pytest.raises(ConfigError, match=sentence):
            prepare(model, optimizer)
        assert type(model) is Net
        assert optimizer.state
