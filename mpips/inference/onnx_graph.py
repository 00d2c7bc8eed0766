"""Write a graph as one of ONNX; its arrays are in the file, or in one beside it.

All nodes are standard operators of ai.onnx 17 and ai.onnx.ml 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mpips.inference.graph import Array, Graph, Node, Value

OPSET, ML_OPSET, IR_VERSION = 17, 4, 9
ML = "ai.onnx.ml"
_ALIGNED = 4096  # arrays beside the file begin at multiples of this, so that they can be mapped
_BLOCK = 1 << 24  # bytes that are written at once


class OnnxGraph:
    """The nodes and arrays of a graph in ONNX.

    Attributes:
        arrays: Constants by name.
    """

    def __init__(self, graph: Graph) -> None:
        """Make the nodes of a graph with outputs."""
        self.arrays: dict[str, Array] = {}
        self._graph = graph
        self._nodes: list[onnx.NodeProto] = []
        self._n_in_nodes = 0
        for node in graph.nodes:
            make = _FORMS.get(node.operator)
            if make is None:
                self._add(node.operator, node.inputs, node.name, **node.options)
            else:
                make(self, node)
        for output in graph.outputs:
            self._add("Identity", [output.value], output.name)

    def _add(
        self, operator: str, inputs: Sequence[str], name: str, domain: str = "", **options: Any
    ) -> str:
        """Add a node of ONNX, with the arrays of the graph that it takes."""
        for own in inputs:
            if own in self._graph.arrays:
                self._array(own, self._graph.arrays[own])
        made = helper.make_node(operator, list(inputs), [name], domain=domain, **options)
        self._nodes.append(made)
        return name

    def _array(self, name: str, array: Any, dtype: Any = None) -> str:
        """Add an array."""
        found = np.asarray(array, dtype, order="C")
        self.arrays[name] = found.astype(object) if found.dtype.kind == "U" else found
        return name

    def _axes(self, axis: int) -> str:
        """Return an axis as an input of an operator, one array for all operators."""
        return self._array(f"axes_{axis}", [axis], np.int64)

    def _of(self, name: str) -> Array:
        return self._graph.arrays[name]

    # Forms of operators.

    def _cast(self, node: Node) -> None:
        self._add("Cast", node.inputs, node.name, to=_type(node.options["dtype"]))

    def _sum(self, node: Node) -> None:
        axes, keep = self._axes(node.options["axis"]), int(node.options["keep"])
        self._add("ReduceSum", [*node.inputs, axes], node.name, keepdims=keep)

    def _along(self, node: Node) -> None:
        self._add(node.operator, [*node.inputs, self._axes(node.options["axis"])], node.name)

    def _reshape(self, node: Node) -> None:
        shape = self._array(f"{node.name}_shape", node.options["shape"], np.int64)
        self._add("Reshape", [*node.inputs, shape], node.name)

    def _places(self, node: Node) -> None:
        keys, known = node.inputs[0], self._of(node.inputs[1])
        if not len(known):
            self._add("Mul", [keys, self._array(f"{node.name}_zero", 0, np.int64)], node.name)
            return
        self._n_in_nodes += 2 * known.nbytes
        self._add(
            "LabelEncoder",
            [keys],
            node.name,
            domain=ML,
            keys_tensor=numpy_helper.from_array(known),
            values_tensor=numpy_helper.from_array(np.arange(len(known))),
            default_tensor=numpy_helper.from_array(np.array([len(known)])),
        )

    def _rows(self, node: Node) -> None:
        self._add("Gather", node.inputs, node.name)

    def _row_sizes(self, node: Node) -> None:
        table, places = node.inputs
        sizes = self._array(f"{table}_squares", _sizes(self._of(table)), np.float32)
        self._add("Gather", [sizes, places], node.name)

    def _given_sizes(self, node: Node) -> None:
        sizes = _sizes(self._of(node.inputs[0]))[:, np.newaxis]
        self._array(node.name, sizes, np.float32)

    def _square(self, node: Node) -> None:
        (own,) = node.inputs
        if own in self._graph.arrays:
            self._array(node.name, np.square(self._of(own)))
        else:
            self._add("Mul", [own, own], node.name)

    def _base(self, node: Node) -> None:
        absent, table = (self._of(name) for name in node.inputs)
        self._array(node.name, absent.astype(np.float64) @ table.astype(np.float64), np.float32)

    def _base_sizes(self, node: Node) -> None:
        absent, table = (self._of(name) for name in node.inputs)
        self._array(node.name, np.square(absent.astype(np.float64)) @ _sizes(table), np.float32)

    def _layers(self, node: Node) -> None:
        x, *arrays = node.inputs
        pairs = [*zip(arrays[::2], arrays[1::2], strict=True)]
        for i, (weight, bias) in enumerate(pairs):
            if i > 0:
                x = self._add("Relu", [x], f"{node.name}_relu{i}")
            x = self._add("MatMul", [x, weight], f"{node.name}_matmul{i}")
            last = i == len(pairs) - 1
            x = self._add("Add", [x, bias], node.name if last else f"{node.name}_add{i}")

    @property
    def n_bytes(self) -> int:
        """Bytes of all arrays."""
        return self._n_in_nodes + sum(array.nbytes for array in self.arrays.values())

    @property
    def n_bytes_inside(self) -> int:
        """Bytes of the arrays that cannot be in another file, those of `Places`."""
        return self._n_in_nodes

    def model(
        self, version: str, facts: Mapping[str, str], outside: Mapping[str, tuple[str, int]]
    ) -> onnx.ModelProto:
        """Return the graph as a model.

        Args:
            version: Version of mpips.
            facts: Metadata: texts by name.
            outside: Name of the file and first byte of the arrays that are not in the model itself.
        """
        made = helper.make_graph(
            self._nodes,
            "mpips",
            [_value_info(own) for own in self._graph.inputs],
            [_value_info(own) for own in self._graph.outputs],
            [_tensor(name, array, outside.get(name)) for name, array in self.arrays.items()],
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(ML, ML_OPSET)]
        model = helper.make_model(
            made,
            opset_imports=opsets,
            ir_version=IR_VERSION,
            producer_name="mpips",
            producer_version=version,
        )
        helper.set_model_props(model, dict(facts))
        return model


_FORMS: dict[str, Callable[[OnnxGraph, Node], None]] = {
    "Cast": OnnxGraph._cast,
    "Sum": OnnxGraph._sum,
    "Squeeze": OnnxGraph._along,
    "Unsqueeze": OnnxGraph._along,
    "Reshape": OnnxGraph._reshape,
    "Places": OnnxGraph._places,
    "Rows": OnnxGraph._rows,
    "RowSizes": OnnxGraph._row_sizes,
    "Sizes": OnnxGraph._given_sizes,
    "Square": OnnxGraph._square,
    "Base": OnnxGraph._base,
    "BaseSizes": OnnxGraph._base_sizes,
    "Layers": OnnxGraph._layers,
}


def _sizes(rows: Array) -> Array:
    """Return the sum of squares of each row, float64, shape (n,)."""
    found: Array = np.square(rows.astype(np.float64)).sum(axis=1)
    return found


def write_arrays(arrays: Mapping[str, Array], file: IO[bytes]) -> dict[str, int]:
    """Write arrays one after the other, little-endian; return the first byte of each."""
    places: dict[str, int] = {}
    for name, array in arrays.items():
        file.write(bytes(-file.tell() % _ALIGNED))
        places[name] = file.tell()
        flat = array.reshape(-1)
        step = max(_BLOCK // max(array.itemsize, 1), 1)
        for start in range(0, len(flat), step):
            block = flat[start : start + step]
            file.write(block.astype(block.dtype.newbyteorder("<"), copy=False).tobytes())
    return places


def _tensor(name: str, array: Array, outside: tuple[str, int] | None) -> onnx.TensorProto:
    if outside is None:
        return numpy_helper.from_array(array, name)
    tensor = TensorProto(
        name=name,
        dims=array.shape,
        data_type=_type(array.dtype),
        data_location=TensorProto.EXTERNAL,
    )
    where = {"location": outside[0], "offset": outside[1], "length": array.nbytes}
    for key, value in where.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _type(dtype: Any) -> int:
    kind = np.dtype(dtype)
    return TensorProto.STRING if kind.kind in "OU" else helper.np_dtype_to_tensor_dtype(kind)


def _value_info(value: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, _type(value.dtype), list(value.shape))
