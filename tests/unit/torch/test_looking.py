"""`mpips.torch.lookahead`: the bits without it, and a cursor of the batches that were used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_rig import pulled, torch_job

import mpips
from mpips.torch import EmbeddingBag, lookahead, prepare
from mpips.torch.job import TorchJob

N = 40


def trained(
    depth: int, keys: Callable[[Any], Any] = lambda batch: batch[0]
) -> tuple[list[bytes], list[dict[str, int]], bool]:
    ids = torch.randint(0, N, (24, 5), generator=torch.Generator().manual_seed(3))
    targets = torch.linspace(-1, 1, 24)
    places, came_early = [], False
    with torch_job() as script:
        torch.manual_seed(1)
        model = nn.Sequential(
            EmbeddingBag(4, optimizer=mpips.Adagrad(0.1), init="normal(1)"), nn.Linear(4, 1)
        )
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loader = DataLoader(TensorDataset(ids, targets), batch_size=4)
        model, optimizer, loader = prepare(model, optimizer, loader)
        for _ in range(2):
            batches = lookahead(loader, keys=keys, depth=depth) if depth else loader
            for x, y in batches:
                optimizer.zero_grad()
                ((model(x).squeeze(1) - y) ** 2).mean().backward()
                optimizer.step()
                script.part(TorchJob).settle()
                places.append(dict(script.worker.cursor["loader 0"]))
                came_early |= script.worker.table("0")._ahead is not None
        values = [pulled(script, "0", torch.arange(N).numpy()).numpy().tobytes()]
        values += [p.detach().numpy().tobytes() for p in model.parameters()]
    return values, places, came_early


def test_training_has_the_same_bits_and_the_cursor_counts_used_batches() -> None:
    plain, ahead = trained(0), trained(3)
    assert ahead[0] == plain[0]
    assert ahead[1] == plain[1]
    assert (plain[2], ahead[2]) == (False, True)


@pytest.mark.parametrize("keys", [lambda b: {"0": b[0]}, lambda b: {"0": b[0].numpy()}])
def test_keys_may_be_named_tensors_or_arrays(keys: Callable[[Any], Any]) -> None:
    assert trained(2, keys) == trained(2)


def drawn(depth: int, first: int) -> list[float]:
    """Return the numbers that the dataset draws for the batches from `first` on, within steps that draw."""
    found = []
    with torch_job(seed=2):
        model = EmbeddingBag(4, init="normal(1)")
        ids = TensorDataset(torch.arange(24).view(12, 2))

        def collate(samples: list[Any]) -> Any:
            return torch.stack([sample[0] for sample in samples]), torch.rand(()).item()

        model, optimizer, loader = prepare(
            model, None, DataLoader(ids, batch_size=2, collate_fn=collate)
        )
        if first:
            loader.resume({"epoch": 0, "batch": first})
        for x, number in lookahead(loader, keys=lambda batch: batch[0], depth=depth):
            found.append(number)
            torch.rand(())
            model(x).sum().backward()
            optimizer.step()
    return found


def test_draws_of_a_dataset_depend_on_the_batch_alone() -> None:
    whole = drawn(1, 0)
    assert len(set(whole)) == 6
    assert drawn(4, 0) == whole
    assert drawn(3, 2) == whole[2:]
