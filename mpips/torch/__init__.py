"""PyTorch models on the parameter server: `prepare` after `mpips.init`, in an otherwise plain script.

Open `prepare.py`, then `job.py`, which says what happens at the first forward pass and at each step.
"""

try:
    import torch as _torch
except ImportError as error:
    from mpips.errors import CapabilityError

    raise CapabilityError(
        f"mpips.torch needs PyTorch 2.4 or newer ({error}): pip install torch"
    ) from None

from mpips.torch.version import check_version

check_version(_torch.__version__)

from mpips.torch.ddp import CommState, comm_hook  # noqa: E402
from mpips.torch.device import device  # noqa: E402
from mpips.torch.embedding import Embedding, EmbeddingBag  # noqa: E402
from mpips.torch.job import steps  # noqa: E402
from mpips.torch.loading import load_checkpoint  # noqa: E402
from mpips.torch.looking import lookahead  # noqa: E402
from mpips.torch.module import averaged  # noqa: E402
from mpips.torch.prepare import prepare  # noqa: E402

__all__ = [
    "CommState",
    "Embedding",
    "EmbeddingBag",
    "averaged",
    "comm_hook",
    "device",
    "load_checkpoint",
    "lookahead",
    "prepare",
    "steps",
]
