"""A model as a graph: scale of the features, tables, outputs.

The graph computes what `predict` of the task does. A number that the readers of mpips refuse, as nan or
infinity, makes all outputs of its sample nan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data.columns import FLOAT32_MAX, hash_key
from mpips.inference.graph import Graph
from mpips.inference.graph_description import (
    empty_is_zero,
    feature_columns,
    features_of,
    logarithms,
    needs_float64,
)
from mpips.inference.graph_rows import ColumnSums, EntrySums, KeyedRows, Sums
from mpips.inference.stored_tables import StoredRows
from mpips.tasks.columns import ColumnFeatures
from mpips.tasks.dcnv2 import DcnV2
from mpips.tasks.deepfm import DeepFm
from mpips.tasks.features import MAX_DEVIATION, DenseFeatures, SparseFeatures
from mpips.tasks.fm import FactorizationMachine
from mpips.tasks.linear import BIAS_KEY
from mpips.tasks.logistic import Logistic

if TYPE_CHECKING:
    from mpips.inference.content import ModelContent
    from mpips.inference.dense import DenseLayers

Array: TypeAlias = npt.NDArray[Any]
Int64: TypeAlias = npt.NDArray[np.int64]


def graph_of(model: ModelContent, layers: DenseLayers | None = None) -> tuple[Graph, str]:
    """Return the graph of a model without outputs, and the outputs of its task, float32, shape (n, k).

    Args:
        model: The model.
        layers: Layers in the place of those of the tables, for a model of rows of numbers.

    Raises:
        ConfigError: The model's task has no graph, or rows of unknown keys are not 0.
    """
    builder = _Builder(model, layers)
    return builder.graph, builder.build()


class _Builder:
    """Builds the graph of one model.

    Attributes:
        graph: The graph.
    """

    def __init__(self, model: ModelContent, layers: DenseLayers | None) -> None:
        self.graph = Graph()
        self._model = model
        self._given = layers
        self._task: Any = model.task
        self._features = features_of(model)
        # Flags of refused samples, (n, 1), for each input with numbers.
        self._refused: list[str] = []

    def build(self) -> str:
        """Return the outputs of the task."""
        graph, features = self.graph, self._features
        if isinstance(features, DenseFeatures):
            outputs = self._layers(self._matrix(features))
        elif isinstance(features, ColumnFeatures):
            outputs = self._mixed(features)
        else:
            outputs = self._from_rows(features)
        graph.section = "A sample with a refused number has no outputs"
        for flags in self._refused:
            outputs = graph.add("Where", flags, graph.constant(np.nan, np.float32), outputs)
        return outputs

    # Inputs.

    def _check(self, numbers: str, dtype: Any, may_be_nan: str = "") -> None:
        """Refuse samples in which a number is nan, infinite or beyond float32.

        Args:
            numbers: Numbers of `dtype`, shape (n, d).
            dtype: float32 or float64.
            may_be_nan: Flags of numbers that may be nan, of this shape.
        """
        graph = self.graph
        graph.section = "Numbers that are nan, infinite or beyond float32"
        size = graph.add("Abs", numbers)
        good = graph.add("LessOrEqual", size, graph.constant(FLOAT32_MAX, dtype))
        if may_be_nan:
            good = graph.add("Or", good, may_be_nan)
        bad = graph.cast(graph.add("Not", good), np.float32)
        self._refused.append(graph.cast(graph.sum(bad, 1, keep=True), np.bool_))

    def _with_logarithms(self, numbers: str, which: Sequence[bool]) -> str:
        """Return float64 numbers v, shape (n, d), with sign(v) log(1 + |v|) in some of the columns."""
        graph = self.graph
        if not any(which):
            return numbers
        graph.section = "Logarithms"
        above = graph.add("Add", graph.add("Abs", numbers), graph.constant(1, np.float64))
        signed = graph.add("Mul", graph.add("Sign", numbers), graph.add("Log", above))
        if all(which):
            return signed
        return graph.add("Where", graph.constant(which, np.bool_, "is_logarithm"), signed, numbers)

    def _scaled(
        self,
        numbers: str,
        dtype: Any,
        shift: Array,
        scale: Array,
        at: str = "",
        shift_name: str = "shift",
    ) -> str:
        """Return (numbers - shift) * scale, clipped, float32.

        Args:
            numbers: Numbers of `dtype`, shape (n, d).
            dtype: float32 or float64.
            shift: Shape (d,).
            scale: Shape (d,).
            at: Places of the numbers in both, shape (n, d); "": the last axis.
            shift_name: Name of the constant `shift`.
        """
        graph = self.graph
        graph.section = "Scale of the numbers"
        wide = np.result_type(dtype, shift.dtype)
        both = [graph.constant(shift, wide, shift_name), graph.constant(scale, wide, "scale")]
        if at:
            both = [graph.add("Gather", own, at) for own in both]
        x = numbers if wide == dtype else graph.cast(numbers, wide)
        x = graph.add("Mul", graph.add("Sub", x, both[0]), both[1])
        x = x if wide == np.float32 else graph.cast(x, np.float32)
        ends = [graph.constant(end, np.float32) for end in (-MAX_DEVIATION, MAX_DEVIATION)]
        return graph.add("Clip", x, *ends)

    def _matrix(self, features: DenseFeatures) -> str:
        """Return the standardised features of rows of numbers, float32, shape (n, d)."""
        graph = self.graph
        dtype: Any = np.float64 if needs_float64(self._model) else np.float32
        x = graph.input("features", dtype, ["n", features.n_features])
        if empty_is_zero(self._model):
            x = graph.add("Where", graph.add("IsNaN", x), graph.constant(0, dtype), x)
        self._check(x, dtype)
        x = self._with_logarithms(x, logarithms(self._model))
        if dtype == np.float64 and not self._model.info.wide:
            x, dtype = graph.cast(x, np.float32), np.float32
        return self._scaled(x, dtype, features.mean, features.scale, shift_name="mean")

    def _numbers(self, scale: tuple[Array, Array] | None = None) -> tuple[str, str]:
        """Return the numbers of named columns, float32, 0 for an empty cell, and flags of these; "": none.

        `scale`: what is subtracted from the numbers of each column, and the factor of the difference.
        """
        graph = self.graph
        columns = zip(feature_columns(self._model), logarithms(self._model), strict=True)
        which = [logarithm for column, logarithm in columns if not column.categorical]
        if not which:
            return "", ""
        raw = graph.input("numbers", np.float64, ["n", len(which)])
        empty = graph.add("IsNaN", raw)
        self._check(raw, np.float64, empty)
        numbers = graph.cast(self._with_logarithms(raw, which), np.float32)
        if scale is not None:
            numbers = self._scaled(numbers, np.float32, *scale)
        return graph.add("Where", empty, graph.constant(0, np.float32), numbers), empty

    # Rows by key.

    def _from_rows(self, features: SparseFeatures) -> str:
        """Return the outputs of a task whose weights of features are rows."""
        own = [name for name in ("weight", "weight0", "factor") if self._has_rows(name)]
        is_linear = isinstance(self._task, Logistic | FactorizationMachine)
        zeroed = [name for name in own if features.hashed and not (is_linear and name == "weight")]
        if self._model.info.columns:
            sums: Sums = self._column_sums(features, own, zeroed)
        else:
            sums = self._entry_sums(features, own, zeroed)
        if not is_linear:
            return self._layers(sums)
        bias = self._model.tables.table("weight").pull(np.array([BIAS_KEY]))  # type: ignore[call-arg]
        graph = self.graph
        outputs = graph.add("Add", sums.rows("weight"), graph.weight(bias[0], "bias"))
        if isinstance(self._task, FactorizationMachine):
            outputs = graph.add("Add", outputs, self._pairs(sums))
        return outputs

    def _has_rows(self, name: str) -> bool:
        tables = self._model.tables
        return name in tables and isinstance(tables.table(name), StoredRows)

    def _pairs(self, sums: Sums) -> str:
        """Return the sums over pairs of factors of a factorization machine, shape (n, 1)."""
        graph = self.graph
        total = sums.rows("factor")
        squared = graph.sum(graph.add("Square", total), 1, keep=True)
        return self._half(graph.add("Sub", squared, sums.squares("factor")))

    def _half(self, value: str) -> str:
        return self.graph.add("Mul", value, self.graph.constant(0.5, np.float32))

    def _column_sums(
        self, features: SparseFeatures, names: Sequence[str], zeroed: Sequence[str]
    ) -> ColumnSums:
        """Return the sums over words and numbers of named columns."""
        columns = feature_columns(self._model)
        number_keys = [hash_key(column.name) for column in columns if not column.categorical]
        rows = KeyedRows(self._model, names, zeroed, None)
        places = self._places(len(columns) - len(number_keys), rows.keys)
        scale = None
        if features.columns is not None:
            shift, factor = (own[features.is_number] for own in features.columns)
            scale = shift, factor
        numbers, _ = self._numbers(scale)
        keys = np.array(number_keys, np.int64)
        return ColumnSums(self.graph, rows, places, numbers, keys)

    def _places(self, width: int | str, known: Int64) -> str:
        """Return the places of the input `keys`, shape (n, width), among those that are known."""
        graph = self.graph
        keys = graph.input("keys", np.int64, ["n", width])
        graph.section = "Places of the rows of keys"
        return graph.add("Places", keys, graph.constant(known, np.int64, "known_keys"))

    def _entry_sums(
        self, features: SparseFeatures, names: Sequence[str], zeroed: Sequence[str]
    ) -> EntrySums:
        """Return the sums over lists of features with values."""
        graph, base = self.graph, self._model.info.index_base
        seen = None if features.shift is None else np.flatnonzero(features.seen).astype(np.int64)
        rows = KeyedRows(self._model, names, zeroed, seen)
        places = self._places("most", rows.keys + base)
        x = graph.input("values", np.float32, ["n", "most"])
        self._check(x, np.float32)
        absent = np.zeros(len(rows.keys) + 1, np.float32)
        if features.shift is not None and features.scale is not None:
            shift, scale = features.shift[rows.keys], features.scale[rows.keys]
            # A centred feature is 0 in a sample that does not have it, and something else after scaling.
            at_zero = np.clip((0 - shift) * scale, -MAX_DEVIATION, MAX_DEVIATION)
            absent[:-1] = np.where(np.isin(rows.keys, features.centred), at_zero, 0)
            # An unknown feature has value 0.
            x = self._scaled(x, np.float32, _with_zero(shift), _with_zero(scale), places)
        return EntrySums(graph, rows, places, x, absent)

    # Layers.

    def _dense(self, name: str) -> Array:
        values: Array = self._model.tables.table(name).pull()  # type: ignore[call-arg]
        return values

    def _table(self, name: str) -> str:
        """Return a dense table as a constant."""
        return self.graph.weight(self._dense(name), name)

    def _layers(self, first: str | Sums) -> str:
        """Return the outputs of layers x W + b with ReLU between them.

        Args:
            first: The inputs of the first layer, or the sums of its rows of weights.
        """
        graph = self.graph
        graph.section = "Layers"
        biases = [name for name in self._model.tables if name.startswith("bias")]
        biases.sort(key=lambda name: int(name[4:] or 0))
        if self._given is not None:
            return self._layers_given(first, self._given)
        x = first if isinstance(first, str) else ""
        if not isinstance(first, str):
            bias, *biases = biases
            x = graph.add("Add", first.rows(f"weight{bias[4:]}"), self._table(bias))
            x = graph.add("Relu", x) if biases else x
        names = [self._table(part) for bias in biases for part in (f"weight{bias[4:]}", bias)]
        return graph.add("Layers", x, *names) if names else x

    def _layers_given(self, x: str | Sums, layers: DenseLayers) -> str:
        """Return the outputs of other layers than those of the tables."""
        assert isinstance(x, str)
        graph, names = self.graph, []
        for i, (weight, bias) in enumerate(zip(layers.weights, layers.biases, strict=True)):
            names += [graph.weight(weight, f"weight{i}"), graph.weight(bias, f"bias{i}")]
        return graph.add("Layers", x, *names)

    # Columns of words and numbers, each with inputs of its own.

    def _mixed(self, features: ColumnFeatures) -> str:
        """Return the outputs of wide_deep, deepfm and dcnv2."""
        graph, task = self.graph, self._task
        is_wide = not isinstance(task, DcnV2)
        rows = KeyedRows(
            self._model, ["embedding", "wide"] if is_wide else ["embedding"], ["embedding"], None
        )
        places = self._places(features.n_texts, rows.keys)
        embedding = rows.table("embedding")
        graph.section = "Rows of words"
        words = graph.weight(embedding, "embedding")
        cells = graph.add("Rows", words, places)  # (n, columns of words, dim)
        shape = (-1, features.n_texts * embedding.shape[1])
        inputs, numbers = graph.add("Reshape", cells, shape=shape), ""
        if features.n_numbers:
            numbers = self._with_empty(features)
            inputs = graph.add("Concat", inputs, numbers, axis=1)

        outputs = self._layers(inputs)
        if not is_wide:
            return graph.add("Add", outputs, self._cross(inputs))
        graph.section = "Linear part"
        wide = graph.weight(rows.table("wide"), "wide")
        outputs = graph.add("Add", outputs, graph.sum(graph.add("Rows", wide, places), 1))
        if numbers:
            weights = self._dense("linear").reshape(features.n_inputs, -1)
            linear = graph.add("MatMul", numbers, graph.weight(weights, "linear"))
            outputs = graph.add("Add", outputs, linear)
        if isinstance(task, DeepFm):
            outputs = graph.add("Add", outputs, self._products(cells, numbers))
        return outputs

    def _with_empty(self, features: ColumnFeatures) -> str:
        """Return the standardised numbers, then flags of empty cells, float32, shape (n, 2 * columns)."""
        graph = self.graph
        numbers, empty = self._numbers()
        scaled = self._scaled(numbers, np.float32, features.mean, features.scale)
        zero = graph.constant(0, np.float32)
        scaled = graph.add("Where", empty, zero, scaled)
        flags = graph.add(
            "Where", empty, graph.constant(features.has_empty, np.float32, "has_empty"), zero
        )
        return graph.add("Concat", scaled, flags, axis=1)

    def _cross(self, x: str) -> str:
        """Return the outputs of the cross layers."""
        graph, last = self.graph, x
        graph.section = "Cross layers"
        for i in range(sum(name.startswith("cross_weight") for name in self._model.tables)):
            product = graph.add("MatMul", last, self._table(f"cross_weight{i}"))
            product = graph.add("Add", product, self._table(f"cross_bias{i}"))
            last = graph.add("Add", graph.add("Mul", x, product), last)
        return graph.add("MatMul", last, self._table("cross_output"))

    def _products(self, cells: str, numbers: str) -> str:
        """Return the outputs of the products of all pairs."""
        graph = self.graph
        graph.section = "Products of pairs"
        sums, squares = graph.sum(cells, 1), graph.sum(graph.add("Square", cells), 1)
        if numbers:
            factors = self._dense("number_factor")
            own = graph.add("MatMul", numbers, graph.weight(factors, "number_factor"))
            sums = graph.add("Add", sums, own)
            squared = graph.add("Square", "number_factor")
            own = graph.add("MatMul", graph.add("Square", numbers), squared)
            squares = graph.add("Add", squares, own)
        products = self._half(graph.add("Sub", graph.add("Square", sums), squares))
        if "pair_output" in self._model.tables:
            return graph.add("MatMul", products, self._table("pair_output"))
        return graph.sum(products, 1, keep=True)


def _with_zero(array: Array) -> Array:
    """Return an array with a 0 behind it."""
    return np.append(array, array.dtype.type(0))
