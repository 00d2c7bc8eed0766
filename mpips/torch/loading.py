"""A trained model without a job: values and rows of a checkpoint, in a plain model of one process.

Nothing here uses MPI, servers or h5py: the checkpoint is read by its manifest (mpips.checkpoint.reader).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mpips.checkpoint import Checkpoint, find_newest, open_checkpoint
from mpips.checkpoint.folder import find_folder
from mpips.checkpoint.manifest import MANIFEST
from mpips.errors import CheckpointError, ConfigError
from mpips.model.consistency import BSP
from mpips.torch.buffers import BufferTable, buffer_tables
from mpips.torch.embedding import Embedding
from mpips.torch.module import PreparedModule
from mpips.torch.parameters import ParameterTable, table_names
from mpips.torch.row_state import LoadedRows

Float32 = NDArray[np.float32]


def load_checkpoint(
    model: torch.nn.Module, path: str | Path, *, name: str = "", seed: int = 0
) -> None:
    """Load the values of a checkpoint into a plain model, in one process without a job.

    Not collective. The whole checkpoint is verified first, so `model` is changed completely or not at all.
    Layers mpips.torch.Embedding get all rows of their tables into memory; an id without a row gives its
    initial row, and gradients of rows are not recorded. The model's `state_dict` also has them. If the model
    is prepared, a job begins with these values and rows, and with new optimizer state. To continue the run,
    start the script from the checkpoint by `mpips.init(resume=...)` instead.

    Args:
        model: A model as the script made it before `prepare`, on any device. Its parameters and buffers are
            changed in place.
        path: A checkpoint, a folder of checkpoints, or the directory of a run: of these the newest good one
            is taken.
        name: The argument `name` of `prepare`.
        seed: Seed of the job, which decides the initial rows of ids that have none.

    Raises:
        ConfigError: The model has been prepared, or the checkpoint has no table for one of its parameters,
            buffers or embeddings, or one of another shape. The message names it.
        CheckpointError: There is no good checkpoint.
    """
    if isinstance(model, PreparedModule):
        raise ConfigError(
            "load_checkpoint: the model has been prepared, so its values are those of the servers: make the "
            "model anew, or start from the checkpoint by mpips.init(resume=...)"
        )
    with _opened(Path(path)) as checkpoint:
        _Loading(checkpoint, name, seed).load(model)


def _opened(path: Path) -> Checkpoint:
    """Return a verified checkpoint.

    Raises:
        ConfigError: There is no folder of checkpoints.
        CheckpointError: There is no good checkpoint.
    """
    if (path / MANIFEST).exists():
        checkpoint = open_checkpoint(path)
        checkpoint.verify()
        return checkpoint
    found = find_newest(find_folder(path))
    if found.checkpoint is None:
        reasons = "".join(f"; {refusal.reason}" for refusal in found.refused)
        raise CheckpointError(f"{path}: has no good checkpoint{reasons}")
    return found.checkpoint


class _Loading:
    """One call of load_checkpoint: everything is read and compared before anything changes."""

    def __init__(self, checkpoint: Checkpoint, name: str, seed: int) -> None:
        self._checkpoint = checkpoint
        self._name = name
        self._seed = seed
        self._tables = {table.name: table for table in checkpoint.manifest.tables}

    def load(self, model: torch.nn.Module) -> None:
        parameters = [ParameterTable(n, p, None) for n, p in table_names(model, self._name).items()]
        buffers = list(buffer_tables(model, self._name, "worker 0"))
        layers = [
            (self._path(path, "embedding"), module)
            for path, module in model.named_modules()
            if isinstance(module, Embedding)
        ]
        parts: list[ParameterTable | BufferTable] = [*parameters, *buffers]
        dense = [self._dense(part) for part in parts]
        rows = [self._rows(table, layer) for table, layer in layers]
        for part, values in zip(parts, dense, strict=True):
            part.set(values)
        for (_, layer), found in zip(layers, rows, strict=True):
            layer.load(found)

    def _path(self, path: str, default: str) -> str:
        return ".".join(filter(None, (self._name, path))) or default

    def _table(self, name: str, kind: str, shape: tuple[int, ...]) -> None:
        if name not in self._tables:
            names = ", ".join(list(self._tables)[:8]) or "none"
            raise ConfigError(
                f"{self._checkpoint.path} has no table {name!r}, which the model has; its tables are "
                f"{names}: make the model of the run"
            )
        table = self._tables[name]
        found = tuple(table.shape) if table.kind == "dense" else (table.shape[1],)
        if (table.kind, found) != (kind, shape):
            raise ConfigError(
                f"table {name!r} of {self._checkpoint.path} is {table.kind} with shape {found}; the model "
                f"needs {kind} with shape {shape}"
            )

    def _dense(self, part: ParameterTable | BufferTable) -> Float32:
        shape = part.table(BSP()).shape
        self._table(part.name, "dense", shape)
        return self._checkpoint.read_dense(part.name)[0].reshape(shape)

    def _rows(self, name: str, layer: Embedding) -> LoadedRows:
        self._table(name, "embedding", (layer.dim,))
        blocks = list(self._checkpoint.iter_rows(name))
        keys = np.concatenate([np.zeros(0, np.int64), *(block.keys for block in blocks)])
        empty = np.zeros((0, layer.dim), np.float32)
        values = np.concatenate([empty, *(block.values for block in blocks)])
        return LoadedRows(keys, values, layer.table(name, BSP()), self._seed)
