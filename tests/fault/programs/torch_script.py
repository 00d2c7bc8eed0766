"""A plain torch script on the parameter server; each worker prints a line of JSON with its result."""

import argparse
import hashlib
import json
import os
import pathlib
import signal
import sys
import time

import mpips

options = argparse.ArgumentParser()
options.add_argument("--servers", type=int, default=1)
options.add_argument("--transport", default="auto")
options.add_argument("--consistency", default="bsp")
options.add_argument("--placement", default="servers")
options.add_argument("--batch", type=int, default=12)
options.add_argument("--epochs", type=int, default=2)
options.add_argument("--optimizer", default="SGD")
options.add_argument("--noise", action="store_true", help="dropout, batch norm and a scheduler")
options.add_argument("--unseeded", action="store_true")
options.add_argument(
    "--alternate", action="store_true", help="every second rate and beta is the first one"
)
options.add_argument("--report", action="store_true")
options.add_argument(
    "--log", action="store_true", help="a loop over mpips.torch.epochs, with a log in its state"
)
options.add_argument("--late", action="store_true", help="on the imitated device of the tests")
options.add_argument("--accumulate", action="store_true", help="two passes for each step")
options.add_argument("--momentum", type=float, default=0.0)
options.add_argument(
    "--kill",
    default="",
    help="worker 0 kills at these CLOCK[b][:ROLE], itself by default; b: in the middle of backward",
)
options = options.parse_args()

mpips.init(servers=options.servers, transport=options.transport, timeout_s=40, verbose=False)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import mpips.torch  # noqa: E402
from mpips.session.init import current  # noqa: E402

if options.late:
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "support"))
    import late_device

    late_device.imitate()


class Model(nn.Module):
    """Two linear layers and an embedding bag."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = mpips.torch.EmbeddingBag(
            4, mode="mean", optimizer=mpips.SGD(0.5), init="uniform(0.1)"
        )
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16) if options.noise else nn.Identity()
        self.drop = nn.Dropout(0.3 if options.noise else 0.0)
        self.last = nn.Linear(20, 3)

    def forward(self, x, ids):
        hidden = self.drop(torch.relu(self.norm(self.first(x))))
        return self.last(torch.cat([hidden, self.bag(ids)], dim=1))


torch.manual_seed(7)
x = torch.randn(144, 6)
ids = torch.randint(-(2**60), 2**60, (9,))[torch.randint(0, 9, (144, 3))]
y = (x[:, 0] > 0).long() + (ids[:, 0] > 0).long()
if options.unseeded:
    torch.manual_seed(100 + mpips.rank())
model = Model()
extra = {"momentum": options.momentum} if options.momentum else {}
optimizer = getattr(torch.optim, options.optimizer)(model.parameters(), lr=0.05, **extra)
size = 144 // options.batch // mpips.world_size() * options.epochs
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=size + 1)
if options.alternate:
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 + step % 2)
loader = DataLoader(TensorDataset(x, ids, y), batch_size=options.batch, shuffle=True)
model, optimizer, loader = mpips.torch.prepare(
    model,
    optimizer,
    loader,
    consistency=options.consistency,
    scheduler=scheduler,
    placement=options.placement,
)
deaths = [death for death in options.kill.split(",") if death]
launch = int(os.environ.get("MPIPS_GENERATION", "0"))


def pid_of(role):
    """The process of a role, by the run directory."""
    folder = pathlib.Path(os.environ["MPIPS_RUN_DIR"])
    while True:
        places = json.loads((folder / "places.json").read_text())
        if places["generation"] == launch:
            return next(rank["pid"] for rank in places["ranks"] if role in rank["role"])
        time.sleep(0.01)


def die_if_due(place=""):
    """Kill a rank: the n-th launch dies at the n-th clock of the list.

    With the role "all" no worker does more of that clock than worker 0.
    """
    due, _, role = deaths[launch].partition(":") if launch < len(deaths) else ("-1", "", "")
    if due != f"{current('the test').worker.now}{place}":
        return
    if mpips.rank() == 0:
        os.kill(pid_of(role) if role not in ("", "all") else os.getpid(), signal.SIGKILL)
    elif role == "all":
        signal.pause()


# The last layer's gradients are complete when backward comes here, and those of the first one are not.
model.first.register_full_backward_hook(lambda *_: die_if_due("b"))
losses = []
log = {"total": 0.0, "best": 1e9, "lines": []}
epochs = mpips.torch.epochs(options.epochs, state=log) if options.log else range(options.epochs)
for epoch in epochs:
    log["total"] = 0.0
    for a, b, c in loader:
        optimizer.zero_grad()
        if options.accumulate:
            with model.no_sync():
                nn.functional.cross_entropy(model(-a, b), c).backward()
        loss = nn.functional.cross_entropy(model(a, b), c)
        loss.backward()
        die_if_due()
        optimizer.step()
        losses.append(loss.item())
        log["total"] += losses[-1]
        if options.noise or options.alternate:
            scheduler.step()
        if options.alternate and "betas" in optimizer.param_groups[0]:
            betas = (0.9 if optimizer.param_groups[0]["betas"][0] < 0.9 else 0.8, 0.999)
            optimizer.param_groups[0]["betas"] = betas
        if options.report:
            mpips.report(loss=losses[-1], samples=len(c), epoch=epoch)
    if options.report and mpips.rank() == 0:
        mpips.report(epoch=epoch, accuracy=0.25 * (epoch + 1))
    if options.log:
        if log["total"] < log["best"] and mpips.rank() == 0:
            torch.save(model.state_dict(), "best.pt")
        log["best"] = min(log["best"], log["total"])
        rate = optimizer.param_groups[0]["lr"]
        log["lines"].append([epoch, mpips.torch.steps(), log["total"], log["best"], rate])
state = {name: value.clone() for name, value in model.state_dict().items()}
with torch.no_grad():
    rows = model.bag(torch.unique(ids).view(-1, 1))
state["bag"] = rows
digest = hashlib.sha256()
for name, value in state.items():
    digest.update(name.encode() + value.contiguous().numpy().tobytes())
found = {
    "worker": mpips.rank(),
    "digest": digest.hexdigest(),
    "losses": losses,
    "lr": optimizer.param_groups[0]["lr"],
    "log": log["lines"],
    "values": {name: value.double().flatten().tolist() for name, value in state.items()},
}
# One write, so that lines of ranks do not mix.
os.write(1, (json.dumps(found) + "\n").encode())
