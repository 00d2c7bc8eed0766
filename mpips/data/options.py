"""How a data file is to be read; the part of a job's configuration that readers see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.shares import Shares, check_shares, owners

Wants: TypeAlias = Literal["classes", "targets"]

_CHUNK = 4096  # samples whose owners are computed at a time


class ReadOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of all readers; each reader looks at those that concern it.

    Attributes:
        format: A name in `READERS`; "auto" decides by the file's ending.
        index_base: libsvm: what features are counted from; "auto" means 0 if index 0 occurs
            anywhere in the file, else 1.
        label: csv: the label's column; by default "label", or else the only one named "y", "target" or
            "class" in small or capital letters. Without such a column the option is needed.
        wants: What labels are: "classes", or "targets", numbers to be predicted.
        columns: csv: the feature columns to read, in this order; () all but the label, in the file's order.
        categorical: csv: columns to hash, as names or patterns such as "C*". Any of them makes
            the data sparse.
        numeric: csv: what becomes of the other columns' numbers; "log" is sign(v) log(1 + |v|).
            "auto" is "log" in sparse data, which tasks cannot standardise, else "raw".
        empty: csv: whether an empty numeric cell is an error or 0. In sparse data it is absent.
        split: digits: which part.
        split_seed: digits: decides who is in which part.
    """

    format: str = "auto"
    index_base: Literal[0, 1, "auto"] = "auto"
    label: str | None = None
    wants: Wants = "classes"
    columns: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    numeric: Literal["auto", "raw", "log"] = "auto"
    empty: Literal["error", "zero"] = "error"
    split: Literal["train", "test"] = "train"
    split_seed: int = 0


@dataclass(frozen=True)
class Share:
    """The samples that worker `offset` of `stride` workers keeps, by the rule `shares`.

    Attributes:
        stride: Number of workers.
        offset: Index of the worker.
        shares: See `mpips.data.shares`.
    """

    stride: int
    offset: int
    shares: Shares = "interleaved"

    def __post_init__(self) -> None:
        """Refuse a share that no worker can have."""
        if not 0 <= self.offset < self.stride:
            raise ValueError(f"share {self.offset} of {self.stride}: needs 0 <= offset < stride")
        check_shares(self.shares)

    def numbers(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the numbers of the kept samples from `start` up to `stop`, ascending."""
        samples = np.arange(start, stop, dtype=np.int64)
        numbers: npt.NDArray[np.int64] = samples[
            owners(samples, self.stride, self.shares) == self.offset
        ]
        return numbers

    def flags(self) -> Iterator[bool]:
        """Yield for sample 0, 1, ... of the file whether it is kept; without end."""
        for start in count(0, _CHUNK):
            samples = np.arange(start, start + _CHUNK, dtype=np.int64)
            yield from (owners(samples, self.stride, self.shares) == self.offset).tolist()
