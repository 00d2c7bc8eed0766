"""A prepared model: the class that `prepare` gives a module, and the hooks of its submodules.

The model keeps its identity; its class becomes a subclass of its own class, with the same name. Copies and
pickles of a prepared model are plain models again, with the values at that time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from mpips.errors import ConfigError
from mpips.torch.embedding import Embedding
from mpips.torch.handlers import refuse_interrupting
from mpips.torch.model_part import ModelPart


class Refresh:
    """A forward-pre-hook that pulls the model's values if they are stale; nothing in copies of the model."""

    def __init__(self, part: ModelPart | None) -> None:
        """Take the model's tables; None: do nothing."""
        self._part = part

    def __call__(self, *arguments: Any) -> None:
        """Pull the values if they are stale."""
        # torch.compile reads this condition, so that the graph is interrupted only where values are pulled.
        if self._part is not None and self._part.is_stale:
            self._pull()
        if self._part is not None and self._part.waits is not None:
            self._enter(arguments[0])

    @torch.compiler.disable  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _pull(self) -> None:
        assert self._part is not None
        self._part.refresh()

    @torch.compiler.disable  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _enter(self, module: torch.nn.Module) -> None:
        assert self._part is not None
        assert self._part.waits is not None
        self._part.waits.enter(module)

    def __deepcopy__(self, memo: Any) -> Refresh:
        return Refresh(None)

    def __reduce__(self) -> Any:
        return Refresh, (None,)


def _part_of(model: torch.nn.Module) -> ModelPart | None:
    """Return the part of a prepared model, or of the Sequential of which it is a slice."""
    # A compiled model keeps its attributes in the one that it wraps.
    own: ModelPart | None = getattr(model, "_mpips_part", None)
    whole: ModelPart | None = model.__dict__.get("_mpips_whole")
    return own or whole


def _refresh(model: torch.nn.Module) -> None:
    """Pull the values of a prepared model, or of the one of which it is a slice, once the job has started."""
    part = _part_of(model)
    if part is not None and part.is_started:
        part.refresh()


def _item(model: torch.nn.Module, index: Any) -> Any:
    """Return model[index]. A slice of a Sequential is an object of the same class, with the same layers."""
    found = super(model.__class__, model).__getitem__(index)  # type: ignore[misc]
    if isinstance(found, PreparedModule) and isinstance(index, slice):
        found.__dict__["_mpips_whole"] = _part_of(model)
        found.__dict__["_mpips_plain"] = model._mpips_plain
    return found


class PreparedModule(torch.nn.Module):
    """Methods of a prepared model. Each that reads values first pulls them if a step has changed them."""

    _mpips_part: ModelPart
    _mpips_plain: type[torch.nn.Module]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """As in torch. The forward pass waits for values where it uses them; see mpips.torch.by_use."""
        part: ModelPart | None = self.__dict__.get(
            "_mpips_part"
        )  # a slice of a Sequential has none
        if torch.compiler.is_compiling() or part is None:
            return super().__call__(*arguments, **named)
        # Without gradients the script may look at other values, such as averages of weights.
        is_training = self.training and torch.is_grad_enabled()
        part.note_forward(is_training)
        if is_training:
            part.check_unchanged()
        if not part.is_stale:
            part.follow_stream()
        if not part.may_wait_by_use(self):
            return super().__call__(*arguments, **named)
        with part.waiting_by_use():
            return super().__call__(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        """As in torch; a parameter of the model itself has its current value.

        A method other than `forward` may read one before it calls a layer. The hook of the layer would pull
        into its memory in the middle of the graph.
        """
        part: ModelPart | None = self.__dict__.get("_mpips_part")
        is_old = part is not None and part.is_started and part.is_stale
        if part is not None and is_old and name in self.__dict__.get("_parameters", ()):
            part.refresh()
        return super().__getattr__(name)

    def named_parameters(self, *arguments: Any, **named: Any) -> Iterator[Any]:
        """As in torch, with the current values. Blocks like a pull after a step."""
        _refresh(self)
        return super().named_parameters(*arguments, **named)

    def named_buffers(self, *arguments: Any, **named: Any) -> Iterator[Any]:
        """As in torch, with the current values. Blocks like a pull after a step."""
        _refresh(self)
        return super().named_buffers(*arguments, **named)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch; also drops gradients of embeddings that no step has pushed.

        Does not pull: a script that calls it before `scheduler.step()` still has the step's clock open.
        """
        part = _part_of(self)
        with part.dropping(set_to_none) if part is not None else nullcontext():
            for module in self.modules():
                if isinstance(module, Embedding):
                    module.drop()
            for _, parameter in super().named_parameters():
                if set_to_none:
                    parameter.grad = None
                elif parameter.grad is not None:
                    if parameter.grad.grad_fn is not None:
                        parameter.grad.detach_()
                    else:
                        parameter.grad.requires_grad_(False)
                    parameter.grad.zero_()

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        """As in torch, with the current values and the rows of embeddings: a plain dict of torch.

        Not collective: one worker may call it alone. Blocks like a pull. Under BSP without backup workers
        these are the values after this worker's newest step. Otherwise servers apply pushes of other workers
        meanwhile, so parts of the dict can be of different updates. Rows: see mpips.torch.Embedding.

        Raises:
            ConfigError: A signal's handler has interrupted a call of mpips.
        """
        part = _part_of(self)
        if part is not None and part.is_started:
            refuse_interrupting("model.state_dict()")
        _refresh(self)
        return super().state_dict(*arguments, **named)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As in torch, before the first forward pass: values and rows of worker 0 become those of the job.

        Raises:
            ConfigError: The job has started, so the values are on the servers; or `assign` is True.
        """
        part = _part_of(self)
        if part is not None and part.is_started:
            raise ConfigError(
                "load_state_dict comes too late: the job has started with the first forward pass; load the "
                "values before it, or into a copy, copy.deepcopy(model)"
            )
        if assign:
            raise ConfigError(
                "load_state_dict with assign=True would replace the parameters that mpips.torch.prepare was "
                "given: use assign=False, or load the values before prepare"
            )
        return super().load_state_dict(state_dict, strict)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients, as with DistributedDataParallel: backward sends none.

        Use it for all backward passes of a step but the last one.
        """
        part = _part_of(self)
        if part is None:
            yield
            return
        before, part.is_accumulating = part.is_accumulating, True
        try:
            yield
        finally:
            part.is_accumulating = before

    def __reduce_ex__(self, protocol: Any) -> Any:
        _refresh(self)
        reduced: Any = super().__reduce_ex__(protocol)
        _, (_, *arguments), state, *rest = reduced
        state = {k: v for k, v in state.items() if not k.startswith("_mpips")}
        return make_plain, (self._mpips_plain, *arguments), state, *rest


@contextmanager
def averaged(model: torch.nn.Module) -> Iterator[None]:
    """Within the block a prepared model has the values of the last outer step, under LocalSGD or DiLoCo.

    These are the servers' values, the same on all workers at the same step: evaluate and save them. Outside
    of the block a worker's model has its own values. Under other models of consistency nothing differs.

    Raises:
        ConfigError: The model is not prepared.
    """
    if not isinstance(model, PreparedModule):
        raise ConfigError("averaged: the model is not prepared: call mpips.torch.prepare before it")
    with model._mpips_part.averaged():
        yield


def make_plain(plain: type[Any], *arguments: Any) -> Any:
    """Return a new object without attributes: copies and pickles of prepared objects begin with it.

    pickle accepts `copyreg.__newobj__` only with the class of the object itself.
    """
    return plain.__new__(plain, *arguments)


def prepared_class(plain: type[Any], methods: type[Any], **body: Any) -> type[Any]:
    """Return a subclass of a script's class, of the same name, with the methods of prepared objects."""
    names = {"__module__": plain.__module__, "__qualname__": plain.__qualname__}
    return type(plain.__name__, (methods, plain), {**names, **body})


def make_prepared(
    model: torch.nn.Module, part: ModelPart, base: type[PreparedModule] = PreparedModule
) -> None:
    """Turn a model into a prepared one, in place. `base`: class with the methods of prepared models."""
    plain = type(model)
    body = {"__getitem__": _item} if hasattr(plain, "__getitem__") else {}
    model.__class__ = prepared_class(plain, base, **body)
    model._mpips_part = part  # type: ignore[assignment]
    model._mpips_plain = plain  # type: ignore[assignment]
    for module in model.modules():
        module.register_forward_pre_hook(Refresh(part), prepend=True)
