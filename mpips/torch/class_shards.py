"""Softmax and cross entropy over classes that are divided between workers: no worker has all scores.

Each worker has the weights of some classes. For a step the workers exchange their samples, so that each
computes the scores of its own classes for the samples of all:

    forward    the greatest score of each sample over all workers; then the sum of exp(score - greatest), and
               the score of its target, which one worker has
    backward   probabilities of the own classes, from which follow the gradients of the own weights and the
               own part in the gradients of all samples; these parts are summed over the workers

The values are those of a softmax over all classes with its exact gradient. Sums over classes are added first
within a worker and then over workers, in the order of a tree, so they are rounded otherwise than in one
process. The same number of workers always has the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from mpips.errors import ConfigError
from mpips.torch.shard_workers import ShardWorkers


class GatheredSamples(NamedTuple):
    """The samples of all workers.

    Attributes:
        x: float32, shape (n, dim), by worker.
        targets: int64, shape (n,); empty without targets.
        first: Place of this worker's first sample.
        end: Place behind its last one.
    """

    x: torch.Tensor
    targets: torch.Tensor
    first: int
    end: int


def gathered(
    exchange: ShardWorkers, x: torch.Tensor, targets: torch.Tensor | None, n_classes: int
) -> GatheredSamples:
    """Exchange the samples of all workers. Collective; blocks.

    Args:
        exchange: The workers.
        x: float32, shape (n, dim); n may differ from worker to worker.
        targets: int64, shape (n,); None: the samples have no targets.
        n_classes: Number of classes.

    Raises:
        ConfigError: A target of a worker is not a class. All workers raise it.
    """
    dim, n = x.shape[1], len(x)
    words = targets.numpy() if targets is not None else np.zeros(0, np.int64)
    head = np.array([n, len(words)], np.int64)
    payload = head.tobytes() + words.tobytes() + x.detach().contiguous().numpy().tobytes()
    parts, labels, first = [], [], 0
    for worker, found in enumerate(exchange.gather("the samples", payload)):
        n_samples, n_words = np.frombuffer(found[:16], np.int64).tolist()
        label = np.frombuffer(found[16 : 16 + 8 * n_words], np.int64)
        wrong = label[(label < 0) | (label >= n_classes)]
        if len(wrong):
            raise ConfigError(
                f"ShardedLinear: worker {worker} has the target {wrong[0]}: must be a class from 0 to "
                f"{n_classes - 1}"
            )
        values = np.frombuffer(found[16 + 8 * n_words :], np.float32).reshape(n_samples, dim)
        first += n_samples if worker < exchange.index else 0
        parts.append(torch.from_numpy(values.copy()))
        labels.append(torch.from_numpy(label.copy()))
    return GatheredSamples(torch.cat(parts), torch.cat(labels), first, first + n)


def scores_of(samples: GatheredSamples, rows: torch.Tensor) -> torch.Tensor:
    """Return the scores of all samples for the own classes.

    Args:
        samples: The samples of all workers.
        rows: float32, shape (n_own, dim + 1): weights of each own class, and its bias behind them.
    """
    return torch.addmm(rows[:, -1], samples.x, rows[:, :-1].t())


class ShardedCrossEntropy(torch.autograd.Function):
    """The cross entropy of each own sample, over classes that are divided between the workers."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        rows: torch.Tensor,
        samples: GatheredSamples,
        first_class: int,
        exchange: ShardWorkers,
    ) -> torch.Tensor:
        """Return the losses of the own samples, float32, shape (n_own,). Collective; blocks.

        Args:
            ctx: Context of torch.
            x: Own samples, which receive a gradient.
            rows: See `scores_of`.
            samples: The samples of all workers.
            first_class: First class of this worker.
            exchange: The workers.
        """
        n_samples = len(samples.x)
        scores = scores_of(samples, rows)
        lowest = scores.new_full((n_samples,), float("-inf"))
        own_greatest = scores.amax(1) if len(rows) else lowest
        greatest = exchange.reduce("the greatest scores", own_greatest.numpy(), "max")
        shift = torch.from_numpy(greatest)

        # One worker has the score of the target, so its sum is exact.
        places = samples.targets - first_class
        is_own = (places >= 0) & (places < len(rows))
        of_target = scores.new_zeros(n_samples)
        of_target[is_own] = scores[is_own, places[is_own]] - shift[is_own]
        weights = (scores - shift[:, None]).exp_()
        parts = torch.stack([weights.sum(1), of_target])
        sums = torch.from_numpy(exchange.reduce("the sums of exp", parts.numpy(), "sum"))
        ctx.save_for_backward(rows)
        ctx.rest = samples, exchange, weights, sums[0], places, is_own
        return (sums[0].log() - sums[1])[samples.first : samples.end]

    @staticmethod
    @once_differentiable  # type: ignore[misc,untyped-decorator,unused-ignore]
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradients of the own samples and of the own rows. Collective; blocks."""
        (rows,) = ctx.saved_tensors
        samples, exchange, weights, total, places, is_own = ctx.rest
        factors = torch.zeros(len(samples.x))
        factors[samples.first : samples.end] = gradients[0]
        found = exchange.reduce("the gradients of the losses", factors.numpy(), "sum")
        factors = torch.from_numpy(found)

        # The gradient of a score is its probability, less 1 at the target.
        delta = weights / total[:, None]
        delta[is_own, places[is_own]] -= 1
        delta *= factors[:, None]
        own = delta @ rows[:, :-1]
        back = torch.from_numpy(exchange.reduce("the gradients of the samples", own.numpy(), "sum"))
        of_rows = torch.cat([delta.t() @ samples.x, delta.sum(0)[:, None]], 1)
        return back[samples.first : samples.end], of_rows, None, None, None


def best_classes(
    exchange: ShardWorkers, samples: GatheredSamples, rows: torch.Tensor, first_class: int, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `k` greatest scores of each own sample and their classes. Collective; blocks.

    Returns:
        Scores, float32, shape (n_own, k), descending; and classes, int64. Classes with equal
        scores are in ascending order.
    """
    scores = scores_of(samples, rows)
    # A stable sort keeps the lower class in front.
    order = scores.sort(dim=1, descending=True, stable=True)
    own = order.values[:, :k].contiguous(), order.indices[:, :k].contiguous() + first_class
    payload = np.array([own[0].shape[1]], np.int64).tobytes()
    payload += own[0].numpy().tobytes() + own[1].numpy().tobytes()
    values, classes, n = [], [], len(samples.x)
    for found in exchange.gather("the best classes", payload):
        width = int(np.frombuffer(found[:8], np.int64)[0])
        split = 8 + 4 * n * width
        values.append(np.frombuffer(found[8:split], np.float32).reshape(n, width))
        classes.append(np.frombuffer(found[split:], np.int64).reshape(n, width))
    merged = torch.from_numpy(np.concatenate(values, 1)[samples.first : samples.end])
    names = torch.from_numpy(np.concatenate(classes, 1)[samples.first : samples.end])
    best = merged.sort(dim=1, descending=True, stable=True)
    return best.values[:, :k], names.gather(1, best.indices[:, :k])
