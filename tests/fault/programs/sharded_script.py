"""A torch script with a layer that is divided between its workers; worker 0 writes result.pt.

usage: sharded_script.py FOLDER [OPTION=VALUE ...]

    layer=classes    the divided layer: "classes", a last one by its outputs; "features", a first one by its
                     inputs; "rows", an embedding
    epochs=2         epochs
    save=0           steps between two checkpoints
    strike=          WORKER:SIGNAL:CALL, a signal that this worker sends itself in the first attempt, in
                     step 4 or later: before its "gather", "swap", "max", "sum", "backward" or "step"
    timeout=40       limit of all waits, s
    resume=auto      a checkpoint
"""

import os
import signal
import sys
import time
from pathlib import Path

import mpips

FOLDER = Path(sys.argv[1])
OPTIONS = {"layer": "classes", "epochs": "2", "save": "0", "strike": "", "timeout": "40"}
OPTIONS |= {"resume": "auto"}
OPTIONS |= dict(word.split("=") for word in sys.argv[2:])
saves = {"every_steps": int(OPTIONS["save"])} if OPTIONS["save"] != "0" else {}
limit = float(OPTIONS["timeout"])
mpips.init(servers=1, timeout_s=limit, verbose=False, resume=OPTIONS["resume"], **saves)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import mpips.torch  # noqa: E402
from mpips.torch import sharded  # noqa: E402

torch.set_num_threads(1)
latest = Path(os.environ.get("MPIPS_RUN_DIR", ".")) / "checkpoints" / "latest"


def strike(call: str) -> None:
    """Send this process its signal in front of a call."""
    worker, number, struck = (OPTIONS["strike"] or "-1:0:").split(":")
    is_here = int(worker) == mpips.rank() and call == struck and mpips.torch.steps() >= 4
    if is_here and os.environ.get("MPIPS_GENERATION", "0") == "0":
        deadline = time.monotonic() + 60
        while OPTIONS["save"] != "0" and not latest.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), int(number) or signal.SIGKILL)


class Struck(sharded.JobWorkers):
    """Workers of which one is ended in the middle of a step."""

    def gather(self, what: str, payload: bytes) -> list[bytes]:
        """As before."""
        strike("backward" if what.startswith("the gradients") else "gather")
        return super().gather(what, payload)

    def reduce(self, what: str, array, combine: str):
        """As before."""
        strike("backward" if what == "the gradients of the losses" else combine)
        return super().reduce(what, array, combine)

    def swap(self, parts):
        """As before."""
        strike("swap")
        return super().swap(parts)


sharded.JobWorkers = Struck
generator = torch.Generator().manual_seed(5)
x = torch.randn(96, 8, generator=generator)
y = torch.randint(0, 11, (96,), generator=generator)
if OPTIONS["layer"] == "rows":
    # Pairs of equal ids of workers are common, and the last rows are in few batches.
    x = (13 * torch.rand(96, 4, generator=generator).square()).long()
torch.manual_seed(1)


class Classes(nn.Module):
    """A small body, and a last layer of 11 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 6), nn.Tanh())
        self.head = mpips.torch.ShardedLinear(6, 11, optimizer=mpips.Adam(lr=0.02))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the last layer receives."""
        return self.body(x)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        return self.head.cross_entropy(self(x), y)

    def classes(self, x: torch.Tensor) -> torch.Tensor:
        """Return the best class of each sample."""
        return self.head.topk(self(x))[1]


class Wide(nn.Module):
    """A divided first layer, called twice in a step: of 8 features, or of 13 rows; and a head."""

    def __init__(self) -> None:
        super().__init__()
        rule = mpips.Adam(lr=0.02)
        self.wide: nn.Module
        if OPTIONS["layer"] == "rows":
            self.wide = mpips.torch.ShardedEmbedding(13, 6, padding_idx=2, optimizer=rule)
        else:
            self.wide = mpips.torch.ShardedLinear(8, 6, divide="in_features", optimizer=rule)
        self.head = nn.Linear(6, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of all classes."""
        found = self.wide(x) + self.wide(x.flip(0)).flip(0)
        return self.head(torch.tanh(found.mean(1) if found.ndim == 3 else found))

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        return nn.functional.cross_entropy(self(x), y)

    def classes(self, x: torch.Tensor) -> torch.Tensor:
        """Return the best class of each sample."""
        return self(x).argmax(1)


model = Classes() if OPTIONS["layer"] == "classes" else Wide()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
loader = DataLoader(TensorDataset(x, y), batch_size=24 // mpips.world_size(), shuffle=True)
model, optimizer, loader = mpips.torch.prepare(model, optimizer, loader)
for _ in mpips.torch.epochs(int(OPTIONS["epochs"])):
    for a, b in loader:
        optimizer.zero_grad()
        model.loss(a, b).backward()
        strike("step")
        optimizer.step()
with torch.no_grad():
    classes = model.classes(x)
state = {**model.state_dict(), "classes": classes, "steps": torch.tensor(mpips.torch.steps())}
if mpips.rank() == 0:
    torch.save(state, FOLDER / "result.pt")
