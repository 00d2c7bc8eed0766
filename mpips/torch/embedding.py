"""`Embedding` and `EmbeddingBag`: layers whose rows lie on the servers.

    forward   unique ids, one pull of their rows, then torch's own embedding or embedding_bag on these rows
    backward  torch gives one gradient for each place of an id, as a sparse tensor
    step      one push of all rows of the step, which sums those of equal ids; the servers apply the table's
              rule to these rows only

Ids are any int64 numbers; there is no vocabulary, and a row exists from its first update on. The rows of a
forward pass are a leaf of the graph. From the backward pass on the layer holds those with a gradient, until
the next step of an optimizer; so several passes, also of accumulated gradients, add up in one push. The
layer's parameter `weight` shows these gradients to GradScaler, clipping and the script; see row_gradients.py.
"""

from __future__ import annotations

import weakref
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from mpips.errors import ConfigError
from mpips.model.codec import PullCodec, PushCodec
from mpips.model.consistency import Consistency
from mpips.model.consistency import of_name as consistency_of
from mpips.model.distinct import distinct_places
from mpips.model.initializer import Initializer
from mpips.model.optimizer import SGD, Optimizer
from mpips.model.python_rule import PythonRule
from mpips.model.table import EmbeddingTable
from mpips.torch.device_memory import DeviceMemory
from mpips.torch.job import TorchJob
from mpips.torch.row_gradients import RowGradients, RowParameter
from mpips.worker.embedding import EmbeddingHandle
from mpips.worker.worker import Worker

Int64 = NDArray[np.int64]


class Access:
    """The access of a prepared layer and its copies to the rows of its table; nothing in pickles.

    Attributes:
        layer: The layer that `prepare` was given. Gradients of copies are not pushed.
        job: The job.
        name: Name of the table.
        handle: Handle of the table; None before the start of the job.
    """

    def __init__(self, layer: Embedding, job: TorchJob, name: str) -> None:
        """Take the place of the layer in the job."""
        self.layer = layer
        self.job = job
        self.name = name
        self.handle: EmbeddingHandle | None = None

    def __deepcopy__(self, memo: Any) -> Access:
        return self

    def __reduce__(self) -> Any:
        return type(None), ()


class RowSource(Protocol):
    """Rows in this process."""

    def pull(self, keys: Int64) -> NDArray[np.float32]:
        """Return the rows of keys, float32, shape (n, dim), the caller's."""


Mode = Literal["sum", "mean", "max"]


class Embedding(torch.nn.Module):
    """A table of rows of `dim` float32 values, one for each int64 id. `prepare` the model that has it.

    `forward(ids)` takes an int64 tensor of any shape and returns float32 rows of shape (*ids.shape, dim) on
    the same device. It blocks like a pull, and until the device has computed the ids. Under torch.no_grad and
    in evaluation an id without a row gives its initial row, and nothing is created or pushed.

    Several features share one table if they use the same layer. A deep copy, for example in a moving average
    of a model, reads the rows of the original and trains none. An unpickled layer is a new one without rows.

    Attributes:
        weight: A parameter of shape (0, dim); between backward and `step` the rows that have a gradient. It
            is in no state_dict. `requires_grad_(False)` freezes the layer.
    """

    weight: RowParameter

    def __init__(
        self,
        dim: int,
        *,
        optimizer: Optimizer | PythonRule | None = None,
        init: Initializer | str = "normal(0.01)",
        consistency: Consistency | str | None = None,
        compression: PushCodec | str | None = None,
        pull_compression: PullCodec | str | None = None,
    ) -> None:
        """Make the layer; its table is declared by `prepare`.

        Args:
            dim: Length of a row.
            optimizer: Rule of the rows; None: SGD(0.01). An optimizer of torch has no part in them.
            init: Initial values of a row, a function of its id and of the job's seed.
            consistency: Consistency of the table; None: that of `prepare`.
            compression: Codec of the pushes of rows; None: float32. See mpips.model.codec.
            pull_compression: Codec of the pulls of rows; None: float32.

        Raises:
            ConfigError: A value is not accepted.
        """
        super().__init__()
        self.dim = dim
        self.optimizer = optimizer if optimizer is not None else SGD(0.01)
        self.consistency = (
            consistency_of(consistency) if isinstance(consistency, str) else consistency
        )
        self._init = init
        self._codecs = compression, pull_compression
        # Raise the table's errors here, where the script names the values.
        self.table("embedding", self.consistency or consistency_of("bsp"))
        self._access: Access | None = None
        self._loaded: RowSource | None = None
        # On the CPU also within torch.device("meta"): the rows have no memory here.
        self.weight = RowParameter(torch.zeros(0, dim, device="cpu", dtype=torch.float32))
        self._gradients = RowGradients(self.weight)

    def table(self, name: str, consistency: Consistency) -> EmbeddingTable:
        """Return the table of this layer.

        Args:
            name: Name of the table.
            consistency: Consistency of `prepare`; the layer's own one counts if it has one.
        """
        return EmbeddingTable(
            name,
            self.dim,
            optimizer=self.optimizer,
            consistency=self.consistency or consistency,
            init=self._init,
            compression=self._codecs[0],
            pull_compression=self._codecs[1],
        )

    def join(self, job: TorchJob, name: str) -> None:
        """Become a part of a job. `prepare` calls this."""
        if self._access is not None:
            raise ConfigError(
                f"the embedding {self._access.name!r} has been prepared already: prepare one module that "
                "contains all its uses"
            )
        if self._loaded is not None:
            raise ConfigError(
                f"the embedding {name!r} has the rows of a checkpoint, which prepare does not give to the "
                "servers: start the script from the checkpoint by mpips.init(resume=...)"
            )
        self._access = Access(self, job, name)
        self._gradients.prepare(name)

    def load(self, rows: RowSource) -> None:
        """Take rows that do not change, for a model without a job. `load_checkpoint` calls this."""
        self._loaded = rows

    def open(self, worker: Worker) -> None:
        """Take the table's handle at the start of the job."""
        assert self._access is not None
        self._access.handle = worker.table(self._access.name)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of `ids`; see the class."""
        rows, places = self.rows(ids)
        return functional.embedding(places, rows, sparse=_sums_in_push(rows))

    @torch.compiler.disable  # type: ignore[misc,untyped-decorator,unused-ignore]
    def rows(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Pull the rows of unique ids. Blocks like a pull.

        Args:
            ids: int64, any shape, on any device.

        Returns:
            rows: float32, shape (n_unique, dim), a leaf that collects gradients if they are enabled.
            places: int64, of the shape of `ids`: index of each id's row.
            Both are on the device of `ids`.

        Raises:
            ConfigError: `ids` is not an int64 tensor with values, or the layer has not been prepared.
            DeviceError: The device of `ids` failed.
        """
        access, loaded = self._access, self._loaded
        if access is None and loaded is None:
            raise ConfigError(
                "this mpips.torch.Embedding is in no prepared model: call mpips.torch.prepare(model, ...), "
                "or mpips.torch.load_checkpoint(model, path)"
            )
        table = repr(access.name) if access is not None else "of a checkpoint"
        if (
            not isinstance(ids, torch.Tensor)
            or ids.dtype != torch.int64
            or ids.device.type == "meta"
        ):
            found = (
                f"{ids.dtype} on {ids.device}"
                if isinstance(ids, torch.Tensor)
                else type(ids).__name__
            )
            raise ConfigError(
                f"ids of the embedding {table} are {found}: must be an int64 tensor with values"
            )
        memory = access.job.devices.of(ids.device) if access is not None else None
        on_host = ids.detach().cpu() if memory is None else memory.fetch(ids)
        keys, places = distinct_places(on_host.numpy().reshape(-1))
        indices = _on(ids.device, memory, places).view(ids.shape)
        if access is None:
            assert loaded is not None
            return _on(ids.device, None, loaded.pull(keys)), indices
        access.job.start()
        access.job.settle()
        assert access.handle is not None
        if access.layer is self:
            self._gradients.check_unchanged()
        rows = _on(ids.device, memory, access.handle.pull(keys))
        if torch.is_grad_enabled() and access.layer is self and self.weight.requires_grad:
            rows.requires_grad_()
            hook: Any = rows.register_post_accumulate_grad_hook  # torch has no annotation for it
            layer = weakref.ref(self)  # the collector does not see what a hook holds

            def note(leaf: torch.Tensor) -> None:
                own = layer()
                if own is not None:
                    own._gradients.note(keys, leaf)

            hook(note)
        return rows, indices

    def push(self) -> None:
        """Push the gradients of all rows since the last step, in one push. `step` calls this."""
        parts = [
            self._gradient_of(keys, gradient)
            for keys, gradient in self._gradients.take()
            if len(keys)
        ]
        if not parts:
            return
        assert self._access is not None
        assert self._access.handle is not None
        keys = parts[0][0] if len(parts) == 1 else np.concatenate([k for k, _ in parts])
        values = parts[0][1] if len(parts) == 1 else np.concatenate([v for _, v in parts])
        self._access.handle.push(keys, np.ascontiguousarray(values))

    def _gradient_of(
        self, keys: Int64, gradient: torch.Tensor
    ) -> tuple[Int64, NDArray[np.float32]]:
        """Return the gradient of the rows of `keys` as keys, of which some may be equal, and rows.

        They are in host memory. Waits for the device of the gradient.
        """
        assert self._access is not None
        memory = self._access.job.devices.of(gradient.device)

        def on_host(part: torch.Tensor) -> NDArray[Any]:
            found: NDArray[Any] = (part.cpu() if memory is None else memory.fetch(part)).numpy()
            return found

        if not gradient.is_sparse:
            return keys, on_host(gradient.float())
        return keys[on_host(gradient._indices()[0])], on_host(gradient._values().float())

    @property
    def waits(self) -> bool:
        """True if gradients of rows wait for a step."""
        return self._gradients.waits

    @property
    def n_gradients(self) -> int:
        """Number of gradients that backward passes have brought so far."""
        return self._gradients.n_notes

    def drop(self) -> None:
        """Drop the gradients since the last step: `zero_grad` calls this."""
        self._gradients.drop()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """As in torch: `weight` has the device and dtype of the model. It has no values to convert."""
        self.drop()
        before = self.weight
        self._gradients.is_converted = True
        try:
            super()._apply(fn, recurse)
        finally:
            self._gradients.is_converted = False
        if self.weight is not before:
            # torch makes a new parameter where it cannot change the old one, such as to the meta device.
            self._attach(self.weight.requires_grad)
        return self

    def _attach(self, requires_grad: bool) -> None:
        """Give the layer a parameter, if it has none of its kind, with no gradients."""
        found = self._parameters.get("weight")
        if not isinstance(found, RowParameter):
            self.weight = found = RowParameter(
                torch.zeros(0, self.dim, device="cpu"), requires_grad
            )
        self._gradients = RowGradients(found)
        # A script may change the parameters of a copy, such as a moving average, in any way.
        if self._access is not None and self._access.layer is self:
            self._gradients.prepare(self._access.name)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Leave out `weight`: the rows are in checkpoints of mpips."""

    def _load_from_state_dict(self, *arguments: Any, **named: Any) -> None:
        """Load nothing: the rows are in checkpoints of mpips."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_gradients"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._attach(requires_grad=True)

    def extra_repr(self) -> str:
        """Return the settings, for print(model)."""
        return f"{self.dim}, optimizer={self.optimizer}"


def _on(
    device: torch.device, memory: DeviceMemory | None, array: NDArray[np.generic]
) -> torch.Tensor:
    """Return an array as a tensor of a device; without a copy on the CPU."""
    return memory.bring(array) if memory is not None else torch.from_numpy(array).to(device)


class EmbeddingBag(Embedding):
    """Sums, means or maxima of bags of rows; as torch.nn.EmbeddingBag, with ids as in `Embedding`.

    `forward(ids, offsets, per_sample_weights)`: ids of shape (n_bags, length), or of shape (n,) with
    `offsets`, int64 of shape (n_bags,): the first place of each bag. Weights, float32 of the shape of the
    ids, need mode "sum". Ids equal to `padding_idx` do not count.
    """

    def __init__(
        self,
        dim: int,
        *,
        mode: Mode = "mean",
        padding_idx: int | None = None,
        include_last_offset: bool = False,
        optimizer: Optimizer | PythonRule | None = None,
        init: Initializer | str = "normal(0.01)",
        consistency: Consistency | str | None = None,
        compression: PushCodec | str | None = None,
        pull_compression: PullCodec | str | None = None,
    ) -> None:
        """Make the layer; see `Embedding` for what is not listed.

        Args:
            dim: Length of a row.
            mode: "sum", "mean" or "max" of the rows of a bag; an empty bag gives zeros.
            padding_idx: Id that fills bags; None: none.
            include_last_offset: The last of `offsets` is the number of ids and begins no bag.
            optimizer: Rule of the rows.
            init: Initial values of a row.
            consistency: Consistency of the table.
            compression: Codec of the pushes of rows.
            pull_compression: Codec of the pulls of rows.
        """
        super().__init__(
            dim,
            optimizer=optimizer,
            init=init,
            consistency=consistency,
            compression=compression,
            pull_compression=pull_compression,
        )
        if mode not in ("sum", "mean", "max"):
            raise ConfigError(f"EmbeddingBag: mode = {mode!r}: must be 'sum', 'mean' or 'max'")
        self.mode = mode
        self.padding_idx = padding_idx
        self.include_last_offset = include_last_offset

    def forward(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return one row for each bag, float32, shape (n_bags, dim); see the class."""
        rows, places = self.rows(ids)
        padding = None
        if self.padding_idx is not None:
            found = (ids == self.padding_idx).nonzero()
            padding = int(places[tuple(found[0])]) if len(found) else None
        if not len(rows):
            # torch refuses an empty table, also for empty bags.
            rows = rows.new_zeros(1, self.dim, requires_grad=rows.requires_grad)
        return functional.embedding_bag(
            places,
            rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=padding,
            sparse=self.mode != "max" and _sums_in_push(rows),
        )


def _sums_in_push(rows: torch.Tensor) -> bool:
    """Return True if backward leaves the sums over equal ids to the push, which is faster.

    A dense gradient of the rows costs torch a sort of the ids, and memory of zeros to add to. From a device
    it takes fewer bytes to the host.
    """
    # A compiled graph has no sparse gradients.
    return rows.device.type == "cpu" and not torch.compiler.is_compiling()
