"""Write a model for PyTorch: values that `torch.load(weights_only=True)` reads, and the source of a module.

A model with a graph has three files: OUT with the state dict, a module of the same name with ending .py that
needs torch alone, and OUT.json, the description of its inputs. They are made in a new folder first, where
the module predicts the example of the checkpoint. Other models have one file with their tables as tensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from mpips.errors import CapabilityError, ConfigError, MpipsError
from mpips.inference.dense import dense_layers, is_dense
from mpips.inference.graph_description import description_of, has_graph
from mpips.inference.graph_example import different_sample, example_of
from mpips.inference.graph_model import graph_of
from mpips.inference.stored_tables import StoredDense, StoredRows
from mpips.inference.together import write_together
from mpips.inference.torch_source import TorchModule
from mpips.tasks.outputs import ClassOutputs, OneTarget

if TYPE_CHECKING:
    from torch import nn

    from mpips.inference.content import ModelContent

_VOCABULARY = "vocabulary/"


def write_torch(model: ModelContent, out: Path, force: bool) -> str:
    """Write a model into a file, and of a model with a graph a module and its description beside it.

    Returns:
        A text for people: the files, and how they were checked.

    Raises:
        ConfigError: A file exists already and `force` is False, or cannot be written; or `out` ends with .py.
        CapabilityError: torch is missing.
        MpipsError: The module predicts the example differently.
    """
    try:
        import torch
    except ImportError as error:
        raise CapabilityError(
            f"--format torch needs PyTorch (pip install torch): {error}"
        ) from None
    if out.suffix == ".py":
        raise ConfigError(
            f"{out}: ends with .py, as the module beside it: use another ending, as .pt"
        )
    content = _facts_of(model)
    if not has_graph(model):
        content |= _dense_content(model) if is_dense(model) else _plain_content(model)

        def write(new: Path) -> str:
            with open(new, "xb") as file:
                torch.save(content, file)
            return "values without a module"

        return write_together(out, [], force, write)

    module, facts = _module_of(model), description_of(model, "torch")
    arrays = module.arrays.items()
    content["state_dict"] = {name: torch.from_numpy(array.copy()) for name, array in arrays}
    content["description"] = facts
    if is_dense(model):
        content["widths"] = dense_layers(model).widths

    def write_all(new: Path) -> str:
        with open(new, "xb") as file:
            torch.save(content, file)
        text = json.dumps(facts, ensure_ascii=False, indent=1) + "\n"
        _json_of(new).write_text(text, encoding="utf-8")
        _source_of(new).write_text(module.source(facts, new.name), encoding="utf-8")
        return _checked(model, new)

    return write_together(out, [_json_of(out), _source_of(out)], force, write_all)


def module_of(model: ModelContent) -> nn.Module:
    """Return a model with a graph as a module in evaluation mode, made of the source that is exported.

    Raises:
        ConfigError: The model's task has no graph.
    """
    import torch

    module, facts = _module_of(model), description_of(model, "torch")
    made: nn.Module = _run(module.source(facts, "model.pt"), "<mpips model>").Model()
    made.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in module.arrays.items()})
    return made.eval()


def _json_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.json")


def _source_of(out: Path) -> Path:
    return out.with_suffix(".py")


def _facts_of(model: ModelContent) -> dict[str, Any]:
    """Return what every file has, as plain values."""
    return {
        "classes": model.classes.tolist(),
        "columns": list(model.info.columns),
        "task": model.manifest.config["task"],
        "step": model.manifest.step,
    }


def _module_of(model: ModelContent) -> TorchModule:
    """Return the module of a model with a graph."""
    if is_dense(model):
        # Their outputs are logits of all classes, or the number itself.
        graph, outputs = graph_of(model, dense_layers(model))
        return TorchModule(graph, outputs, 1.0, 0.0)
    graph, outputs = graph_of(model)
    meaning = getattr(model.task, "outputs", None)
    if isinstance(meaning, OneTarget):
        return TorchModule(graph, outputs, float(meaning.deviation), float(meaning.mean))
    module = TorchModule(graph, outputs, 1.0, 0.0)
    is_one = len(model.classes) == 2 and not isinstance(meaning, ClassOutputs)
    if model.info.wants == "classes" and is_one:
        module.with_class_0()
    return module


def _dense_content(model: ModelContent) -> dict[str, Any]:
    """Return the layers of a task of a user, for `mpips.inference.network.Network`."""
    from mpips.inference.network import network_of

    return {"state_dict": network_of(model).state_dict(), "widths": dense_layers(model).widths}


def _plain_content(model: ModelContent) -> dict[str, Any]:
    """Return the tables and other arrays of any model as tensors, and its vocabularies as lists of names."""
    import torch

    names = {
        path.removeprefix(_VOCABULARY): array.tobytes().decode().split("\n")[:-1]
        for path, array in model.arrays.items()
        if path.startswith(_VOCABULARY)
    }
    own = {**model.moments.to_arrays(), **model.arrays}
    arrays = {path: array for path, array in own.items() if not path.startswith(_VOCABULARY)}
    tables: dict[str, Any] = {}
    for name in model.tables:
        handle = model.tables.table(name)
        if isinstance(handle, StoredDense):
            tables[name] = torch.from_numpy(handle.pull())
        else:
            tables[name] = _rows_of(handle)
    return {
        "tables": tables,
        "vocabularies": names,
        "arrays": {path: torch.from_numpy(np.array(array)) for path, array in arrays.items()},
    }


def _rows_of(handle: StoredRows) -> dict[str, Any]:
    import torch

    handle.check_keys()
    return {
        "keys": torch.from_numpy(handle.keys.copy()),
        "rows": torch.from_numpy(handle.values.copy()),
    }


def _checked(model: ModelContent, path: Path) -> str:
    """Predict the example of the checkpoint with the module; return what was done, for people."""
    import torch

    source = _source_of(path)
    module = _run(source.read_text(encoding="utf-8"), str(source)).load(path)
    found = example_of(model)
    if found is None:
        return "not checked: the checkpoint has no example"
    inputs, expected = found
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    call = module if model.info.wants == "targets" else module.probabilities
    with torch.no_grad():
        got = call(**tensors).numpy()
    differs = different_sample(expected, got)
    version = f"torch {torch.__version__}"
    if differs is not None:
        raise MpipsError(
            f"{path.name} is not written: {differs[0]} of the example of {model.path}, {version} computes "
            f"{differs[1]:.7g} and mpips {differs[2]:.7g}: use another version of torch, or --format npz"
        )
    return f"{version} predicts {len(expected)} samples of the training data alike"


def _run(source: str, file: str) -> ModuleType:
    """Run the source of a module, and return it."""
    module = ModuleType("mpips_exported")
    module.__file__ = file
    exec(compile(source, file, "exec"), module.__dict__)
    return module
