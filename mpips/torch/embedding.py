"""`Embedding` and `EmbeddingBag`: layers whose rows lie on the servers.

    forward   unique ids, one pull of their rows, then torch's own embedding or embedding_bag on these rows
    backward  torch gives one gradient for each place of an id, as a sparse tensor
    step      one push of all rows of the step, which sums those of equal ids; the servers apply the table's
              rule to these rows only

Ids are any int64 numbers; there is no vocabulary, and a row exists from its first update on. The rows of a
forward pass are a leaf of the graph. From the backward pass on the layer holds those with a gradient, until
the next step of an optimizer; so several passes, also of accumulated gradients, add up in one push. The
layer's parameter `weight` shows these gradients to GradScaler, clipping and the script; see row_gradients.py.

`state_dict` and `load_state_dict` have the rows; see row_state.py. Loaded rows become the first ones of the
servers when the job starts, those of worker 0.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from typing import Any, Literal

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
from mpips.model.row_values import RowDtype
from mpips.model.table import EmbeddingTable
from mpips.torch.device_memory import on_device
from mpips.torch.job import TorchJob
from mpips.torch.row_gradients import RowGradients, RowParameter
from mpips.torch.row_moments import RowStates
from mpips.torch.row_state import (
    KEYS,
    VALUES,
    LoadedRows,
    RefusedRowsError,
    repeat_rows,
    rows_of_state,
)
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


Mode = Literal["sum", "mean", "max"]


class Embedding(torch.nn.Module):
    """A table of rows of `dim` float32 values, one for each int64 id. `prepare` the model that has it.

    `forward(ids)` takes an int64 tensor of any shape and returns float32 rows of shape (*ids.shape, dim) on
    the same device. It blocks like a pull, and until the device has computed the ids. Under torch.no_grad and
    in evaluation an id without a row gives its initial row, and nothing is created or pushed.

    Several features share one table if they use the same layer. A deep copy, for example in a moving average
    of a model, reads the rows of the original and trains none. Pickles have the rows: an unpickled layer has
    those of that time, like one with rows of `load_state_dict` before `prepare`.

    `state_dict` has all rows that exist, as NAME.rows.keys, int64 (n,), ascending, and NAME.rows.values,
    float32 (n, dim), on the CPU. It is not collective, so one worker may call it alone. It reads the rows
    from the servers in blocks and takes up to 16 bytes for each row and 4 MiB besides the result. Under BSP
    these are the rows after the newest step of this worker. Under SSP and ASP, and with backup workers, other
    workers push meanwhile, and rows may have different ones of their updates.

    `load_state_dict` before the job starts, before or after `prepare`, replaces all rows: the servers begin
    with those that worker 0 has loaded. Their optimizer state is that of new rows, unless the prepared
    optimizer has loaded it: the state of the rows is in its own `state_dict`. A job that continues a run
    has the rows of that run instead. A layer that is not prepared computes with the loaded rows.

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
        row_dtype: RowDtype = "float32",
    ) -> None:
        """Make the layer; its table is declared by `prepare`.

        Args:
            dim: Length of a row.
            optimizer: Rule of the rows; None: SGD(0.01). An optimizer of torch has no part in them.
            init: Initial values of a row, a function of its id and of the job's seed.
            consistency: Consistency of the table; None: that of `prepare`.
            compression: Codec of the pushes of rows; None: float32. See mpips.model.codec.
            pull_compression: Codec of the pulls of rows; None: float32.
            row_dtype: Type of the stored values, "float32" or "bf16"; see EmbeddingTable.

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
        self._codecs, self._row_dtype = (compression, pull_compression), row_dtype
        # Raise the table's errors here, where the script names the values.
        self.table("embedding", self.consistency or consistency_of("bsp"))
        self._access: Access | None = None
        self._loaded: LoadedRows | None = None
        self._states: RowStates | None = (
            None  # with which the rule begins, until the start of the job
        )
        # Keys in the newest state dict, and the path under which they were put there first.
        self._saved: tuple[weakref.ref[torch.Tensor], str] | None = None
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
            row_dtype=self._row_dtype,
        )

    def join(self, job: TorchJob, name: str) -> None:
        """Become a part of a job. `prepare` calls this."""
        if self._access is not None:
            raise ConfigError(
                f"the embedding {self._access.name!r} has been prepared already: prepare one module that "
                "contains all its uses"
            )
        self._access = Access(self, job, name)
        self._gradients.prepare(name)

    def load(self, rows: LoadedRows) -> None:
        """Take rows, which the servers get when a job of the layer starts. `load_checkpoint` calls this."""
        if self._access is not None and self._access.layer is not self:
            self._access = None  # a copy has rows of its own from here on
        self._loaded = rows

    def initial_rows(self) -> tuple[Int64, NDArray[np.float32]] | None:
        """Return keys and values of the loaded rows, None without. Called at the start of the job.

        With loaded state of the rule these are whole rows; see mpips.session.initial_values.Rows.

        Raises:
            ConfigError: There is state of rows, and no rows are loaded.
        """
        if self._states is not None and len(self._states.keys):
            return self._states.joined(self._loaded, self.own_table)
        return (self._loaded.keys, self._loaded.values) if self._loaded is not None else None

    @property
    def own_table(self) -> EmbeddingTable:
        """Table of a prepared layer, as far as rows and their rule depend on it."""
        assert self._access is not None
        return self.table(self._access.name, consistency_of("bsp"))

    def states(self) -> RowStates | None:
        """Return the optimizer state of a prepared layer's rows, None without. Blocks like a pull."""
        assert self._access is not None
        handle = self._access.handle
        return self._states if handle is None else RowStates.of(handle, self.own_table)

    def begin_with(self, states: RowStates | None) -> None:
        """Let servers begin with this optimizer state of rows; None: that of new rows. Before the start."""
        self._states = states

    def open(self, worker: Worker) -> None:
        """Take the table's handle at the start of the job."""
        assert self._access is not None
        self._access.handle = worker.table(self._access.name)
        self._loaded = self._states = None  # the servers have the rows

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of `ids`; see the class."""
        rows, places = self.rows(ids)
        return functional.embedding(places, rows, sparse=sums_in_push(rows))

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
        keys, places = distinct_places(self.on_host(ids).reshape(-1))
        rows, indices = self.pulled(keys, places, ids.device)
        return rows, indices.view(ids.shape)

    def on_host(self, ids: torch.Tensor) -> Int64:
        """Return ids as an array, int64, of their shape. Waits for their device.

        Raises:
            ConfigError: `ids` is not an int64 tensor with values.
            DeviceError: The device of `ids` failed.
        """
        access = self._access
        is_tensor = isinstance(ids, torch.Tensor)
        if not is_tensor or ids.dtype != torch.int64 or ids.device.type == "meta":
            table = repr(access.name) if access is not None else "without a job"
            found = f"{ids.dtype} on {ids.device}" if is_tensor else type(ids).__name__
            raise ConfigError(
                f"ids of the embedding {table} are {found}: must be an int64 tensor with values"
            )
        memory = access.job.devices.of(ids.device) if access is not None else None
        host = ids.detach().cpu() if memory is None else memory.fetch(ids)
        return np.asarray(host.numpy())

    def pulled(
        self, keys: Int64, places: Int64, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Pull rows. Blocks like a pull.

        Args:
            keys: int64, shape (n_unique,), ascending, each once.
            places: int64, shape (n,), indices in `keys`.
            device: Device of both results.

        Returns:
            The rows of `keys`, and `places`, as `rows` returns them.

        Raises:
            ConfigError: The layer has no rows to read.
        """
        self.check_has_rows()
        access, loaded = self._access, self._loaded
        memory = access.job.devices.of(device) if access is not None else None
        indices = on_device(device, memory, places)
        if access is None:
            assert loaded is not None
            return on_device(device, None, loaded.pull(keys)), indices
        access.job.start()
        access.job.settle()
        assert access.handle is not None
        if access.layer is self:
            self._gradients.check_unchanged()
        rows = on_device(device, memory, access.handle.pull(keys))
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

    def check_has_rows(self) -> None:
        """Raise ConfigError if the layer has no rows to read."""
        if self._access is None and self._loaded is None:
            name = type(self).__name__
            raise ConfigError(
                f"this mpips.torch.{name} is in no prepared model: call mpips.torch.prepare(model, ...), "
                "model.load_state_dict(state), or mpips.torch.load_checkpoint(model, path)"
            )

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

    def _rows_now(self) -> LoadedRows:
        """Return all rows that exist now. Not collective; blocks like a pull once the job has started."""
        access = self._access
        if access is not None and access.handle is not None:
            access.job.settle()
            keys, values = access.handle.all_rows()
            table = self.table(access.name, consistency_of("bsp"))
            return LoadedRows(keys, values, table, access.job.script.seed)
        loaded = access.layer._loaded if access is not None else self._loaded
        if loaded is not None:
            return loaded
        none = np.zeros(0, np.int64), np.zeros((0, self.dim), np.float32)
        name = access.name if access is not None else "embedding"
        seed = access.job.script.seed if access is not None else 0
        return LoadedRows(*none, self.table(name, consistency_of("bsp")), seed)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Put the rows in place of `weight`; a layer at several paths has the same tensors there."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[prefix + "weight"]
        if self._saved is not None:
            newest, first = self._saved[0](), self._saved[1]
            if newest is not None and destination.get(first + KEYS) is newest and first != prefix:
                repeat_rows(destination, first, prefix)
                return
        self._rows_now().save(destination, prefix)
        self._saved = weakref.ref(destination[prefix + KEYS]), prefix

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Take the rows of a state dict; keys that are missing, and errors, are noted as in torch.

        Raises:
            ConfigError: The job has started, so the rows are on the servers.
        """
        own, weight = (prefix + KEYS, prefix + VALUES), prefix + "weight"
        others = {n: one for n, one in state_dict.items() if n not in (*own, weight)}
        super()._load_from_state_dict(
            others, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        missing_keys[:] = [name for name in missing_keys if name != weight]
        if weight in state_dict:
            unexpected_keys.append(weight)
        if absent := [name for name in own if name not in state_dict]:
            missing_keys += absent
            return
        access = self._access
        if access is not None and access.layer is self and access.handle is not None:
            raise ConfigError(
                f"load_state_dict of the embedding {access.name!r} comes too late: the job has started with "
                "the first forward pass, and the rows are on the servers; load them before it, or into a "
                "copy, copy.deepcopy(model)"
            )
        assigns = bool(local_metadata.get("assign_to_params_buffers"))
        try:
            keys, values, name, seed = rows_of_state(
                state_dict, prefix, local_metadata, self.dim, assigns
            )
        except RefusedRowsError as error:
            error_msgs.append(f"{error}.")
            return
        if access is not None and access.layer is not self:
            self._access = None  # a copy has rows of its own from here on
        self._loaded = LoadedRows(keys, values, self.table(name, consistency_of("bsp")), seed)

    def _settings(self) -> dict[str, Any]:
        """Return the attributes that copies have."""
        own = ("_gradients", "_saved", "_is_copied", "_states")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __deepcopy__(self, memo: dict[int, Any]) -> Embedding:
        make, arguments, state = self._reduced()
        copied: Embedding = make(*arguments)
        memo[id(self)] = copied
        copied.__setstate__(copy.deepcopy(state, memo))
        return copied

    def __copy__(self) -> Embedding:
        make, arguments, state = self._reduced()
        copied: Embedding = make(*arguments)
        # The gradients of `weight` belong to one layer.
        own = {n: p for n, p in self._parameters.items() if n != "weight"}
        copied.__setstate__({**state, "_parameters": own})
        copied.weight.requires_grad_(self.weight.requires_grad)
        return copied

    def _reduced(self) -> Any:
        """Return what makes a copy: a function, its arguments, and the attributes, without rows."""
        self.__dict__["_is_copied"] = True
        try:
            reduced: Any = self.__reduce_ex__(4)
        finally:
            del self.__dict__["_is_copied"]
        return reduced[:3]

    def __getstate__(self) -> dict[str, Any]:
        is_new = self._access is None and self._loaded is None
        if is_new or "_is_copied" in self.__dict__:
            return self._settings()
        return {**self._settings(), "_loaded": self._rows_now()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._saved = self._states = None
        self._attach(requires_grad=True)

    def extra_repr(self) -> str:
        """Return the settings, for print(model)."""
        return f"{self.dim}, optimizer={self.optimizer}"


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
        row_dtype: RowDtype = "float32",
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
            row_dtype: Type of the stored values.
        """
        super().__init__(
            dim,
            optimizer=optimizer,
            init=init,
            consistency=consistency,
            compression=compression,
            pull_compression=pull_compression,
            row_dtype=row_dtype,
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
            sparse=self.mode != "max" and sums_in_push(rows),
        )


def sums_in_push(rows: torch.Tensor) -> bool:
    """Return True if backward leaves the sums over equal ids to the push, which is faster.

    A dense gradient of the rows costs torch a sort of the ids, and memory of zeros to add to. From a device
    it takes fewer bytes to the host.
    """
    # A compiled graph has no sparse gradients.
    return rows.device.type == "cpu" and not torch.compiler.is_compiling()
