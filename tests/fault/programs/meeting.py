"""Workers that meet, except one that argv[1] names and that goes wrong as argv[2] says; argv[3]: options."""

import json
import sys
import time

import mpips

odd, how, options = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])


def main(worker: mpips.Worker) -> None:
    worker.barrier("warm")
    if worker.index == odd and how == "ends":
        return
    if worker.index == odd and how == "computes":
        time.sleep(60)
    while worker.index == odd and how == "works":
        worker.clock()
        time.sleep(0.01)
    if worker.index == odd and how == "differs":
        worker.gather("rates", b"")
    worker.barrier("measured")


mpips.run(main, [mpips.DenseTable("w", (3,), consistency=mpips.ASP())], verbose=False, **options)
