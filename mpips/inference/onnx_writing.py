"""Write a model as ONNX: the graph, its description, and, of a large model, its arrays in a third file.

All files are made in a new folder first, where onnxruntime predicts the example of the checkpoint if it is
installed. So a file that appears is complete, and predicts like the model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from mpips.checkpoint.record import mpips_version
from mpips.errors import CapabilityError, ConfigError, MpipsError
from mpips.inference.graph_description import description_of, features_of
from mpips.inference.graph_example import different_sample, example_of
from mpips.inference.graph_model import graph_of
from mpips.inference.onnx_outputs import add_outputs
from mpips.inference.together import write_together

if TYPE_CHECKING:
    from onnx import ModelProto

    from mpips.inference.content import ModelContent
    from mpips.inference.onnx_graph import OnnxGraph

NAME = "mpips"  # of the description in the metadata
MOST_INSIDE = 1 << 30  # bytes of arrays above which they get a file of their own
MOST_BYTES = (1 << 31) - (1 << 24)  # of a message of protobuf, with room for all but the arrays
_LEAST_OUTSIDE = 1 << 12  # bytes of an array in the other file


def proto_of(model: ModelContent) -> ModelProto:
    """Return a model as a message; see `mpips.inference.model.Model.to_onnx`."""
    graph = _graph_of(model)
    if graph.n_bytes > MOST_BYTES:
        raise ConfigError(
            f"the model has {graph.n_bytes:,} bytes, and a message of ONNX at most {MOST_BYTES:,}: use mpips "
            "export, which writes its arrays into a file beside it"
        )
    return graph.model(mpips_version(), {NAME: _text_of(model)}, {})


def write_onnx(model: ModelContent, out: Path, force: bool) -> str:
    """Write a model into a file, and its description into OUT.json; of a large model arrays into OUT.data.

    Returns:
        A text for people: the files, and how they were checked.

    Raises:
        ConfigError: A file exists already and `force` is False, or cannot be written; or the model's task has
            no form of ONNX, or the model has too many words.
        CapabilityError: onnx is missing.
        MpipsError: onnxruntime predicts the example differently.
    """
    graph, text = _graph_of(model), _text_of(model)

    def write(new: Path) -> str:
        _write(graph, text, new)
        return _checked(model, new)

    return write_together(out, [_beside(out, "data"), _beside(out, "json")], force, write)


def _beside(out: Path, ending: str) -> Path:
    return out.with_name(f"{out.name}.{ending}")


def _graph_of(model: ModelContent) -> OnnxGraph:
    features_of(model)  # raises for a task without a form
    try:
        from mpips.inference.onnx_graph import OnnxGraph
    except ImportError as error:
        raise CapabilityError(
            f"--format onnx needs onnx (pip install onnx onnxruntime): {error}"
        ) from None
    built, outputs = graph_of(model)
    add_outputs(built, outputs, model)
    graph = OnnxGraph(built)
    if graph.n_bytes_inside > MOST_BYTES:
        raise ConfigError(
            f"--format onnx: the keys of the model have {graph.n_bytes_inside:,} bytes (16 for each word or "
            f"feature), and a file of ONNX has room for {MOST_BYTES:,}: use npz or parquet"
        )
    return graph


def _text_of(model: ModelContent) -> str:
    return json.dumps(description_of(model, "onnx"), ensure_ascii=False, indent=1) + "\n"


def _write(graph: OnnxGraph, text: str, out: Path) -> None:
    """Write all files of a model."""
    from mpips.inference.onnx_graph import write_arrays

    outside: dict[str, tuple[str, int]] = {}
    if graph.n_bytes > MOST_INSIDE:
        large = {
            name: array
            for name, array in graph.arrays.items()
            if array.nbytes >= _LEAST_OUTSIDE and array.dtype.kind != "O"
        }
        with open(_beside(out, "data"), "xb") as file:
            places = write_arrays(large, file)
        outside = {name: (f"{out.name}.data", place) for name, place in places.items()}
    proto = graph.model(mpips_version(), {NAME: text}, outside)
    out.write_bytes(proto.SerializeToString())
    _beside(out, "json").write_text(text, encoding="utf-8")


def _checked(model: ModelContent, path: Path) -> str:
    """Predict the example of the checkpoint with onnxruntime; return what was done, for people."""
    try:
        import onnxruntime
    except ImportError:
        return "not checked: pip install onnxruntime"
    found = example_of(model)
    if found is None:
        return "not checked: the checkpoint has no example"
    inputs, expected = found
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    n, version = len(expected), f"onnxruntime {onnxruntime.__version__}"
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        found_last = session.run([session.get_outputs()[-1].name], inputs)[0]
    except Exception as error:
        raise MpipsError(
            f"{path.name} is not written: {version} cannot run it (pip install -U onnxruntime): {error}"
        ) from None
    differs = different_sample(expected, found_last)
    if differs is not None:
        raise MpipsError(
            f"{path.name} is not written: {differs[0]} of the example of {model.path}, {version} "
            f"computes {differs[1]:.7g} and mpips {differs[2]:.7g}: use another version of onnxruntime, or "
            "--format npz"
        )
    return f"{version} predicts {n} samples of the training data alike"
