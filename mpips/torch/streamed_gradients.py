"""Gradients of a streamed model: each is pushed and freed as soon as backward has completed it.

The push closes the table, as in overlap.py. The order is that in which backward completes gradients, whatever
the order of the layers in the model, so that no gradient waits in memory for another one. A worker that
repeats a step after a restart makes the same functions in the same order, so the order of its pushes is also
the same. Workers may differ: a server takes the pushes to a table in the order of the workers, so worker 0
waits for no other worker, and worker n only for those before it.

`parameter.grad` is None behind the push. A use of gradients by the script between backward and `step()` is an
error (StreamedTable.check_gradient), before anything wrong counts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch

from mpips.errors import ConfigError
from mpips.torch.overlap import register
from mpips.torch.streamed_table import StreamedTable


class StreamedGradients:
    """The hooks of a streamed model's parameters; the counterpart of Overlap.

    Attributes:
        has_sent: Gradients of this clock have been sent.
    """

    is_on = True
    way_out = "prepare the model without stream"

    def __init__(
        self,
        tables: Sequence[StreamedTable],
        begin: Callable[[], None],
        is_stale: Callable[[], bool],
    ) -> None:
        """Make no hooks yet; see `open`.

        Args:
            tables: Tables of the parameters; `step` pushes in this order what backward has not pushed.
            begin: Ends the clock before, and sends changed hyperparameters; called before the first push.
            is_stale: Returns True if no pull has followed the newest step.
        """
        self._tables = tables
        self._begin = begin
        self._is_stale = is_stale
        self.has_sent = False
        self._refusal = ""  # why the gradients of this clock cannot be right

    def open(self, is_alone: bool) -> None:
        """Make the hooks at the start of the job.

        Raises:
            ConfigError: Another optimizer is prepared in the script.
        """
        if not is_alone:
            raise ConfigError(
                "prepare: stream needs a script with one optimizer: backward of one model's loss may reach "
                "parameters of the other, which its optimizer does not step"
            )
        for table in self._tables:
            if table.rule is not None:
                register(table.parameter, self._hook_of(table))

    def _hook_of(self, table: StreamedTable) -> Callable[[torch.Tensor], None]:
        # As in Overlap: a hook that held this object would keep the job's memory for ever.
        gradients, place = weakref.ref(self), self._tables.index(table)

        def complete(parameter: torch.Tensor) -> None:
            own = gradients()
            if own is not None:
                own._complete(own._tables[place])

        return complete

    def resume(self, is_repeating: bool) -> None:
        """Do nothing: gradients are always sent by backward."""

    def _complete(self, table: StreamedTable) -> None:
        """Push a gradient that backward has completed."""
        if self._refusal:
            raise ConfigError(self._refusal)
        if table.is_sent:
            self._refuse(
                f"a second backward pass before step() added to the gradient of {table.name!r}, which the "
                f"first one had sent: make one backward pass for each step, or {self.way_out}"
            )
        # Without a forward pass since the newest step, the script may use the new values before `step`.
        if self._is_stale():
            return
        if not self.has_sent:
            self._begin()
        try:
            table.push()
        except ValueError as error:  # NaN or infinity
            self._refuse(
                f"{error}; with stream backward sends each gradient, so no script can skip such a step"
            )
        self.has_sent = True

    def _refuse(self, reason: str) -> NoReturn:
        """Raise ConfigError; `step` raises it again if the script goes on."""
        self._refusal = reason
        raise ConfigError(reason)

    def step(self) -> None:
        """Push what is left of this clock. `begin` has been called by the caller, if nothing was sent.

        Raises:
            ConfigError: The clock was refused before.
        """
        if self._refusal:
            raise ConfigError(self._refusal)
        for table in self._tables:
            table.stream.end_copies()  # the clock ends after this step
            if not table.is_sent:
                table.push()
        for table in self._tables:
            table.is_sent = False
        self.has_sent = False

    def drop(self) -> None:
        """Let the clock have no gradients. `begin` has been called by the caller.

        Raises:
            ConfigError: Gradients have been sent, or the clock was refused before.
        """
        if self._refusal:
            raise ConfigError(self._refusal)
        if self.has_sent:
            self._refuse(
                "the step of a batch was skipped after backward had sent gradients of it: skip it before "
                f"backward, or {self.way_out}"
            )
        for table in self._tables:
            table.stream.end_copies()  # the clock ends after this step

    def check_end(self) -> None:
        """Raise ConfigError at the end of the script if gradients were sent that no step followed."""
        if self.has_sent:
            raise ConfigError(
                "the script ended after a backward pass without step(), which had sent its gradients: make "
                f"one step for each backward pass, or {self.way_out}"
            )
