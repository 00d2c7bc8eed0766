"""`prepare(..., compression=...)`: a model trains with encoded gradients and values."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn
from torch_rig import torch_job

import mpips
from mpips.errors import ConfigError
from mpips.torch import EmbeddingBag, prepare


class Model(nn.Module):
    """Rows of 32 values, and two layers."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.rows = EmbeddingBag(32, optimizer=mpips.Adagrad(0.1), init="normal(0.1)", **options)
        self.first = nn.Linear(32, 40)
        self.last = nn.Linear(40, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(torch.tanh(self.first(self.rows(ids))))
        return out


def losses(rows: dict[str, Any], **options: Any) -> tuple[list[float], dict[str, list[str]]]:
    """Train 60 steps; return the losses and the paths of the updates of dense tables."""
    torch.manual_seed(3)
    model = Model(**rows)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    found = []
    with torch_job() as job:
        prepare(model, optimizer, **options)
        for _ in range(60):
            ids = torch.arange(64).reshape(16, 4) * 7 % 50
            target = (ids.float().mean(1, keepdim=True) > 24).float()
            optimizer.zero_grad()
            loss = (model(ids) - target).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        assert job.worker is not None
        paths = {name: job.worker.table(name).paths for name in ("first.weight", "last.bias")}
    return found, paths


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("codec", ["bf16", "fp16", "int8"])
def test_a_model_with_a_codec_trains_like_one_without(codec: str, overlap: bool) -> None:
    plain, paths = losses({}, overlap=overlap)
    assert paths["first.weight"] == ["shared"]
    pull = "int8" if codec == "int8" else "bf16"
    both = {"compression": codec, "pull_compression": pull}
    found, paths = losses(both, overlap=overlap, **both)
    assert set(map(tuple, paths.values())) == {("encoded",)}
    assert found != plain
    assert found[-1] < 0.2 * found[0]
    assert abs(found[-1] - plain[-1]) < 0.05 * plain[0]
    # The rounding of a run is repeatable.
    assert losses(both, overlap=overlap, **both)[0] == found


@pytest.mark.parametrize("stream", [None, 1])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_model_trains_with_a_copy_that_follows_by_differences(
    stream: int | None, overlap: bool
) -> None:
    options = {"pull_compression": "onebit", "stream": stream}
    if not stream:
        options["overlap"] = overlap
    plain = losses({}, overlap=True)[0]
    found = losses({}, **options)[0]
    assert found[0] == plain[0]  # the first pull is that of the values
    assert found != plain
    assert found[-1] < 0.2 * found[0]
    assert losses({}, overlap=True, pull_compression="onebit")[0] == found


@pytest.mark.parametrize("stream", [None, 1])
def test_streamed_models_receive_rounded_values_too(stream: int | None) -> None:
    both = {"compression": "int8", "pull_compression": "bf16"}
    # A streamed model pushes with overlap from the first step on.
    found = losses(both, stream=stream, **({} if stream else {"overlap": True}), **both)[0]
    assert found == losses(both, overlap=True, **both)[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression": "int4"}, "prepare: unknown compression 'int4'"),
        ({"pull_compression": "fp16"}, "prepare: pull_compression = 'fp16': must be"),
        (
            {"compression": "bf16", "placement": "replicated"},
            "compression = Bf16.* with placement = 'replicated'",
        ),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch_job(), pytest.raises(ConfigError, match=message):
        prepare(model, optimizer, **options)
