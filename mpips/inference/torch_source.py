"""Write a graph as the source of a module of PyTorch, and its arrays as the module's state dict.

The source needs torch alone. All steps are operators on tensors, without branches on values, so that
`torch.export`, `torch.compile` and `torch.jit.trace` take the module.

Names and texts of a checkpoint become parts of the source. So names must be identifiers, and texts of
comments and docstrings lose the characters that could end them: a checkpoint brings no statements of its own.
"""

from __future__ import annotations

import json
import keyword
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpips.errors import ConfigError
from mpips.inference.graph import Array, Graph, Node
from mpips.inference.graph_description import Facts

# Forms of operators: {0}, {1} are inputs, {all} all of them; other names are options.
_FORMS = {
    "Abs": "{0}.abs()",
    "Add": "{0} + {1}",
    "Base": "({0}.double() @ {1}.double()).float()",
    "BaseSizes": "({0}.double().square() @ {1}.double().square().sum(1)).float()",
    "Cast": "{0}.to({dtype})",
    "Clip": "{0}.clamp({1}, {2})",
    "Concat": "torch.cat([{all}], {axis})",
    "Gather": "{0}[{1}]",
    "IsNaN": "{0}.isnan()",
    "LessOrEqual": "{0} <= {1}",
    "Log": "{0}.log()",
    "MatMul": "{0} @ {1}",
    "Mul": "{0} * {1}",
    "Not": "~{0}",
    "Or": "{0} | {1}",
    "Places": "_places({0}, {1})",
    "Relu": "{0}.relu()",
    "Reshape": "{0}.reshape{shape}",
    "Sign": "{0}.sign()",
    "Sizes": "{0}.square().sum(1, keepdim=True)",
    "Square": "{0}.square()",
    "Squeeze": "{0}.squeeze({axis})",
    "Sub": "{0} - {1}",
    "Sum": "{0}.sum({axis}, keepdim={keep})",
    "Unsqueeze": "{0}.unsqueeze({axis})",
    "Where": "torch.where({0}, {1}, {2})",
}
_WIDTH = 100  # of lines of text
_PLACES = '''

def _places(keys: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Return the place of each key in `known`, ascending; its length for any other key."""
    if not len(known):
        return torch.zeros_like(keys)
    found = torch.searchsorted(known, keys).clamp(max=len(known) - 1)
    return torch.where(known[found] == keys, found, len(known))
'''


class TorchModule:
    """A graph as the source of a module, and the arrays of its state dict.

    Attributes:
        arrays: The state dict: arrays by name.
    """

    def __init__(self, graph: Graph, outputs: str, deviation: float, mean: float) -> None:
        """Make the statements of a graph without outputs.

        Args:
            graph: The graph.
            outputs: The outputs of the task, float32, shape (n, k).
            deviation: Factor of the outputs.
            mean: Is added to the product.
        """
        self.arrays: dict[str, Array] = {}
        self._graph = graph
        self._declared: dict[str, str] = {}  # statements of __init__ by attribute
        self._forward: list[str] = []
        section = ""
        for node in graph.nodes:
            if node.section != section:
                section = node.section
                self._forward.append(f"# {_plain(section)}.")
            self._forward.append(f"{_identifier(node.name)} = {self._value_of(node)}")
        self._last = outputs
        if (deviation, mean) != (1.0, 0.0):
            self._last = f"({outputs}.double() * {deviation!r} + {mean!r}).float()"

    def with_class_0(self) -> None:
        """Return a logit of 0 in front of the only one, so that there is one for each of two classes."""
        self._last = f"torch.cat([torch.zeros_like({self._last}), {self._last}], 1)"

    def _value_of(self, node: Node) -> str:
        """Return the expression of a node."""
        if node.operator == "Rows":
            return f"self.{self._embedding(node.inputs[0])}({node.inputs[1]})"
        if node.operator == "RowSizes":
            return f"self.{self._embedding(node.inputs[0])}({node.inputs[1]}).square().sum(2)"
        if node.operator == "Layers":
            return self._layers(*node.inputs)
        options: dict[str, Any] = dict(node.options)
        if "dtype" in options:
            options["dtype"] = _dtype(options["dtype"])
        names = [self._name(own) for own in node.inputs]
        return _FORMS[node.operator].format(*names, all=", ".join(names), **options)

    def _name(self, name: str) -> str:
        """Return an input of a node as an expression."""
        array = self._graph.arrays.get(name)
        if array is None:
            return _identifier(name)
        if not array.ndim:
            value = array.item()
            return f'float("{value}")' if value != value else repr(value)
        if self._is_embedding(name):
            return f"self.{self._embedding(name)}.weight"
        if _identifier(name) not in self._declared:
            self.arrays[name] = array
            shape = f"torch.empty({_shape(array.shape)}"
            if name in self._graph.weights:
                self._declared[name] = f"self.{name} = nn.Parameter({shape}))"
            else:
                made = f"{shape}, dtype={_dtype(array.dtype)})"
                self._declared[name] = f'self.register_buffer("{name}", {made})'
        return f"self.{name}"

    def _is_embedding(self, name: str) -> bool:
        return any(
            node.operator in ("Rows", "RowSizes") and node.inputs[0] == name
            for node in self._graph.nodes
        )

    def _embedding(self, name: str) -> str:
        """Return the attribute of a table whose last row is 0."""
        array = self._graph.arrays[_identifier(name)]
        n, dim = array.shape
        self.arrays[f"{name}.weight"] = array
        self._declared[name] = f"self.{name} = nn.Embedding({n}, {dim}, padding_idx={n - 1})"
        return name

    def _layers(self, x: str, *names: str) -> str:
        """Return the outputs of layers, named as those of `mpips.inference.network.Network`."""
        parts: list[str] = []
        for i, (weight, bias) in enumerate(zip(names[::2], names[1::2], strict=True)):
            array = self._graph.arrays[weight]
            # Layers of PyTorch have their outputs first; every second layer is a ReLU.
            self.arrays[f"layers.{2 * i}.weight"] = np.ascontiguousarray(array.T)
            self.arrays[f"layers.{2 * i}.bias"] = self._graph.arrays[bias]
            parts += ["nn.ReLU()"] * (i > 0) + [f"nn.Linear({array.shape[0]}, {array.shape[1]})"]
        self._declared["layers"] = f"self.layers = nn.Sequential({', '.join(parts)})"
        return f"self.layers({x})"

    def source(self, facts: Facts, file: str) -> str:
        """Return the source of the module.

        Args:
            facts: The description of the file.
            file: Name of the file with the state dict.
        """
        inputs = facts["inputs"]
        names = [_identifier(own["name"]) for own in inputs]
        result, *more = facts["outputs"]
        takes = ", ".join(f"{name}: torch.Tensor" for name in names)
        given = [line for own in inputs for line in _argument(own)]
        checks = [line for own in inputs for line in _check(own)]
        places = _PLACES if "_places(" in "".join(self._forward) else ""
        text = [
            *_head(facts, file, places),
            "    def __init__(self) -> None:",
            '        """Make a model without values."""',
            "        super().__init__()",
            *(f"        {line}" for line in self._declared.values()),
            "",
            f"    def forward(self, {takes}) -> torch.Tensor:",
            f'        """Return {_lowered(result)}',
            "",
            "        Args:",
            *given,
            '        """',
            *(f"        {line}" for line in (*checks, *self._forward)),
            f"        return {self._last}",
        ]
        if more:
            several = "labels" in facts
            function = "sigmoid()" if several else "softmax(1)"
            text += [
                "",
                f"    def probabilities(self, {takes}) -> torch.Tensor:",
                f'        """Return {_lowered(more[0])}"""',
                f"        return self({', '.join(names)}).double().{function}.float()",
            ]
        return "\n".join([*text, *_tail(file)])


def _head(facts: Facts, file: str, places: str) -> Sequence[str]:
    """Return the lines in front of `__init__`."""
    task, version, file = (_plain(text) for text in (facts["task"], facts["mpips"], file))
    text = f"Its values are in {file}. {file}.json describes how samples become its inputs."
    labels = [name for name in ("classes", "labels") if name in facts]
    if labels:
        text += f" The outputs have the order of `{labels[0]}` in both files."
    return [
        f'"""A model of task {task}, step {int(facts["step"])}, written by mpips {version}.',
        "",
        *textwrap.wrap(text, _WIDTH),
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "from pathlib import Path",
        "",
        "import torch",
        "from torch import nn",
        *places.splitlines(),
        "",
        "",
        "class Model(nn.Module):",
        f'    """A model of task {task}."""',
        "",
    ]


def _tail(file: str) -> Sequence[str]:
    """Return the function that reads the file, as lines."""
    return f'''

def load(path: str | Path = Path(__file__).with_name({json.dumps(file, ensure_ascii=False)})) -> Model:
    """Return the model with the values of a file, in evaluation mode; runs no code of the file."""
    with torch.device("meta"):
        model = Model()
    content = torch.load(path, weights_only=True)
    model.load_state_dict(content["state_dict"], assign=True)
    return model.eval()
'''.split("\n")


def _argument(facts: Mapping[str, Any]) -> Sequence[str]:
    """Return the lines that describe an argument."""
    shape = ", ".join(map(str, facts["shape"]))
    indent = " " * 12
    text = f"{indent}{facts['name']}: {facts['dtype']}, shape ({shape}). {_plain(facts['meaning'])}"
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent + "    ")


def _check(facts: Mapping[str, Any]) -> Sequence[str]:
    """Return the statements that check or convert the type of an argument."""
    name, dtype = facts["name"], facts["dtype"]
    if dtype == "float32":
        return [f"{name} = {name}.float()"]
    return [
        f"if {name}.dtype != torch.{dtype}:",
        f'    raise TypeError(f"{name} are {{{name}.dtype}}: must be torch.{dtype}")',
    ]


def _lowered(facts: Mapping[str, Any]) -> str:
    shape = ", ".join(map(str, facts["shape"]))
    text = _plain(facts["meaning"]).rstrip(".")
    return f"{text[0].lower()}{text[1:]}, {facts['dtype']}, shape ({shape})."


def _shape(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))


def _dtype(dtype: np.dtype[Any]) -> str:
    return "torch.bool" if dtype == np.bool_ else f"torch.{dtype.name}"


def _identifier(name: str) -> str:
    """Return a name that becomes one of the source.

    Raises:
        ConfigError: It cannot be one.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigError(f"{name!r} cannot be a name in a module of PyTorch: use --format npz")
    return name


def _plain(text: object) -> str:
    """Return a text for a comment or a docstring, which it cannot end."""
    return "".join(c if c.isprintable() and c not in '"\\' else " " for c in str(text))
