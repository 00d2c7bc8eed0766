"""Workers that push and pull until something ends them. argv: ready file, JSON of options.

The ready file appears, with one line "rank pid role" per rank, when worker 0 has done 20 steps.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

import mpips
from mpips.mpi.launch import launched_rank

ready = Path(sys.argv[1])
options = json.loads(sys.argv[2])
consistency = {"bsp": mpips.BSP(), "ssp": mpips.SSP(2), "asp": mpips.ASP()}[options.pop("model")]
(ready.parent / f"rank-{launched_rank()}").write_text(str(os.getpid()))


def main(worker: mpips.Worker) -> None:
    dense, rows = worker.table("dense"), worker.table("rows")
    step = 0
    while True:
        dense.pull()
        rows.pull(np.arange(step, step + 50))
        dense.push(np.ones(1000, np.float32))
        rows.push(np.arange(step, step + 50), np.ones((50, 4), np.float32))
        worker.clock()
        step += 1
        if worker.index == 0 and step == 20:
            pids = sorted(ready.parent.glob("rank-*"))
            part = ready.with_suffix(".part")
            part.write_text("\n".join(f"{p.name[5:]} {p.read_text()}" for p in pids))
            part.rename(ready)


mpips.run(
    main,
    [
        mpips.DenseTable("dense", (1000,), consistency=consistency),
        mpips.EmbeddingTable("rows", 4, consistency=consistency),
    ],
    **options,
)
