"""The example of a checkpoint as inputs of a graph: numbers as they were before their logarithms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data import Batch, SparseBatch
from mpips.inference.graph_description import (
    NO_KEY,
    feature_columns,
    form_of,
    logarithms,
    needs_float64,
)
from mpips.inference.opening import attached_of
from mpips.training.example import batch_of, difference, names_of

if TYPE_CHECKING:
    from mpips.inference.content import ModelContent

Array: TypeAlias = npt.NDArray[Any]


def example_of(model: ModelContent) -> tuple[dict[str, Array], Array] | None:
    """Return the inputs of the graph for the example of a model, and what the model predicts for it.

    The last output of the graph has the shape of the predictions. None: the checkpoint has no example.
    """
    arrays = attached_of(model.tables.checkpoint, model.info)
    if not all(name in arrays for name in names_of(model.info)):
        return None
    batch = batch_of(arrays, model.info)
    if not batch.n:
        return None
    predicted = model.task.predict(model.tables, batch)
    if model.info.wants == "classes":
        predicted = model.all_classes(predicted)
    return inputs_of(model, batch), predicted


def different_sample(expected: Array, got: Array) -> tuple[str, float, float] | None:
    """Return the place, what was computed and what is right, of the first prediction that differs."""
    n = len(expected)
    wanted = np.asarray(expected, np.float64).reshape(n, -1)
    found = np.asarray(got, np.float64).reshape(n, -1)
    place = difference(wanted, found)
    if place is None:
        return None
    return f"for sample {place[0]}, output {place[1]}", float(found[place]), float(wanted[place])


def inputs_of(model: ModelContent, batch: Batch) -> dict[str, Array]:
    """Return the inputs of the graph for samples in the form that the task takes."""
    form = form_of(model)
    if form == "rows":
        dtype = np.float64 if needs_float64(model) else np.float32
        x = batch.densify(model.info.n_features).astype(dtype)
        return {"features": _without_logarithms(x, logarithms(model))}
    assert isinstance(batch, SparseBatch)
    if form == "entries":
        return _entries(batch, model.info.index_base)
    columns = feature_columns(model)
    is_text = np.array([column.categorical for column in columns])
    place = np.where(is_text, np.cumsum(is_text), np.cumsum(~is_text)) - 1
    assert batch.fields is not None
    is_word, places = is_text[batch.fields], place[batch.fields]
    keys = np.full((batch.n, int(is_text.sum())), NO_KEY, np.int64)
    keys[batch.row_ids[is_word], places[is_word]] = batch.keys[is_word]
    if is_text.all():
        return {"keys": keys}
    numbers = np.full((batch.n, int((~is_text).sum())), np.nan)
    numbers[batch.row_ids[~is_word], places[~is_word]] = batch.values[~is_word]
    which = np.array(logarithms(model))[~is_text]
    return {"keys": keys, "numbers": _without_logarithms(numbers, which.tolist())}


def _without_logarithms(x: Array, which: list[bool]) -> Array:
    """Return numbers, shape (n, d), from sign(v) log(1 + |v|) in some of the columns."""
    found = x.copy()
    found[:, which] = np.copysign(np.expm1(np.abs(x[:, which])), x[:, which])
    return found


def _entries(batch: SparseBatch, base: int) -> dict[str, Array]:
    lengths = np.diff(batch.indptr)
    shape = (batch.n, max(int(lengths.max(initial=0)), 1))
    keys, values = np.full(shape, NO_KEY, np.int64), np.zeros(shape, np.float32)
    places = np.arange(len(batch.keys)) - np.repeat(batch.indptr[:-1], lengths)
    keys[batch.row_ids, places] = batch.keys + base
    values[batch.row_ids, places] = batch.values
    return {"keys": keys, "values": values}
