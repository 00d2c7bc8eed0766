"""Build a graph of ONNX node by node; its arrays are in the file, or in one beside it.

All nodes are standard operators of ai.onnx 17 and ai.onnx.ml 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array: TypeAlias = npt.NDArray[Any]

OPSET, ML_OPSET, IR_VERSION = 17, 4, 9
ML = "ai.onnx.ml"
_ALIGNED = 4096  # arrays beside the file begin at multiples of this, so that they can be mapped
_BLOCK = 1 << 24  # bytes that are written at once


class Graph:
    """A graph under construction. Values are named by strings, which the methods return.

    Attributes:
        arrays: Constants by name.
    """

    def __init__(self) -> None:
        """Begin without nodes."""
        self.arrays: dict[str, Array] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._n_in_nodes = 0

    def input(self, name: str, dtype: Any, shape: Sequence[str | int]) -> str:
        """Declare an input; a size that is a text may be any."""
        self._inputs.append(_value_info(name, dtype, shape))
        return name

    def output(self, name: str, value: str, dtype: Any, shape: Sequence[str | int]) -> None:
        """Declare a value as an output of this name."""
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(_value_info(name, dtype, shape))

    def constant(self, array: Any, dtype: Any = None, name: str = "") -> str:
        """Return a constant."""
        name = name or f"constant{len(self.arrays)}"
        found = np.asarray(array, dtype, order="C")
        self.arrays[name] = found.astype(object) if found.dtype.kind == "U" else found
        return name

    def add(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Return the first result of an operator on values."""
        name = f"{operator.lower()}{len(self._nodes)}"
        self._nodes.append(
            helper.make_node(operator, list(inputs), [name], domain=domain, **attributes)
        )
        return name

    def cast(self, value: str, dtype: Any) -> str:
        """Return a value with another type of its elements."""
        return self.add("Cast", value, to=_type(dtype))

    def axes(self, *axes: int) -> str:
        """Return axes as an input of an operator, one constant for all operators."""
        name = "axes_" + "_".join(map(str, axes))
        return name if name in self.arrays else self.constant(axes, np.int64, name)

    def sum(self, value: str, axis: int, keep: bool = False) -> str:
        """Return the sums along an axis."""
        return self.add("ReduceSum", value, self.axes(axis), keepdims=int(keep))

    def places(self, keys: str, known: npt.NDArray[np.int64]) -> str:
        """Return the place of each key in `known`, int64, shape (m,); m for any other key."""
        if not len(known):
            return self.add("Mul", keys, self.constant(0, np.int64))
        self._n_in_nodes += 2 * known.nbytes
        return self.add(
            "LabelEncoder",
            keys,
            domain=ML,
            keys_tensor=numpy_helper.from_array(known),
            values_tensor=numpy_helper.from_array(np.arange(len(known))),
            default_tensor=numpy_helper.from_array(np.array([len(known)])),
        )

    @property
    def n_bytes(self) -> int:
        """Bytes of all arrays."""
        return self._n_in_nodes + sum(array.nbytes for array in self.arrays.values())

    @property
    def n_bytes_inside(self) -> int:
        """Bytes of the arrays that cannot be in another file, those of `places`."""
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
            self._inputs,
            self._outputs,
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


def _value_info(name: str, dtype: Any, shape: Sequence[str | int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, _type(dtype), list(shape))
