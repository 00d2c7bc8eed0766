"""Models under LocalSGD and DiLoCo: the steps of plain torch, outer steps, evaluation."""

from __future__ import annotations

import pytest
import torch
from torch_rig import pulled, torch_job, values_of

import mpips.torch
from mpips import ConfigError, DelayedNesterov, DiLoCo, LocalSGD, Nesterov


def make() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1))
    return model, torch.randn(16, 5), torch.randn(16, 1)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x, y, n: int) -> None:
    for _ in range(n):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_steps_are_those_of_torch_and_outer_steps_those_of_diloco(asynchronous: bool) -> None:
    plain, x, y = make()
    start = values_of(plain)
    train(plain, torch.optim.SGD(plain.parameters(), 0.1), x, y, 4)
    after = values_of(plain)
    model, x, y = make()
    with torch_job() as script:
        outer = DelayedNesterov(0.5, 0.5) if asynchronous else Nesterov(0.5, 0.5)
        consistency = DiLoCo(4, outer, asynchronous=asynchronous)
        model, optimizer = mpips.torch.prepare(
            model, torch.optim.SGD(model.parameters(), 0.1), consistency=consistency
        )
        train(model, optimizer, x, y, 3)
        with mpips.torch.averaged(model):
            for name, value in values_of(model).items():
                assert torch.equal(value, start[name])
        assert not torch.equal(values_of(model)["0.weight"], start["0.weight"])
        train(model, optimizer, x, y, 1)
        for name, value in values_of(model).items():
            # The first step of Nesterov: lr (1 + momentum) times the difference.
            expected = start[name] - 0.5 * 1.5 * (start[name] - after[name])
            assert torch.allclose(value, expected, atol=1e-6), name
            assert torch.equal(pulled(script, name).reshape(value.shape), value)
        train(model, optimizer, x, y, 2)
        assert mpips.torch.steps() == 6


def test_embeddings_and_buffers_train_beside_local_parameters() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        mpips.torch.EmbeddingBag(4, mode="mean"), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
    )
    ids = torch.arange(12).reshape(6, 2)
    with torch_job():
        model, optimizer = mpips.torch.prepare(
            model, torch.optim.Adam(model.parameters(), 0.1), consistency=LocalSGD(3)
        )
        losses = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = (model(ids) - torch.arange(6.0)[:, None]).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]
        assert int(model.state_dict()["1.num_batches_tracked"]) == 8


def test_what_does_not_fit_is_refused() -> None:
    model, _, _ = make()
    with torch_job():
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with pytest.raises(ConfigError, match="needs consistency BSP"):
            mpips.torch.prepare(model, optimizer, consistency=LocalSGD(3), placement="replicated")
        with pytest.raises(ConfigError, match="buffers = 'average' needs consistency 'bsp'"):
            mpips.torch.prepare(model, optimizer, consistency=LocalSGD(3), buffers="average")
        with (
            pytest.raises(ConfigError, match="averaged: the model is not prepared"),
            mpips.torch.averaged(model),
        ):
            pass
        mpips.torch.prepare(model, optimizer, consistency=DiLoCo(8, fragments=2))
        model(torch.randn(2, 5))
