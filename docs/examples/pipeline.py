"""A model in two stages: each worker computes one layer, and micro-batches travel between them."""

import numpy as np
from sklearn.datasets import load_digits

import mpips

STEPS, BATCH, MICRO = 150, 64, 16  # samples of a batch, and of a micro-batch
x, y = load_digits(return_X_y=True)
x = (x / 16).astype(np.float32)
optimizer = mpips.Adam(lr=0.005)
tables = [  # the update of a clock is the mean of the pushes of the workers of the stage
    mpips.DenseTable("hidden", (64, 48), optimizer, init="xavier", stage=0),
    mpips.DenseTable("output", (48, 10), optimizer, init="xavier", stage=1),
]


def loss_gradient(scores, labels):
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1
    return p / BATCH


def train_step(worker, layers, rows):
    """Compute a batch in micro-batches: all forwards, then all backwards (GPipe)."""
    is_first, is_last = worker.stage == 0, worker.stage == worker.stages - 1
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
    layers = ["hidden", "output"]
    if worker.stages == 2:  # a single worker has both layers
        layers = [layers[worker.stage]]
    first = worker.start.cursor["step"] if worker.start and worker.start.cursor else 0
    for step in range(first, STEPS):
        batch = np.random.default_rng([step, worker.pipeline]).permutation(len(x))[:BATCH]
        rows = np.array_split(batch, BATCH // MICRO)
        gradients = train_step(worker, layers, rows)
        for name, gradient in zip(layers, gradients, strict=True):
            worker.table(name).push(gradient)
        worker.set_cursor({"step": step + 1})
        worker.clock()
    values = [worker.table(name).pull() for name in layers]
    if worker.index == 1:
        worker.send(values[0], to=0)
    elif worker.index == 0 and worker.stages == 2:
        values.append(worker.recv(source=1))
    return values


if __name__ == "__main__":
    outcome = mpips.run(main, tables)
    if outcome.is_first_worker:
        hidden, output = outcome.value
        accuracy = np.mean((np.maximum(x @ hidden, 0) @ output).argmax(axis=1) == y)
        print(f"accuracy {accuracy:.2f}")
