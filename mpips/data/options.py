"""How a data file is to be read; the part of a job's configuration that readers see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec


class ReadOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of all readers; each reader looks at those that concern it.

    Attributes:
        format: A name in `READERS`; "auto" decides by the file's ending.
        index_base: libsvm: what features are counted from; "auto" means 0 if index 0 occurs
            anywhere in the file, else 1.
        label: csv: the label's column; by default "label" if there is one, else the first.
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
    categorical: tuple[str, ...] = ()
    numeric: Literal["auto", "raw", "log"] = "auto"
    empty: Literal["error", "zero"] = "error"
    split: Literal["train", "test"] = "train"
    split_seed: int = 0


@dataclass(frozen=True)
class Share:
    """Which samples a worker keeps: every `stride`-th, from `offset` on."""

    stride: int
    offset: int

    def __post_init__(self) -> None:
        """Refuse a share that no worker can have."""
        if not 0 <= self.offset < self.stride:
            raise ValueError(f"share {self.offset} of {self.stride}: needs 0 <= offset < stride")

    def owns(self, sample: int) -> bool:
        """Whether sample number `sample`, counted over the whole file, is kept."""
        return sample % self.stride == self.offset

    def first_from(self, sample: int) -> int:
        """Return the first kept sample at or after `sample`."""
        return sample + (self.offset - sample) % self.stride
