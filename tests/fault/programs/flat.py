"""A script whose lines are the work of the worker. argv: POINT=ACTION or POINT=ACTION:WORKER, and NAME=VALUE.

The points of its life are `mid` (between init and the first pull), `values` (while the job starts), `start`,
`step` (in the third step), `last` and `child` (in a forked child).
"""

import contextlib
import os
import signal
import sys
import threading
import time

import numpy as np

import mpips

given = dict(word.split("=", 1) for word in sys.argv[1:])


def do(point: str) -> None:
    """Do what the command line wants at this point."""
    action, _, worker = given.get(point, "").partition(":")
    if not action or (worker and int(worker) != mpips.rank()):
        return
    if action == "raise":
        raise ValueError(f"at {point}")
    if action == "interrupt":
        raise KeyboardInterrupt
    if action.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, action))
    if action == "class":
        type("Made", (), {"attribute": Signalling()})
    if action == "second-launch" and os.environ["MPIPS_GENERATION"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    if action.startswith("exit-"):
        sys.exit(int(action[5:]))
    if action == "quit":
        quit(3)
    if action == "caught":
        with contextlib.suppress(SystemExit):
            sys.exit(7)
    if action == "thread":
        thread = threading.Thread(target=sys.exit, args=(7,))
        thread.start()
        thread.join()
    if action == "init":
        mpips.init()
    if action == "run":
        mpips.run(lambda worker: None, [mpips.DenseTable("other", (2,))])
    if action == "hook":
        sys.excepthook = lambda *error: None
    if action == "other-table":
        script.declare(mpips.DenseTable("other", (2,)))
    if action == "end":
        sys.exit()
    if action == "idle":
        time.sleep(30)
    if action == "busy":
        until = time.monotonic() + 2 * timeout_s
        while time.monotonic() < until:
            pass
    if action == "ready":
        print("ready", mpips.rank(), flush=True)
        time.sleep(30)
    if action == "fork":
        child = os.fork()
        if child == 0:
            do("child")
            return
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


class Signalling:
    """An attribute whose class is told to end while it is made."""

    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)  # the handler ends it


class Deadly(np.ndarray):
    """Values that kill the worker when it sends them, in the first launch."""

    def reshape(self, *shape):
        if os.environ["MPIPS_GENERATION"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().reshape(*shape)


def initial(size: int, index: int) -> np.ndarray:
    """Return the initial values of worker 0; other workers have others."""
    do("values")
    values = np.arange(size, dtype=np.float32) % 4096 + 10 * index + 100 * mpips.rank()
    return values.view(Deadly) if given.get("values") == "deadly" and index == 1 else values


timeout_s = float(given.get("timeout", 30))
saving = {name: given[name] for name in ("save", "resume", "on_usr1") if name in given}
mpips.init(servers=int(given.get("servers", 0)), timeout_s=timeout_s, verbose=False, **saving)

from mpips.session.init import current  # noqa: E402

do("mid")
script = current("the test")
sizes = [int(size) for size in given.get("sizes", "7,5").split(",")]
for index, size in enumerate(sizes):
    partition = mpips.LayerPartition() if index % 2 else mpips.RangePartition()
    table = mpips.DenseTable(f"w{index}", (size,), mpips.SGD(1.0), partition=partition)
    script.declare(table, lambda size=size, index=index: initial(size, index))
do("start")
worker = script.start()
tables = [worker.table(f"w{index}") for index in range(len(sizes))]
first = step = worker.cursor.get("step", 0)
while step < int(given.get("steps", 4)):
    if step == 2:
        do("step")
    for table in tables:
        table.pull()
        table.push(np.ones(table.shape, np.float32))
    step += 1
    worker.set_cursor({"step": step})
    worker.clock()
    if given.get("pace"):
        time.sleep(float(given["pace"]))
for index, table in enumerate(tables):
    expected = np.arange(sizes[index], dtype=np.float32) % 4096 + 10 * index - step
    assert np.array_equal(table.pull(), expected), f"w{index}"
# One write, so that lines of ranks do not mix.
os.write(1, f"worker {mpips.rank()} of {mpips.world_size()}: steps {first} to {step}\n".encode())
do("last")
