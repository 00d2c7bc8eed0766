"""A program that pushes 120 samples into a queue. argv: name, number, folder of program_rig. No rank."""

import sys

import numpy as np

sys.path.insert(0, sys.argv[3])

from program_rig import Program

program = Program(sys.argv[1], int(sys.argv[2]), 90.0)
program.declare("x", "float64", (300,))
program.declare("n", "int64", ())
for n in range(program.produced, 120):
    print(n, flush=True)
    program.push(np.full(300, 1000.0 * int(sys.argv[2]) + n), np.array(n, np.int64))
program.close()
print("closed", flush=True)
