"""`ShardedLayer`: a layer whose rows are divided between the workers: what ShardedLinear and others share."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from mpips.errors import ConfigError
from mpips.model.consistency import BSP
from mpips.torch.embedding import Embedding
from mpips.torch.row_state import LoadedRows
from mpips.torch.shard_workers import JobWorkers, own_range, text_of_tag
from mpips.worker.worker import connection_of

_BSP = BSP()


class ShardedLayer(Embedding):
    """A layer whose rows are divided between all workers of the job.

    A worker pulls and updates the rows of its part alone, which follows from its index. The rows are those of
    an embedding table with the keys from 0 to `n_rows` - 1: state dicts and checkpoints have them as those
    of `Embedding`, and continue with any number of workers.

    Attributes:
        n_rows: Number of rows.
    """

    n_rows: int
    plain_method: ClassVar[str]  # returns the layer of torch with the current values

    def shard(self) -> tuple[JobWorkers, int, int]:
        """Return the workers, this worker's first row and the end of its rows.

        The first call starts the job. Later launches of a run then start from a checkpoint, since a worker
        that continues in memory would miss what others have sent in this step.

        Raises:
            ConfigError: The layer has not been prepared, or is a copy.
        """
        access = self._access
        if access is None or access.layer is not self:
            raise ConfigError(
                f"this {type(self).__name__} is in no prepared model: call mpips.torch.prepare(model, ...), "
                f"or use layer.{self.plain_method}()"
            )
        worker = access.job.start()
        access.job.settle()
        messages = connection_of(worker).messages
        messages.begin(type(self).__name__)
        messages.text_of = text_of_tag
        first, end = own_range(worker.index, worker.n_workers, self.n_rows)
        return JobWorkers(worker, access.name, access.job.steps), first, end

    def own_rows(self, keys: NDArray[np.int64]) -> torch.Tensor:
        """Pull rows of this worker's part; backward gives them the gradient that `step` pushes.

        Args:
            keys: int64, shape (n,), ascending, each once.

        Returns:
            float32, shape (n, dim), a leaf.
        """
        return self.pulled(keys, np.arange(len(keys)), torch.device("cpu"))[0]

    def begin_with_rows(self, values: torch.Tensor) -> None:
        """Let the layer begin with these rows, float32, shape (n_rows, dim), which must not change later."""
        table = self.table("embedding", _BSP)
        self.load(LoadedRows(np.arange(self.n_rows), values.contiguous().numpy(), table, 0))

    def all_rows(self) -> torch.Tensor:
        """Return the current values of all rows, float32, shape (n_rows, dim). Blocks like a pull.

        Raises:
            ConfigError: The layer has no rows to read; see Embedding.
        """
        self.check_has_rows()
        return torch.from_numpy(self._rows_now().pull(np.arange(self.n_rows)))


def check_sizes(layer: str, **sizes: Any) -> None:
    """Raise ConfigError for a size other than a whole number of 1 or more."""
    for name, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{layer}: {name} = {value!r}: must be a whole number of 1 or more")
