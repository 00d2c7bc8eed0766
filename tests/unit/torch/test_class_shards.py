"""Classes that are divided between workers have the losses and gradients of a softmax over all of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from shard_rig import Crowd
from torch import nn

from mpips.errors import ConfigError
from mpips.torch.class_shards import ShardedCrossEntropy, best_classes, gathered
from mpips.torch.shard_workers import own_range

cross_entropy = nn.functional.cross_entropy


def problem(n_workers: int, n_classes: int, scale: float = 1.0) -> tuple[Any, Any, Any]:
    """Return rows of all classes, and samples and targets of each worker, of different numbers."""
    generator = torch.Generator().manual_seed(n_workers + 10 * n_classes)
    rows = scale * torch.randn(n_classes, 6, generator=generator)
    sizes = [2 + worker % 3 for worker in range(n_workers)]
    x = [torch.randn(n, 5, generator=generator) for n in sizes]
    targets = [torch.randint(0, n_classes, (n,), generator=generator) for n in sizes]
    return rows, x, targets


@pytest.mark.parametrize("n_workers", [1, 2, 3, 5])
@pytest.mark.parametrize(("n_classes", "scale"), [(7, 1.0), (4, 1.0), (3, 300.0), (40, 1.0)])
def test_losses_and_gradients_are_those_of_one_process(
    n_workers: int, n_classes: int, scale: float
) -> None:
    rows, x, targets = problem(n_workers, n_classes, scale)
    factors = [
        0.5 + worker for worker in range(n_workers)
    ]  # of the losses, such as those of a script

    def work(member: Any) -> Any:
        first, end = own_range(member.index, n_workers, n_classes)
        own = rows[first:end].clone().requires_grad_()
        samples = x[member.index].clone().requires_grad_()
        everyone = gathered(member, samples, targets[member.index], n_classes)
        apply: Any = ShardedCrossEntropy.apply
        loss = apply(samples, own, everyone, first, member)
        (factors[member.index] * loss.mean()).backward()
        return loss.detach(), samples.grad, own.grad

    found = Crowd(n_workers).run(work)
    whole = rows.clone().double().requires_grad_()
    inputs = [one.clone().double().requires_grad_() for one in x]
    total: Any = 0.0
    for worker in range(n_workers):
        assert not isinstance(found[worker], BaseException), found[worker]
        scores = inputs[worker] @ whole[:, :-1].t() + whole[:, -1]
        losses = cross_entropy(scores, targets[worker], reduction="none")
        torch.testing.assert_close(found[worker][0], losses.float(), rtol=2e-5, atol=2e-5 * scale)
        total = total + factors[worker] * losses.mean()
    total.backward()
    for worker in range(n_workers):
        torch.testing.assert_close(
            found[worker][1], inputs[worker].grad.float(), rtol=1e-4, atol=1e-5 * scale
        )
    of_rows = torch.cat([one[2] for one in found])
    torch.testing.assert_close(of_rows, whole.grad.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wrong", [-1, 7])
def test_a_target_that_is_no_class_is_the_error_of_all_workers(wrong: int) -> None:
    _, x, targets = problem(3, 7)
    targets[1][1] = wrong

    def work(member: Any) -> Any:
        return gathered(member, x[member.index], targets[member.index], 7)

    for error in Crowd(3).run(work):
        assert isinstance(error, ConfigError)
        assert f"worker 1 has the target {wrong}: must be a class from 0 to 6" in str(error)


@pytest.mark.parametrize("k", [1, 3, 7])
def test_the_best_classes_are_those_of_all_with_the_lower_one_first(k: int) -> None:
    rows, x, _ = problem(3, 7)
    rows[5] = rows[1]  # equal scores, of two workers
    rows[2] = rows[1]
    x[0][0] = rows[1, :-1]

    def work(member: Any) -> Any:
        first, end = own_range(member.index, 3, 7)
        samples = gathered(member, x[member.index], None, 7)
        return best_classes(member, samples, rows[first:end], first, k)

    for worker, (scores, classes) in enumerate(Crowd(3).run(work)):
        # The scores of a part may be rounded otherwise than those of all, so order them as they are.
        own = [rows[slice(*own_range(w, 3, 7))] for w in range(3)]
        whole = torch.cat([torch.addmm(o[:, -1], torch.cat(x), o[:, :-1].t()) for o in own], 1)
        start = sum(len(one) for one in x[:worker])
        expected = whole[start : start + len(x[worker])].sort(dim=1, descending=True, stable=True)
        assert torch.equal(scores, expected.values[:, :k])
        assert torch.equal(classes, expected.indices[:, :k])


def test_classes_are_divided_evenly_and_none_is_left() -> None:
    for n_workers in range(1, 6):
        for n_classes in range(1, 12):
            bounds = [own_range(w, n_workers, n_classes) for w in range(n_workers)]
            assert bounds[0][0] == 0
            assert bounds[-1][1] == n_classes
            assert all(a[1] == b[0] for a, b in pairwise(bounds))
            sizes = [end - first for first, end in bounds]
            assert max(sizes) - min(sizes) <= 1
