"""A parameter server for MPI clusters.

`run` starts a job with a worker function; `init` starts one whose script does the work of the worker.
Importing this package neither initialises MPI nor opens files. It loads only the errors: all other names are
imported at their first use, so that a rank, a command or a helper process loads what it uses.
"""

# ruff: noqa: E402
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
    QueueReplacedError,
    RegionError,
    StallError,
    StreamError,
    TransportError,
)
from mpips.process.lazy import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from mpips.data.ids import ids
    from mpips.inference.fitting import fit
    from mpips.inference.loading import load
    from mpips.insitu.attached import attach
    from mpips.insitu.stream_table import StreamTable
    from mpips.model.codec import (
        Auto,
        Bf16,
        Fp16,
        Int8,
        OneBit,
        RandomK,
        SharedInt8,
        TopK,
    )
    from mpips.model.consistency import (
        ASP,
        BSP,
        SSP,
        Accept,
        Compensate,
        DiLoCo,
        LocalSGD,
        Reject,
        Scale,
        Switch,
    )
    from mpips.model.initializer import Initializer
    from mpips.model.optimizer import (
        FTRL,
        SGD,
        Adagrad,
        Adam,
        AdamW,
        DelayedNesterov,
        Momentum,
        Nesterov,
        PythonRule,
        Replace,
        RMSProp,
        RowAdagrad,
    )
    from mpips.model.partition import (
        FrequencyPartition,
        HashPartition,
        LayerPartition,
        RangePartition,
    )
    from mpips.model.replicated import Replicated
    from mpips.model.row_limits import (
        Idle,
        MaxBytes,
        MaxRows,
        MinCount,
        Probability,
    )
    from mpips.model.storage import Storage
    from mpips.model.table import (
        DenseTable,
        EmbeddingTable,
    )
    from mpips.session.driver import Outcome
    from mpips.session.init import (
        init,
        rank,
        report,
        world_size,
    )
    from mpips.session.session import run
    from mpips.worker.ahead.lookahead import lookahead
    from mpips.worker.requests import (
        PushResult,
        Request,
    )
    from mpips.worker.worker import Worker

__version__ = "0.3.0.dev0"

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
    "Auto",
    "Bf16",
    "CallbackError",
    "CapabilityError",
    "CheckpointError",
    "Compensate",
    "ConfigError",
    "DataError",
    "DelayedNesterov",
    "DenseTable",
    "DiLoCo",
    "EmbeddingTable",
    "EndedError",
    "ForkError",
    "Fp16",
    "FrequencyPartition",
    "HashPartition",
    "Idle",
    "Initializer",
    "Int8",
    "LayerPartition",
    "LocalSGD",
    "MaxBytes",
    "MaxRows",
    "MinCount",
    "Momentum",
    "MpipsError",
    "Nesterov",
    "OneBit",
    "Outcome",
    "Probability",
    "ProtocolError",
    "PushResult",
    "PythonRule",
    "QueueReplacedError",
    "RMSProp",
    "RandomK",
    "RangePartition",
    "RegionError",
    "Reject",
    "Replace",
    "Replicated",
    "Request",
    "RowAdagrad",
    "Scale",
    "SharedInt8",
    "StallError",
    "Storage",
    "StreamError",
    "StreamTable",
    "Switch",
    "TopK",
    "TransportError",
    "Worker",
    "attach",
    "fit",
    "ids",
    "init",
    "load",
    "lookahead",
    "rank",
    "report",
    "run",
    "world_size",
]

if not _TYPE_CHECKING:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "mpips.data.ids": ["ids"],
            "mpips.inference.fitting": ["fit"],
            "mpips.inference.loading": ["load"],
            "mpips.insitu.attached": ["attach"],
            "mpips.insitu.stream_table": ["StreamTable"],
            "mpips.model.codec": [
                "Auto",
                "Bf16",
                "Fp16",
                "Int8",
                "OneBit",
                "RandomK",
                "SharedInt8",
                "TopK",
            ],
            "mpips.model.consistency": [
                "ASP",
                "BSP",
                "SSP",
                "Accept",
                "Compensate",
                "DiLoCo",
                "LocalSGD",
                "Reject",
                "Scale",
                "Switch",
            ],
            "mpips.model.initializer": ["Initializer"],
            "mpips.model.optimizer": [
                "FTRL",
                "SGD",
                "Adagrad",
                "Adam",
                "AdamW",
                "DelayedNesterov",
                "Momentum",
                "Nesterov",
                "PythonRule",
                "RMSProp",
                "Replace",
                "RowAdagrad",
            ],
            "mpips.model.partition": [
                "FrequencyPartition",
                "HashPartition",
                "LayerPartition",
                "RangePartition",
            ],
            "mpips.model.replicated": ["Replicated"],
            "mpips.model.row_limits": ["Idle", "MaxBytes", "MaxRows", "MinCount", "Probability"],
            "mpips.model.storage": ["Storage"],
            "mpips.model.table": ["DenseTable", "EmbeddingTable"],
            "mpips.session.driver": ["Outcome"],
            "mpips.session.init": ["init", "rank", "report", "world_size"],
            "mpips.session.session": ["run"],
            "mpips.worker.ahead.lookahead": ["lookahead"],
            "mpips.worker.requests": ["PushResult", "Request"],
            "mpips.worker.worker": ["Worker"],
        },
        # Parts of the package, and packages for other libraries, which import these.
        [
            "_native",
            "checkpoint",
            "config",
            "data",
            "inference",
            "insitu",
            "jax",
            "keras",
            "kernels",
            "model",
            "recovery",
            "rundir",
            "scheduler",
            "server",
            "session",
            "sklearn",
            "snapshot",
            "terminal",
            "torch",
            "transport",
            "worker",
        ],
    )
