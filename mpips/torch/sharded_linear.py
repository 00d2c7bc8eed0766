"""`ShardedLinear`: a last layer whose outputs, classes of a softmax, are divided between the workers."""

from __future__ import annotations

from typing import Any, Literal, NoReturn

import numpy as np
import torch

from mpips.errors import ConfigError
from mpips.model.codec import PullCodec, PushCodec
from mpips.model.consistency import BSP
from mpips.model.initializer import Initializer
from mpips.model.optimizer import Optimizer
from mpips.model.python_rule import PythonRule
from mpips.torch.class_shards import (
    AnyArray,
    ShardedCrossEntropy,
    best_classes,
    gathered,
    own_classes,
)
from mpips.torch.embedding import Embedding
from mpips.torch.row_state import LoadedRows
from mpips.worker.worker import Worker, connection_of

LossReduction = Literal["mean", "sum", "none"]
_BSP = BSP()


class ShardedLinear(Embedding):
    """A linear layer and its softmax over very many classes, divided between all workers of the job.

    Each worker has its own batch, computes the scores of its part of the classes for the samples of all
    workers, and updates the weights of these classes alone. No worker ever has all scores or all weights.
    In place of `cross_entropy(linear(x), targets)` a script calls `layer.cross_entropy(x, targets)`.

    The weights of a class, with its bias behind them, are a row of an embedding table, with the class as its
    id. So the optimizer is a rule of rows, as for `Embedding`, and so are state dicts and checkpoints: they
    have the whole layer, and continue with any number of workers, also one. Prepare the model that has the
    layer, under BSP without backup workers. Gradients are pushed by `step`, not within backward.

    Values and gradients are those of torch.nn.Linear with cross_entropy up to the rounding of float32; see
    mpips.torch.class_shards. A run never continues in memory: it restarts at its newest checkpoint, with the
    same bits.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        optimizer: Optimizer | PythonRule | None = None,
        init: Initializer | str | None = None,
        compression: PushCodec | str | None = None,
        pull_compression: PullCodec | str | None = None,
    ) -> None:
        """Make the layer; its table is declared by `prepare`.

        Args:
            in_features: Length of a sample.
            out_features: Number of classes.
            optimizer: Rule of the rows; None: SGD(0.01). An optimizer of torch has no part in them.
            init: Initial values of weights and biases; None: uniform as in torch.nn.Linear, other numbers.
            compression: Codec of the pushes; None: float32. See mpips.model.codec.
            pull_compression: Codec of the pulls; None: float32.

        Raises:
            ConfigError: A value is not accepted.
        """
        for name, value in (("in_features", in_features), ("out_features", out_features)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(
                    f"ShardedLinear: {name} = {value!r}: must be a whole number of 1 or more"
                )
        super().__init__(
            in_features + 1,
            optimizer=optimizer,
            init=init if init is not None else f"uniform({in_features**-0.5!r})",
            compression=compression,
            pull_compression=pull_compression,
        )
        self.in_features = in_features
        self.out_features = out_features

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
        values = torch.cat([weight, column], 1).contiguous().numpy()
        keys = np.arange(made.out_features)
        made.load(LoadedRows(keys, values, made.table("embedding", _BSP), 0))
        return made

    def to_linear(self) -> torch.nn.Linear:
        """Return a linear layer with the current values of all classes. Not collective; blocks like a pull.

        It has all weights in the memory of this process.

        Raises:
            ConfigError: The layer has no rows to read; see Embedding.
        """
        self.check_has_rows()
        rows = torch.from_numpy(self._rows_now().pull(np.arange(self.out_features)))
        made = torch.nn.Linear(self.in_features, self.out_features)
        with torch.no_grad():
            made.weight.copy_(rows[:, :-1])
            made.bias.copy_(rows[:, -1])
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
            exchange, first, rows = self._own()
            samples = gathered(exchange, x, None, self.out_features)
            return best_classes(exchange, samples, rows, first, k)

    def forward(self, *arguments: Any) -> NoReturn:
        """Raise ConfigError: no worker has the scores of all classes."""
        raise ConfigError(
            "a ShardedLinear was called: no worker has the scores of all classes; train by "
            "loss = layer.cross_entropy(x, targets), and predict by layer.topk(x, k)"
        )

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

    def _own(self) -> tuple[_ShardWorkers, int, torch.Tensor]:
        """Return the workers, this worker's first class, and rows of its classes. Blocks like a pull."""
        access = self._access
        if access is None or access.layer is not self:
            raise ConfigError(
                "this ShardedLinear is in no prepared model: call mpips.torch.prepare(model, ...), or use "
                "layer.to_linear()"
            )
        worker = access.job.start()
        access.job.settle()
        connection_of(worker).messages.begin("ShardedLinear")
        first, end = own_classes(worker.index, worker.n_workers, self.out_features)
        keys = np.arange(first, end)
        rows, _ = self.pulled(keys, np.arange(end - first), torch.device("cpu"))
        return _ShardWorkers(worker, access.name, access.job.steps), first, rows

    def extra_repr(self) -> str:
        """Return the settings, for print(model)."""
        return f"{self.in_features}, {self.out_features}, optimizer={self.optimizer}"


class _ShardWorkers:
    """All workers of the job, between which the classes are divided."""

    def __init__(self, worker: Worker, name: str, step: int) -> None:
        self.index, self.n_workers = worker.index, worker.n_workers
        self._worker, self._name, self._step = worker, name, step

    def gather(self, what: str, payload: bytes) -> list[bytes]:
        return self._worker.gather(self._text(what), payload)

    def reduce(self, what: str, array: AnyArray, combine: Literal["sum", "max"]) -> AnyArray:
        found = self._worker.reduce(self._text(what), array, combine)
        assert found is not None
        return found

    def _text(self, what: str) -> str:
        return f"{what} of {self._name!r}, step {self._step}"
