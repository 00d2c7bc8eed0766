"""What kernels compute with each instruction set, as a digest. It is chosen once in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_FOLDERS = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "unit/kernels")]
_PROGRAM = """
import hashlib, sys
sys.path[:0] = sys.argv[1:]
import {module} as t
from mpips.kernels import kernels_name
digest = hashlib.blake2b()
{body}
print(kernels_name(), digest.hexdigest())
"""


def assert_same_bytes(kernels: str, module: str, body: str) -> None:
    """Compare the digests of an instruction set and of the scalar kernels, each in a process of its own.

    Args:
        kernels: Name of the instruction set.
        module: Module of tests/unit/kernels, which the body knows as `t`.
        body: Python that updates `digest`.
    """
    command = [sys.executable, "-c", _PROGRAM.format(module=module, body=body), *_FOLDERS]
    run = {
        name: subprocess.run(
            command,
            env={**os.environ, "MPIPS_KERNELS": name},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for name in {"scalar", kernels}
    }
    assert run[kernels][0] == kernels
    assert run[kernels][1] == run["scalar"][1]
