"""A parameter server for MPI clusters.

`run` starts a job with a worker function; `init` starts one whose script does the work of the worker.
Importing this package neither initialises MPI nor opens files.
"""

# ruff: noqa: E402, F403
from typing import TYPE_CHECKING as _TYPE_CHECKING

from mpips.mpi import early_signals
from mpips.process import forked as _forked

early_signals.begin()
_forked.leave_rank()

from mpips.errors import (
    CallbackError,
    CapabilityError,
    CheckpointError,
    ConfigError,
    DataError,
    EndedError,
    ForkError,
    MpipsError,
    ProtocolError,
    RegionError,
    StallError,
    TransportError,
)
from mpips.inference.fitting import fit
from mpips.inference.loading import load
from mpips.model import codec as _codec
from mpips.model import consistency as _consistency
from mpips.model import optimizer as _optimizer
from mpips.model.codec import *
from mpips.model.consistency import *
from mpips.model.initializer import Initializer
from mpips.model.optimizer import *
from mpips.model.partition import (
    FrequencyPartition,
    HashPartition,
    LayerPartition,
    RangePartition,
)
from mpips.model.replicated import Replicated
from mpips.model.table import DenseTable, EmbeddingTable
from mpips.session.driver import Outcome
from mpips.session.init import init, rank, report, world_size
from mpips.session.session import run
from mpips.worker.lookahead import lookahead
from mpips.worker.requests import PushResult, Request
from mpips.worker.worker import Worker

__version__ = "0.2.0"

__all__ = [
    "CallbackError",
    "CapabilityError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DenseTable",
    "EmbeddingTable",
    "EndedError",
    "ForkError",
    "FrequencyPartition",
    "HashPartition",
    "Initializer",
    "LayerPartition",
    "MpipsError",
    "Outcome",
    "ProtocolError",
    "PushResult",
    "RangePartition",
    "RegionError",
    "Replicated",
    "Request",
    "StallError",
    "TransportError",
    "Worker",
    "fit",
    "init",
    "load",
    "lookahead",
    "rank",
    "report",
    "run",
    "world_size",
]
__all__ += _codec.__all__
__all__ += _consistency.__all__
__all__ += _optimizer.__all__

if not _TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import mpips.torch and its like at their first use, since they import large libraries."""
        if name in {"jax", "keras", "sklearn", "torch"}:
            from importlib import import_module

            return import_module(f"mpips.{name}")
        raise AttributeError(f"module 'mpips' has no attribute {name!r}")
