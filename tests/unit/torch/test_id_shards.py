"""Lookups in divided rows have the bits of torch.nn.Embedding in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from shard_rig import Crowd
from torch import nn

from mpips.errors import ConfigError
from mpips.torch.id_shards import ShardedLookup, divided_ids

DIM = 3


def problem(n_workers: int, n_rows: int) -> tuple[torch.Tensor, list[Any], list[torch.Tensor]]:
    """Return rows, and ids and gradients of each worker; one worker has none, many ids repeat."""
    generator = torch.Generator().manual_seed(n_workers + 10 * n_rows)
    rows = torch.randn(n_rows, DIM, generator=generator)
    rows[0, 0] = -0.0
    sizes = [40 * (worker != 1) + worker for worker in range(n_workers)]
    ids = [torch.randint(0, n_rows, (n,), generator=generator) for n in sizes]
    gradients = [torch.randn(n, DIM, generator=generator) for n in sizes]
    return rows, ids, gradients


def looked_up(
    member: Any, rows: torch.Tensor, ids: torch.Tensor, gradient: torch.Tensor, padding: int | None
) -> tuple[torch.Tensor, np.ndarray, torch.Tensor]:
    divided = divided_ids(member, ids.numpy(), len(rows), padding)
    own = rows[torch.from_numpy(divided.keys)].clone().requires_grad_()
    apply: Any = ShardedLookup.apply
    found = apply(own, divided, member)
    found.backward(gradient)
    assert own.grad is not None
    return found.detach(), divided.keys, own.grad


def bits(values: torch.Tensor) -> list[Any]:
    return values.contiguous().view(torch.int32).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("n_workers", [1, 2, 3, 5])
@pytest.mark.parametrize("n_rows", [1, 4, 23])
@pytest.mark.parametrize("padding", [None, 0])
def test_rows_and_gradients_have_the_bits_of_one_process(
    n_workers: int, n_rows: int, padding: int | None
) -> None:
    rows, ids, gradients = problem(n_workers, n_rows)
    if padding is not None:
        rows[padding] = 0
    plain = nn.Embedding.from_pretrained(rows.clone(), freeze=False, padding_idx=padding)
    expected = plain(torch.cat(ids))
    expected.backward(torch.cat(gradients))

    def work(member: Any) -> Any:
        return looked_up(member, rows, ids[member.index], gradients[member.index], padding)

    found = Crowd(n_workers).results(work)
    assert bits(torch.cat([one[0] for one in found])) == bits(expected.detach())
    keys = np.concatenate([one[1] for one in found])
    trained = [key for key in range(n_rows) if key != padding]
    assert keys.tolist() == [key for key in trained if (torch.cat(ids) == key).any()]
    assert plain.weight.grad is not None
    assert bits(torch.cat([one[2] for one in found])) == bits(plain.weight.grad[keys])


def test_a_worker_sends_each_row_once_and_to_workers_that_need_it() -> None:
    rows = torch.arange(12.0).reshape(6, 2)
    ids = [torch.tensor([5, 0, 5, 5]), torch.tensor([1, 1]), torch.tensor([], dtype=torch.int64)]

    def work(member: Any) -> Any:
        gradient = torch.ones(len(ids[member.index]), 2)
        looked_up(member, rows, ids[member.index], gradient, None)
        return [[part.tolist() for part in parts] for parts in member.sent]

    found = Crowd(3).results(work)
    asked, sent, back = zip(*found, strict=True)
    assert asked[0] == [[0], [], [5, 5, 5]]
    assert asked[1] == [[1, 1], [], []]
    assert sent[0] == [[[0.0, 1.0]], [[2.0, 3.0]], []]
    assert sent[2] == [[[10.0, 11.0]], [], []]
    assert back[0] == [[[1.0, 1.0]], [], [[1.0, 1.0]] * 3]


@pytest.mark.parametrize("wrong", [-1, 7])
def test_an_id_that_is_not_in_the_table_is_the_error_of_all_workers(wrong: int) -> None:
    ids = [np.array([0, 6]), np.array([2, wrong, 3]), np.array([1])]
    for error in Crowd(3).run(lambda member: divided_ids(member, ids[member.index], 7, None)):
        assert isinstance(error, ConfigError)
        assert f"worker 1 has the id {wrong}: must be from 0 to 6" in str(error)
