"""A torch script whose model is larger than the memory of a worker; each worker prints a line of JSON."""

import argparse
import hashlib
import json
import os
import pathlib
import resource
import signal

import mpips

options = argparse.ArgumentParser()
options.add_argument("--servers", type=int, default=1)
options.add_argument("--transport", default="auto")
options.add_argument("--stream", type=int)
options.add_argument("--cap", type=int, default=0, help="MiB that the worker may use from here on")
options.add_argument("--layers", type=int, default=4)
options.add_argument("--width", type=int, default=64)
options.add_argument("--steps", type=int, default=3)
options.add_argument(
    "--kill", default="", help="worker 0 dies in the middle of these backward passes"
)
options = options.parse_args()

mpips.init(servers=options.servers, transport=options.transport, timeout_s=40, verbose=False)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import mpips.torch  # noqa: E402

MIB = 1 << 20
if options.cap:
    status = pathlib.Path("/proc/self/status").read_text().splitlines()
    used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (used + options.cap * MIB,) * 2)

n_samples = 4 * options.steps * mpips.world_size()
generator = torch.Generator().manual_seed(11)
x = torch.randn(n_samples, options.width, generator=generator)
loader = DataLoader(TensorDataset(x), batch_size=4)
torch.manual_seed(7 if options.stream is None else 7 + mpips.rank())
with torch.device("meta" if options.stream else "cpu"):
    layers = [nn.Linear(options.width, options.width) for _ in range(options.layers)]
    model = nn.Sequential(*layers)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model, optimizer, loader = mpips.torch.prepare(model, optimizer, loader, stream=options.stream)

deaths = [int(clock) for clock in options.kill.split(",") if clock]
launch = int(os.environ.get("MPIPS_GENERATION", "0"))


def die_if_due(*_):
    due = deaths[launch] if launch < len(deaths) else -1
    if mpips.rank() == 0 and mpips.torch.steps() == due:
        os.kill(os.getpid(), signal.SIGKILL)


model[len(model) // 2].register_forward_hook(
    lambda _, __, output: output.register_hook(die_if_due) and None
)
losses = []
for (batch,) in loader:
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
digest = hashlib.sha256()
for name, parameter in model.named_parameters():
    digest.update(name.encode() + parameter.detach().numpy().tobytes())
refused = False
if options.cap:
    try:
        torch.ones(options.cap * MIB, dtype=torch.uint8)
    except RuntimeError:
        refused = True
found = {
    "worker": mpips.rank(),
    "digest": digest.hexdigest(),
    "losses": losses,
    "refused": refused,
    "mib": sum(p.numel() for p in model.parameters()) * 4 / MIB,
}
os.write(1, (json.dumps(found) + "\n").encode())
