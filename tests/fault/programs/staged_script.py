"""A torch script whose model is in stages; each worker writes WORKER.json, and worker 0 the whole state.

usage: staged_script.py FOLDER STAGES [OPTION=VALUE ...]

    epochs=2         epochs
    micro=3          micro-batches of half a batch
    schedule=1f1b    order of the micro-batches
    save=0           steps between two checkpoints
    kill=            WORKER:STEP:PASS, at which SIGKILL of that worker ends the first attempt: before it
                     computes its pass number PASS of the step
    fail=            WORKER:STEP, at which that worker raises
    strike=          WORKER:SIGNAL:CALL, a signal that this worker sends itself in the first attempt: before a
                     forward_backward, clip_grad_norm_ or evaluation of step 4 or later, or before
                     full_state_dict
    timeout=40       limit of all waits, s
    resume=auto      a checkpoint
    cut=number       auto: a measurement cuts the model; those of later attempts would cut it otherwise
    odd=             auto: WORKER, which gives an example of its own
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import mpips

FOLDER, STAGES = Path(sys.argv[1]), int(sys.argv[2])
OPTIONS = {
    "epochs": "2",
    "schedule": "1f1b",
    "save": "0",
    "kill": "",
    "fail": "",
    "strike": "",
    "timeout": "40",
    "resume": "auto",
    "micro": "3",
    "cut": "number",
    "odd": "",
}
OPTIONS |= dict(word.split("=") for word in sys.argv[3:])
saves = {"every_steps": int(OPTIONS["save"])} if OPTIONS["save"] != "0" else {}
limit = float(OPTIONS["timeout"])
mpips.init(servers=1, timeout_s=limit, verbose=False, resume=OPTIONS["resume"], **saves)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import mpips.torch  # noqa: E402
from mpips.torch import stage_profile, stage_run  # noqa: E402

torch.set_num_threads(1)
PIPELINES = max(mpips.world_size() // STAGES, 1)


class Pair(nn.Module):
    """A layer with a nested result: a tensor that goes on, and one that is passed by."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 12)

    def forward(self, x: torch.Tensor) -> dict:
        """Return both."""
        return {"h": self.layer(x), "skip": (x, 1.5)}


class Joined(nn.Module):
    """A layer whose argument is nested."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.skip = nn.Linear(12, 12), nn.Linear(8, 12)

    def forward(self, both: dict) -> torch.Tensor:
        """Return a tensor."""
        x, factor = both["skip"]
        return self.layer(torch.relu(both["h"])) + factor * self.skip(x)


class Model(nn.Module):
    """Modules that are called one after the other, with dropout and statistics of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, 4)
        self.pair, self.joined = Pair(), Joined()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.ReLU(inplace=True), nn.Linear(12, 12), nn.BatchNorm1d(12), nn.Dropout(0.2)
            )
            for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a score for each class."""
        x = self.joined(self.pair(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


is_first = os.environ.get("MPIPS_GENERATION", "0") == "0" and "SLANT" not in os.environ
plain_profiles = stage_profile.profile_units


def slanted(units: list, example: torch.Tensor) -> list:
    """Return profiles whose last units are slow in the first attempt, and whose first ones later."""
    found = plain_profiles(units, example)
    order = range(1, 1 + len(found)) if is_first else range(len(found), 0, -1)
    return [one._replace(ns=place**3) for place, one in zip(order, found, strict=True)]


stage_profile.profile_units = slanted
random = torch.Generator().manual_seed(5)
x = torch.randn(92, 8, generator=random)
y = torch.randint(0, 4, (92,), generator=random)
torch.manual_seed(1 + mpips.rank())  # the values of worker 0 count
model = Model()
n_parameters = sum(p.numel() for p in model.parameters())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
loader = DataLoader(TensorDataset(x, y), batch_size=24 // PIPELINES, shuffle=True)
stages = STAGES
if OPTIONS["cut"] == "auto":
    n_samples = 5 if OPTIONS["odd"] == str(mpips.rank()) else 4
    stages = mpips.torch.AutoStages(STAGES, x[:n_samples])
loader = mpips.torch.prepare_loader(loader, stages=stages)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=200)
model, optimizer = mpips.torch.prepare(model, optimizer, scheduler=scheduler, stages=stages)

log: dict = {"losses": [], "norms": [], "right": []}
latest = Path(os.environ.get("MPIPS_RUN_DIR", ".")) / "checkpoints" / "latest"


def when(name: str) -> list[int]:
    """Return the numbers of an option that are those of this worker and step; empty: none."""
    worker, *place = (int(part) for part in OPTIONS[name].split(":")) if OPTIONS[name] else (-1,)
    is_here = worker == mpips.rank() and place[0] == mpips.torch.steps()
    return place[1:] or [0] if is_here else []


def await_checkpoint() -> None:
    """Wait until there is a checkpoint."""
    deadline = time.monotonic() + 60
    while not latest.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def strike(call: str) -> None:
    """Send this process its signal in front of a call."""
    worker, number, struck = (OPTIONS["strike"] or "-1:0:").split(":")
    is_here = int(worker) == mpips.rank() and call == struck and mpips.torch.steps() >= 4
    if is_here and os.environ.get("MPIPS_GENERATION", "0") == "0":
        if OPTIONS["save"] != "0":
            await_checkpoint()
        os.kill(os.getpid(), int(number))


def doom(number: int) -> None:
    """Kill this process before pass `number` of the step, when the first checkpoint is there."""
    plain, count = stage_run._Step.run, iter(range(1000))
    step_of_kill = int(OPTIONS["kill"].split(":")[1])

    def run(step: stage_run._Step, stage: int, action: stage_run.Action) -> None:
        if next(count) == number:
            if step_of_kill > int(OPTIONS["save"]):
                await_checkpoint()
            os.kill(os.getpid(), signal.SIGKILL)
        plain(step, stage, action)

    stage_run._Step.run = run


for _ in mpips.torch.epochs(int(OPTIONS["epochs"]), state=log):
    model.train()
    for a, b in loader:
        if os.environ.get("MPIPS_GENERATION") == "0" and (place := when("kill")):
            doom(place[0])
        if when("fail"):
            raise ValueError("the planted error")
        optimizer.zero_grad()
        half = len(a) // 2
        strike("forward_backward")
        for part in (slice(0, half), slice(half, None)):  # gradients of two calls add up
            loss = model.forward_backward(
                a[part],
                b[part],
                lambda out, target: nn.functional.cross_entropy(out, target) / 2,
                micro_batches=int(OPTIONS["micro"]),
                schedule=OPTIONS["schedule"],
            )
        log["losses"].append(loss.item())
        strike("clip_grad_norm_")
        log["norms"].append(model.clip_grad_norm_(0.7).item())
        optimizer.step()
        scheduler.step()
    model.eval()
    strike("evaluation")
    log["right"].append(int((model(x).argmax(1) == y).sum()))

strike("full_state_dict")
state = model.full_state_dict()
own = sum(p.numel() for p in model.parameters())
choice = model._mpips_job.stages_choice
found = {
    **log,
    "ends": None if choice is None else choice.ends,
    "share": own / n_parameters,
    "lr": scheduler.get_last_lr(),
    "steps": mpips.torch.steps(),
}
if state is not None:
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in state.values()))
    found["digest"] = digest.hexdigest()
    torch.save(state, FOLDER / f"state-{mpips.rank()}.pt")
(FOLDER / f"{mpips.rank()}.json").write_text(json.dumps(found))
