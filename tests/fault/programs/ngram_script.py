"""A small language model with a memory of n-grams; each worker prints a line of JSON with its result."""

import argparse
import hashlib
import json
import os
import signal

import mpips

options = argparse.ArgumentParser()
options.add_argument("--batch", type=int, default=4)
options.add_argument("--ahead", type=int, default=None)
options.add_argument("--dtype", default="float32")
options.add_argument("--rule", default="SGD(4)")
options.add_argument("--plain", action="store_true", help="with torch's own table, without mpips")
options.add_argument("--kill", type=int, nargs="*", default=[], help="clocks at which launches end")
options = options.parse_args()

if not options.plain:
    mpips.init(servers=1, timeout_s=40, verbose=False)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import mpips.torch  # noqa: E402
from mpips.session.init import current  # noqa: E402
from mpips.torch.sampling import split  # noqa: E402

N_TOKENS, N_EPOCHS = 12, 3


class Model(nn.Module):
    """Tokens through a GRU, and a memory of n-grams."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.context = nn.Embedding(N_TOKENS, 8), nn.GRU(8, 8, batch_first=True)
        name, _, rate = options.rule.rstrip(")").partition("(")
        self.memory = mpips.torch.NgramEmbedding(
            rows=200,
            heads=2,
            dim=8,
            optimizer=getattr(mpips, name)(float(rate)),
            init="uniform(0.1)",
            row_dtype=options.dtype,
            ahead=options.ahead,
        )
        self.head = nn.Linear(8, N_TOKENS)

    def forward(self, tokens):
        if isinstance(self.memory, mpips.torch.NgramEmbedding):
            self.memory.announce(tokens)
        hidden, _ = self.context(self.tokens(tokens))
        return self.head(hidden + self.memory(tokens))


torch.manual_seed(7)
samples = torch.randint(0, N_TOKENS, (48, 9))
samples[:, 1::2] = (samples[:, ::2][:, :4] * 5 + 1) % N_TOKENS
model = Model()
if options.plain:
    # The initial rows are those of the job's table.
    none = {"memory.rows.keys": torch.zeros(0, dtype=torch.int64)}
    none["memory.rows.values"] = torch.zeros(0, 8)
    model.load_state_dict(none, strict=False)
    model.memory = model.memory.to_torch()
    groups = [
        {"params": [p for n, p in model.named_parameters() if not n.startswith("memory")]},
        {"params": model.memory.parameters(), "lr": 4.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(samples), batch_size=options.batch, shuffle=True)
if options.plain:
    loader = split(loader, 0, 1, 0)  # the order of an epoch is that of the job
else:
    model, optimizer, loader = mpips.torch.prepare(model, optimizer, loader)
launch = int(os.environ.get("MPIPS_GENERATION", "0"))
due = options.kill[launch] if launch < len(options.kill) else -1
losses = []
for _ in range(N_EPOCHS):
    for (batch,) in loader:
        optimizer.zero_grad()
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        if due >= 0 and mpips.rank() == 0 and current("the test").worker.now == due:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        losses.append(loss.item())
model.eval()
with torch.no_grad():
    outputs = model(samples[:2])
    if not options.plain:
        assert torch.equal(model.memory.to_torch()(samples), model.memory(samples))
digest = hashlib.sha256()
for value in model.state_dict().values():
    digest.update(value.contiguous().numpy().tobytes())
found = {
    "worker": 0 if options.plain else mpips.rank(),
    "losses": losses,
    "outputs": outputs.flatten().tolist(),
    "digest": digest.hexdigest(),
}
# One write, so that lines of ranks do not mix.
os.write(1, (json.dumps(found) + "\n").encode())
