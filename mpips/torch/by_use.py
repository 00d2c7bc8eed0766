"""Values that a forward pass waits for one table at a time, where a function of torch first receives them.

After a step the values of parameters on servers of other nodes are asked for in the order of their use, and
the forward pass begins at once. A function of torch that receives a tensor with the memory of a parameter
first waits for the values of that parameter. So nothing depends on which module reads a parameter: a parent
that reads those of its children (torch.nn.MultiheadAttention), modules that share one, and functions that are
given one by hand all wait for what they read. Before a module's forward its own parameters are waited for in
any case, since it may give them to a function of a C++ extension, which is not a function of torch.

The memory of a parameter has two users. MPI writes it between the request and the end of its wait. The
script's thread reads it in functions of torch, all of which pass through UseWaits within the forward pass
(`TorchFunctionMode`), and at its end the rest is waited for. So no function reads a parameter that is under
way. The following code does not pass through UseWaits and gets whole pulls before the forward pass, as do all
parameters on servers of this node:

    compiled models and submodules     their code has been traced: no function of torch is called
    torch.jit                          its interpreter calls operators itself; any scripted function counts
    torch's attention in evaluation    it has another way there, which it leaves where functions are watched
    methods other than `forward`       only the call of the model has a beginning and an end

A function of torch in another thread than the one that called the model is not seen: a module that is called
there raises ConfigError. Nor is a parent seen that gives a parameter of its child to a C++ extension, or a
NumPy view of a parameter that the script has made before.

The order of use is that of the newest forward pass that has waited; at first that of the model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from mpips.errors import ConfigError
from mpips.torch.parameters import ParameterTable
from mpips.worker.by_use import PullsByUse

# Functions that read no values.
_WITHOUT_VALUES = frozenset(
    {
        *(
            getattr(torch.Tensor, name).__get__
            for name in ("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda")
        ),
        torch.Tensor.size,
        torch.Tensor.dim,
        torch.Tensor.numel,
        torch.Tensor.is_floating_point,
    }
)

_WITH_INFERENCE = (
    torch.nn.MultiheadAttention,
    torch.nn.TransformerEncoder,
    torch.nn.TransformerEncoderLayer,
)


class UseWaits(TorchFunctionMode):
    """The waits of one forward pass.

    Attributes:
        used: Tables in the order of their first use so far.
    """

    def __init__(self, tables: Iterable[ParameterTable], pulls: PullsByUse) -> None:
        """`tables`: those whose values are under way as `pulls`."""
        super().__init__()
        self.used: list[ParameterTable] = []
        self._pulls = pulls
        self._thread = threading.get_ident()
        self._coming: dict[int, list[ParameterTable]] = {}  # by the address of the memory
        for table in tables:
            address = table.parameter.untyped_storage().data_ptr()
            self._coming.setdefault(address, []).append(table)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Wait for the parameters among the arguments, then call the function."""
        if self._coming and func not in _WITHOUT_VALUES:
            self._look(args)
            if kwargs:
                self._look(kwargs.values())
        return func(*args, **(kwargs or {}))

    def _look(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                self._wait_for(value)
            elif isinstance(value, list | tuple):
                self._look(value)
            elif isinstance(value, dict):
                self._look(value.values())

    def _wait_for(self, tensor: torch.Tensor) -> None:
        try:
            address = tensor.untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError):
            address = 0
        if not address and tensor.numel():
            # It is a wrapper, such as those of torch.func: its memory is not known.
            return self.finish()
        for table in self._coming.pop(address, ()):
            table.wait_for(self._pulls)
            self.used.append(table)

    def finish(self) -> None:
        """Wait for all other values."""
        while self._coming:
            _, tables = self._coming.popitem()
            for table in tables:
                table.wait_for(self._pulls)

    def enter(self, module: torch.nn.Module) -> None:
        """Wait for a module's own parameters, before its forward.

        Raises:
            ConfigError: It is called in another thread than the model.
        """
        if not self._coming:
            return
        if threading.get_ident() != self._thread:
            raise ConfigError(
                f"a {type(module).__name__} of the model was called in another thread than the model, where "
                "mpips cannot wait for its values: use prepare(..., pull='whole')"
            )
        self._look(module._parameters.values())


def is_seen(model: torch.nn.Module) -> bool:
    """Return False if a forward pass that begins now may read parameters unseen, or compute otherwise.

    Parts are compiled or scripted, or the process has a function of torch.jit, which the model may call. Or
    torch's own attention would take its way for inference, which it does not take while functions are seen,
    and which rounds otherwise.
    """
    return not _has_scripted_functions() and not any(
        isinstance(module, torch.jit.ScriptModule)
        or hasattr(module, "_orig_mod")
        or getattr(module, "_compiled_call_impl", None) is not None
        or (isinstance(module, _WITH_INFERENCE) and not module.training)
        for module in model.modules()
    )


def _has_scripted_functions() -> bool:
    state = getattr(torch.jit, "_state", None)
    unit = getattr(state, "_python_cu", None)
    return unit is None or len(unit.get_functions()) > 0


def in_order_of_use(
    tables: Sequence[ParameterTable], used: Sequence[ParameterTable]
) -> list[ParameterTable]:
    """Return tables with those that a forward pass has used in front, in its order."""
    first = set(map(id, used))
    return [*used, *(table for table in tables if id(table) not in first)]
