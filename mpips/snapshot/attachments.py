"""Arrays that a checkpoint contains beside the tables: what prediction needs of the training data.

They are known to the workers alone, once these have combined the moments of their data. Worker 0 sends them
to server 0, which writes the structure of the file: by the scheduler, in parts of at most `PART_BYTES`,
before its first clock. Server 0 begins no checkpoint before all of them are there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mpips.errors import CheckpointError
from mpips.mpi.messages import Attachment
from mpips.process.patience import Patience

# Bytes of a part. MPI sends a message of this size without waiting for the receiver, so the scheduler never
# waits for the rest of a message of worker 0, which may compute for long after it has sent it.
PART_BYTES = 3072

AnyArray = npt.NDArray[Any]


def send(tell: Callable[[Attachment], None], arrays: Mapping[str, AnyArray]) -> None:
    """Send arrays from worker 0 to server 0; returns at once.

    Args:
        tell: Sends a message to the scheduler.
        arrays: Arrays of numbers by path in the file; see `mpips.checkpoint.structure.meaning_of`.
    """
    for name, array in arrays.items():
        for part in parts(name, array):
            tell(part)


def parts(name: str, array: AnyArray) -> Iterator[Attachment]:
    """Yield the messages that send an array of numbers, of any shape; `name`: its path in the file."""
    kind = array.dtype.newbyteorder("<")
    data = np.ascontiguousarray(array, kind).tobytes()
    for start in range(0, max(len(data), 1), PART_BYTES):
        part = data[start : start + PART_BYTES]
        yield Attachment(name, tuple(array.shape), start, part, kind.str)


class Attachments:
    """The arrays that server 0 has received.

    Attributes:
        complete: The arrays by name; those of which a part is missing are not among them.
    """

    def __init__(self, expected: Sequence[str]) -> None:
        """Expect arrays with these names."""
        self._expected = frozenset(expected)
        self._arriving: dict[str, bytearray] = {}
        self.complete: dict[str, AnyArray] = {}

    @property
    def missing(self) -> list[str]:
        """Names of the expected arrays that are not complete, sorted."""
        return sorted(self._expected - self.complete.keys())

    def take(self, part: Attachment) -> None:
        """Take a part; the parts of an array come in their order."""
        data = self._arriving.setdefault(part.name, bytearray())
        # A worker sends an array once. A part that was taken already would double it.
        if part.start == len(data):
            data += part.data
        kind = np.dtype(part.dtype)
        if len(data) == kind.itemsize * math.prod(part.shape):
            self.complete[part.name] = np.frombuffer(bytes(data), kind).reshape(part.shape)
            del self._arriving[part.name]

    def awaited(self, limit_s: float) -> Iterator[object]:
        """Yield until all arrays are complete: worker 0 sends them first of all.

        Raises:
            CheckpointError: They do not come within `limit_s` seconds.
        """
        wait = Patience(limit_s)
        while missing := self.missing:
            if wait.is_over:
                raise CheckpointError(
                    f"worker 0 has not sent {', '.join(missing)}, which checkpoints of this job contain"
                )
            yield True
