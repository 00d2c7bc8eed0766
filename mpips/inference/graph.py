"""The graph of a model: operators on values and arrays, from which files of ONNX and of PyTorch are written.

`mpips.inference.graph_model` builds it once for both. `mpips.inference.onnx_graph` and
`mpips.inference.torch_source` each have a table with a form of every operator.

Operators with a name of ONNX mean what they mean there. The others are:

    Cast(x), Sum(x), Squeeze(x), Unsqueeze(x), Reshape(x)   their types, axes and shapes are options
    Places(keys, known)     place of each key in `known`, int64, shape (m,), ascending; m for any other key
    Rows(table, places)     rows of a table, whose last row is 0 and stays 0
    RowSizes(table, places) sums of squares of these rows, of the shape of `places`
    Sizes(table)            sums of squares of all rows, shape (m, 1)
    Square(x)               x * x
    Base(absent, table)     absent @ table, computed in float64
    BaseSizes(absent, table)  absent**2 @ Sizes(table), computed in float64
    Layers(x, w, b, ...)    layers x @ w + b with ReLU between them

Operators on arrays alone are computed by the writer of ONNX; the module of PyTorch computes them in each
call, since training may change the arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Array: TypeAlias = npt.NDArray[Any]


class Value(Struct, frozen=True):
    """An input or an output.

    Attributes:
        name: Its name.
        dtype: Type of its elements.
        shape: Sizes; a text: any size.
        value: The name of the value, for an output.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[str | int, ...]
    value: str = ""


class Node(Struct, frozen=True):
    """An operator.

    Attributes:
        operator: Its name.
        inputs: Names of values and arrays.
        name: Name of its result.
        options: Options by name, as `axis`.
        section: The purpose of the nodes around it, for people.
    """

    operator: str
    inputs: tuple[str, ...]
    name: str
    options: dict[str, Any]
    section: str


class Graph:
    """A graph under construction. Values are named by strings, which the methods return.

    Attributes:
        arrays: Constants by name.
        weights: Names of the constants that are trained.
        nodes: Operators, each behind those whose results it takes.
        inputs: Inputs in their order.
        outputs: Outputs in their order.
        section: `Node.section` of the nodes that are added next.
    """

    def __init__(self) -> None:
        """Begin without nodes."""
        self.arrays: dict[str, Array] = {}
        self.weights: set[str] = set()
        self.nodes: list[Node] = []
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.section = ""

    def input(self, name: str, dtype: Any, shape: Sequence[str | int]) -> str:
        """Declare an input; a size that is a text may be any."""
        self.inputs.append(Value(name, np.dtype(dtype), tuple(shape)))
        return name

    def output(self, name: str, value: str, dtype: Any, shape: Sequence[str | int]) -> None:
        """Declare a value as an output of this name."""
        self.outputs.append(Value(name, np.dtype(dtype), tuple(shape), value))

    def constant(self, array: Any, dtype: Any = None, name: str = "") -> str:
        """Return a constant. A name that exists means the array that it means already."""
        name = name or f"constant{len(self.arrays)}"
        if name not in self.arrays:
            self.arrays[name] = np.asarray(array, dtype, order="C")
        return name

    def weight(self, array: Any, name: str) -> str:
        """Return a constant that is trained."""
        self.weights.add(name)
        return self.constant(array, np.float32, name)

    def add(self, operator: str, *inputs: str, **options: Any) -> str:
        """Return the result of an operator on values."""
        name = f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(Node(operator, inputs, name, options, self.section))
        return name

    def cast(self, value: str, dtype: Any) -> str:
        """Return a value with another type of its elements."""
        return self.add("Cast", value, dtype=np.dtype(dtype))

    def sum(self, value: str, axis: int, keep: bool = False) -> str:
        """Return the sums along an axis."""
        return self.add("Sum", value, axis=axis, keep=keep)
