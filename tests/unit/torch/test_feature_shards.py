"""Features that are divided between workers have the outputs and gradients of one linear layer."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from shard_rig import Crowd
from torch.nn import functional

from mpips.torch.feature_shards import ShardedProduct, divided_samples, features_of
from mpips.torch.shard_workers import own_range

N_OUTPUTS = 4


def integers(*shape: int, seed: int) -> torch.Tensor:
    """Return small integers held in floats: their sums and products are exact in any order."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


@pytest.mark.parametrize("n_workers", [1, 2, 3, 5])
@pytest.mark.parametrize("n_features", [1, 4, 17])
@pytest.mark.parametrize("trained", ["all", "one", "none"])
def test_outputs_and_gradients_are_those_of_one_process(
    n_workers: int, n_features: int, trained: str
) -> None:
    rows = integers(n_features + 1, N_OUTPUTS, seed=1)
    sizes = [worker * 2 % 5 for worker in range(n_workers)]  # the first worker has no samples
    x = [integers(n, n_features, seed=10 + worker) for worker, n in enumerate(sizes)]
    gradients = [integers(n, N_OUTPUTS, seed=20 + worker) for worker, n in enumerate(sizes)]

    def work(member: Any) -> Any:
        first, end = own_range(member.index, n_workers, n_features + 1)
        own = rows[first:end].clone().requires_grad_()
        has_gradient = trained == "all" or (trained == "one" and member.index == n_workers - 1)
        samples = x[member.index].clone().requires_grad_(has_gradient)
        apply: Any = ShardedProduct.apply
        found = apply(samples, own, divided_samples(member, samples), member)
        found.backward(gradients[member.index])
        return found.detach(), samples.grad, own.grad, member.sent

    found = Crowd(n_workers).results(work)
    whole, inputs = rows.clone().requires_grad_(), torch.cat(x).requires_grad_()
    expected = functional.linear(inputs, whole[:-1].t(), whole[-1])
    expected.backward(torch.cat(gradients))
    assert inputs.grad is not None
    assert whole.grad is not None
    assert torch.equal(torch.cat([one[0] for one in found]), expected)
    assert torch.equal(torch.cat([one[2] for one in found]), whole.grad)
    of_x = inputs.grad.split(sizes)
    for worker in range(n_workers):
        is_trained = trained == "all" or (trained == "one" and worker == n_workers - 1)
        assert (found[worker][1] is not None) == is_trained
        assert not is_trained or torch.equal(found[worker][1], of_x[worker])
        # Samples without gradients do not send any back.
        assert len(found[worker][3]) == 1 + (trained != "none")
        first, end = features_of(worker, n_workers, n_features)
        sent = [one[3][0][worker].shape[1] for one in found]
        assert sent == [end - first] * n_workers


def test_features_and_the_bias_behind_them_are_divided_as_rows() -> None:
    for n_workers in range(1, 6):
        for n_features in range(1, 12):
            bounds = [features_of(w, n_workers, n_features) for w in range(n_workers)]
            assert bounds[0][0] == 0
            assert bounds[-1][1] == n_features
            assert all(a[1] == b[0] for a, b in pairwise(bounds))
            for worker, (first, end) in enumerate(bounds):
                rows = own_range(worker, n_workers, n_features + 1)
                has_bias = rows[0] <= n_features < rows[1]
                assert end - first == rows[1] - rows[0] - has_bias
