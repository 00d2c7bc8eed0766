"""Factors of users and items from ratings: embedding tables with any int64 key."""

import numpy as np

import mpips

DIM = 4
N_RATINGS = 6000
rng = np.random.default_rng(7)
users = rng.integers(0, 200, N_RATINGS) * 1_000_003  # any int64 is a key
items = rng.integers(0, 100, N_RATINGS)
user_taste, item_taste = rng.normal(size=(200, 3)), rng.normal(size=(100, 3))
ratings = (user_taste[users // 1_000_003] * item_taste[items]).sum(axis=1).astype(np.float32)

tables = [
    mpips.EmbeddingTable("users", DIM, mpips.Adagrad(lr=0.3), init="normal(0.3)"),
    mpips.EmbeddingTable("items", DIM, mpips.Adagrad(lr=0.3), init="normal(0.3)"),
]


def main(worker):
    user_table, item_table = worker.table("users"), worker.table("items")
    mine = np.arange(worker.index, N_RATINGS, worker.n_workers)
    for epoch in range(20):
        order = np.random.default_rng([epoch, worker.index]).permutation(mine)
        for batch in np.array_split(order, 20):
            # A pull answers one row for each key, in the order of the keys; keys may repeat.
            u, v = user_table.pull(users[batch]), item_table.pull(items[batch])
            error = (u * v).sum(axis=1) - ratings[batch]
            user_table.push(users[batch], error[:, None] * v / len(batch))
            item_table.push(items[batch], error[:, None] * u / len(batch))
            worker.clock()
    predicted = (user_table.pull(users) * item_table.pull(items)).sum(axis=1)
    return float(np.sqrt(np.mean((predicted - ratings) ** 2)))


outcome = mpips.run(main, tables)
if outcome.is_first_worker:
    print(f"root mean square error {outcome.value:.2f}, ratings have {ratings.std():.2f}")
