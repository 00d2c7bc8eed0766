"""A program of [producers] that pushes 120 samples and ends without closing its producer.

argv: folder of program_rig, seconds between samples, samples after which the first start of member 1
kills itself.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, sys.argv[1])

from program_rig import Program

number, once = int(os.environ["MPIPS_PRODUCER"]), Path("killed-once")
program = Program(None, 0, 90.0)
program.declare("x", "float64", (300,))
program.declare("n", "int64", ())
for n in range(program.produced, 120):
    if number == 1 and n == int(sys.argv[3]) and not once.exists():
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    program.push(np.full(300, 1000.0 * number + n), np.array(n, np.int64))
    time.sleep(float(sys.argv[2]))
