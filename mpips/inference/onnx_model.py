"""A model as a graph of ONNX: scale of the features, tables, outputs.

The graph computes what `predict` of the task does. A number that the readers of mpips refuse, as nan or
infinity, makes all outputs of its sample nan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data.columns import FLOAT32_MAX, hash_key
from mpips.inference.onnx_description import (
    empty_is_zero,
    feature_columns,
    features_of,
    logarithms,
    needs_float64,
)
from mpips.inference.onnx_graph import Graph
from mpips.inference.onnx_rows import ColumnSums, EntrySums, KeyedRows, Sums
from mpips.inference.stored_tables import StoredRows
from mpips.tasks.columns import ColumnFeatures
from mpips.tasks.dcnv2 import DcnV2
from mpips.tasks.deepfm import DeepFm
from mpips.tasks.features import MAX_DEVIATION, DenseFeatures, SparseFeatures
from mpips.tasks.fm import FactorizationMachine
from mpips.tasks.linear import BIAS_KEY
from mpips.tasks.logistic import Logistic
from mpips.tasks.outputs import ClassOutputs, LabelOutputs, OneTarget

if TYPE_CHECKING:
    from mpips.inference.model import Model

Array: TypeAlias = npt.NDArray[Any]
Int64: TypeAlias = npt.NDArray[np.int64]


def graph_of(model: Model) -> Graph:
    """Return the graph of a model.

    Raises:
        ConfigError: The model's task has no form of ONNX, or rows of unknown keys are not 0.
    """
    return _Builder(model).build()


class _Builder:
    """Builds the graph of one model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._task: Any = model.task
        self._features = features_of(model)
        self._graph = Graph()
        self._refused: list[
            str
        ] = []  # flags of refused samples, (n, 1), for each input with numbers

    def build(self) -> Graph:
        """Return the graph."""
        graph, features = self._graph, self._features
        if isinstance(features, DenseFeatures):
            outputs = self._layers(self._matrix(features))
        elif isinstance(features, ColumnFeatures):
            outputs = self._mixed(features)
        else:
            outputs = self._from_rows(features)
        for flags in self._refused:
            outputs = graph.add("Where", flags, graph.constant(np.nan, np.float32), outputs)
        self._add_outputs(outputs)
        return graph

    # Inputs.

    def _check(self, numbers: str, dtype: Any, may_be_nan: str = "") -> None:
        """Refuse samples in which a number is nan, infinite or beyond float32.

        Args:
            numbers: Numbers of `dtype`, shape (n, d).
            dtype: float32 or float64.
            may_be_nan: Flags of numbers that may be nan, of this shape.
        """
        graph = self._graph
        size = graph.add("Abs", numbers)
        good = graph.add("LessOrEqual", size, graph.constant(FLOAT32_MAX, dtype))
        if may_be_nan:
            good = graph.add("Or", good, may_be_nan)
        bad = graph.cast(graph.add("Not", good), np.float32)
        self._refused.append(graph.cast(graph.sum(bad, 1, keep=True), np.bool_))

    def _with_logarithms(self, numbers: str, which: Sequence[bool]) -> str:
        """Return float64 numbers v, shape (n, d), with sign(v) log(1 + |v|) in some of the columns."""
        graph = self._graph
        if not any(which):
            return numbers
        above = graph.add("Add", graph.add("Abs", numbers), graph.constant(1, np.float64))
        signed = graph.add("Mul", graph.add("Sign", numbers), graph.add("Log", above))
        if all(which):
            return signed
        return graph.add("Where", graph.constant(which, np.bool_), signed, numbers)

    def _scaled(self, numbers: str, dtype: Any, shift: Array, scale: Array, at: str = "") -> str:
        """Return (numbers - shift) * scale, clipped, float32.

        Args:
            numbers: Numbers of `dtype`, shape (n, d).
            dtype: float32 or float64.
            shift: Shape (d,).
            scale: Shape (d,).
            at: Places of the numbers in both, shape (n, d); "": the last axis.
        """
        graph = self._graph
        wide = np.result_type(dtype, shift.dtype)
        both = [graph.constant(own, wide) for own in (shift, scale)]
        if at:
            both = [graph.add("Gather", own, at) for own in both]
        x = numbers if wide == dtype else graph.cast(numbers, wide)
        x = graph.add("Mul", graph.add("Sub", x, both[0]), both[1])
        x = x if wide == np.float32 else graph.cast(x, np.float32)
        ends = [graph.constant(end, np.float32) for end in (-MAX_DEVIATION, MAX_DEVIATION)]
        return graph.add("Clip", x, *ends)

    def _matrix(self, features: DenseFeatures) -> str:
        """Return the standardised features of rows of numbers, float32, shape (n, d)."""
        graph = self._graph
        dtype: Any = np.float64 if needs_float64(self._model) else np.float32
        x = graph.input("features", dtype, ["n", features.n_features])
        if empty_is_zero(self._model):
            x = graph.add("Where", graph.add("IsNaN", x), graph.constant(0, dtype), x)
        self._check(x, dtype)
        x = self._with_logarithms(x, logarithms(self._model))
        if dtype == np.float64 and not self._model.info.wide:
            x, dtype = graph.cast(x, np.float32), np.float32
        return self._scaled(x, dtype, features.mean, features.scale)

    def _numbers(self, scale: tuple[Array, Array] | None = None) -> tuple[str, str]:
        """Return the numbers of named columns, float32, 0 for an empty cell, and flags of these; "": none.

        `scale`: what is subtracted from the numbers of each column, and the factor of the difference.
        """
        graph = self._graph
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
        graph = self._graph
        outputs = graph.add("Add", sums.rows("weight"), graph.constant(bias[0], name="bias"))
        if isinstance(self._task, FactorizationMachine):
            outputs = graph.add("Add", outputs, self._pairs(sums))
        return outputs

    def _has_rows(self, name: str) -> bool:
        tables = self._model.tables
        return name in tables and isinstance(tables.table(name), StoredRows)

    def _pairs(self, sums: Sums) -> str:
        """Return the sums over pairs of factors of a factorization machine, shape (n, 1)."""
        graph = self._graph
        total = sums.rows("factor")
        squared = graph.sum(graph.add("Mul", total, total), 1, keep=True)
        return self._half(graph.add("Sub", squared, sums.squares("factor")))

    def _half(self, value: str) -> str:
        return self._graph.add("Mul", value, self._graph.constant(0.5, np.float32))

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
        return ColumnSums(self._graph, rows, places, numbers, keys)

    def _places(self, width: int | str, known: Int64) -> str:
        """Return the places of the input `keys`, shape (n, width), among those that are known."""
        return self._graph.places(self._graph.input("keys", np.int64, ["n", width]), known)

    def _entry_sums(
        self, features: SparseFeatures, names: Sequence[str], zeroed: Sequence[str]
    ) -> EntrySums:
        """Return the sums over lists of features with values."""
        graph, base = self._graph, self._model.info.index_base
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
        return self._graph.constant(self._dense(name), name=name)

    def _layers(self, first: str | Sums) -> str:
        """Return the outputs of layers x W + b with ReLU between them.

        Args:
            first: The inputs of the first layer, or the sums of its rows of weights.
        """
        graph, tables = self._graph, self._model.tables
        biases = [name for name in tables if name.startswith("bias")]
        x = first if isinstance(first, str) else ""
        for i, bias in enumerate(sorted(biases, key=lambda name: int(name[4:] or 0))):
            weight = f"weight{bias[4:]}"
            if i > 0:
                x = graph.add("Relu", x)
            if i == 0 and not isinstance(first, str):
                x = first.rows(weight)
            else:
                x = graph.add("MatMul", x, self._table(weight))
            x = graph.add("Add", x, self._table(bias))
        return x

    # Columns of words and numbers, each with inputs of its own.

    def _mixed(self, features: ColumnFeatures) -> str:
        """Return the outputs of wide_deep, deepfm and dcnv2."""
        graph, task = self._graph, self._task
        is_wide = not isinstance(task, DcnV2)
        rows = KeyedRows(
            self._model, ["embedding", "wide"] if is_wide else ["embedding"], ["embedding"], None
        )
        places = self._places(features.n_texts, rows.keys)
        embedding = rows.table("embedding")
        words = graph.constant(embedding, name="embedding")
        cells = graph.add("Gather", words, places)  # (n, columns of words, dim)
        shape = graph.constant([-1, features.n_texts * embedding.shape[1]], np.int64)
        inputs, numbers = graph.add("Reshape", cells, shape), ""
        if features.n_numbers:
            numbers = self._with_empty(features)
            inputs = graph.add("Concat", inputs, numbers, axis=1)

        outputs = self._layers(inputs)
        if not is_wide:
            return graph.add("Add", outputs, self._cross(inputs))
        wide = graph.constant(rows.table("wide"), name="wide")
        outputs = graph.add("Add", outputs, graph.sum(graph.add("Gather", wide, places), 1))
        if numbers:
            weights = self._dense("linear").reshape(features.n_inputs, -1)
            linear = graph.add("MatMul", numbers, graph.constant(weights, name="linear"))
            outputs = graph.add("Add", outputs, linear)
        if isinstance(task, DeepFm):
            outputs = graph.add("Add", outputs, self._products(cells, numbers))
        return outputs

    def _with_empty(self, features: ColumnFeatures) -> str:
        """Return the standardised numbers, then flags of empty cells, float32, shape (n, 2 * columns)."""
        graph = self._graph
        numbers, empty = self._numbers()
        scaled = self._scaled(numbers, np.float32, features.mean, features.scale)
        zero = graph.constant(0, np.float32)
        scaled = graph.add("Where", empty, zero, scaled)
        flags = graph.add("Where", empty, graph.constant(features.has_empty, np.float32), zero)
        return graph.add("Concat", scaled, flags, axis=1)

    def _cross(self, x: str) -> str:
        """Return the outputs of the cross layers."""
        graph, last = self._graph, x
        for i in range(sum(name.startswith("cross_weight") for name in self._model.tables)):
            product = graph.add("MatMul", last, self._table(f"cross_weight{i}"))
            product = graph.add("Add", product, self._table(f"cross_bias{i}"))
            last = graph.add("Add", graph.add("Mul", x, product), last)
        return graph.add("MatMul", last, self._table("cross_output"))

    def _products(self, cells: str, numbers: str) -> str:
        """Return the outputs of the products of all pairs."""
        graph = self._graph
        sums, squares = graph.sum(cells, 1), graph.sum(graph.add("Mul", cells, cells), 1)
        if numbers:
            factors = self._dense("number_factor")
            own = graph.add("MatMul", numbers, graph.constant(factors, name="number_factor"))
            sums = graph.add("Add", sums, own)
            squared = graph.constant(np.square(factors), name="number_factor_squares")
            own = graph.add("MatMul", graph.add("Mul", numbers, numbers), squared)
            squares = graph.add("Add", squares, own)
        products = self._half(graph.add("Sub", graph.add("Mul", sums, sums), squares))
        if "pair_output" in self._model.tables:
            return graph.add("MatMul", products, self._table("pair_output"))
        return graph.sum(products, 1, keep=True)

    # Outputs.

    def _add_outputs(self, outputs: str) -> None:
        """Add what the outputs of the task mean, float32, shape (n, k), as outputs of the graph.

        Probabilities are computed in float64, since float32 forms of runtimes cut small ones off.
        """
        graph, classes = self._graph, self._model.classes
        meaning = getattr(self._task, "outputs", None)
        wide = graph.cast(outputs, np.float64)
        if isinstance(meaning, OneTarget):
            number = graph.add("Mul", wide, graph.constant(meaning.deviation, np.float64))
            number = graph.add("Add", number, graph.constant(meaning.mean, np.float64))
            number = graph.add("Squeeze", number, graph.axes(1))
            graph.output("value", graph.cast(number, np.float32), np.float32, ["n"])
            return
        half = graph.constant(0.5, np.float32)
        if isinstance(meaning, LabelOutputs):
            found = graph.cast(self._sigmoid(wide), np.float32)
            label = graph.cast(graph.add("GreaterOrEqual", found, half), np.int64)
            graph.output("label", label, np.int64, ["n", len(classes)])
            graph.output("probabilities", found, np.float32, ["n", len(classes)])
            return
        if len(classes) > 2:
            found = graph.cast(graph.add("Softmax", wide, axis=1), np.float32)
            place = graph.add("ArgMax", found, axis=1, keepdims=0)
        else:
            found = self._of_two(wide, isinstance(meaning, ClassOutputs))
            second = graph.add("Gather", found, graph.constant(1, np.int64), axis=1)
            place = graph.cast(graph.add("GreaterOrEqual", second, half), np.int64)
        label = graph.add("Gather", graph.constant(classes, name="classes"), place)
        graph.output("label", label, classes.dtype, ["n"])
        graph.output("probabilities", found, np.float32, ["n", len(classes)])

    def _of_two(self, wide: str, has_two: bool) -> str:
        """Return the probabilities of two classes; `has_two`: each has a logit, else the second alone."""
        graph = self._graph
        if has_two:
            found = graph.add("Softmax", wide, axis=1)
            second = graph.add("Gather", found, graph.constant([1], np.int64), axis=1)
        else:
            second = self._sigmoid(wide)
        second = graph.cast(second, np.float32)
        first = graph.add("Sub", graph.constant(1, np.float32), second)
        return graph.add("Concat", first, second, axis=1)

    def _sigmoid(self, wide: str) -> str:
        """Return 1 / (1 + exp(-logits)); only exponents of 0 or less are used."""
        graph = self._graph
        one, zero = graph.constant(1, np.float64), graph.constant(0, np.float64)
        small = graph.add("Exp", graph.add("Neg", graph.add("Abs", wide)))
        upper = graph.add("Where", graph.add("GreaterOrEqual", wide, zero), one, small)
        return graph.add("Div", upper, graph.add("Add", one, small))


def _with_zero(array: Array) -> Array:
    """Return an array with a 0 behind it."""
    return np.append(array, array.dtype.type(0))
