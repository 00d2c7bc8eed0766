"""A parameter server for MPI clusters.

Importing this package initialises no MPI and opens nothing. `run` starts a job.
"""

# ruff: noqa: E402
from mpips.mpi import early_signals

early_signals.begin()

from mpips.errors import (
    CapabilityError,
    CheckpointError,
    ConfigError,
    DataError,
    ForkError,
    MpipsError,
    ProtocolError,
    RegionError,
    StallError,
    TransportError,
)
from mpips.model.consistency import ASP, BSP, SSP, Accept, Compensate, Reject, Scale
from mpips.model.initializer import Initializer
from mpips.model.optimizer import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Momentum,
    Nesterov,
    RMSProp,
)
from mpips.model.partition import (
    FrequencyPartition,
    HashPartition,
    LayerPartition,
    RangePartition,
)
from mpips.model.python_rule import PythonRule
from mpips.model.table import DenseTable, EmbeddingTable
from mpips.session.driver import Outcome
from mpips.session.session import run
from mpips.worker.requests import PushResult, Request
from mpips.worker.worker import Worker

__version__ = "0.2.0"

__all__ = [
    "ASP",
    "BSP",
    "FTRL",
    "SGD",
    "SSP",
    "Accept",
    "Adagrad",
    "Adam",
    "AdamW",
    "CapabilityError",
    "CheckpointError",
    "Compensate",
    "ConfigError",
    "DataError",
    "DenseTable",
    "EmbeddingTable",
    "ForkError",
    "FrequencyPartition",
    "HashPartition",
    "Initializer",
    "LayerPartition",
    "Momentum",
    "MpipsError",
    "Nesterov",
    "Outcome",
    "ProtocolError",
    "PushResult",
    "PythonRule",
    "RMSProp",
    "RangePartition",
    "RegionError",
    "Reject",
    "Request",
    "Scale",
    "StallError",
    "TransportError",
    "Worker",
    "run",
]
