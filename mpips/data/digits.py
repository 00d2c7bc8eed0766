"""Reader of the digits that are part of mpips: 1797 images of 8x8 pixels, ten classes, no download.

They are the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998).
scikit-learn contains the same images. digits.LICENSE states their licence.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mpips.data.columns import TableColumns
from mpips.data.dataset import DenseData
from mpips.data.info import Part, describe
from mpips.data.options import ReadOptions, Share
from mpips.data.sources import Converted, Span, every_turn
from mpips.model.distinct import distinct

TEST_FRACTION = 0.2  # of each class


class DigitsSource:
    """The training or the test part of the digits, one block; see `mpips.data.sources.SampleSource`.

    The parts have 80 and 20 per cent of each class, drawn with the seed `options.split_seed`.
    """

    columns: TableColumns | None = None
    notes: tuple[str, ...] = ()
    done = 0.0

    def __init__(
        self, path: str, options: ReadOptions, size: object = None, bad: object = None
    ) -> None:
        """Read nothing yet; only `options` has an effect."""
        self._options = options

    def read(self, share: Share) -> Part:
        """Read a share of the part."""
        options, (x, y) = self._options, _load()
        in_test = _draw_test(y, options.split_seed)
        rows = np.flatnonzero(in_test if options.split == "test" else ~in_test)
        own = rows[share.numbers(0, len(rows))]
        data = DenseData(np.ascontiguousarray(x[own], dtype=np.float32), y[own].astype(np.float64))
        return describe(data, len(rows), f"digits ({options.split})", wants=options.wants)

    def ends(self) -> list[int]:
        """Return the ends of one span."""
        return [0, 0]

    def blocks(
        self,
        span: Span | None = None,
        inside: tuple[bool, bool] = (False, False),
        turns: Iterator[bool] | None = None,
    ) -> Iterator[Converted | None]:
        """Yield all samples."""
        yield Converted(self.read(Share(1, 0)).data) if next(every_turn(turns)) else None


def _load() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return all images, shape (n, 64), and their classes, shape (n,)."""
    table = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)


def _draw_test(labels: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.bool_]:
    """Return True for the samples of the test part, bool, shape (n,); equally many of each class."""
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))
    in_test = np.zeros(len(labels), dtype=np.bool_)
    for label in distinct(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        in_test[members[: round(TEST_FRACTION * len(members))]] = True
    return in_test
