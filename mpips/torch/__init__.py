"""PyTorch models on the parameter server: `prepare` after `mpips.init`, in an otherwise plain script.

Open `prepare.py` first, then `job.py`, which describes the first forward pass and each step.

`model_part.py` pulls the tables of one model, and `module.py` is the class of a prepared model. Tables are
in `parameters.py`, `device_table.py` (of a device), `buffers.py` and `embedding.py`, the gradients of rows
in `row_gradients.py`, rows in state dicts in `row_state.py`. `ngrams.py` is a memory of n-grams, and
`plain_ngrams.py` its copy without mpips. `by_use.py` waits for each value where a
function uses it; `watching.py` finds changes that the script makes.

`sharded.py` is what layers share that are divided between the workers, which `shard_workers.py` lets exchange
values. `sharded_linear.py` is a linear layer: `class_shards.py` its softmax over divided classes,
`feature_shards.py` its product of divided features. `sharded_embedding.py` is an embedding, `id_shards.py`
its lookups.

`epochs.py` has loops over epochs that restarts continue, and their states; `schedules.py` compares schedulers
with the length of a loader.

`stepping.py` is a prepared optimizer, `rules.py` finds its rule on the servers. `overlap.py` pushes
gradients within backward, `fingerprints.py` finds changes of them behind it, `skips.py` ends the clocks of
batches without a step, `losses.py` finds the loss of a step. `optimizer_state.py` is the state of an
optimizer before and after the servers have it, `row_moments.py` that of rows. `cursor.py` turns schedulers
and hyperparameters into entries of the cursor, `progress.py` reports.

`loader.py` has the prepared loader and `lookahead`. `sampling.py` divides a DataLoader among workers in the
order of `order.py`, and those without indices by `streams.py`; `sample_digests.py` finds streams that differ,
`generators.py` seeds random numbers.

`staged_model.py` is a model in stages, cut by `stage_cut.py`; `stage_profile.py` measures where, and
`stage_balance.py` finds the cut of least cost. `stage_run.py` computes its micro-batches, in
the order of `stage_order.py`; `stage_values.py` is what travels between stages.

`lightning.py` and `transformers.py` have the Trainers of these libraries; nothing here imports them.

`streaming.py` explains models that are larger than a worker. `streamed_model.py` makes one,
`streamed_table.py` has its parameters and layers, `streamed_gradients.py` pushes, `ahead.py` copies the
next layer, `blocks.py` maps memory.

`device.py` copies to and from accelerators, with the host memory of `device_memory.py`. `ddp.py` is a hook
for DistributedDataParallel, `loading.py` reads a checkpoint without a job, `handlers.py` refuses reads of
states within a step.
"""

try:
    import torch as _torch
except ImportError as error:
    from mpips.errors import CapabilityError

    raise CapabilityError(
        f"mpips.torch needs PyTorch 2.4 or newer ({error}): pip install torch"
    ) from None

from mpips.session.versions import check_version

check_version("torch", _torch.__version__, (2, 4), "mpips.torch")

from mpips.torch.ddp import CommState, comm_hook  # noqa: E402
from mpips.torch.device import device  # noqa: E402
from mpips.torch.embedding import Embedding, EmbeddingBag  # noqa: E402
from mpips.torch.job import epochs, steps  # noqa: E402
from mpips.torch.loader import lookahead, prepare_loader  # noqa: E402
from mpips.torch.loading import load_checkpoint  # noqa: E402
from mpips.torch.module import averaged  # noqa: E402
from mpips.torch.ngrams import NgramEmbedding  # noqa: E402
from mpips.torch.prepare import prepare  # noqa: E402
from mpips.torch.sharded_embedding import ShardedEmbedding  # noqa: E402
from mpips.torch.sharded_linear import ShardedLinear  # noqa: E402
from mpips.torch.stage_cut import AutoStages  # noqa: E402

__all__ = [
    "AutoStages",
    "CommState",
    "Embedding",
    "EmbeddingBag",
    "NgramEmbedding",
    "ShardedEmbedding",
    "ShardedLinear",
    "averaged",
    "comm_hook",
    "device",
    "epochs",
    "load_checkpoint",
    "lookahead",
    "prepare",
    "prepare_loader",
    "steps",
]
