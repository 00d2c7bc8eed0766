"""`ShardedEmbedding`: a torch.nn.Embedding whose rows are divided between the workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mpips.errors import ConfigError
from mpips.model.codec import PullCodec, PushCodec
from mpips.model.initializer import Initializer
from mpips.model.optimizer import Optimizer
from mpips.model.python_rule import PythonRule
from mpips.model.row_values import RowDtype
from mpips.torch.id_shards import ShardedLookup, divided_ids
from mpips.torch.sharded import ShardedLayer, check_sizes


class ShardedEmbedding(ShardedLayer):
    """A table of rows for the ids from 0 to n - 1, divided between all workers of the job.

    It takes the place of a torch.nn.Embedding: `layer(ids)` returns a row for each id of this worker's batch.
    Each row has one worker, which pulls it, sends it to the workers that need it, adds their gradients and
    updates it. So a row that many workers need leaves its server once in a step, and comes back once.
    `mpips.torch.Embedding` has rows for any int64 ids, which every worker pulls and pushes itself.

    A call is collective over the workers, and so is its backward pass; both block. All workers call the layer
    and backward equally often, also with batches of different sizes or without ids. A worker that does not
    come within the job's timeout is named by a StallError.

    Rows and gradients have the bits of torch.nn.Embedding in one process, with the batches of all workers one
    behind the other; see mpips.torch.id_shards. Gradients of several backward passes before one step are
    added in another order than in torch. The step applies the sum over workers, divided by their number.

    The optimizer is a rule of rows, which updates the rows of the step alone, as for `Embedding`; so are
    state dicts and checkpoints: a row that no step has updated has its initial value, a function of its id
    and of the job's seed, whatever the number of workers.
    Prepare the model that has the layer, under BSP without backup workers. Gradients are pushed by `step`,
    not within backward. A run never continues in memory: it restarts at its newest checkpoint, with the same
    bits.

    Attributes:
        num_embeddings: Number of rows.
        embedding_dim: Length of a row.
        padding_idx: Id whose row is zeros and is not trained; None: none.
    """

    plain_method = "to_embedding"

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        *,
        dtype: torch.dtype | None = None,
        optimizer: Optimizer | PythonRule | None = None,
        init: Initializer | str = "normal(1.0)",
        compression: PushCodec | str | None = None,
        pull_compression: PullCodec | str | None = None,
        row_dtype: RowDtype = "float32",
    ) -> None:
        """Make the layer; its table is declared by `prepare`.

        Args:
            num_embeddings: Number of rows.
            embedding_dim: Length of a row.
            padding_idx: Id whose row is zeros and receives no gradient; -1 is the last one. None: none.
            max_norm: Refused: only None.
            norm_type: Has no effect, as in torch without `max_norm`.
            scale_grad_by_freq: Refused: only False.
            sparse: Refused: only False. Only rows of the step are pushed in any case.
            dtype: Type of the result: torch.float32 or None.
            optimizer: Rule of the rows; None: SGD(0.01). An optimizer of torch has no part in them.
            init: Initial values of a row, a function of its id and of the job's seed; by default of the
                distribution of torch.nn.Embedding, other numbers.
            compression: Codec of the pushes; None: float32. See mpips.model.codec.
            pull_compression: Codec of the pulls; None: float32.
            row_dtype: Type of the stored values, "float32" or "bf16"; see EmbeddingTable.

        Raises:
            ConfigError: A value is not accepted.
        """
        check_sizes("ShardedEmbedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        _check_refused(max_norm, scale_grad_by_freq, sparse, dtype)
        super().__init__(
            embedding_dim,
            optimizer=optimizer,
            init=init,
            compression=compression,
            pull_compression=pull_compression,
            row_dtype=row_dtype,
        )
        self.num_embeddings = self.n_rows = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = _padding_of(padding_idx, num_embeddings)
        self.norm_type = norm_type

    @classmethod
    def of_embedding(cls, embedding: torch.nn.Embedding, **options: Any) -> ShardedEmbedding:
        """Return a layer that begins with the rows of an embedding of torch.

        Args:
            embedding: The embedding, on the CPU. It stays as it is.
            options: As for the class, without those that the embedding has.

        Raises:
            ConfigError: A setting of the embedding is refused, or its row of `padding_idx` is not zeros.
        """
        made = cls(
            embedding.num_embeddings,
            embedding.embedding_dim,
            embedding.padding_idx,
            embedding.max_norm,
            embedding.norm_type,
            embedding.scale_grad_by_freq,
            **options,
        )
        rows = embedding.weight.detach().float().cpu().clone()
        if made.padding_idx is not None and rows[made.padding_idx].any():
            raise ConfigError(
                f"ShardedEmbedding: the row of padding_idx = {made.padding_idx} is not zeros: set it to "
                "zeros, or make the embedding without padding_idx"
            )
        made.begin_with_rows(rows)
        return made

    def to_embedding(self) -> torch.nn.Embedding:
        """Return an embedding of torch with the current rows. Not collective; blocks like a pull.

        It has all rows in the memory of this process.

        Raises:
            ConfigError: The layer has no rows to read; see Embedding.
        """
        rows = self.all_rows()
        if self.padding_idx is not None:
            rows[self.padding_idx] = 0
        made: torch.nn.Embedding = torch.nn.Embedding.from_pretrained(
            rows, freeze=False, padding_idx=self.padding_idx, norm_type=self.norm_type
        )
        return made

    @torch.compiler.disable  # type: ignore[misc,untyped-decorator,unused-ignore]
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of `ids`, float32, shape (*ids.shape, embedding_dim). Collective; blocks.

        Args:
            ids: int64 or int32, any shape, on the CPU; it may differ from worker to worker.

        Raises:
            ConfigError: An id of some worker is not in the table, `ids` has another type, or the layer has
                not been prepared.
            StallError: A worker did not come within the job's timeout; the message names it.
        """
        is_tensor = isinstance(ids, torch.Tensor)
        is_whole = is_tensor and ids.dtype in (torch.int64, torch.int32)
        if not is_whole or ids.device.type != "cpu":
            found = f"{ids.dtype} on {ids.device}" if is_tensor else type(ids).__name__
            raise ConfigError(
                f"ShardedEmbedding: ids are {found}: must be an int64 or int32 tensor on the CPU"
            )
        exchange, _, _ = self.shard()
        flat = ids.detach().reshape(-1).long().numpy()
        divided = divided_ids(exchange, flat, self.n_rows, self.padding_idx)
        apply: Any = ShardedLookup.apply
        found_rows: torch.Tensor = apply(self.own_rows(divided.keys), divided, exchange)
        return found_rows.view(*ids.shape, self.dim)

    def extra_repr(self) -> str:
        """Return the settings, for print(model)."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.dim}{padding}, optimizer={self.optimizer}"


def _check_refused(max_norm: Any, by_frequency: Any, sparse: Any, dtype: Any) -> None:
    """Raise ConfigError for a setting of torch.nn.Embedding that divided rows do not take."""
    refused = {
        f"max_norm = {max_norm!r}": (
            max_norm is not None,
            "a lookup does not change rows; bound them by their rule, such as its weight_decay",
        ),
        f"scale_grad_by_freq = {by_frequency!r}": (bool(by_frequency), "leave it out"),
        f"sparse = {sparse!r}": (
            bool(sparse),
            "only rows of the step are pushed in any case; leave it out",
        ),
        f"dtype = {dtype}": (
            dtype not in (None, torch.float32),
            "rows are float32; to store them in less memory use row_dtype='bf16'",
        ),
    }
    for what, (is_refused, way_out) in refused.items():
        if is_refused:
            raise ConfigError(f"ShardedEmbedding: {what} is not accepted: {way_out}")


def _padding_of(padding: Any, n: int) -> int | None:
    """Return `padding_idx` from 0 to n - 1, or None."""
    if padding is None:
        return None
    is_whole = isinstance(padding, int | np.integer) and not isinstance(padding, bool)
    if not is_whole or not -n <= padding < n:
        raise ConfigError(
            f"ShardedEmbedding: padding_idx = {padding!r}: must be None or a whole number from {-n} to "
            f"{n - 1}"
        )
    return int(padding) % n
