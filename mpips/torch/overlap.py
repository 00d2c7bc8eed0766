"""Gradients that are pushed while backward runs.

A hook of each parameter runs when its gradient is complete. With overlap it pushes the gradient at once, in
the fixed order of `Stepping` (the last layer first), and the push closes the table: servers sum, and under
BSP apply, the last layers while backward computes the first ones. `step` then pushes the rest.

That is right only if `step` finds the gradients, and the hyperparameters, that were sent. So the first
OBSERVED_STEPS steps push in `step`, and look at what happens between the hooks and `step`. Overlap begins
if nothing there has changed a gradient (clipping, GradScaler) or a hyperparameter (a rate that is set right
before `step`), or has run a second backward pass; it never begins if something has. A script that does one of
these later for the first time gets a ConfigError before its clock ends, so before anything wrong counts.

Changes of a gradient are found by `Watched`, an alias of the gradient's memory that `.grad` is until the
step: every use from Python comes by it, also those that torch's counter of changes misses (`.grad.data`,
`.grad.numpy()`). The first use takes a copy, and `step` compares.

The order of pushes does not depend on whether they overlap: a worker that repeats a clock after a restart
begins to observe again, and its pushes are those of the earlier launch.

A gradient is not a view of memory from `Worker.allocate`: autograd would have to add into it, where it now
hands over its own result, and a push copies that at the speed of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mpips.errors import ConfigError
from mpips.torch.parameters import ParameterTable

OBSERVED_STEPS = 2

# Uses that reach the memory without torch's count of changes.
_UNCOUNTED = {
    torch.Tensor.data.__get__,  # type: ignore[attr-defined]
    torch.Tensor.numpy,
    torch.Tensor.__array__,
    torch.Tensor.data_ptr,
    torch.Tensor.untyped_storage,
    torch.Tensor.storage,
    torch.Tensor.__dlpack__,
    torch.Tensor.set_,
}


class Watched(torch.Tensor):
    """A gradient that notes its first use from Python; an alias of the memory of the plain one.

    Attributes:
        before: Copy of the gradient at the first use; None: not used yet.
        is_uncounted: True if a use may have changed it without torch's count of changes.
    """

    before: torch.Tensor | None
    is_uncounted: bool

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            for one in _watched(args):
                if one.before is None:
                    one.before = one.detach().clone()
                if func in _UNCOUNTED:
                    one.is_uncounted = True
            return func(*args, **(kwargs or {}))


def _watched(values: Any) -> list[Watched]:
    """Return the watched gradients among arguments, also in lists of them."""
    found: list[Watched] = []
    for value in values:
        if isinstance(value, Watched):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _watched(value)
    return found


def _watch(parameter: torch.nn.Parameter) -> tuple[Watched, int]:
    """Let `.grad` of a parameter be watched; return it and its count of changes."""
    gradient = parameter.grad
    assert gradient is not None
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        # A gradient that was watched before gets a new alias: nobody has used that one yet.
        alias = gradient.detach().as_subclass(Watched)
        alias.before, alias.is_uncounted = None, False
        parameter.grad = alias
        return alias, alias._version


def _changed(parameter: torch.nn.Parameter, sent: Watched) -> bool:
    """Return whether the parameter's gradient differs from what it was when it was watched."""
    gradient = parameter.grad
    if gradient is None:
        return True
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        before = sent if sent.before is None else sent.before
        if gradient is sent and before is sent:
            return False
        same_form = gradient.shape == before.shape and gradient.dtype == before.dtype
        return not (same_form and torch.equal(gradient, before))


class Overlap:
    """The hooks of one prepared optimizer's parameters."""

    def __init__(
        self,
        tables: Sequence[ParameterTable],
        begin: Callable[[], None],
        hyperparameters: Callable[[], Any],
        is_accumulating: Callable[[], bool],
        wanted: bool | None,
    ) -> None:
        """Make no hooks yet; see `open`.

        Args:
            tables: Tables of the parameters, in the order of their pushes.
            begin: Ends the clock before, and sends changed hyperparameters; called before the first push.
            hyperparameters: Returns those that are in force now.
            is_accumulating: Returns True within `no_sync`.
            wanted: True: overlap from the first step on; False: never; None: after observed steps.
        """
        self._tables = tables
        self._begin = begin
        self._hyperparameters = hyperparameters
        self._is_accumulating = is_accumulating
        self._is_on = wanted is True
        self._observed = None if wanted is not None else 0
        self._hooks: list[Any] = []
        self._ready: set[int] = set()  # places of complete gradients of this clock
        self._watched: dict[int, tuple[Watched, int]] = {}
        self._next = 0  # place of the first table that has not been sent in this clock
        self._found: Any = None  # hyperparameters at the first gradient of an observed clock

    def open(self, is_alone: bool) -> None:
        """Make the hooks at the start of the job.

        Args:
            is_alone: No other optimizer is prepared in the script.

        Raises:
            ConfigError: Overlap is wanted beside another optimizer.
        """
        if not is_alone:
            if self._is_on:
                raise ConfigError(
                    "prepare: overlap=True needs a script with one optimizer: backward of one model's loss "
                    "may reach parameters of the other, which its optimizer does not step"
                )
            self._observed = None
        if self._is_on or self._observed is not None:
            for place, table in enumerate(self._tables):
                parameter = table.parameter
                if parameter.is_leaf and (parameter.requires_grad or table.rule is not None):
                    hook = self._hook_of(place)
                    self._hooks.append(_register(parameter, hook))

    def _hook_of(self, place: int) -> Callable[[torch.Tensor], None]:
        @torch.compiler.disable  # type: ignore[misc,untyped-decorator,unused-ignore]
        def complete(parameter: torch.Tensor) -> None:
            self._complete(place)

        made: Callable[[torch.Tensor], None] = complete
        return made

    def _complete(self, place: int) -> None:
        """Take a gradient that backward has completed."""
        if self._is_accumulating():
            return
        table = self._tables[place]
        if place in self._ready:
            self._repeat(table)
            return
        if not self._ready and self._observed is not None:
            self._found = self._hyperparameters()
        self._ready.add(place)
        if self._is_on:
            if not self._next:
                self._begin()
            self._send()
        gradient = table.parameter.grad
        if gradient is not None and gradient.layout == torch.strided:
            self._watched[place] = _watch(table.parameter)

    def _repeat(self, table: ParameterTable) -> None:
        """Take a second gradient of one clock."""
        if self._is_on:
            raise ConfigError(
                f"a second backward pass before step() added to the gradient of {table.name!r}, which the "
                "first one had sent: run all passes of a step but the last one in model.no_sync(), or use "
                "prepare(..., overlap=False)"
            )
        self._give_up()

    def _send(self) -> None:
        """Push gradients in order, as far as they are complete."""
        while self._next < len(self._tables):
            table = self._tables[self._next]
            if self._next not in self._ready and not table.is_fixed:
                return
            if table.parameter.grad is not None:
                table.push()
            self._next += 1

    def step(self) -> None:
        """Push what is left of this clock. `begin` has been called by the caller, if nothing was sent.

        Raises:
            ConfigError: A gradient that had been sent was changed.
        """
        if self._is_on:
            self._check()
        elif self._observed is not None:
            self._observe()
        for table in self._tables[self._next :]:
            table.push()
        self._forget()

    @property
    def has_sent(self) -> bool:
        """True if gradients of this clock have been sent."""
        return self._next > 0

    def check_end(self) -> None:
        """Raise ConfigError at the end of the script if gradients were sent that no step followed."""
        if self.has_sent:
            raise ConfigError(
                "the script ended after a backward pass without step(), which had sent its gradients: run "
                "such a pass in model.no_sync(), or use prepare(..., overlap=False)"
            )

    def _check(self) -> None:
        for place, (sent, _) in self._watched.items():
            table = self._tables[place]
            if place < self._next and _changed(table.parameter, sent):
                raise ConfigError(
                    f"the gradient of {table.name!r} was changed between backward, which had sent it, and "
                    "step(): use prepare(..., overlap=False), which sends gradients in step()"
                )

    def _observe(self) -> None:
        """Look at what an observed clock has done to gradients and hyperparameters."""
        for place, (seen, version) in self._watched.items():
            parameter = self._tables[place].parameter
            with torch._C.DisableTorchFunctionSubclass():
                is_same = parameter.grad is seen and seen._version == version
            if not is_same or seen.is_uncounted:
                self._give_up()
                return
        if self._ready and self._found != self._hyperparameters():
            self._give_up()
        elif self._ready and self._observed is not None:
            self._observed += 1
            if self._observed == OBSERVED_STEPS:
                self._observed = None
                self._is_on = True

    def _give_up(self) -> None:
        """Send gradients by `step` alone from now on."""
        self._observed = None
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _forget(self) -> None:
        self._ready.clear()
        self._watched.clear()
        self._next = 0


def _register(parameter: torch.nn.Parameter, hook: Callable[[torch.Tensor], None]) -> Any:
    """Register a hook on a parameter, also one that is frozen now."""
    frozen = not parameter.requires_grad
    if frozen:
        parameter.requires_grad_(True)
    try:
        return parameter.register_post_accumulate_grad_hook(hook)
    finally:
        if frozen:
            parameter.requires_grad_(False)
