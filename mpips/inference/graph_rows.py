"""Rows of embedding tables in a graph, and their sums over the features of a sample.

The rows that differ from 0 are a constant, with a row of 0 behind them. A map of their keys gives the place
of a key's row; an unknown key, and -1, has the place of the row of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.errors import ConfigError
from mpips.inference.stored_tables import StoredRows

if TYPE_CHECKING:
    from mpips.inference.content import ModelContent
    from mpips.inference.graph import Graph

Float32: TypeAlias = npt.NDArray[np.float32]
Int64: TypeAlias = npt.NDArray[np.int64]


class KeyedRows:
    """Rows of tables by key.

    Attributes:
        keys: The keys that have a row other than 0 in one of the tables, int64, shape (m,), ascending.
        zeroed: The tables in which a row counts as 0 that has received no update.
    """

    def __init__(
        self, model: ModelContent, names: Sequence[str], zeroed: Sequence[str], keys: Int64 | None
    ) -> None:
        """Read the rows.

        Args:
            model: The model.
            names: The tables.
            zeroed: See the class.
            keys: The keys that samples may have; None: those of the tables, and others.

        Raises:
            ConfigError: A key that is in no table has a row other than 0.
        """
        self._model = model
        self.zeroed = frozenset(zeroed)
        known = keys
        if known is None:
            for name in names:
                self._check_initial(name)
            known = np.unique(np.concatenate([self._handle(name).keys for name in names]))
            # The row of the bias has key -1, which means none in the graph.
            known = known[known >= 0]
        rows = {name: self.of(name, known) for name in names}
        used = np.zeros(len(known), np.bool_)
        for own in rows.values():
            used |= own.any(axis=1)
        self.keys: Int64 = known[used]
        self._rows = {name: own[used] for name, own in rows.items()}

    def table(self, name: str) -> Float32:
        """Return the rows of `keys` in a table, and a row of 0 behind them, float32, shape (m + 1, dim)."""
        rows = self._rows[name]
        return np.concatenate([rows, np.zeros((1, rows.shape[1]), np.float32)])

    def of(self, name: str, keys: Int64) -> Float32:
        """Return the rows of any keys in a table, float32, shape (n, dim)."""
        handle = self._handle(name)
        rows = handle.pull(keys)
        if name in self.zeroed:
            # A row that equals its initial value has received no update.
            rows[(rows == handle.initial(keys)).all(axis=1)] = 0
        return rows

    def _handle(self, name: str) -> StoredRows:
        handle = self._model.tables.table(name)
        assert isinstance(handle, StoredRows)
        handle.check_keys()
        return handle

    def _check_initial(self, name: str) -> None:
        init = self._model.manifest.table(name).init
        if name not in self.zeroed and self._handle(name).initial(np.arange(3)).any():
            raise ConfigError(
                f"table '{name}' has the initial values {init}, which words and features have "
                'that the training data lacks; the exported model has 0 for them: train with init = "zeros"'
            )


class Sums(Protocol):
    """Sums over the features i of a sample, with values x_i and rows v_i of a table."""

    def rows(self, name: str) -> str:
        """Return the sums of x_i v_i, float32, shape (n, dim)."""

    def squares(self, name: str) -> str:
        """Return the sums of |x_i v_i|^2, float32, shape (n, 1)."""


class EntrySums:
    """Sums over lists of features with values."""

    def __init__(self, graph: Graph, rows: KeyedRows, places: str, x: str, absent: Float32) -> None:
        """Take the entries.

        Args:
            graph: The graph.
            rows: The rows.
            places: Places of the features' rows, int64, shape (n, most).
            x: Scaled values, float32, of this shape.
            absent: The value x of a feature that a sample does not have, float32, shape (m + 1,).
        """
        self._graph = graph
        self._rows = rows
        self._places = places
        self._x = x
        self._absent = absent

    def rows(self, name: str) -> str:
        """Return the sums of x_i v_i."""
        graph, table = self._graph, self._graph.weight(self._rows.table(name), name)
        graph.section = "Sums over the features of a sample"
        x = graph.add("Unsqueeze", self._above(self._x, self._absent, "absent"), axis=1)
        products = graph.add("MatMul", x, graph.add("Rows", table, self._places))
        return self._added(graph.add("Squeeze", products, axis=1), "Base", table)

    def squares(self, name: str) -> str:
        """Return the sums of |x_i v_i|^2."""
        graph, table = self._graph, self._graph.weight(self._rows.table(name), name)
        x = graph.add("Square", self._x)
        x = self._above(x, np.square(self._absent), "absent_squares")
        products = graph.add("Mul", x, graph.add("RowSizes", table, self._places))
        return self._added(graph.sum(products, 1, keep=True), "BaseSizes", table)

    def _above(self, x: str, absent: Float32, name: str) -> str:
        """Return how much a sample's values are above those of samples that do not have the features."""
        if not absent.any():
            return x
        graph = self._graph
        constant = graph.constant(absent, np.float32, name)
        return graph.add("Sub", x, graph.add("Gather", constant, self._places))

    def _added(self, value: str, operator: str, table: str) -> str:
        """Add the sum of a sample that has no features."""
        if not self._absent.any():
            return value
        graph = self._graph
        absent = graph.constant(self._absent, np.float32, "absent")
        return graph.add("Add", value, graph.add(operator, absent, table))


class ColumnSums:
    """Sums over the words of a sample, with value 1, and its numbers."""

    def __init__(
        self, graph: Graph, rows: KeyedRows, places: str, numbers: str, number_keys: Int64
    ) -> None:
        """Take the cells.

        Args:
            graph: The graph.
            rows: The rows.
            places: Places of the words' rows, int64, shape (n, columns of words).
            numbers: float32, shape (n, columns of numbers); "" without such columns.
            number_keys: Keys of the columns of numbers.
        """
        self._graph = graph
        self._rows = rows
        self._places = places
        self._numbers = numbers
        self._number_keys = number_keys

    def rows(self, name: str) -> str:
        """Return the sums of x_i v_i."""
        graph, places = self._graph, self._places
        graph.section = "Sums over the words and numbers of a sample"
        words = graph.add("Rows", graph.weight(self._rows.table(name), name), places)
        own = self._own(name) if self._numbers else ""
        return self._sum(words, self._numbers, own, keep=False)

    def squares(self, name: str) -> str:
        """Return the sums of |x_i v_i|^2."""
        graph = self._graph
        words = graph.add("RowSizes", graph.weight(self._rows.table(name), name), self._places)
        if not self._numbers:
            return self._sum(words, "", "", keep=True)
        sizes = graph.add("Sizes", self._own(name))
        return self._sum(words, graph.add("Square", self._numbers), sizes, keep=True)

    def _own(self, name: str) -> str:
        """Return the rows of the columns of numbers."""
        return self._graph.weight(self._rows.of(name, self._number_keys), f"{name}_of_numbers")

    def _sum(self, words: str, numbers: str, own: str, keep: bool) -> str:
        graph = self._graph
        total = graph.sum(words, 1, keep)
        if not numbers:
            return total
        return graph.add("Add", total, graph.add("MatMul", numbers, own))
