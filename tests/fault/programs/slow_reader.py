"""`mpips train` whose rank 2 reads for long. argv: "steps" or "stuck", seconds, timeout_s, more arguments."""

import sys
import time

from mpips.mpi import launch
from mpips.training import reading

how, seconds, timeout_s = sys.argv[1], float(sys.argv[2]), sys.argv[3]
read = reading.read


def slow_read(*arguments, **options):
    """Read as a slow disk lets it: block by block, or with one that never comes."""
    if launch.launched_rank() == 2:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.02 if how == "steps" else seconds)
    return read(*arguments, **options)


reading.read = slow_read
from mpips.cli import cli  # noqa: E402

cli.main(
    ["train", *sys.argv[4:], "--set", f"cluster.timeout_s={timeout_s}", "--quiet"],
    prog_name="mpips",
    standalone_mode=False,
)
