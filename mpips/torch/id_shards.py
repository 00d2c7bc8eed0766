"""Lookups in a table whose rows are divided between workers.

    forward   each worker sends each other one the ids of its batch that lie in the part of that one, which
              returns a row for each distinct id
    backward  each worker sends the gradients of these places to the worker with the row, which adds them

So a worker sends and receives ids, rows and gradients of its own batch, whatever the number of workers, and
those of the rows of its part. The rows have the bits of the table. A worker adds the gradients of a row in
the order of workers and places, starting from zero. This is what torch.nn.Embedding does in one process with
the batches of all workers one behind the other, so the sums have the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.function import once_differentiable

from mpips.errors import ConfigError
from mpips.model.distinct import distinct, distinct_places
from mpips.torch.shard_workers import ShardWorkers, own_range

Int64 = NDArray[np.int64]


class DividedIds(NamedTuple):
    """The ids of a forward pass.

    Attributes:
        places: For each worker the places in the own batch, int64, whose row it has.
        rows: Likewise for each of these places the index of its row among the distinct ids for the worker.
        asked: For each worker the ids of its batch in the own part, int64, in the order of places.
        keys: The distinct ones of them, of all workers, ascending.
        n: Number of places in the own batch; the rows of padding are in no worker's part.
    """

    places: list[Int64]
    rows: list[Int64]
    asked: list[Int64]
    keys: Int64
    n: int


def divided_ids(exchange: ShardWorkers, ids: Int64, n_rows: int, padding: int | None) -> DividedIds:
    """Exchange the ids of all workers. Collective; blocks.

    Args:
        exchange: The workers.
        ids: int64, shape (n,); n may differ from worker to worker.
        n_rows: Number of rows of the table.
        padding: An id without a row; None: each has one.

    Raises:
        ConfigError: An id of a worker is not in the table. All workers raise it.
    """
    wrong = ids[(ids < 0) | (ids >= n_rows)]
    for worker, found in enumerate(exchange.gather("the ids", wrong[:1].tobytes())):
        if found:
            raise ConfigError(
                f"ShardedEmbedding: worker {worker} has the id {np.frombuffer(found, np.int64)[0]}: must be "
                f"from 0 to {n_rows - 1}"
            )
    parts = [own_range(worker, exchange.n_workers, n_rows) for worker in range(exchange.n_workers)]
    has_row = np.ones(len(ids), bool) if padding is None else ids != padding
    places = [np.flatnonzero(has_row & (ids >= first) & (ids < end)) for first, end in parts]
    asked = exchange.swap([ids[own] for own in places])
    rows = [distinct_places(ids[own])[1] for own in places]
    return DividedIds(places, rows, asked, distinct(np.concatenate(asked)), len(ids))


class ShardedLookup(torch.autograd.Function):
    """The rows of the own ids, from a table that is divided between the workers."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, ids: DividedIds, exchange: ShardWorkers
    ) -> torch.Tensor:
        """Return the rows of the own ids, float32, shape (n, dim); zeros for padding. Collective; blocks.

        Args:
            ctx: Context of torch.
            rows: float32, shape (n_keys, dim), of `ids.keys`, which receives a gradient.
            ids: The ids of all workers.
            exchange: The workers.
        """
        values = rows.detach().numpy()
        wanted = [values[np.searchsorted(ids.keys, distinct(asked))] for asked in ids.asked]
        out = np.zeros((ids.n, rows.shape[1]), np.float32)
        for places, own, found in zip(ids.places, ids.rows, exchange.swap(wanted), strict=True):
            out[places] = found[own]
        ctx.rest = ids, exchange
        return torch.from_numpy(out)

    @staticmethod
    @once_differentiable  # type: ignore[misc,untyped-decorator,unused-ignore]
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradient of the own rows. Collective; blocks."""
        ids, exchange = ctx.rest
        values = gradients[0].numpy()
        # Messages do not compare what the workers compute.
        exchange.gather("the gradients of the rows", b"")
        found = exchange.swap([values[places] for places in ids.places])
        indices = np.searchsorted(ids.keys, np.concatenate(ids.asked))
        summed = torch.ops.aten.embedding_dense_backward(
            torch.from_numpy(np.concatenate(found)),
            torch.from_numpy(indices),
            len(ids.keys),
            -1,
            False,
        )
        return summed, None, None
