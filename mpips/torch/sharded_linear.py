"""`ShardedLinear`: a wide linear layer that is divided between the workers, by its outputs or its inputs."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional

from mpips.errors import ConfigError
from mpips.model.codec import PullCodec, PushCodec
from mpips.model.initializer import Initializer
from mpips.model.optimizer import Optimizer
from mpips.model.python_rule import PythonRule
from mpips.torch.class_shards import ShardedCrossEntropy, best_classes, gathered
from mpips.torch.feature_shards import ShardedProduct, divided_samples
from mpips.torch.shard_workers import JobWorkers
from mpips.torch.sharded import ShardedLayer, check_sizes

LossReduction = Literal["mean", "sum", "none"]
DividedSide = Literal["out_features", "in_features"]


class ShardedLinear(ShardedLayer):
    """A linear layer of very many outputs or inputs, divided between all workers of the job.

    Each worker has its own batch. With `divide="out_features"` the outputs are the classes of a softmax. Each
    worker computes the scores of its part of the classes for the samples of all workers, and updates the
    weights of these classes alone. No worker ever has all scores or all weights. In place of
    `cross_entropy(linear(x), targets)` a script calls `layer.cross_entropy(x, targets)`.

    With `divide="in_features"` each worker multiplies its part of the features with its part of the weights,
    for the samples of all workers, and the products are summed over the workers. `layer(x)` then returns all
    outputs for the samples of this worker, as torch.nn.Linear does.

    The weights of a class with its bias behind them, or those of a feature, are a row of an embedding table,
    with the number of the class or feature as its id; the bias is the row behind the last feature. So the
    optimizer is a rule of rows, as for `Embedding`, and so are state dicts and checkpoints: they have the
    whole layer, and continue with any number of workers, also one. Prepare the model that has the layer,
    under BSP without backup workers. Gradients are pushed by `step`, not within backward.

    Values and gradients are those of torch.nn.Linear, with cross_entropy, up to the rounding of float32; see
    mpips.torch.class_shards and mpips.torch.feature_shards. A run never continues in memory: it restarts at
    its newest checkpoint, with the same bits.
    """

    plain_method = "to_linear"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        divide: DividedSide = "out_features",
        optimizer: Optimizer | PythonRule | None = None,
        init: Initializer | str | None = None,
        compression: PushCodec | str | None = None,
        pull_compression: PullCodec | str | None = None,
    ) -> None:
        """Make the layer; its table is declared by `prepare`.

        Args:
            in_features: Length of a sample.
            out_features: Number of outputs, the classes of a softmax.
            divide: The side that is divided between the workers, "out_features" or "in_features".
            optimizer: Rule of the rows; None: SGD(0.01). An optimizer of torch has no part in them.
            init: Initial values of weights and biases; None: uniform as in torch.nn.Linear, other numbers.
            compression: Codec of the pushes; None: float32. See mpips.model.codec.
            pull_compression: Codec of the pulls; None: float32.

        Raises:
            ConfigError: A value is not accepted.
        """
        check_sizes("ShardedLinear", in_features=in_features, out_features=out_features)
        if divide not in ("out_features", "in_features"):
            raise ConfigError(
                f"ShardedLinear: divide = {divide!r}: must be 'out_features' or 'in_features'"
            )
        self._by_inputs = divide == "in_features"
        super().__init__(
            out_features if self._by_inputs else in_features + 1,
            optimizer=optimizer,
            init=init if init is not None else f"uniform({in_features**-0.5!r})",
            compression=compression,
            pull_compression=pull_compression,
        )
        self.n_rows = in_features + 1 if self._by_inputs else out_features
        self.in_features = in_features
        self.out_features = out_features
        self.divide = divide

    @classmethod
    def of_linear(cls, linear: torch.nn.Linear, **options: Any) -> ShardedLinear:
        """Return a layer that begins with the values of a linear layer; without a bias with zeros.

        Args:
            linear: The layer, float32, on the CPU. It stays as it is.
            options: As for the class.
        """
        made = cls(linear.in_features, linear.out_features, **options)
        weight = linear.weight.detach().float().cpu()
        bias = linear.bias.detach().float().cpu() if linear.bias is not None else None
        column = (bias if bias is not None else torch.zeros(made.out_features))[:, None]
        values = torch.cat([weight, column], 1)
        made.begin_with_rows(values.t() if made._by_inputs else values)
        return made

    def to_linear(self) -> torch.nn.Linear:
        """Return a linear layer with the current values of all rows. Not collective; blocks like a pull.

        It has all weights in the memory of this process.

        Raises:
            ConfigError: The layer has no rows to read; see Embedding.
        """
        rows = self.all_rows()
        values = rows.t() if self._by_inputs else rows
        made = torch.nn.Linear(self.in_features, self.out_features)
        with torch.no_grad():
            made.weight.copy_(values[:, :-1])
            made.bias.copy_(values[:, -1])
        return made

    def cross_entropy(
        self, x: torch.Tensor, targets: torch.Tensor, *, reduction: LossReduction = "mean"
    ) -> torch.Tensor:
        """Return the cross entropy of this worker's samples, over all classes.

        Collective over the workers, in each step, and so is its backward pass; both block. Workers may have
        different numbers of samples.

        Args:
            x: float32, shape (n, in_features), on the CPU.
            targets: int64, shape (n,): the class of each sample.
            reduction: "mean" or "sum" over this worker's samples, or "none".

        Returns:
            float32: the mean or the sum, or shape (n,).

        Raises:
            ConfigError: An argument of some worker is not accepted, or the layer has not been prepared.
            StallError: A worker did not come within the job's timeout; the message names it.
        """
        if reduction not in ("mean", "sum", "none"):
            raise ConfigError(
                f"ShardedLinear: reduction = {reduction!r}: must be 'mean', 'sum' or 'none'"
            )
        self._check(x, targets)
        if self._by_inputs:
            self._check_classes(targets)
            return functional.cross_entropy(self(x), targets, reduction=reduction)
        exchange, first, rows = self._own()
        samples = gathered(exchange, x, targets, self.out_features)
        apply: Any = ShardedCrossEntropy.apply
        losses: torch.Tensor = apply(x, rows, samples, first, exchange)
        if reduction == "none":
            return losses
        return losses.mean() if reduction == "mean" else losses.sum()

    def topk(self, x: torch.Tensor, k: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the `k` greatest scores of each of this worker's samples, and their classes.

        Collective over the workers; blocks. Without gradients.

        Args:
            x: float32, shape (n, in_features), on the CPU; n may differ from worker to worker.
            k: From 1 to out_features; the same on all workers.

        Returns:
            Scores, float32, shape (n, k), descending, and classes, int64, shape (n, k). Classes with equal
            scores are in ascending order.

        Raises:
            ConfigError: An argument is not accepted, or the layer has not been prepared.
            StallError: A worker did not come within the job's timeout; the message names it.
        """
        if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= self.out_features:
            raise ConfigError(
                f"ShardedLinear: k = {k!r}: must be a whole number from 1 to {self.out_features}"
            )
        self._check(x, None)
        with torch.no_grad():
            if self._by_inputs:
                # A stable sort keeps the lower class in front.
                best = self(x).sort(dim=1, descending=True, stable=True)
                return best.values[:, :k], best.indices[:, :k]
            exchange, first, rows = self._own()
            samples = gathered(exchange, x, None, self.out_features)
            return best_classes(exchange, samples, rows, first, k)

    @torch.compiler.disable  # type: ignore[misc,untyped-decorator,unused-ignore]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of this worker's samples; only with `divide="in_features"`. Collective; blocks.

        Its backward pass is also collective: all workers call both equally often.

        Args:
            x: float32, shape (..., in_features), on the CPU; it may differ from worker to worker in the
                number of samples.

        Returns:
            float32, shape (..., out_features).

        Raises:
            ConfigError: `x` is not accepted, or the layer has not been prepared; or the outputs are divided,
                so that no worker has the scores of all classes.
            StallError: A worker did not come within the job's timeout; the message names it.
        """
        if not self._by_inputs:
            raise ConfigError(
                "a ShardedLinear was called: no worker has the scores of all classes; train by "
                "loss = layer.cross_entropy(x, targets), and predict by layer.topk(x, k)"
            )
        flat = x
        if isinstance(x, torch.Tensor) and x.ndim and x.shape[-1] == self.in_features:
            flat = x.reshape(-1, self.in_features)
        self._check(flat, None)
        exchange, _, rows = self._own()
        apply: Any = ShardedProduct.apply
        outputs: torch.Tensor = apply(flat, rows, divided_samples(exchange, flat), exchange)
        return outputs.view(*x.shape[:-1], self.out_features)

    def _check(self, x: torch.Tensor, targets: torch.Tensor | None) -> None:
        """Raise ConfigError for samples and targets of other kinds."""
        shape = (len(x) if isinstance(x, torch.Tensor) and x.ndim else 0, self.in_features)
        wanted: list[tuple[str, Any, torch.dtype, tuple[int, ...]]] = [
            ("x", x, torch.float32, shape)
        ]
        if targets is not None:
            wanted.append(("targets", targets, torch.int64, shape[:1]))
        for name, found, dtype, size in wanted:
            is_tensor = isinstance(found, torch.Tensor)
            is_right = is_tensor and (found.dtype, tuple(found.shape)) == (dtype, size)
            if is_right and found.device.type == "cpu":
                continue
            what = type(found).__name__
            if is_tensor:
                what = f"{found.dtype} of shape {tuple(found.shape)} on {found.device}"
            raise ConfigError(
                f"ShardedLinear: {name} is {what}: must be {dtype} of shape {size} on the CPU"
            )

    def _check_classes(self, targets: torch.Tensor) -> None:
        """Raise ConfigError for a target of this worker that is not a class."""
        wrong = targets[(targets < 0) | (targets >= self.out_features)]
        if len(wrong):
            raise ConfigError(
                f"ShardedLinear: the target {int(wrong[0])}: must be a class from 0 to "
                f"{self.out_features - 1}"
            )

    def _own(self) -> tuple[JobWorkers, int, torch.Tensor]:
        """Return the workers, this worker's first row, and its rows. Blocks like a pull."""
        exchange, first, end = self.shard()
        return exchange, first, self.own_rows(np.arange(first, end))

    def extra_repr(self) -> str:
        """Return the settings, for print(model)."""
        return (
            f"{self.in_features}, {self.out_features}, divide={self.divide!r}, "
            f"optimizer={self.optimizer}"
        )
