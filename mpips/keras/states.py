"""The tables of a model's non-trainable states, such as the moving averages of batch normalisation."""

from __future__ import annotations

from typing import Any

from mpips.torch.buffers import BufferTable


class StateTable(BufferTable):
    """One non-trainable variable and its table: worker 0's value counts.

    Keras assigns variables in place, and torch counts the changes. So a state that has not changed is neither
    copied nor sent.
    """

    def __init__(self, name: str, variable: Any) -> None:
        """Take the variable. The tensor behind it stays the same."""
        super().__init__(name, variable, "_value", "worker 0")
        self._seen = -1  # torch's count of changes at the newest pull or push

    def pull(self) -> None:
        """Fetch the values into the variable. Blocks like DenseHandle.pull."""
        super().pull()
        self._seen = self._tensor._version

    def push(self) -> None:
        """Push the values, if this is worker 0 and they were assigned since the newest pull or push."""
        if self._tensor._version != self._seen:
            super().push()
            self._seen = self._tensor._version
