"""Gradients that are pushed while backward runs.

A hook of each parameter runs when its gradient is complete. With overlap it pushes the gradient at once, in
the fixed order of `Stepping` (the last layer first), and the push closes the table: servers sum, and under
BSP apply, the last layers while backward computes the first ones. `step` then pushes the rest.

That is right only if `step` finds the gradients, and the hyperparameters, that were sent. So the first
OBSERVED_STEPS steps push in `step`, and look at what happens between the hooks and `step`. Overlap begins
if nothing there has changed a gradient (clipping, GradScaler) or a hyperparameter (a rate that is set right
before `step`), or has run a second backward pass; it never begins if something has. A script that does one of
these later for the first time gets a ConfigError before its clock ends, so before anything wrong counts.

Changes of a gradient are found by a hash of its bytes, taken by the hook and again by `step`. There are too
many ways to memory (`.grad.data`, NumPy, saved references, compiled functions) to watch each of them.

A table waits for all before it that the optimizer has, also for one that is frozen or unused in this pass: a
later pass, or the script itself, may give it a gradient. Then `step` pushes it and all behind it.

A restart repeats the clock that was open, and servers keep the pushes that the launch before has made in it.
The order of pushes does not depend on whether they overlap. But the script may have changed gradients that
were sent: then the repeated pushes are not those that count. So the cursor records whether overlap is on. A
restart continues with the same setting and finds the change again.

A gradient on a device is copied to the host first: its hook requests the copy, later hooks push gradients
whose copies have ended, and `step` waits for the others; see device_table.py. A change between the hook and
`step` is an error there even if the gradient has not been pushed by then, which depends on the device.

On the way to servers of other nodes a push leaves by the urgency of its values (mpips.transport.orders): what
the next forward pass uses first passes what backward has completed before it. Not so in jobs in which a
worker may repeat a clock: there pushes leave in the fixed order.

A gradient is not a view of memory from `Worker.allocate`: autograd would have to add into it, where it now
hands over its own result, and a push copies that at the speed of memory.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import torch

from mpips.errors import ConfigError
from mpips.torch.fingerprints import Fingerprint, differing
from mpips.torch.parameters import ParameterTable

OBSERVED_STEPS = 2


class Overlap:
    """The hooks of one prepared optimizer's parameters."""

    way_out = "use prepare(..., overlap=False)"

    def __init__(
        self,
        tables: Sequence[ParameterTable],
        begin: Callable[[], None],
        hyperparameters: Callable[[], Any],
        is_accumulating: Callable[[], bool],
        is_stale: Callable[[], bool],
        wanted: bool | None,
        by_use: Callable[[], Sequence[ParameterTable]] = tuple,
    ) -> None:
        """Make no hooks yet; see `open`.

        Args:
            tables: Tables of the parameters, in the order of their pushes.
            begin: Ends the clock before, and sends changed hyperparameters; called before the first push.
            hyperparameters: Returns those that are in force now.
            is_accumulating: Returns True within `no_sync`.
            is_stale: Returns True if no pull has followed the newest step.
            wanted: True: overlap from the first step on; False: never; None: after observed steps.
            by_use: Returns all tables in the order of their use, which determines how urgent a push is;
                empty: the pushes leave in the order of `tables`.
        """
        self._tables = tables
        self._begin = begin
        self._hyperparameters = hyperparameters
        self._is_accumulating = is_accumulating
        self._is_stale = is_stale
        self._wanted = wanted
        # Hooks of parameters on several devices come from a thread of autograd for each. Who holds the lock
        # waits for servers and for copies alone, never for another hook.
        self._turns = threading.RLock()
        self._by_use = by_use
        self._places: dict[
            int, int
        ] = {}  # in the order of use, by the id of the table; of this clock
        self._is_on = wanted is True
        self._observed = None if wanted is not None else 0
        self._hooks: list[Any] = []
        self._digests: dict[int, Fingerprint] = {}  # of complete gradients of this clock, by place
        self._versions: dict[int, int] = {}  # torch's counters of their changes, in observed steps
        self._begun: set[int] = set()  # places whose gradients are on their way from a device
        self._next = 0  # place of the first table that has not been passed in this clock
        self._has_sent = False
        self._is_held = False  # nothing is sent before `step` in this clock
        self._refusal = ""  # why the gradients of this clock cannot be right
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
                if parameter.is_leaf and table.rule is not None:
                    hook = self._hook_of(place)
                    self._hooks.append(register(parameter, hook))

    @property
    def is_on(self) -> bool:
        """True if backward sends gradients."""
        return self._is_on

    def resume(self, is_repeating: bool) -> None:
        """Go on in a restart of a run in which overlap was on.

        Args:
            is_repeating: Servers have pushes of the launch before in the clock that is repeated.

        Raises:
            ConfigError: Such pushes may have been sent by backward, and the script sets overlap=False.
        """
        if self._wanted is not False:
            self._is_on, self._observed = True, None
        elif is_repeating:
            raise ConfigError(
                "the run ended within a step whose gradients backward had sent, maybe before the script "
                "changed them, and now overlap=False: continue it with overlap as it was, or, from its "
                "newest checkpoint, after mpips run --discard-memory"
            )

    def _hook_of(self, place: int) -> Callable[[torch.Tensor], None]:
        # Python's garbage collector does not see what a hook holds: it would never free the job.
        overlap = weakref.ref(self)

        @torch.compiler.disable  # type: ignore[misc,untyped-decorator,unused-ignore]
        def complete(parameter: torch.Tensor) -> None:
            own = overlap()
            if own is not None:
                own._complete(place)

        made: Callable[[torch.Tensor], None] = complete
        return made

    def _complete(self, place: int) -> None:
        """Take a gradient that backward has completed. Called by several threads."""
        with self._turns:
            self._take(place)

    def _take(self, place: int) -> None:
        if self._is_accumulating():
            return
        table = self._tables[place]
        if place < self._next:
            self._refuse(
                f"a second backward pass before step() added to the gradient of {table.name!r}, which the "
                "first one had sent: run all passes of a step but the last one in model.no_sync(), or use "
                "prepare(..., overlap=False)"
            )
        if place in self._digests and not self._is_on:
            self._give_up()
            return
        if not self._digests and self._observed is not None:
            self._found = self._hyperparameters()
        self._digests[place] = table.fingerprint()
        if self._observed is not None:
            self._versions[place] = version_of(table.parameter.grad)
        self._begun.discard(place)  # what is on its way is the gradient of an earlier pass
        # Without a forward pass since the newest step, the script may look at the new values before `step`,
        # and a table cannot be pulled once it is closed.
        if self._is_on and not self._is_held and not self._is_stale():
            if table.begin_push():
                self._begun.add(place)
            self._send()

    def _refuse(self, reason: str) -> NoReturn:
        """Raise ConfigError; `step` raises it again if the script goes on."""
        self._refusal = reason
        raise ConfigError(reason)

    def _refuse_sent(self, error: ValueError) -> None:
        """Raise ConfigError for a gradient that cannot be sent, if backward has sent others."""
        if self._has_sent:
            self._refuse(
                f"{error}; backward has sent the gradients of the layers behind it: use "
                "prepare(..., overlap=False) in a script that handles this before step()"
            )

    def _send(self) -> None:
        """Push gradients in order, as far as they are complete."""
        while self._next < len(self._tables):
            table = self._tables[self._next]
            if table.rule is not None:
                if self._next not in self._digests or not table.is_ready():
                    return
                if not self._has_sent:
                    self._begin()
                    self._look_up_places()
                try:
                    self._push(table)
                except ValueError as error:  # NaN or infinity
                    if not self._has_sent:
                        # The script may skip such a step; if not, `step` raises the error.
                        self._is_held = True
                        self._begun.clear()
                        return
                    self._refuse_sent(error)
                self._has_sent = True
            self._next += 1

    def _look_up_places(self) -> None:
        self._places = {id(table): place for place, table in enumerate(self._by_use())}

    def _push(self, table: ParameterTable) -> None:
        place = self._places.get(id(table))
        if place is None:
            table.push()
        else:
            table.order(place)

    def _in_order(self, tables: Sequence[ParameterTable]) -> Sequence[ParameterTable]:
        """Return tables in the order of their use, where pushes may have it."""
        if not self._places:
            return tables
        return sorted(tables, key=lambda table: self._places.get(id(table), len(self._places)))

    def step(self) -> None:
        """Push what is left of this clock. `begin` has been called by the caller, if nothing was sent.

        Raises:
            ConfigError: A gradient that had been sent was changed, or the clock was refused before.
        """
        if self._refusal:
            raise ConfigError(self._refusal)
        if self._has_sent or self._begun:
            self._check()
        elif self._observed is not None:
            self._observe()
        if not self._has_sent:
            self._look_up_places()
        # Request all gradients that are on a device before the wait for the first one.
        for place in range(self._next, len(self._tables)):
            if place not in self._begun:
                self._tables[place].begin_push()
        try:
            for table in self._in_order(self._tables[self._next :]):
                self._push(table)
        except ValueError as error:  # NaN or infinity
            self._refuse_sent(error)
            raise
        self._digests.clear()
        self._versions.clear()
        self._begun.clear()
        self._next = 0
        self._has_sent = self._is_held = False

    def drop(self) -> None:
        """Let the clock have no gradients. `begin` has been called by the caller.

        Raises:
            ConfigError: Gradients have been sent, or the clock was refused before.
        """
        if self._refusal:
            raise ConfigError(self._refusal)
        if self._has_sent:
            self._refuse(
                "the step of a batch was skipped after backward had sent gradients of it: skip it before "
                "backward, or use prepare(..., overlap=False), which sends gradients in step()"
            )
        self._digests.clear()
        self._versions.clear()
        self._begun.clear()
        self._next = 0
        self._is_held = False

    @property
    def has_sent(self) -> bool:
        """True if gradients of this clock have been sent."""
        return self._has_sent

    def check_end(self) -> None:
        """Raise ConfigError at the end of the script if gradients were sent that no step followed."""
        if self.has_sent:
            raise ConfigError(
                "the script ended after a backward pass without step(), which had sent its gradients: run "
                "such a pass in model.no_sync(), or use prepare(..., overlap=False)"
            )

    def _check(self) -> None:
        sent = (place for place in self._digests if place < self._next or place in self._begun)
        for place in self._changed(sent):
            self._refuse(
                f"the gradient of {self._tables[place].name!r} was changed between backward, which had sent "
                "it, and step(): use prepare(..., overlap=False), which sends gradients in step()"
            )

    def _changed(self, places: Iterable[int]) -> set[int]:
        """Return those of some places whose gradients differ from those that hooks have found."""
        return differing(
            (place, self._tables[place].fingerprint(), self._digests[place]) for place in places
        )

    def _observe(self) -> None:
        """Look at what an observed clock has done to gradients and hyperparameters."""
        if not self._digests:
            return
        if (
            self._found != self._hyperparameters()
            or self._changed(self._digests)
            # Clipping to a norm that the gradients do not reach multiplies them by 1.
            or any(
                version_of(self._tables[p].parameter.grad) != v for p, v in self._versions.items()
            )
        ):
            self._give_up()
            return
        assert self._observed is not None
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


def version_of(gradient: torch.Tensor | None) -> int:
    """Return torch's counter of changes of a gradient in place; -1 without such a counter."""
    return -1 if gradient is None or gradient.is_inference() else gradient._version


def register(parameter: torch.nn.Parameter, hook: Callable[[torch.Tensor], None]) -> Any:
    """Register a hook on a parameter, also one that is frozen now."""
    frozen = not parameter.requires_grad
    if frozen:
        parameter.requires_grad_(True)
    try:
        return parameter.register_post_accumulate_grad_hook(hook)
    finally:
        if frozen:
            parameter.requires_grad_(False)
