"""The outputs of a graph of ONNX: label and probabilities, or the predicted number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mpips.tasks.outputs import ClassOutputs, LabelOutputs, OneTarget

if TYPE_CHECKING:
    from mpips.inference.content import ModelContent
    from mpips.inference.graph import Graph


def add_outputs(graph: Graph, outputs: str, model: ModelContent) -> None:
    """Add what the outputs of a task mean as outputs of its graph.

    Probabilities are computed in float64, since float32 forms of runtimes cut small ones off.

    Args:
        graph: The graph.
        outputs: The outputs of the task, float32, shape (n, k).
        model: The model.
    """
    classes, meaning = model.classes, getattr(model.task, "outputs", None)
    graph.section = "Outputs"
    wide = graph.cast(outputs, np.float64)
    if isinstance(meaning, OneTarget):
        number = graph.add("Mul", wide, graph.constant(meaning.deviation, np.float64))
        number = graph.add("Add", number, graph.constant(meaning.mean, np.float64))
        number = graph.add("Squeeze", number, axis=1)
        graph.output("value", graph.cast(number, np.float32), np.float32, ["n"])
        return
    half = graph.constant(0.5, np.float32)
    if isinstance(meaning, LabelOutputs):
        found = graph.cast(_sigmoid(graph, wide), np.float32)
        label = graph.cast(graph.add("GreaterOrEqual", found, half), np.int64)
        graph.output("label", label, np.int64, ["n", len(classes)])
        graph.output("probabilities", found, np.float32, ["n", len(classes)])
        return
    if len(classes) > 2:
        found = graph.cast(graph.add("Softmax", wide, axis=1), np.float32)
        place = graph.add("ArgMax", found, axis=1, keepdims=0)
    else:
        found = _of_two(graph, wide, isinstance(meaning, ClassOutputs))
        second = graph.add("Gather", found, graph.constant(1, np.int64), axis=1)
        place = graph.cast(graph.add("GreaterOrEqual", second, half), np.int64)
    label = graph.add("Gather", graph.constant(classes, name="classes"), place)
    graph.output("label", label, classes.dtype, ["n"])
    graph.output("probabilities", found, np.float32, ["n", len(classes)])


def _of_two(graph: Graph, wide: str, has_two: bool) -> str:
    """Return the probabilities of two classes; `has_two`: each has a logit, else the second alone."""
    if has_two:
        found = graph.add("Softmax", wide, axis=1)
        second = graph.add("Gather", found, graph.constant([1], np.int64), axis=1)
    else:
        second = _sigmoid(graph, wide)
    second = graph.cast(second, np.float32)
    first = graph.add("Sub", graph.constant(1, np.float32), second)
    return graph.add("Concat", first, second, axis=1)


def _sigmoid(graph: Graph, wide: str) -> str:
    """Return 1 / (1 + exp(-logits)); only exponents of 0 or less are used."""
    one, zero = graph.constant(1, np.float64), graph.constant(0, np.float64)
    small = graph.add("Exp", graph.add("Neg", graph.add("Abs", wide)))
    upper = graph.add("Where", graph.add("GreaterOrEqual", wide, zero), one, small)
    return graph.add("Div", upper, graph.add("Add", one, small))
