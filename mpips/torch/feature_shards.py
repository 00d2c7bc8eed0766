"""A linear layer whose inputs, the features of a sample, are divided between workers.

Each worker has the weights of some features, for all outputs. For a step each worker sends each other one
the features of its samples that the other one has the weights for:

    forward   products of the own features of all samples with the own weights, summed over the workers
    backward  the workers exchange the gradients of the outputs; from these follow the gradients of the own
              weights, and those of the own features, which go back to the worker of each sample

The sums over features are added first within a worker and then over workers, in the order of a tree, so they
are rounded otherwise than in one process. The same number of workers always has the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from mpips.torch.shard_workers import ShardWorkers, own_range


class DividedSamples(NamedTuple):
    """The own features of the samples of all workers.

    Attributes:
        x: float32, shape (n, n_own), by worker.
        bounds: First place of each worker's samples, and n behind them.
        has_gradients: The samples of some worker receive a gradient.
    """

    x: torch.Tensor
    bounds: list[int]
    has_gradients: bool


def features_of(index: int, n_workers: int, n_features: int) -> tuple[int, int]:
    """Return the first feature of a worker and the end of its features.

    Rows are the features and, behind them, the bias, whose worker may have no feature.
    """
    first, end = own_range(index, n_workers, n_features + 1)
    return min(first, n_features), min(end, n_features)


def divided_samples(exchange: ShardWorkers, x: torch.Tensor) -> DividedSamples:
    """Exchange the features of all samples. Collective; blocks.

    Args:
        exchange: The workers.
        x: float32, shape (n, n_features); n may differ from worker to worker.
    """
    head = np.array([len(x), x.requires_grad and torch.is_grad_enabled()], np.int64)
    heads = [np.frombuffer(one, np.int64) for one in exchange.gather("the samples", head.tobytes())]
    values, n_workers = x.detach().numpy(), exchange.n_workers
    parts = [slice(*features_of(worker, n_workers, x.shape[1])) for worker in range(n_workers)]
    found = exchange.swap([values[:, part] for part in parts])
    bounds = [0, *np.cumsum([one[0] for one in heads]).tolist()]
    has_gradients = any(one[1] for one in heads)
    return DividedSamples(torch.from_numpy(np.concatenate(found)), bounds, has_gradients)


class ShardedProduct(torch.autograd.Function):
    """The outputs of the own samples, of a linear layer whose features are divided between the workers."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        rows: torch.Tensor,
        samples: DividedSamples,
        exchange: ShardWorkers,
    ) -> torch.Tensor:
        """Return the outputs of the own samples, float32, shape (n, n_outputs). Collective; blocks.

        Args:
            ctx: Context of torch.
            x: Own samples, float32, shape (n, n_features), which receive a gradient.
            rows: float32, shape (n_own, n_outputs): weights of each own feature, and the bias behind those of
                the last feature.
            samples: The own features of all samples.
            exchange: The workers.
        """
        n_own = samples.x.shape[1]
        product = samples.x @ rows[:n_own]
        if len(rows) > n_own:
            product += rows[n_own]
        total = torch.from_numpy(exchange.reduce("the outputs", product.numpy(), "sum"))
        ctx.save_for_backward(rows)
        ctx.rest = samples, exchange
        first, end = samples.bounds[exchange.index : exchange.index + 2]
        return total[first:end].clone()

    @staticmethod
    @once_differentiable  # type: ignore[misc,untyped-decorator,unused-ignore]
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradients of the own samples and of the own rows. Collective; blocks."""
        (rows,) = ctx.saved_tensors
        samples, exchange = ctx.rest
        own = gradients[0].contiguous().numpy().tobytes()
        found = b"".join(exchange.gather("the gradients of the outputs", own))
        n_outputs = rows.shape[1]
        delta = torch.from_numpy(np.frombuffer(found, np.float32).reshape(-1, n_outputs).copy())

        n_own = samples.x.shape[1]
        of_rows = samples.x.t() @ delta
        if len(rows) > n_own:
            of_rows = torch.cat([of_rows, delta.sum(0)[None]])
        of_x = None
        if samples.has_gradients:
            back = (delta @ rows[:n_own].t()).numpy()
            ends = samples.bounds[1:-1]
            of_x = torch.from_numpy(np.concatenate(exchange.swap(np.split(back, ends)), 1))
        return of_x if ctx.needs_input_grad[0] else None, of_rows, None, None
