"""`embedding`: a table of rows by int64 ids, looked up outside of the differentiated function.

JAX differentiates with respect to arguments of floating point. So the rows of a batch are pulled before the
function and are its argument, with the index of each id's row; the gradient of the rows is pushed.

The number of unique ids differs from batch to batch, and a jitted function is compiled once for each shape.
So the rows are padded with zeros to a power of two. No index points at the padding, and its gradient is
dropped.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mpips.errors import ConfigError
from mpips.jax.arrays import as_gradient, refuse_traced
from mpips.jax.job import JaxJob
from mpips.model.codec import PullCodec, PushCodec
from mpips.model.consistency import Consistency
from mpips.model.consistency import of_name as consistency_of
from mpips.model.distinct import distinct_places
from mpips.model.initializer import Initializer
from mpips.model.optimizer import Optimizer
from mpips.model.python_rule import PythonRule
from mpips.model.table import EmbeddingTable

Int64 = NDArray[np.int64]

LEAST_ROWS = 8  # a lookup has at least that many rows


class Lookup:
    """The rows of one batch of ids.

    Attributes:
        rows: float32, shape (n, dim), n a power of two: the rows of the unique ids, then zeros.
        places: int32, of the shape of the ids: index of each id's row.
    """

    def __init__(
        self, handle: LookupHandle, keys: Int64, rows: jax.Array, places: jax.Array
    ) -> None:
        """Take what was pulled; `keys` are the unique ids."""
        self.rows = rows
        self.places = places
        self._handle = handle
        self._keys: Int64 | None = keys

    def push(self, gradient: Any) -> None:
        """Push the gradient with respect to `rows`. Not collective; blocks until JAX has computed it.

        Args:
            gradient: Gradient of the same shape as `rows`, float32, bfloat16 or float16.

        Raises:
            ConfigError: Shape or dtype are others, or the gradient of this lookup has been pushed already; or
                called within a function that JAX traces.
            ValueError: The gradient has NaN or infinity. Nothing was pushed.
        """
        refuse_traced("push", gradient)
        name = self._handle.name
        if self._keys is None:
            raise ConfigError(
                f"the gradient of this lookup of {name!r} has been pushed already: look the ids up again"
            )
        checked = as_gradient(f"the gradient of {name!r}", gradient, tuple(self.rows.shape))
        keys, self._keys = self._keys, None
        self._handle.push_rows(keys, checked[: len(keys)])


class LookupHandle:
    """An embedding table; see `embedding`.

    Attributes:
        name: Name of the table.
        dim: Length of a row.
    """

    def __init__(self, job: JaxJob, name: str, dim: int) -> None:
        """Take a declared table."""
        self.name = name
        self.dim = dim
        self._job = job

    def pull(self, ids: Any) -> Lookup:
        """Look up the rows of ids. Blocks; the first pull of a script is collective over all ranks.

        An id without a row gives its initial row, and nothing is created before its first push.

        Args:
            ids: Integers of any shape, an array of NumPy or JAX. Without jax_enable_x64 arrays of JAX hold
                32 bits: keep larger ids in NumPy.

        Raises:
            ConfigError: `ids` are not integers of 64 bits; or called within a function that JAX traces.
            StallError: A worker or server was late for the job's timeout; the message names it.
        """
        refuse_traced("pull", ids)
        found = np.asarray(ids)
        if found.dtype.kind not in "iu" or (
            found.dtype == np.uint64 and found.size and found.max() > np.iinfo(np.int64).max
        ):
            raise ConfigError(
                f"ids of the embedding {self.name!r} are {found.dtype.name}: must be integers of at most "
                "64 bits with a sign"
            )
        worker = self._job.start()
        keys, places = distinct_places(found.reshape(-1).astype(np.int64))
        n_rows = max(LEAST_ROWS, 1 << (len(keys) - 1).bit_length() if len(keys) else 0)
        # A new array each time: JAX may use its memory without a copy.
        rows = np.zeros((n_rows, self.dim), np.float32)
        if len(keys):
            worker.table(self.name).pull(keys, rows[: len(keys)])
        indices = jnp.asarray(places.reshape(found.shape).astype(np.int32))
        return Lookup(self, keys, jnp.asarray(rows), indices)

    def push_rows(self, keys: Int64, gradient: NDArray[np.float32]) -> None:
        """Push the gradient of rows; `Lookup.push` calls this."""
        if len(keys):
            self._job.has_pushed = True
            self._job.start().table(self.name).push(keys, gradient)


def embedding(
    name: str,
    dim: int,
    *,
    optimizer: Optimizer | PythonRule,
    init: Initializer | str = "normal(0.01)",
    consistency: Consistency | str = "bsp",
    compression: PushCodec | str | None = None,
    pull_compression: PullCodec | str | None = None,
) -> LookupHandle:
    """Let the servers of the job hold a table of rows, one for each int64 id. Not collective.

    There is no vocabulary: a row exists from its first push on. Call it before the first pull.

    Args:
        name: Name of the table.
        dim: Length of a row.
        optimizer: Rule of the rows.
        init: Initial values of a row, a function of its id and of the job's seed.
        consistency: "bsp", "ssp", "asp", or a value such as SSP(bound=2).
        compression: Codec of pushes, such as "int8"; None: float32. See mpips.model.codec.
        pull_compression: Codec of pulls, "bf16" or "int8"; None: float32.

    Returns:
        The handle that looks rows up.

    Raises:
        ConfigError: A value is not accepted, the job has started, or `mpips.init` has not been called.
    """
    job = JaxJob.of_script("mpips.jax.embedding")
    model = consistency_of(consistency) if isinstance(consistency, str) else consistency
    table = EmbeddingTable(
        name,
        dim,
        optimizer=optimizer,
        consistency=model,
        init=init,
        compression=compression,
        pull_compression=pull_compression,
    )
    job.script.declare(table)
    return LookupHandle(job, name, dim)
