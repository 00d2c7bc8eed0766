"""Bags of rows on the servers, against torch.nn.EmbeddingBag."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn
from torch.optim import SGD
from torch_rig import relative, torch_job
from torch_rows import DIM, IDS, N, rows_of

import mpips
from mpips.torch import EmbeddingBag, prepare


@pytest.fixture
def job():
    with torch_job(seed=3) as script:
        yield script


# Places in IDS, options of the layer, offsets.
BAGS: dict[str, tuple[Any, dict[str, Any], list[int] | None]] = {
    "a matrix": ([[0, 1, 1], [2, 0, 3]], {}, None),
    "offsets": ([0, 1, 1, 2, 5], {}, [0, 3]),
    "one bag": ([4, 4, 4], {}, [0]),
    "empty bags": ([0, 1, 1], {}, [0, 0, 2, 2, 3]),
    "only empty bags": ([], {}, [0, 0]),
    "last offset": ([0, 1, 1, 2], {"include_last_offset": True}, [0, 1, 4]),
    "padding": ([[0, 3, 3], [3, 3, 3], [1, 3, 2]], {"padding_idx": 3}, None),
    "padding with offsets": ([0, 3, 3, 1], {"padding_idx": 3}, [0, 1, 3]),
    "absent padding": ([[0, 1, 2]], {"padding_idx": 3}, None),
    "only padding": ([[3, 3]], {"padding_idx": 3}, None),
}


def run_bag(
    layer: nn.Module, step: Any, ids: torch.Tensor, arguments: dict[str, Any]
) -> list[torch.Tensor]:
    """Return the bags and, after a step, the gradient of the weights if there are any."""
    weights = []
    if "per_sample_weights" in arguments:
        weights = [arguments["per_sample_weights"].clone().requires_grad_()]
        arguments["per_sample_weights"] = weights[0]
    found = layer(ids, **arguments)
    (found * torch.arange(found.numel()).view(found.shape)).sum().backward()
    step.step()
    return [found.detach(), *(w.grad for w in weights)]


def check_bag(
    job: Any, mode: str, options: dict[str, Any], at: torch.Tensor, arguments: dict[str, Any]
) -> None:
    own = dict(options)
    if "padding_idx" in own:
        own["padding_idx"] = int(IDS[own["padding_idx"]])
    rule = mpips.SGD(0.5)
    layer, optimizer = prepare(
        EmbeddingBag(DIM, mode=mode, optimizer=rule, init="normal(1)", **own)
    )
    optimizer.step()
    plain = nn.EmbeddingBag(N, DIM, mode=mode, **options)
    with torch.no_grad():
        plain.weight.copy_(rows_of(job))
    for _ in range(3):
        found = run_bag(layer, optimizer, IDS[at], dict(arguments))
        plain.zero_grad()
        expected = run_bag(plain, SGD(plain.parameters(), 0.5), at, dict(arguments))
        for one, other in zip(found, expected, strict=True):
            assert one.shape == other.shape
            assert not other.numel() or relative(one, other) <= 1e-6
        assert relative(rows_of(job), plain.weight.detach()) <= 1e-6


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("name", BAGS)
def test_bags_are_those_of_torch(job, name, mode):
    at, options, offsets = BAGS[name]
    arguments = {} if offsets is None else {"offsets": torch.tensor(offsets)}
    check_bag(job, mode, options, torch.tensor(at, dtype=torch.int64), arguments)


@pytest.mark.parametrize("offsets", [None, [0, 3]], ids=["a matrix", "offsets"])
def test_weighted_bags_are_those_of_torch(job, offsets):
    at, weights = torch.tensor([0, 1, 1, 2, 0, 3]), torch.tensor([1.0, 2.0, -1.0, 0.5, 0.0, 3.0])
    if offsets is None:
        arguments = {"per_sample_weights": weights.view(2, 3)}
        at = at.view(2, 3)
    else:
        arguments = {"per_sample_weights": weights, "offsets": torch.tensor(offsets)}
    check_bag(job, "sum", {}, at, arguments)
