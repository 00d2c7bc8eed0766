"""Checkpoints as files: written by all servers in parallel, verified, restored onto any number of servers.

A checkpoint is a folder `checkpoints/step-000000001234` of a run. It contains a self-describing HDF5 file
with the data, and a manifest with the offsets and checksums of the data. Importing this package loads neither
MPI nor h5py; only writing needs h5py. Open `writer.py` first to see how a checkpoint is written, `reader.py`
to see how it is read, and `manifest.py` for the format.
"""

from typing import TYPE_CHECKING

from mpips.process.lazy import lazy_names

if TYPE_CHECKING:
    from mpips.checkpoint.delta import write_delta
    from mpips.checkpoint.delta_apply import apply_delta
    from mpips.checkpoint.find import Found, Refusal, find_newest
    from mpips.checkpoint.folder import CheckpointName, list_checkpoints
    from mpips.checkpoint.info import CheckpointInfo
    from mpips.checkpoint.manifest import Manifest, WorkerState
    from mpips.checkpoint.reader import Checkpoint, RowBlock, open_checkpoint
    from mpips.checkpoint.retention import Retention, retain
    from mpips.checkpoint.shards import (
        DenseShardData,
        EmbeddingShardData,
        ManifestHead,
        ServerState,
    )
    from mpips.checkpoint.writer import CheckpointWriter, write_checkpoint

__all__ = [
    "Checkpoint",
    "CheckpointInfo",
    "CheckpointName",
    "CheckpointWriter",
    "DenseShardData",
    "EmbeddingShardData",
    "Found",
    "Manifest",
    "ManifestHead",
    "Refusal",
    "Retention",
    "RowBlock",
    "ServerState",
    "WorkerState",
    "apply_delta",
    "find_newest",
    "list_checkpoints",
    "open_checkpoint",
    "retain",
    "write_checkpoint",
    "write_delta",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "mpips.checkpoint.delta": ["write_delta"],
            "mpips.checkpoint.delta_apply": ["apply_delta"],
            "mpips.checkpoint.find": ["Found", "Refusal", "find_newest"],
            "mpips.checkpoint.folder": ["CheckpointName", "list_checkpoints"],
            "mpips.checkpoint.info": ["CheckpointInfo"],
            "mpips.checkpoint.manifest": ["Manifest", "WorkerState"],
            "mpips.checkpoint.reader": ["Checkpoint", "RowBlock", "open_checkpoint"],
            "mpips.checkpoint.retention": ["Retention", "retain"],
            "mpips.checkpoint.shards": [
                "DenseShardData",
                "EmbeddingShardData",
                "ManifestHead",
                "ServerState",
            ],
            "mpips.checkpoint.writer": ["CheckpointWriter", "write_checkpoint"],
        },
    )
