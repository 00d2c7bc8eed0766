"""The gradients of an embedding layer's rows between backward and `step`, as a parameter of torch has them.

A layer has one `RowParameter`, which `model.parameters()` yields. Its `grad` has one row for each id that a
backward pass has reached since the newest step, and its values are the rows of these ids. So GradScaler,
clipping and a script's own loop over `p.grad` change what the step pushes, and `p.grad = None` drops it.
Between a step and the next backward pass the parameter has the shape (0, dim) and no gradient: it takes no
memory, counts no elements, and averages of a model's parameters leave it out.

The parameter does not belong to a graph. Each forward pass has a leaf of its own. Their gradients are added
up when `grad` is read; a step whose gradients have not been read pushes those of the leaves, as torch made
them.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from mpips.errors import ConfigError
from mpips.model.distinct import distinct

Int64 = NDArray[np.int64]
_DATA: Any = torch.Tensor.data
Part = tuple[Int64, torch.Tensor, torch.Tensor]  # keys, and their gradients and values as rows


class RowParameter(torch.nn.Parameter):
    """The parameter of a layer's rows; see the module."""

    rows: RowGradients | None

    def __new__(cls, data: torch.Tensor, requires_grad: bool = True) -> RowParameter:
        """Make a parameter without a layer. `data`: shape (0, dim)."""
        made: RowParameter = super().__new__(cls, data, requires_grad)
        made.rows = None
        return made

    @property
    def grad(self) -> torch.Tensor | None:  # type: ignore[override]
        """Gradients of the rows, float32, shape (n, dim); None if no backward pass has reached one."""
        return self.rows.gathered() if self.rows is not None else None

    @grad.setter
    def grad(self, gradient: torch.Tensor | None) -> None:
        if self.rows is None:
            if gradient is not None:
                raise ConfigError(
                    "the parameter of an mpips.torch.Embedding that is in no model has no gradient"
                )
        else:
            self.rows.replace(gradient)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        """As in torch. A write to it is found, though torch does not count it as one to the parameter."""
        found: torch.Tensor = _DATA.__get__(self)
        if self.rows is not None:
            self.rows.lend(found)
        return found

    @data.setter
    def data(self, values: torch.Tensor) -> None:
        if self.rows is not None:
            self.rows.check_settable()
        _DATA.__set__(self, values)

    def register_hook(self, hook: Any) -> NoReturn:
        """Raise ConfigError: the parameter is in no graph, so the hook would never be called."""
        self._refuse_hook()

    def register_post_accumulate_grad_hook(self, hook: Any) -> NoReturn:
        """Raise ConfigError: the parameter is in no graph, so the hook would never be called."""
        self._refuse_hook()

    def _refuse_hook(self) -> NoReturn:
        name = self.rows.name if self.rows is not None else "embedding"
        raise ConfigError(
            f"a hook on the gradient of the embedding {name!r} would never be called, since its rows are on "
            "servers: change the .grad of its parameter between backward and step() instead"
        )

    def __deepcopy__(self, memo: Any) -> RowParameter:
        if id(self) not in memo:
            memo[id(self)] = _made(*self._settings())
        copied: RowParameter = memo[id(self)]
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _made, self._settings()

    def _settings(self) -> tuple[int, torch.dtype, torch.device, bool]:
        return self.shape[1], self.dtype, self.device, self.requires_grad


def _made(dim: int, dtype: torch.dtype, device: torch.device, requires_grad: bool) -> RowParameter:
    return RowParameter(torch.zeros(0, dim, dtype=dtype, device=device), requires_grad)


class RowGradients:
    """The gradients of one layer since the newest step.

    Attributes:
        name: Name of the layer, for errors.
        n_notes: Number of gradients of leaves that have come.
        is_converted: The layer's parameter is being moved to a device or converted, which may set its data.
    """

    def __init__(self, parameter: RowParameter) -> None:
        """Show the gradients in `parameter`; initially it has no gradient."""
        self.name = "embedding"
        self.n_notes = 0
        parameter.rows = self
        self._parameter = weakref.ref(parameter)  # the parameter refers to this object
        self._dtype = parameter.dtype
        self.is_converted = False  # the script moves or converts the model
        self._is_prepared = False
        self._version = parameter._version
        self._lent: list[
            tuple[torch.Tensor, int]
        ] = []  # the newest `parameter.data`, and its version
        self._waiting: list[
            tuple[Int64, torch.Tensor]
        ] = []  # leaves whose gradients nobody has read
        self._keys: Int64 = np.zeros(0, np.int64)  # of the rows of `_gradient`
        self._gradient: torch.Tensor | None = None

    def note(self, keys: Int64, leaf: torch.Tensor) -> None:
        """Note a leaf whose gradient has come; a second backward pass adds to the same gradient.

        Args:
            keys: int64, shape (n,), ascending.
            leaf: float32, shape (n, dim), their rows.
        """
        self.n_notes += 1
        if not any(leaf is other for _, other in self._waiting):
            self._waiting.append((keys, leaf))

    def gathered(self) -> torch.Tensor | None:
        """Return the gradients of all rows, each row once, and give the parameter their values; or None."""
        if not self._waiting:
            return self._gradient
        with torch.no_grad():
            parts = [part for keys, leaf in self._waiting if (part := _part(keys, leaf))]
            self._waiting.clear()
            if not parts:
                return self._gradient
            if self._gradient is not None:
                parts.insert(0, (self._keys, self._gradient, self._own().detach()))
            self._keys, self._gradient, values = _sum(parts)
            self._show(values)
        return self._gradient

    def replace(self, gradient: torch.Tensor | None) -> None:
        """Let the script's gradient, of the shape of the one that is there, count; None: drop it.

        Raises:
            ConfigError: It has another shape. The message names the layer.
        """
        if gradient is None:
            self.drop()
            return
        self.gathered()
        shape = tuple(self._own().shape)
        if tuple(gradient.shape) != shape:
            raise ConfigError(
                f"the gradient of the embedding {self.name!r} was replaced by one of shape "
                f"{tuple(gradient.shape)}: must have the shape {shape}, one row for each id since the newest "
                "step"
            )
        self._gradient = gradient

    @property
    def waits(self) -> bool:
        """True if there are gradients that no step has taken."""
        return bool(self._waiting) or self._gradient is not None

    def take(self) -> list[tuple[Int64, torch.Tensor]]:
        """Return gradients and drop them: keys, some of which may be equal, with one tensor for all keys.

        A tensor can be a sparse one, whose indices are places in its keys.
        """
        found = [(keys, leaf.grad) for keys, leaf in self._waiting if leaf.grad is not None]
        if self._gradient is not None:
            found.insert(0, (self._keys, self._gradient.detach()))
        self.drop()
        return found

    def drop(self) -> None:
        """Drop all gradients."""
        for _, leaf in self._waiting:
            leaf.grad = None
        self._waiting.clear()
        if self._gradient is not None:
            self._keys, self._gradient = self._keys[:0], None
            own = self._own()
            self._show(own.detach().new_empty((0, own.shape[1]), dtype=self._dtype))

    def prepare(self, name: str) -> None:
        """Refuse changes of the parameter's values from now on. `name`: that of the layer."""
        own = self._own()
        if own._version != self._version or self._is_written():
            warnings.warn(
                f"the script has filled the parameter of the embedding {name!r} with initial values, which "
                "have no effect: a row begins with the layer's init, as in "
                "mpips.torch.Embedding(dim, init='normal(0.02)')",
                stacklevel=4,
            )
        self.name, self._is_prepared = name, True
        self._version = own._version
        self._lent.clear()

    def lend(self, data: torch.Tensor) -> None:
        """Note a tensor with the memory of the parameter, to which the script may write."""
        if not self._is_written():
            self._lent[:] = [(data, data._version)]

    def check_unchanged(self) -> None:
        """Raise ConfigError if the script has written to the parameter. Cheap."""
        if self._own()._version != self._version or self._is_written():
            self._refuse()

    def check_settable(self) -> None:
        """Raise ConfigError if the script must not replace the parameter's values."""
        if self._is_prepared and not self.is_converted:
            self._refuse()

    def _is_written(self) -> bool:
        return any(data._version != version for data, version in self._lent)

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            f"the script has changed the values of the embedding {self.name!r}: its rows are on the servers, "
            "where the change has no effect; leave its parameter out of what changes values "
            "(isinstance(module, mpips.torch.Embedding)), and bound rows by their rule, such as its "
            "weight_decay"
        )

    def _own(self) -> RowParameter:
        parameter = self._parameter()
        assert parameter is not None  # the layer has it
        return parameter

    def _show(self, values: torch.Tensor) -> None:
        own = self._own()
        if self._gradient is not None and not own.numel():
            self._dtype = own.dtype
        _DATA.__set__(own, values)
        self._version = own._version


def _part(keys: Int64, leaf: torch.Tensor) -> Part | None:
    """Return the gradient of a leaf as keys, each once, and rows; the next pass begins a new gradient."""
    gradient = leaf.grad
    leaf.grad = None
    if gradient is None:
        return None
    values = leaf.detach()
    gradient = gradient.detach() if gradient.requires_grad else gradient
    if not gradient.is_sparse:
        return keys, gradient, values
    # Without views of the sparse tensor, which torch does not let a script change outside of no_grad.
    summed = gradient.coalesce()
    places = summed._indices()[0]
    return keys[places.cpu().numpy()], summed._values(), values[places]


def _sum(parts: list[Part]) -> Part:
    """Return the sum of parts."""
    if len(parts) == 1:
        return parts[0]
    _, first, _ = parts[0]
    keys = distinct(np.concatenate([part[0] for part in parts]))
    gradient = first.new_zeros(len(keys), first.shape[1])
    values = torch.empty_like(gradient)
    for own, added, rows in parts:
        places = torch.from_numpy(np.searchsorted(keys, own)).to(gradient.device)
        gradient.index_add_(0, places, added.to(gradient))
        values[places] = rows.to(values)
    return keys, gradient, values
