"""A program of [producers] that pushes 120 samples by mpips.attach.

It waits for the files "gate-40" and "gate-80" in its folder before it pushes the samples of these numbers.
"""

import os
import time
from pathlib import Path

import numpy as np

import mpips

number = int(os.environ["MPIPS_PRODUCER"])
until = time.monotonic() + 600
with mpips.attach(timeout_s=90.0) as producer:
    for n in range(producer.produced, 120):
        gate = Path(f"gate-{n // 40 * 40}")
        while n >= 40 and not gate.exists():
            if time.monotonic() > until:
                raise TimeoutError(f"{gate} is not there after ten minutes")
            time.sleep(0.02)
        producer.push({"x": np.full(300, 1000.0 * number + n), "n": n})
