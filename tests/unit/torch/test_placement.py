"""`prepare(..., placement="replicated")`: workers hold the parameters; the bits are those of servers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch_rig import torch_job, values_of

import mpips
from mpips.errors import ConfigError
from mpips.torch import Embedding, prepare


class Model(nn.Module):
    """Parameters of several sizes, one of them frozen, batch norm and an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = Embedding(4, optimizer=mpips.SGD(0.5), init="uniform(0.1)")
        self.first = nn.Linear(4, 600)
        self.norm = nn.BatchNorm1d(600)
        self.last = nn.Linear(600, 1)
        self.norm.bias.requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(torch.tanh(self.norm(self.first(self.rows(ids)))))
        return out


def train(placement: Any, **options: Any) -> tuple[dict[str, torch.Tensor], dict[str, list[str]]]:
    """Train some steps; return the values and the paths of the tables' updates."""
    torch.manual_seed(2)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    scheduler = StepLR(optimizer, 3, 0.5)
    with torch_job() as job:
        prepare(model, optimizer, scheduler=scheduler, placement=placement, **options)
        for step in range(10):
            optimizer.zero_grad()
            model(torch.arange(step, step + 16)).square().mean().backward()
            optimizer.step()
            scheduler.step()
        found = values_of(model)
        assert job.worker is not None
        names = ["first.weight", "last.bias", "norm.bias", "norm.running_mean"]
        paths = {name: job.worker.table(name).paths for name in names}
    return found, paths


@pytest.mark.parametrize("overlap", [False, True])
def test_parameters_on_workers_have_the_bits_of_parameters_on_servers(overlap: bool) -> None:
    served, paths = train("servers", overlap=overlap)
    assert paths["first.weight"] == ["shared"]
    # With one process there is nothing to choose.
    chosen, paths = train("auto", overlap=overlap)
    assert all(torch.equal(served[name], chosen[name]) for name in served)
    assert paths["first.weight"] == ["shared"]
    copied, paths = train(mpips.Replicated(check_every=2), overlap=overlap)
    assert list(served) == list(copied)
    assert all(torch.equal(served[name], copied[name]) for name in served)
    assert paths == {
        "first.weight": ["replicated"],
        "last.bias": ["replicated"],
        "norm.bias": ["replicated"],
        "norm.running_mean": ["shared"],  # buffers are on servers
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"consistency": "asp"}, "prepare: a replicated table needs consistency BSP"),
        ({"placement": "here"}, "prepare: placement = 'here': must be 'servers', 'replicated'"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch_job(), pytest.raises(ConfigError, match=message):
        prepare(model, optimizer, **{"placement": "replicated", **options})
