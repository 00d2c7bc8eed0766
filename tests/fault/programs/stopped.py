"""One rank stops itself at a place of the start-up or end. argv: the place, its rank, timeout_s, a folder."""

import os
import signal
import sys
import time
from pathlib import Path

import mpips
from mpips.mpi import launch

place, late, timeout_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
folder = Path(sys.argv[4])


def stop() -> None:
    if launch.launched_rank() == late:
        os.kill(os.getpid(), signal.SIGSTOP)


# Ranks load at different speed: no time counts before all are here.
(folder / str(launch.launched_rank())).touch()
while len(list(folder.iterdir())) < launch.launched_size():
    time.sleep(0.01)
if place == "mpi":
    stop()
    launch.load_mpi(timeout_s)
launch.load_mpi()
from mpips.mpi import cluster  # noqa: E402


class Stopping(cluster.Cluster):
    """Stops before the first meeting, or when ranks come to the place."""

    def __init__(self, *arguments):
        if place == "meeting":
            stop()
        super().__init__(*arguments)

    def agree(self, what, work, lengthy=False):
        if what.startswith(place):
            stop()
        return super().agree(what, work, lengthy)

    def arrive(self, what, **more):
        if what.startswith(place):
            stop()
        super().arrive(what, **more)


cluster.Cluster = Stopping
table = mpips.DenseTable("w", (8,))
mpips.run(lambda worker: None, [table], verbose=False, servers=1, timeout_s=timeout_s)
