"""The common copy of a table whose pulls are differences (native/src/ring/common_view.hpp).

A server holds it beside the values and the optimizer's states, and a checkpoint has it as one more state.
"""

from __future__ import annotations

from mpips.model.codec import Biased
from mpips.model.table import DenseTable, Table

COMMON = (
    "common"  # name of the copy among the states of a checkpoint; no optimizer has such a state
)


def has_common(table: Table) -> bool:
    """Return True if servers and workers hold a common copy of the table."""
    return isinstance(table, DenseTable) and isinstance(table.pull_compression, Biased)


def stored_states(table: Table) -> tuple[str, ...]:
    """Return the names of the arrays that a server holds beside the values, in its order.

    States of whole rows, of shape (n,), come behind those of all values.
    """
    rule = table.optimizer
    names = (*rule.state_names, *rule.row_state_names)
    return (*names, COMMON) if has_common(table) else names
