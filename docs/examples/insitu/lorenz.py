"""An ensemble of Lorenz-96: worker 1 serves its members, worker 0 learns their step by least squares."""

import numpy as np

import mpips

SITES, MEMBERS, N = 40, 4, 22  # variables of a state, programs, features of a variable

stream = mpips.StreamTable(
    "lorenz",
    {"state": (SITES,), "next": (SITES,), "forcing": ()},
    capacity=400,
    producers=MEMBERS,
    held_out=0.1,
)
sums = mpips.DenseTable("sums", (N, N + 1), mpips.SGD(1.0), consistency=mpips.ASP())


def features(batch):
    """Return what a change is a linear function of: products of neighbours, shape (n, SITES, N)."""
    near = np.stack([np.roll(batch["state"], by, -1) for by in (2, 1, 0, -1, -2)], -1) / 5
    one = np.ones_like(near[..., :1])
    forcing = one * batch["forcing"][:, None, None] / 10
    pairs = [near[..., i : i + 1] * near[..., i:] for i in range(5)]
    return np.concatenate([one, forcing, near, *pairs], -1)


def learn(worker):
    """Add up normal equations over random batches, then solve; return counts and held-out error."""
    reader, table = stream.reader(worker), worker.table("sums")
    for n, batch in enumerate(reader.batches(32, min_seen=1000, limit=600)):
        x = features(batch).reshape(-1, N)
        y = (batch["next"] - batch["state"]).reshape(-1, 1)
        table.push(-(x.T @ np.hstack([x, y])) / len(x))  # SGD subtracts it
        worker.set_cursor({"batches": n + 1})
        worker.clock()
    total = table.pull().astype(np.float64)
    w = np.linalg.solve(total[:, :N] + 1e-4 * np.eye(N), total[:, N])
    held_out = list(reader.all_held_out())
    change = np.concatenate([batch["next"] - batch["state"] for batch in held_out])
    off = np.concatenate([features(batch) @ w for batch in held_out]) - change
    return reader.counts(), float(np.sqrt(np.mean(off**2) / np.mean(change**2)))


def main(worker):
    if worker.index == 1:
        stream.serve(worker, producers=range(MEMBERS))
    return learn(worker) if worker.index == 0 else None


outcome = mpips.run(main, [stream, sums])
if outcome.is_first_worker:
    counts, error = outcome.value
    print(f"samples: {counts.produced}, producers: {counts.ended}")
    print(f"error of the learned step: {error:.4f} of a change")
    assert error < 0.1
