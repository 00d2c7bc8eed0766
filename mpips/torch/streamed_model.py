"""Making a model a streamed one: its layers, and parameters from the meta device.

`with torch.device("meta")` makes a model without memory. Its parameters cannot become tensors of the CPU, so
each is replaced by a new one, in its modules and in the optimizer. Worker 0 gives them values when the job
starts, layer by layer in the order of `model.named_modules()`, which is the order in which most models draw
the random numbers of their values. Modules with buffers on the meta device get values in `prepare`, on each
worker, since some buffers stay with each worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.parameter import UninitializedParameter

from mpips.errors import ConfigError
from mpips.model.consistency import BSP, Consistency
from mpips.model.optimizer import Optimizer
from mpips.torch.blocks import map_large_allocations
from mpips.torch.model_part import ModelPart
from mpips.torch.module import PreparedModule, make_prepared
from mpips.torch.parameters import ParameterTable
from mpips.torch.row_gradients import RowParameter
from mpips.torch.streamed_table import Init, Layer, StreamedParameter, StreamedTable, placeholder
from mpips.torch.streaming import Stream, check_torch

Make = Callable[[str, torch.nn.Parameter, Optimizer | None], ParameterTable]
# Others are refused; see ParameterTable.
_PLAIN = (torch.nn.Parameter, UninitializedParameter, RowParameter)


class StreamedModule(PreparedModule):
    """Methods of a streamed model."""

    _mpips_stream: Stream

    @torch.compiler.disable  # type: ignore[misc,untyped-decorator,unused-ignore]
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """As in torch; autograd saves no values of parameters. torch.compile around it has no effect."""
        # A slice of a torch.nn.Sequential has its class, but none of its attributes.
        stream: Stream | None = self.__dict__.get("_mpips_stream")
        with stream.saving() if stream is not None else nullcontext():
            return super().__call__(*arguments, **named)

    def compile(self, *arguments: Any, **named: Any) -> None:
        """Raise ConfigError: compiled functions do not ask parameters for their values."""
        raise ConfigError(
            "torch.compile and stream exclude each other: compile a model that is prepared without stream"
        )

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """See PreparedModule.load_state_dict.

        Raises:
            ConfigError: A parameter has come from the meta device; `init` gives its values.
        """
        for table in self._mpips_stream.tables:
            if not self._mpips_part.is_started and not table.has_values:
                raise ConfigError(
                    f"load_state_dict: the parameter {table.name!r} has come from the meta device and gets "
                    "its values when the job starts: let the function init of prepare load them"
                )
        return super().load_state_dict(state_dict, strict, assign)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Raise ConfigError: gradients that are accumulated would need memory for all parameters."""
        raise ConfigError(
            "no_sync and stream exclude each other, since accumulated gradients need memory for all "
            "parameters: make one backward pass for each step, or prepare the model without stream"
        )
        yield


def check_stream(stream: Any, init: Any, consistency: Consistency, overlap: bool | None) -> None:
    """Raise an error for arguments of `prepare` that do not fit together.

    Raises:
        CapabilityError: This torch cannot stream.
        ConfigError: The message names the argument.
    """
    if stream is None:
        if init is not None:
            raise ConfigError(
                "prepare: init is given without stream: it needs stream=2, for example"
            )
        return
    if isinstance(stream, bool) or not isinstance(stream, int) or stream < 1:
        raise ConfigError(f"prepare: stream = {stream!r}: must be a number of layers, at least 1")
    if init is not None and not callable(init):
        raise ConfigError(
            f"prepare: init is {type(init).__name__}: must be a function of a module that fills the "
            "module's own parameters"
        )
    if not isinstance(consistency, BSP) or consistency.backup:
        raise ConfigError(
            f"prepare: stream needs consistency 'bsp' without backup workers, not {consistency!r}: values "
            "may change there between a layer's forward and its backward pass"
        )
    if overlap is False:
        raise ConfigError(
            "prepare: stream and overlap=False exclude each other: with stream backward sends each gradient "
            "and frees it"
        )
    check_torch()


def make_stream(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    limit: int,
    init: Init | None,
) -> tuple[Stream, Make]:
    """Turn the parameters of a model into streamed ones, in place.

    Args:
        model: The model; not prepared yet.
        optimizer: Its optimizer, or None. Parameters from the meta device are replaced in it. Its state is
            dropped: that of Adagrad is as large as the model.
        limit: Number of layers that may have their parameters in memory.
        init: Fills the parameters and buffers of a module from the meta device; None: reset_parameters.

    Returns:
        The stream, and a function that makes the table of a parameter of the model.

    Raises:
        ConfigError: A parameter or module cannot be streamed.
    """
    _check(model, init)
    fill = init or _reset
    _replace(model, optimizer)
    if optimizer is not None:
        optimizer.state.clear()
    map_large_allocations()
    layers = [Layer(path, module, fill, init is None) for path, module in model.named_modules()]
    stream = Stream(layers, limit)
    owners: dict[int, Layer] = {}  # by the identity of the parameter
    for layer in stream.layers:
        for parameter in layer.module._parameters.values():
            owners.setdefault(id(parameter), layer)

    def make(name: str, parameter: torch.nn.Parameter, rule: Optimizer | None) -> StreamedTable:
        return stream.add(name, parameter, rule, owners[id(parameter)])

    return stream, make


def fill_buffers(stream: Stream) -> None:
    """Give values to modules that have buffers on the meta device, and to their parameters."""
    for layer in stream.layers:
        buffers = layer.module._buffers
        on_meta = {key: buffer for key, buffer in buffers.items() if buffer is not None}
        on_meta = {key: buffer for key, buffer in on_meta.items() if _is_meta(buffer)}
        for key, buffer in on_meta.items():
            buffers[key] = torch.empty_like(buffer, device="cpu")
            if buffer.is_floating_point():
                buffers[key].fill_(torch.nan)  # type: ignore[union-attr]
        if on_meta:
            layer.initialise()
        for key in on_meta:
            filled = buffers[key]
            if filled is not None and filled.is_floating_point() and filled.isnan().any():
                raise ConfigError(
                    f"prepare: the buffer {key!r} of the module {layer.name!r} has come from the meta "
                    "device, and NaN is left in it: pass an init that fills all buffers of the module itself"
                )


def _is_meta(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.device.type == "meta"


def _check(model: torch.nn.Module, init: Init | None) -> None:
    """Raise ConfigError for a module that cannot be streamed."""
    for path, module in model.named_modules():
        name = f"{path!r} ({type(module).__name__})" if path else type(module).__name__
        if isinstance(module, torch._dynamo.OptimizedModule) or module._compiled_call_impl:
            raise ConfigError(
                f"prepare: the module {name} is compiled: torch.compile and stream exclude each other"
            )
        for key, parameter in module._parameters.items():
            if parameter is not None and type(parameter) not in _PLAIN:
                raise ConfigError(
                    f"prepare: the parameter {key!r} of {name} is a {type(parameter).__name__}: stream takes "
                    "parameters that are torch.nn.Parameter, which no other model has"
                )
            if parameter is not None and parameter.device.type not in ("cpu", "meta"):
                raise ConfigError(
                    f"prepare: the parameter {key!r} of {name} is on {parameter.device}: streamed values are "
                    "on the CPU; prepare the model there, or without stream"
                )
        tensors = [*module._parameters.values(), *module._buffers.values()]
        made = callable(getattr(module, "reset_parameters", None))
        if init is None and not made and any(map(_is_meta, tensors)):
            raise ConfigError(
                f"prepare: the module {name} is on the meta device and has no reset_parameters(): pass "
                "init, a function of a module that fills the parameters and buffers that the module itself "
                "has"
            )


def _replace(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Replace parameters on the meta device in the modules and the optimizer."""
    replaced: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for key, parameter in list(module._parameters.items()):
            if parameter is not None and _is_meta(parameter):
                if id(parameter) not in replaced:
                    replaced[id(parameter)] = _without_memory(parameter)
                setattr(module, key, replaced[id(parameter)])
    for group in optimizer.param_groups if optimizer is not None else ():
        group["params"] = [replaced.get(id(p), p) for p in group["params"]]


def _without_memory(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """Return a parameter of the CPU, with one element of memory, for one on the meta device."""
    if not parameter.numel():
        return torch.nn.Parameter(
            torch.empty_like(parameter, device="cpu"), parameter.requires_grad
        )
    found = StreamedParameter(
        placeholder(parameter.shape, parameter.dtype), parameter.requires_grad
    )
    found.__dict__.update(parameter.__dict__)
    for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):  # removing one works as before
        if getattr(parameter, hooks):
            setattr(found, hooks, getattr(parameter, hooks))
    found._mpips_stride = torch.empty_like(parameter).stride()
    return found


def _reset(module: Any) -> None:
    module.reset_parameters()


def make_streamed(model: torch.nn.Module, part: ModelPart, stream: Stream) -> None:
    """Turn a model into a prepared, streamed one, in place."""
    make_prepared(model, part, StreamedModule)
    model._mpips_stream = stream  # type: ignore[assignment]
    stream.attach(part)
