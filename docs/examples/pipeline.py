"""A model in two stages: each worker computes one layer, and micro-batches travel between them."""

import numpy as np
from sklearn.datasets import load_digits

import mpips

STEPS, BATCH, MICRO = 150, 64, 16  # samples of a batch, and of a micro-batch
x, y = load_digits(return_X_y=True)
x = (x / 16).astype(np.float32)
optimizer = mpips.Adam(lr=0.005)
tables = [  # the update of a clock is the sum of all pushes: a worker pushes to the tables of its stage
    mpips.DenseTable("hidden", (64, 48), optimizer, mpips.BSP(reduce="sum"), "xavier"),
    mpips.DenseTable("output", (48, 10), optimizer, mpips.BSP(reduce="sum"), "xavier"),
]


def loss_gradient(scores, labels):
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1
    return p / BATCH


def train_step(worker, layers, is_first, is_last, rows):
    """Compute a batch in micro-batches: all forwards, then all backwards (GPipe)."""
    weights = [worker.table(name).pull() for name in layers]
    inputs, back = [], []
    for m, part in enumerate(rows):
        values = [x[part] if is_first else worker.recv(source=worker.index - 1, tag=m)]
        for name, weight in zip(layers, weights, strict=True):
            product = values[-1] @ weight
            values.append(np.maximum(product, 0) if name == "hidden" else product)
        inputs.append(values)
        if is_last:
            back.append(loss_gradient(values[-1], y[part]))
        else:
            worker.send(values[-1], to=worker.index + 1, tag=m)
    gradients = [np.zeros_like(weight) for weight in weights]
    for m, values in enumerate(inputs):
        d = back[m] if is_last else worker.recv(source=worker.index + 1, tag=m)
        for i in reversed(range(len(layers))):
            d = d * (values[i + 1] > 0) if layers[i] == "hidden" else d
            gradients[i] += values[i].T @ d
            d = d @ weights[i].T
        if not is_first:
            worker.send(d, to=worker.index - 1, tag=m)
    return gradients


def main(worker):
    n_stages = min(2, worker.n_workers)  # one worker has both layers
    pipeline, stage = divmod(worker.index, n_stages)
    n_pipelines = worker.n_workers // n_stages
    if worker.n_workers % n_stages:
        raise mpips.ConfigError(
            f"{worker.n_workers} workers: pipelines of two stages need an even number"
        )
    layers = (["hidden", "output"], ["hidden"], ["output"])[stage + n_stages - 1]
    first = worker.start.cursor["step"] if worker.start and worker.start.cursor else 0
    for step in range(first, STEPS):
        batch = np.random.default_rng([step, pipeline]).permutation(len(x))[:BATCH]
        rows = np.array_split(batch, BATCH // MICRO)
        gradients = train_step(worker, layers, stage == 0, stage == n_stages - 1, rows)
        for name, gradient in zip(layers, gradients, strict=True):
            worker.table(name).push(gradient / n_pipelines)
        worker.set_cursor({"step": step + 1})
        worker.clock()
    return [worker.table(name).pull() for name in ("hidden", "output")]


if __name__ == "__main__":
    outcome = mpips.run(main, tables)
    if outcome.is_first_worker:
        hidden, output = outcome.value
        accuracy = np.mean((np.maximum(x @ hidden, 0) @ output).argmax(axis=1) == y)
        print(f"accuracy {accuracy:.2f}")
