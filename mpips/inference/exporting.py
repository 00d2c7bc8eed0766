"""Write a trained model for other libraries: npz, safetensors, Parquet, ONNX, a module of PyTorch."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from mpips.checkpoint.export import export as export_tables
from mpips.errors import ConfigError
from mpips.inference.dense import dense_layers, is_dense
from mpips.inference.model import Model
from mpips.inference.onnx_writing import write_onnx
from mpips.inference.safetensors import write_arrays
from mpips.inference.stored_tables import StoredDense
from mpips.inference.torch_writing import write_torch
from mpips.inference.word_vectors import write_vectors


def export(model: Model, kind: str, out: Path, force: bool = False) -> str:
    """Write a model into a new file, or folder for Parquet, which appears when it is complete.

    ONNX and PyTorch have other files beside it; see `mpips.inference.onnx_writing` and
    `mpips.inference.torch_writing`.

    Args:
        model: The model.
        kind: One of FORMATS.
        out: The file or folder.
        force: Replace an existing one.

    Returns:
        A text for people: the files, and how they were checked.

    Raises:
        ConfigError: The file exists already or cannot be written, or the task has no such form.
        CapabilityError: A library is missing.
        MpipsError: Another library predicts the example of the checkpoint differently from the new file.
    """
    if kind == "onnx":
        return write_onnx(model, out, force)
    if kind == "torch":
        return write_torch(model, out, force)
    if kind == "parquet":
        for handle in map(model.tables.table, model.tables):
            if not isinstance(handle, StoredDense):
                handle.check_keys()
        export_tables(
            model.tables.checkpoint, "parquet", out, tuple(model.tables), force, state=False
        )
        return str(out)
    if out.exists() and not force:
        raise ConfigError(f"{out}: already exists; use --force to replace it")
    new = out.with_name(f".{out.name}-{uuid.uuid4().hex[:8]}")
    try:
        with open(new, "xb") as file:
            WRITERS[kind](model, file)
        os.replace(new, out)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror or error}") from None
    finally:
        # On a read-only file system this is an error even if there is no such file.
        with contextlib.suppress(OSError):
            new.unlink()
    return str(out)


def _write_npz(model: Model, file: IO[bytes]) -> None:
    """Write the tables, the moments of the features, and the labels and columns of the training data."""
    texts: dict[str, Any] = {
        "classes": model.classes,
        "columns": np.array(model.info.columns, "U"),
    }
    if _has_numbered_features(model):
        texts["index_base"] = model.info.index_base
    np.savez(file, **texts, **_arrays(model))


def _has_numbered_features(model: Model) -> bool:
    """Return True if the keys of tables are numbers of features, counted from 0, as of LIBSVM."""
    return model.info.kind == "sparse" and not model.info.columns


def _arrays(model: Model) -> dict[str, Any]:
    """Return the moments of the features, the task's own arrays and the tables, by name."""
    arrays: dict[str, Any] = {**model.moments.to_arrays(), **model.arrays}
    for name in model.tables:
        handle = model.tables.table(name)
        if isinstance(handle, StoredDense):
            arrays[f"tables/{name}"] = handle.values
        else:
            handle.check_keys()
            arrays[f"tables/{name}/keys"] = handle.keys
            arrays[f"tables/{name}/values"] = handle.values
    return arrays


def _write_safetensors(model: Model, file: IO[bytes]) -> None:
    """Write the state dict of dense layers, or the tables and moments of other tasks, with texts of JSON."""
    facts = {
        "classes": model.classes.tolist(),
        "columns": list(model.info.columns),
        "task": model.manifest.config["task"],
        "step": model.manifest.step,
    }
    arrays = _arrays(model)
    if _has_numbered_features(model):
        facts["index_base"] = model.info.index_base
    if is_dense(model):
        layers = dense_layers(model)
        arrays, facts["widths"] = layers.arrays(), layers.widths
    write_arrays(arrays, {name: json.dumps(value) for name, value in facts.items()}, file)


WRITERS: dict[str, Callable[[Model, IO[bytes]], None]] = {
    "npz": _write_npz,
    "safetensors": _write_safetensors,
    "word2vec": functools.partial(write_vectors, binary=False),
    "word2vec-binary": functools.partial(write_vectors, binary=True),
}
FORMATS = (*WRITERS, "parquet", "onnx", "torch")
