"""`prepare`: a Keras model becomes part of the script's job."""

from __future__ import annotations

from typing import Any

import keras

from mpips.errors import ConfigError
from mpips.keras.job import KerasJob
from mpips.keras.model import PreparedModel, make_prepared
from mpips.keras.part import ModelTables
from mpips.model.codec import PullCodec, PushCodec, common_codecs
from mpips.model.consistency import Consistency
from mpips.model.consistency import of_name as consistency_of
from mpips.model.local_sgd import Local
from mpips.model.replicated import Replicated, common_placement
from mpips.torch.prepare import take_cores


def prepare(
    model: Any,
    *,
    consistency: Consistency | str = "bsp",
    compression: PushCodec | str | None = None,
    pull_compression: PullCodec | str | None = None,
    placement: Replicated | str = "servers",
) -> Any:
    """Let the servers of the job hold and train a Keras model. Call it before the first `fit`.

    Not collective. Every variable of the model becomes a dense table, named by its path with dots:
    "sequential.dense.kernel". The first `fit`, `evaluate` or `predict` is collective: all ranks start the job
    together, and the values of worker 0 are the initial ones.

    `model.fit` trains as before. All workers call it with the same data and arguments. Each batch is divided
    among them, so `batch_size` is that of all workers together, and under BSP the steps are those of one
    process with this batch size: gradients are summed as the mean over the whole batch. Statistics of batch
    normalisation come from a worker's share of the batch, and their moving averages are those of worker 0.
    Under BSP the metrics of an epoch are summed over all workers, so callbacks that decide by them, such as
    EarlyStopping, decide alike. Under SSP and ASP each worker's gradient is a step of its own, and its logs
    are those of its shares.

    A restart (`mpips run`, or `mpips.init(save=...)`) runs the script from its beginning: complete fits train
    nothing, and the fit of the restart goes on in its epoch. It has the bits of an undisturbed run with
    arrays, a keras.utils.PyDataset or a DataLoader; a generator and `steps_per_epoch` begin with their first
    batch again. EarlyStopping, ReduceLROnPlateau and ModelCheckpoint continue with their best values and
    counts; callbacks of the script's own, and an EarlyStopping that restores the best weights, begin anew.

    Args:
        model: A keras.Model, built or not, compiled or not, with SGD, Adam, AdamW or Adagrad of
            keras.optimizers; see mpips.keras.rules for differences. Variables are float32, bfloat16 or
            float16. It is changed in place.
        consistency: Consistency model of all tables: "bsp", "ssp", "asp" or a value such as SSP(bound=2).
        compression: Codec of the pushes of trainable variables, such as "int8"; None: float32. See
            mpips.model.codec.
        pull_compression: Codec of the pulls of trainable variables, "bf16" or "int8", under BSP also "topk"
            or "onebit"; None: float32.
        placement: Where trainable variables are: "servers", "replicated" (every worker holds them and sums
            gradients with the others, under BSP), mpips.Replicated(...), or "auto": as the job decides at its
            start. The values are the same, bit by bit. Other variables are on servers.

    Returns:
        The model.

    Raises:
        ConfigError: The optimizer, a codec or the placement is not accepted, the model has been prepared
            before, the job has started, or `mpips.init` has not been called.
    """
    job = KerasJob.of_script("mpips.keras.prepare")
    rules = consistency_of(consistency) if isinstance(consistency, str) else consistency
    if isinstance(rules, Local):
        raise ConfigError(
            f"prepare: consistency = {rules.name!r}: must be 'bsp', 'ssp', 'asp' or 'auto' with Keras, whose "
            "metrics are combined at every step; mpips.torch.prepare takes LocalSGD and DiLoCo"
        )
    if not isinstance(model, keras.Model):
        raise ConfigError(f"prepare: model is {type(model).__name__}: must be a keras.Model")
    job.check_new(model, PreparedModel)
    codecs = common_codecs(compression, pull_compression)
    part = ModelTables(model, job, rules, *codecs, common_placement(placement, rules))
    part.take_optimizer()
    make_prepared(model, part)
    job.add_model(part)
    take_cores(job.script)
    return model
