"""Solve the heat equation in Python, not as a rank of the job, and push each step into the stream of heat.py.

Arguments: number of the producer; number of simulations. `mpips run` starts it with [producers] as well.
"""

import sys

import numpy as np

import mpips

CELLS, STEPS = 24, 40
NUMBER, RUNS = int(sys.argv[1]), int(sys.argv[2])

with mpips.attach("heat", NUMBER, timeout_s=120.0) as producer:
    for run in range(producer.produced // STEPS, RUNS):
        random = np.random.default_rng([NUMBER, run])
        conductivity = random.uniform(0.05, 0.25)
        field = random.standard_normal((CELLS + 2, CELLS + 2))  # with a halo
        for step in range(STEPS):
            field[0], field[-1] = field[-2], field[1]  # the field is periodic
            field[:, 0], field[:, -1] = field[:, -2], field[:, 1]
            inside = field[1:-1, 1:-1]
            around = field[:-2, 1:-1] + field[2:, 1:-1] + field[1:-1, :-2] + field[1:-1, 2:]
            after = inside + conductivity * (around - 4 * inside)
            if run * STEPS + step >= producer.produced:  # after a restart, go on where it ended
                producer.push({"before": inside, "after": after, "conductivity": conductivity})
            field[1:-1, 1:-1] = after
        steered = producer.steer()
        if steered is not None and steered.values[0] > 0:  # the trainers have learned enough
            break
    print(f"heat: producer {NUMBER} has pushed {producer.produced} samples", flush=True)
