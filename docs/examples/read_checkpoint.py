"""Save tables when training ends, and read the file with h5py."""

import h5py
import numpy as np

import mpips

tables = [
    mpips.DenseTable("weight", (64, 10), mpips.Adam(0.01)),
    mpips.EmbeddingTable("users", 8, mpips.Adagrad(0.1)),
]


def main(worker):
    weight, users = worker.table("weight"), worker.table("users")
    keys = np.arange(worker.index, 1500, worker.n_workers, dtype=np.int64)
    weight.push(np.ones((64, 10), np.float32))
    users.push(keys, np.ones((len(keys), 8), np.float32))
    worker.clock()


outcome = mpips.run(main, tables, save="checkpoints", resume="never")
if outcome.is_first_worker:
    with h5py.File("checkpoints/latest/state.h5") as file:
        print("step", file.attrs["step"])
        weight = file["tables/weight/values"][()]  # float32, shape (64, 10)
        moment = file["tables/weight/state/v"][()]  # the optimizer's second moment
        users = file["tables/users"]
        row = np.searchsorted(users["keys"], 42)  # keys are sorted
        print("weight", weight.shape, "moment", moment.shape, "users", users["values"].shape)
        print("the row of key 42:", np.round(users["values"][row][:3], 3))
        print(users.attrs["optimizer"].decode(), users.attrs["optimizer.lr"])
